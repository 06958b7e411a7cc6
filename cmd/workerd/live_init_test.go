package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// What init writes validates and passes its smoke test in every kind of environment.
func TestLiveInit(t *testing.T) {
	eachKind(t, allKinds, func(t *testing.T, l *live) {
		args := []string{"init", "words", "--kind", l.kind}
		switch l.kind {
		case manifest.Venv:
		case manifest.Apptainer:
			args = append(args, "--sif", l.image("small"))
		default:
			args = append(args, "--image", l.image("small"))
		}
		folder := strings.TrimSpace(l.ok(args...))
		require.Contains(t, l.ok("validate", folder), "ok: words")
		require.Contains(t, l.ok("explain", folder), l.kind)
		require.Contains(t, l.ok("smoke", folder), "words: passed")
	})
}
