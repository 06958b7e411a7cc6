package protocol

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// socketDir is a short private directory: t.TempDir's names can pass the limit of a socket path.
func socketDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "wl")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestListenAcceptsAndLeavesOneName(t *testing.T) {
	dir := socketDir(t)
	path := filepath.Join(dir, "sock")
	l, err := Listen(path)
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	c.Close()
	require.Equal(t, []string{"sock"}, names(t, dir))
	for _, base := range []string{"sock", "s", ",", ",s", ".s", "s.", "..."} {
		require.Len(t, tempName(base), len(base))
		require.NotContains(t, []string{base, ".", ".."}, tempName(base))
		l, err := Listen(filepath.Join(dir, base+"-"))
		require.NoError(t, err, base)
		l.Close()
	}
}

func TestCase52LongPathIsRefusedWithItsLength(t *testing.T) {
	path := "/tmp/" + strings.Repeat("d", 120) + "/sock"
	_, err := Listen(path)
	var long *PathTooLongError
	require.ErrorAs(t, err, &long)
	require.ErrorContains(t, err, path)
	require.ErrorContains(t, err, "130 bytes")
	require.ErrorContains(t, err, "107")

	exact := filepath.Join(socketDir(t), strings.Repeat("s", MaxSocketPath))
	exact = exact[:MaxSocketPath]
	l, err := Listen(exact)
	require.NoError(t, err, "a path of exactly the limit works, its temporary name too")
	l.Close()
}

func TestCase53StaleLiveAndForeign(t *testing.T) {
	t.Run("stale socket is replaced", func(t *testing.T) {
		path := filepath.Join(socketDir(t), "sock")
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: path})
		require.NoError(t, err)
		dead.SetUnlinkOnClose(false)
		dead.Close()
		l, err := Listen(path)
		require.NoError(t, err)
		l.Close()
	})
	t.Run("stale temporary name is replaced", func(t *testing.T) {
		dir := socketDir(t)
		dead, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, tempName("sock"))})
		require.NoError(t, err)
		dead.SetUnlinkOnClose(false)
		dead.Close()
		l, err := Listen(filepath.Join(dir, "sock"))
		require.NoError(t, err)
		l.Close()
		require.Equal(t, []string{"sock"}, names(t, dir))
	})
	t.Run("live listener is refused and untouched", func(t *testing.T) {
		path := filepath.Join(socketDir(t), "sock")
		live, err := Listen(path)
		require.NoError(t, err)
		defer live.Close()
		_, err = Listen(path)
		require.ErrorIs(t, err, ErrSocketInUse)
		c, err := net.Dial("unix", path)
		require.NoError(t, err)
		c.Close()
	})
	for name, make := range map[string]func(path string) error{
		"regular file": func(p string) error { return os.WriteFile(p, []byte("mine"), 0o600) },
		"symlink":      func(p string) error { return os.Symlink("elsewhere", p) },
		"directory":    func(p string) error { return os.Mkdir(p, 0o700) },
	} {
		t.Run(name+" is refused and kept", func(t *testing.T) {
			for _, base := range []string{"sock", tempName("sock")} {
				dir := socketDir(t)
				require.NoError(t, make(filepath.Join(dir, base)))
				_, err := Listen(filepath.Join(dir, "sock"))
				require.ErrorContains(t, err, "in the way")
				require.Equal(t, []string{base}, names(t, dir))
			}
		})
	}
}

func TestCase59NoMomentOpenToOthers(t *testing.T) {
	dir := socketDir(t)
	path := filepath.Join(dir, "sock")
	l, err := Listen(path)
	require.NoError(t, err)
	defer l.Close()
	fi, err := os.Lstat(path)
	require.NoError(t, err)
	require.Zero(t, fi.Mode().Perm()&0o177, "the socket's own mode keeps others out: %s", fi.Mode())

	// With no umask at all, the mode is what was set on the descriptor before the bind.
	old := unix.Umask(0)
	l2, err := Listen(filepath.Join(dir, "two"))
	l3, err3 := ListenPerm(filepath.Join(dir, "three"), 0o660)
	unix.Umask(old)
	require.NoError(t, err)
	require.NoError(t, err3)
	defer l2.Close()
	defer l3.Close()
	for base, want := range map[string]fs.FileMode{"two": 0o600, "three": 0o660} {
		fi, err = os.Lstat(filepath.Join(dir, base))
		require.NoError(t, err)
		require.Equal(t, want, fi.Mode().Perm(), base)
	}
}

func TestListenRefusesADirectoryOfOthers(t *testing.T) {
	for _, mode := range []fs.FileMode{0o770, 0o702, 0o777} {
		dir := socketDir(t)
		require.NoError(t, os.Chmod(dir, mode))
		_, err := Listen(filepath.Join(dir, "sock"))
		require.ErrorContains(t, err, "others could replace the socket", "%o", mode)
		require.Empty(t, names(t, dir))
	}
	_, err := Listen(filepath.Join(socketDir(t), "missing", "sock"))
	require.ErrorIs(t, err, fs.ErrNotExist)

	if os.Geteuid() == 0 {
		dir := socketDir(t)
		require.NoError(t, os.Chown(dir, 12345, 12345))
		_, err := Listen(filepath.Join(dir, "sock"))
		require.ErrorContains(t, err, "belongs to uid 12345")
	}
}

func TestListenAtOnceHasOneWinner(t *testing.T) {
	path := filepath.Join(socketDir(t), "sock")
	var wg sync.WaitGroup
	results := make([]error, 8)
	listeners := make([]*net.UnixListener, len(results))
	for i := range results {
		wg.Go(func() { listeners[i], results[i] = Listen(path) })
	}
	wg.Wait()
	won := 0
	for i, err := range results {
		if err == nil {
			won++
			defer listeners[i].Close()
			continue
		}
		require.ErrorIs(t, err, ErrSocketInUse)
	}
	require.Equal(t, 1, won)
}

func TestCase60BindErrorNamesTheFileSystem(t *testing.T) {
	err := explainBind("/proc", &net.OpError{Op: "listen", Err: os.NewSyscallError("bind", syscall.EOPNOTSUPP)})
	require.ErrorContains(t, err, "file system of /proc is")
	require.ErrorIs(t, err, syscall.EOPNOTSUPP)
	plain := errors.New("other")
	require.Equal(t, plain, explainBind("/", plain))

	name, network := FileSystem("/dev/shm")
	require.Equal(t, "tmpfs", name)
	require.False(t, network)
	name, _ = FileSystem("/nowhere/at/all")
	require.Equal(t, "unknown", name)
}
