package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The folder of the logs is deleted while they are followed, and made again by the next worker.
func TestFollowOutlivesTheFolder(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "logs")
	ctx, cancel := context.WithCancel(t.Context())
	var out lockedBuilder
	done := make(chan error, 1)
	go func() { done <- showLogs(ctx, dir, 10, true, &out) }()
	for n, line := range []string{"one", "two", "three"} {
		require.NoError(t, os.MkdirAll(dir, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(dir, strings.Repeat("1", n+1)+".log"), []byte(line+"\n"), 0o600))
		eventually(t, func() bool { return strings.Contains(out.String(), line+"\n") }, func() string { return line + " is shown" })
		require.NoError(t, os.RemoveAll(dir))
	}
	cancel()
	require.NoError(t, <-done)
}
