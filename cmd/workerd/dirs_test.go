package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

func TestDirectories(t *testing.T) {
	r := newRig(t)
	delete(r.env, "WORKERD_RUNTIME_DIR")
	xdg := filepath.Join(r.dir, "x")
	require.NoError(t, os.Mkdir(xdg, 0o700))
	r.env["XDG_RUNTIME_DIR"] = xdg
	host, err := os.Hostname()
	require.NoError(t, err)

	d, err := r.app().dirs()
	require.NoError(t, err)
	require.Equal(t, dirs{
		runtime: filepath.Join(xdg, "workerd"),
		state:   filepath.Join(r.dir, ".local/state/workerd", host),
		cache:   filepath.Join(r.dir, ".cache/workerd"),
	}, *d)

	r.env["XDG_STATE_HOME"], r.env["XDG_CACHE_HOME"] = "/s", "relative"
	d, err = r.app().dirs()
	require.NoError(t, err)
	require.Equal(t, filepath.Join("/s/workerd", host), d.state)
	require.Equal(t, filepath.Join(r.dir, ".cache/workerd"), d.cache, "a relative one counts as unset")

	r.env["SLURM_JOB_ID"] = "4711"
	d, err = r.app().dirs()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(xdg, "workerd-4711"), d.runtime)
	r.env["SLURM_JOB_ID"] = "../x"
	d, err = r.app().dirs()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(xdg, "workerd"), d.runtime)
}

func TestCase58UntrustedXDGRuntimeDirIsNotUsed(t *testing.T) {
	r := newRig(t)
	delete(r.env, "WORKERD_RUNTIME_DIR")
	fallback := filepath.Join(r.dir, "workerd-"+strconv.Itoa(os.Geteuid()))
	writable := filepath.Join(r.dir, "writable")
	require.NoError(t, os.Mkdir(writable, 0o700))
	require.NoError(t, os.Chmod(writable, 0o770))
	foreign := "/proc"
	if os.Geteuid() == 0 {
		foreign = filepath.Join(r.dir, "foreign")
		require.NoError(t, os.Mkdir(foreign, 0o700))
		require.NoError(t, os.Chown(foreign, 12345, 12345))
	}
	file := r.write("file", "")
	for value, says := range map[string]string{
		"": "is not set", "relative": "is relative", "/nonexistent-xdg": "no such file", writable: "written by others (mode 0770)",
		foreign: "belongs to uid", file: "is no directory",
	} {
		r.env["XDG_RUNTIME_DIR"] = value
		d, err := r.app().dirs()
		require.NoError(t, err)
		require.Equal(t, fallback, d.runtime, value)
		require.Contains(t, d.note, says)
		require.Contains(t, d.note, fallback)
	}
	fi, err := os.Stat(writable)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o770), fi.Mode().Perm(), "it is not changed")
}

func TestCase52LongRuntimeDir(t *testing.T) {
	r := newRig(t)
	long := filepath.Join(r.dir, strings.Repeat("d", 120))
	require.NoError(t, os.Mkdir(long, 0o700))
	r.env["WORKERD_RUNTIME_DIR"] = long
	_, err := r.app().dirs()
	var tooLong *protocol.PathTooLongError
	require.ErrorAs(t, err, &tooLong, "one that was asked for is refused")
	require.ErrorContains(t, err, long)

	delete(r.env, "WORKERD_RUNTIME_DIR")
	r.env["XDG_RUNTIME_DIR"] = long
	d, err := r.app().dirs()
	require.NoError(t, err)
	require.Equal(t, filepath.Join(r.dir, "workerd-"+strconv.Itoa(os.Geteuid())), d.runtime)
	require.Contains(t, d.note, "bytes")
}

func TestMakePrivate(t *testing.T) {
	uid := os.Geteuid()
	dir := t.TempDir()
	path := filepath.Join(dir, "a/b")
	require.NoError(t, makePrivate(path, uid, true))
	fi, err := os.Stat(path)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o700), fi.Mode().Perm())
	require.NoError(t, makePrivate(path, uid, true), "it may be there")

	require.NoError(t, os.Chmod(path, 0o711))
	require.NoError(t, makePrivate(path, uid, false), "one that was named may let others pass")
	require.NoError(t, makePrivate(path, uid, true), "as serve.allow makes it")
	require.NoError(t, os.Chmod(path, 0o750))
	require.NoError(t, makePrivate(path, uid, false))
	require.ErrorContains(t, makePrivate(path, uid, true), "mode 0750")
	require.NoError(t, os.Chmod(path, 0o770))
	require.ErrorContains(t, makePrivate(path, uid, false), "chmod 700")
	require.ErrorContains(t, makePrivate(path, uid+1, false), "belongs to uid")

	link := filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(path, link))
	require.NoError(t, os.Chmod(path, 0o700))
	require.NoError(t, makePrivate(link, uid, false))
	require.ErrorContains(t, makePrivate(link, uid, true), "no directory", "below /tmp anybody may have made a link")

	file := filepath.Join(dir, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	require.ErrorContains(t, makePrivate(file, uid, false), "no directory")
}

func TestClientDoesNotTrustAFallbackDirectoryOfOthers(t *testing.T) {
	r := newRig(t)
	delete(r.env, "WORKERD_RUNTIME_DIR")
	fallback := filepath.Join(r.dir, "workerd-"+strconv.Itoa(os.Geteuid()))
	require.NoError(t, os.Symlink(t.TempDir(), fallback))
	require.Contains(t, r.fails(exitFailed, "call", "echo", "echo"), "not trusted")
	require.Contains(t, r.fails(exitFailed, "status"), "not trusted")
}

// Who looks in another directory than the session that started workerd is told so, before starting a second one.
func TestNotRunningSaysThatAnotherDirectoryWasLookedIn(t *testing.T) {
	r := newRig(t)
	require.NotContains(t, r.fails(exitNotRunning, "status"), "XDG_RUNTIME_DIR")
	delete(r.env, "WORKERD_RUNTIME_DIR")
	for _, args := range [][]string{{"status"}, {"stop", "a", "b"}, {"call", "a", "b"}} {
		text := r.fails(exitNotRunning, args...)
		require.Contains(t, text, "XDG_RUNTIME_DIR is not set: using "+filepath.Join(r.dir, "workerd-"+strconv.Itoa(os.Geteuid())))
		require.Contains(t, text, "--runtime-dir")
		require.Contains(t, text, "workerd serve")
	}
	require.Contains(t, r.fails(exitNotRunning, "status", "--json"), "XDG_RUNTIME_DIR is not set: using ")
}

func TestLockSaysWhoHoldsIt(t *testing.T) {
	dir := t.TempDir()
	f, err := lockRuntimeDir(dir)
	require.NoError(t, err)
	_, err = lockRuntimeDir(dir)
	require.ErrorContains(t, err, "pid "+strconv.Itoa(os.Getpid()))
	require.NoError(t, f.Close())
	f, err = lockRuntimeDir(dir)
	require.NoError(t, err)
	require.NoError(t, f.Close())
}

func TestRealPathOfWhatDoesNotExist(t *testing.T) {
	dir := t.TempDir()
	real := filepath.Join(dir, "real")
	require.NoError(t, os.Mkdir(real, 0o700))
	require.NoError(t, os.Symlink(real, filepath.Join(dir, "link")))
	base, err := filepath.EvalSymlinks(real)
	require.NoError(t, err)
	require.Equal(t, filepath.Join(base, "x/y"), realPath(filepath.Join(dir, "link/x/y")))
}
