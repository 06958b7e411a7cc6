package supervisor

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/protocol/prototest"
)

// A number is never given twice: not over a restart, nor where the counter's file was torn.
func TestNumbersNeverRepeat(t *testing.T) {
	dir := t.TempDir()
	path, logs := filepath.Join(dir, "numbers"), filepath.Join(dir, "logs")
	open := func() *numbers {
		n, err := openNumbers(path, logs, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		return n
	}
	last := int64(0)
	take := func(n *numbers) {
		t.Helper()
		v := n.take()
		require.Greater(t, v, last)
		last = v
	}
	n := open()
	for range 2*numberBlock + 1 {
		take(n)
	}
	take(open())
	require.NoError(t, os.MkdirAll(filepath.Join(logs, "ocr"), 0o700))
	for _, name := range []string{"301.log", "7.log", "x.log", "301.log.1"} {
		require.NoError(t, os.WriteFile(filepath.Join(logs, "ocr", name), nil, 0o600))
	}
	for _, torn := range []string{"", "\x00\x00", "-5\n", "none\n", "deleted"} {
		require.NoError(t, os.WriteFile(path, []byte(torn), 0o600))
		if torn == "deleted" {
			require.NoError(t, os.Remove(path))
		}
		last = 301
		n := open()
		for range numberBlock + 1 {
			take(n)
		}
		take(open())
	}
	// The state directory was deleted, and a worker lives that has its number from before.
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.RemoveAll(logs))
	n = open()
	require.EqualValues(t, 1, n.peek())
	n.above(4711)
	n.above(12)
	last = 4711
	take(n)
	take(open())
}

// A full disk keeps no workerd from starting, and no number is given twice because of it.
func TestNumbersOnAFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		prototest.Needs(t, "root", "a file system of its own is to be mounted")
	}
	dir := t.TempDir()
	if err := syscall.Mount("none", dir, "tmpfs", 0, "size=64k"); err != nil {
		prototest.Needs(t, "mount", err.Error())
	}
	t.Cleanup(func() { require.NoError(t, syscall.Unmount(dir, 0)) })
	path, logs := filepath.Join(dir, "numbers"), filepath.Join(dir, "logs")
	open := func() *numbers {
		n, err := openNumbers(path, logs, slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		return n
	}
	log := func(v int64) {
		require.NoError(t, os.WriteFile(filepath.Join(logs, "x", fmt.Sprintf("%d.log", v)), nil, 0o600))
	}
	require.NoError(t, os.MkdirAll(filepath.Join(logs, "x"), 0o700))
	last := open().take()
	log(last)
	_, err := os.ReadFile(path)
	require.NoError(t, err)
	require.ErrorIs(t, os.WriteFile(filepath.Join(dir, "full"), make([]byte, 1<<20), 0o600), syscall.ENOSPC)
	for range 3 {
		n := open()
		for range 2 {
			v := n.take()
			require.Greater(t, v, last)
			last = v
			log(v)
		}
	}
	require.NoError(t, os.Remove(filepath.Join(dir, "full")))
	require.Greater(t, open().take(), last)
}

// What an operator stopped stays stopped.
func TestStopsAreRemembered(t *testing.T) {
	s := &stops{dir: filepath.Join(t.TempDir(), "stops"), log: slog.New(slog.DiscardHandler)}
	require.False(t, s.held("ocr"))
	s.set("ocr", true)
	s.set("ocr", true)
	require.True(t, s.held("ocr"))
	require.False(t, s.held("fold"))
	s.set("ocr", false)
	s.set("ocr", false)
	require.False(t, s.held("ocr"))
}
