package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// moved applies the documented edit to the manifest of providers/ocr.
func moved(t *testing.T) string {
	t.Helper()
	blocks := fenced(documents(t)["docs/environments.md"], "diff")
	require.Len(t, blocks, 1)
	text := string(mustRead(t, filepath.Join(repository, "providers/ocr/provider.toml")))
	edited := 0
	var old, now []string
	flush := func() {
		if len(old)+len(now) == 0 {
			return
		}
		lines := strings.Join(old, "\n") + "\n"
		require.Contains(t, text, lines, "the edit fits the file")
		if edited += max(len(old), len(now)); len(now) > 0 {
			now = append(now, "")
		}
		text = strings.Replace(text, lines, strings.Join(now, "\n"), 1)
		old, now = nil, nil
	}
	for line := range strings.Lines(blocks[0]) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "-"):
			old = append(old, line[1:])
		case strings.HasPrefix(line, "+"):
			now = append(now, line[1:])
		default:
			flush()
			require.Contains(t, text, strings.TrimPrefix(line, " "))
		}
	}
	flush()
	require.Equal(t, 3, edited, "three lines")
	return text
}

func TestMovingOCRIntoAnImage(t *testing.T) {
	text := moved(t)
	m, warnings, err := manifest.Parse([]byte(text), filepath.Join(repository, "providers/ocr/provider.toml"), manifest.Options{UID: os.Geteuid()})
	require.NoError(t, err)
	require.Empty(t, warnings)
	require.Equal(t, manifest.Docker, m.Env.Kind)
	require.Equal(t, "workerd-ocr:1", m.Env.Image)
	require.Empty(t, m.Weights.Root)
}

// And it works: the smoke test passes with the documented edit, in each kind.
func TestLiveMovingOCRIntoAnImage(t *testing.T) {
	eachKind(t, containers, func(t *testing.T, l *live) {
		l.has("ocr")
		folder := filepath.Join(l.manifests(), "ocr")
		require.NoError(t, os.CopyFS(folder, os.DirFS(filepath.Join(repository, "providers/ocr"))))
		text := moved(t)
		require.Contains(t, text, "kind   = \"docker\"\nimage  = \"workerd-ocr:1\"\n")
		text = strings.Replace(text, "kind   = \"docker\"\nimage  = \"workerd-ocr:1\"\n", l.envKeys("ocr"), 1)
		require.NoError(t, os.WriteFile(filepath.Join(folder, "provider.toml"), []byte(text), 0o644))
		require.Contains(t, l.ok("smoke", folder), "ocr: passed")
	})
}
