package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestE2EOneWorkerdARuntimeDirectory(t *testing.T) {
	e := newE2E(t)
	e.bare("x", "")
	e.start()
	pid := e.ready("x")
	for range 3 {
		said := e.fails(exitFailed, "serve")
		require.Contains(t, said, fmt.Sprintf("another workerd (pid %d)", e.pid()))
		require.Contains(t, said, "--runtime-dir", "what to do next")
	}
	require.Equal(t, pid, e.call(e.dial("x"), "echo", "{}").PID, "which hurt nobody")

	// Another runtime directory is another instance.
	other := filepath.Join(e.dir, "other")
	cmd := e.command("serve", "--runtime-dir", other, "--state-dir", filepath.Join(e.dir, "state2"))
	var log lockedBuffer
	cmd.Stderr = &log
	require.NoError(t, cmd.Start())
	e.until("it serves", func() bool { return strings.Contains(log.String(), "msg=ready") })
	e.until("its worker is ready", func() bool { return strings.Contains(log.String(), "state=ready") })
	require.Equal(t, pid, e.ready("x"))
	require.NoError(t, cmd.Process.Kill())
	require.Error(t, cmd.Wait())
	cmd = e.command("serve", "--runtime-dir", other, "--state-dir", filepath.Join(e.dir, "state2"))
	require.NoError(t, cmd.Start())
	w := new(wire)
	e.until("the next one serves there", func() bool {
		var err error
		w, err = connect(filepath.Join(other, "front/x/sock"))
		return err == nil
	})
	require.NotEqual(t, pid, e.call(w, "echo", "{}").PID)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
	require.Equal(t, pid, e.ready("x"), "neither its end nor its death touched the workers of this one")
}

// Case 59: nobody else can connect, whatever the umask.
func TestE2ECase59ModesAreThoseOfTheCallerAlone(t *testing.T) {
	old := syscall.Umask(0)
	defer syscall.Umask(old)
	e := newE2E(t)
	e.provider("x", "")
	e.start()
	e.ready("x")
	sockets := 0
	require.NoError(t, filepath.WalkDir(e.runtimeDir(), func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		info, err := d.Info()
		require.NoError(t, err)
		switch {
		case d.IsDir():
			require.EqualValues(t, 0o700, info.Mode().Perm(), path)
		case d.Type() == fs.ModeSocket:
			sockets++
			if filepath.Base(path) != "1.sock" { // the worker's own, made by the worker, in a folder that nobody else can enter
				require.EqualValues(t, 0o600, info.Mode().Perm(), path)
			}
		case d.Type().IsRegular():
			require.EqualValues(t, 0o600, info.Mode().Perm(), path)
		}
		return nil
	}))
	require.Equal(t, 3, sockets, "control, front and worker socket")
	for _, dir := range []string{"state/workerd", "cache/workerd"} {
		info, err := os.Stat(filepath.Join(e.dir, dir))
		require.NoError(t, err)
		require.EqualValues(t, 0o700, info.Mode().Perm(), dir)
	}
	link, err := os.Readlink(filepath.Join(e.runtimeDir(), "x.sock"))
	require.NoError(t, err)
	require.Equal(t, "front/x/sock", link)
}

// fallback is where the runtime directory goes when the session has no good one. A job id makes it this test's own.
func (e *e2e) fallback() string {
	e.env["SLURM_JOB_ID"] = "e2e" + filepath.Base(e.dir)
	return fmt.Sprintf("/tmp/workerd-%d-%s", os.Geteuid(), e.env["SLURM_JOB_ID"])
}

