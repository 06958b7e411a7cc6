package main

import (
	"context"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Whatever of the two a cleaner takes comes back, and holds.
func TestLockAndControlSocketArePutBack(t *testing.T) {
	r := newRig(t)
	a := r.app()
	log := slog.New(slog.DiscardHandler)
	i := &instance{app: a, log: log, dirs: &dirs{runtime: filepath.Join(r.dir, "run")}, listeners: newFDStore("", nil, log)}
	require.NoError(t, os.Mkdir(i.dirs.runtime, 0o700))
	var err error
	i.lock, err = lockRuntimeDir(i.dirs.runtime)
	require.NoError(t, err)
	t.Cleanup(func() { _ = i.lock.Close() })
	l, err := i.listeners.Listen(controlName, i.socket(), nil)
	require.NoError(t, err)
	listener := &controlListener{now: l}
	t.Cleanup(func() { _ = listener.Close() })

	file := filepath.Join(i.dirs.runtime, "lock")
	for what, harm := range map[string]func() error{
		"nothing":         func() error { return nil },
		"the lock":        func() error { return os.Remove(file) },
		"another file":    func() error { return os.Rename(r.write("other", "1\n"), file) },
		"the socket":      func() error { return os.Remove(i.socket()) },
		"the directory":   func() error { return os.RemoveAll(i.dirs.runtime) },
		"the second time": func() error { return os.Remove(file) },
	} {
		was, held := listener.current(), i.lock
		require.NoError(t, harm(), what)
		require.NoError(t, i.putBack(listener), what)
		socket := strings.HasSuffix(what, "socket") || strings.HasSuffix(what, "directory")
		require.Equal(t, socket, was != listener.current(), what)
		require.Equal(t, what == "nothing" || what == "the socket", held == i.lock, what)
		_, err := lockRuntimeDir(i.dirs.runtime)
		require.ErrorContains(t, err, "serves "+i.dirs.runtime+" already", what)
		c, err := net.Dial("unix", i.socket())
		require.NoError(t, err, what)
		require.NoError(t, c.Close())
	}

	// Another one has it by now: that is not disturbed.
	require.NoError(t, os.Remove(file))
	other, err := lockRuntimeDir(i.dirs.runtime)
	require.NoError(t, err)
	require.ErrorContains(t, i.putBack(listener), "serves")
	require.NoError(t, other.Close())
	require.NoError(t, i.putBack(listener))
}

// A workerd whose lock was deleted is not disturbed by who starts before it is back.
func TestServeBesideOneWithoutItsLock(t *testing.T) {
	r := newRig(t)
	r.serve(&fakeBackend{})
	theirs := r.write("run/w/echo-1/sock", "")
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	cmd := r.binary("serve")
	out := make(chan []byte, 1)
	var err error
	go func() {
		var text []byte
		text, err = cmd.CombinedOutput()
		out <- text
	}()
	select {
	case text := <-out:
		require.Error(t, err)
		require.Contains(t, string(text), "something listens on "+filepath.Join(r.dir, "run/workerd.sock")+" although its lock is free")
		require.Contains(t, string(text), "hint: stop it first")
	case <-ctx.Done():
		_ = cmd.Process.Kill()
		t.Fatal("it serves")
	}
	require.FileExists(t, theirs)
}
