package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// What has been rotated away is still the end of what a worker said.
func TestTheEndOfALogThatWasRotated(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "1.log")
	for name, text := range map[string]string{"0.log": "an earlier worker\n", "1.log.2": "one\ntwo\n", "1.log.1": "three\nfour\n", "1.log": "five\n"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600))
	}
	for n, want := range map[int]string{1: "five\n", 2: "four\nfive\n", 4: "two\nthree\nfour\nfive\n", 6: "an earlier worker\none\ntwo\nthree\nfour\nfive\n"} {
		var out strings.Builder
		require.NoError(t, showLogs(t.Context(), new(rotations), dir, n, false, &out))
		require.Equal(t, want, out.String(), "%d lines", n)
	}
	require.Equal(t, "three\nfour\nfive\n", tail(log, 1000))
	require.Equal(t, "four\nfive\n", tail(log, 12), "whole lines")
	require.NoError(t, os.Truncate(log, 0))
	require.Equal(t, "three\nfour\n", tail(log, 1000))
}

// The folder of the logs is deleted while they are followed, and made again by the next worker.
func TestFollowOutlivesTheFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	ctx, cancel := context.WithCancel(t.Context())
	var out lockedBuilder
	done := make(chan error, 1)
	go func() { done <- showLogs(ctx, new(rotations), dir, 10, true, &out) }()
	for n, line := range []string{"one", "two", "three"} {
		require.NoError(t, os.MkdirAll(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, strings.Repeat("1", n+1)+".log"), []byte(line+"\n"), 0o600))
		eventually(t, func() bool { return strings.Contains(out.String(), line+"\n") }, func() string { return line + " is shown" })
		require.NoError(t, os.RemoveAll(dir))
	}
	cancel()
	require.NoError(t, <-done)
}