// Cases 52 and 58: a runtime directory that is no good is not used, not mended, and it is said.
func TestE2ECase58ABadRuntimeDirectoryIsNotUsed(t *testing.T) {
	for name, tc := range map[string]struct {
		make func(e *e2e) string
		says string
	}{
		"unset":          {func(*e2e) string { return "" }, "not set"},
		"relative":       {func(*e2e) string { return "run" }, "relative"},
		"missing":        {func(e *e2e) string { return filepath.Join(e.dir, "missing") }, "no such file"},
		"world-writable": {func(e *e2e) string { return chmod(e, 0o777) }, "written by others"},
		"group-writable": {func(e *e2e) string { return chmod(e, 0o770) }, "written by others"},
		"too long": {func(e *e2e) string {
			dir := filepath.Join(e.dir, strings.Repeat("d", 120-len(e.dir)))
			require.NoError(e.t, os.Mkdir(dir, 0o700))
			return dir
		}, "bytes"},
		"foreign": {func(e *e2e) string {
			if os.Geteuid() != 0 {
				return "/" // root's
			}
			dir := filepath.Join(e.dir, "run")
			require.NoError(e.t, os.Chown(dir, 4242, 4242))
			return dir
		}, "belongs to uid"},
	} {
		t.Run(name, func(t *testing.T) {
			e := newE2E(t)
			dir := tc.make(e)
			e.env["XDG_RUNTIME_DIR"] = dir
			fallback := e.fallback()
			t.Cleanup(func() { _ = os.RemoveAll(fallback) })
			before, _ := os.Stat(dir)
			e.bare("x", "")
			e.start()
			require.Contains(t, e.log.String(), tc.says)
			require.Contains(t, e.log.String(), fallback)
			info, err := os.Stat(fallback)
			require.NoError(t, err)
			require.EqualValues(t, 0o700, info.Mode().Perm())
			require.Contains(t, e.ok("start", "x"), "ready", "the commands look there as well")
			e.ok("call", "x", "echo", "{}")
			if before != nil && filepath.IsAbs(dir) {
				after, err := os.Stat(dir)
				require.NoError(t, err)
				require.Equal(t, before.Mode(), after.Mode(), "not mended")
				require.Equal(t, before.Sys().(*syscall.Stat_t).Uid, after.Sys().(*syscall.Stat_t).Uid)
			}
			_, err = e.signalled(syscall.SIGTERM)
			require.NoError(t, err)
			left, err := filepath.Glob(filepath.Join(fallback, "*"))
			require.NoError(t, err)
			for _, path := range left {
				info, err := os.Lstat(path)
				require.NoError(t, err)
				require.Zero(t, info.Mode().Type()&(fs.ModeSocket|fs.ModeSymlink), path)
			}
		})
	}
}

func chmod(e *e2e, mode os.FileMode) string {
	dir := filepath.Join(e.dir, "run")
	require.NoError(e.t, os.Chmod(dir, mode))
	return dir
}

// Case 52: a directory that was asked for and is too long is refused before anything starts, and so is a foreign one.
func TestE2ECase52ATooLongRuntimeDirectoryIsRefused(t *testing.T) {
	e := newE2E(t)
	e.bare("x", "")
	dir := filepath.Join(e.dir, strings.Repeat("d", 120-len(e.dir)))
	said := e.cli("serve", "--runtime-dir", dir)
	require.NotEqual(t, exitOK, said.code)
	require.Contains(t, said.err, "107")
	require.Contains(t, said.err, "--runtime-dir")
	require.NoDirExists(t, dir)

	open := filepath.Join(e.dir, "open")
	require.NoError(t, os.Mkdir(open, 0o700))
	require.NoError(t, os.Chmod(open, 0o777))
	require.Contains(t, e.fails(exitFailed, "serve", "--runtime-dir", open), "0777")
	file := filepath.Join(e.dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.Contains(t, e.fails(exitFailed, "serve", "--runtime-dir", file), "no directory")

	// Two long names that begin alike have sockets of their own, or are refused; never one for both.
	long := strings.Repeat("a", 39)
	e.bare(long+"1", "[start]\nwhen = \"request\"\n")
	e.bare(long+"2", "[start]\nwhen = \"request\"\n")
	e.start()
	first := e.call(e.dial(long+"1"), "echo", "{}").PID
	require.NotEqual(t, first, e.call(e.dial(long+"2"), "echo", "{}").PID)
}

// Case 53: what lies where a socket should be.
func TestE2ECase53WhatIsInTheWay(t *testing.T) {
	long(t)
	e := newE2E(t)
	e.bare("x", "[start]\nwhen = \"request\"\n")
	require.NoError(t, os.MkdirAll(filepath.Dir(e.front("x")), 0o700))
	require.NoError(t, os.WriteFile(e.front("x"), []byte("precious"), 0o600))
	e.start()
	p := e.state("x", "invalid")
	require.Contains(t, p.ManifestError[0].Message, "in the way")
	require.Equal(t, "precious", string(mustRead(t, e.front("x"))))
	require.NoError(t, os.Remove(e.front("x")))
	e.ok("reload")
	e.until("it is served", func() bool { _, err := os.Stat(e.front("x")); return err == nil })
	e.call(e.dial("x"), "echo", "{}")

	// Case 57: the runtime directory goes away under it, again and again.
	w := e.dial("x")
	e.call(w, "echo", "{}")
	files := openFiles(t, e.pid())
	for range 2 {
		e.until("it is removed", func() bool { return os.RemoveAll(e.runtimeDir()) == nil }) // while it may be made again
		e.until("the front socket is back", func() bool { _, err := os.Stat(e.front("x")); return err == nil })
		e.until("the control socket is back", func() bool { return e.cli("status").code == exitOK })
		another, err := connect(e.front("x"))
		require.NoError(t, err)
		e.call(another, "echo", "{}")
		require.NoError(t, another.conn.Close())
	}
	e.call(w, "echo", "{}")
	e.until("the listeners of paths that are gone are closed", func() bool { return openFiles(t, e.pid()) <= files })
}
