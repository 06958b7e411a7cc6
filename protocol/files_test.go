package protocol

import (
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// memfd makes a file with content whose name tells the test's descriptors from all others.
func memfd(t testing.TB, content string) int {
	t.Helper()
	fd, err := unix.MemfdCreate(memfdName(t), unix.MFD_CLOEXEC)
	require.NoError(t, err)
	_, err = unix.Pwrite(fd, []byte(content), 0)
	require.NoError(t, err)
	return fd
}

func memfdName(t testing.TB) string {
	name := strings.ReplaceAll(t.Name(), "/", "_")
	return name[max(0, len(name)-100):]
}

// openMemfds counts the open descriptors of this process that memfd made in this test.
func openMemfds(t testing.TB) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	n := 0
	for _, e := range entries {
		if target, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(target, "/memfd:"+memfdName(t)+" ") {
			n++
		}
	}
	return n
}

func content(t testing.TB, fd int) string {
	t.Helper()
	buf := make([]byte, 100)
	n, err := unix.Pread(fd, buf, 0)
	require.NoError(t, err)
	flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC)
	return string(buf[:n])
}

// send is one sendmsg of a peer that does not use this package; the descriptors are closed afterwards.
func send(t testing.TB, peer *net.UnixConn, text string, fds ...int) {
	t.Helper()
	n, _, err := peer.WriteMsgUnix([]byte(text), unix.UnixRights(fds...), nil)
	require.NoError(t, err)
	require.Equal(t, len(text), n)
	closeAll(fds)
}

func requireFiles(t testing.TB, c *Conn, want string, contents ...string) {
	t.Helper()
	line, err := c.Read()
	require.NoError(t, err)
	require.Equal(t, want, string(line.Bytes))
	require.Len(t, line.Files, len(contents))
	for i, fd := range line.Files {
		require.Equal(t, contents[i], content(t, fd))
	}
	line.Close()
}

func TestFilesBelongToTheirLine(t *testing.T) {
	c, peer := connPair(t, 1<<20)
	big := strings.Repeat("x", 100_000)
	write(t, peer, "plain\nhalf")
	write(t, peer, " a line\n")
	send(t, peer, "with\n", memfd(t, "1"), memfd(t, "2"))
	write(t, peer, "plain\n")
	send(t, peer, "next\n", memfd(t, "3"))
	send(t, peer, "next but one\n", memfd(t, "4"))
	send(t, peer, "{", memfd(t, "5")) // of the line that is begun
	write(t, peer, big)
	write(t, peer, "}\nplain\n")
	requireFiles(t, c, "plain")
	requireFiles(t, c, "half a line")
	requireFiles(t, c, "with", "1", "2")
	requireFiles(t, c, "plain")
	requireFiles(t, c, "next", "3")
	requireFiles(t, c, "next but one", "4")
	requireFiles(t, c, "{"+big+"}", "5")
	requireFiles(t, c, "plain")
	require.Zero(t, openMemfds(t))
}

func TestFilesBehindALongLine(t *testing.T) {
	c, peer := connPair(t, 1<<20)
	big := strings.Repeat("x", 150_000)
	fd := memfd(t, "1")
	go func() {
		defer unix.Close(fd)
		peer.Write([]byte(big + "\n"))
		n, _, err := peer.WriteMsgUnix([]byte("small\n"), unix.UnixRights(fd), nil)
		if n != 6 || err != nil {
			panic(fmt.Sprint(n, err))
		}
		peer.Write([]byte("plain\n"))
		peer.CloseWrite()
	}()
	requireFiles(t, c, big)
	requireFiles(t, c, "small", "1")
	requireFiles(t, c, "plain")
	_, err := c.Read()
	require.Equal(t, io.EOF, err)
	waitFor(t, func() bool { return openMemfds(t) == 0 })
}

func TestFilesNobodyTakesAreClosed(t *testing.T) {
	const limit = 100_000
	tooLong := strings.Repeat("x", limit+10)
	tests := map[string]func(c *Conn, peer *net.UnixConn){
		"blank line": func(c *Conn, peer *net.UnixConn) {
			send(t, peer, "\n", memfd(t, ""))
			send(t, peer, " \r\n", memfd(t, ""))
			send(t, peer, "good", memfd(t, "1"))
			write(t, peer, " line\n")
			requireFiles(t, c, "good line", "1")
			send(t, peer, "\n", memfd(t, ""))
			write(t, peer, "plain\n")
			requireFiles(t, c, "plain")
		},
		"dropped line": func(c *Conn, peer *net.UnixConn) {
			send(t, peer, tooLong, memfd(t, ""))
			_, err := c.Read()
			require.IsType(t, &TooLongError{}, err)
			require.Zero(t, openMemfds(t))
			send(t, peer, "more", memfd(t, ""))
			send(t, peer, "\n", memfd(t, ""))
			send(t, peer, "good\n", memfd(t, "1"))
			requireFiles(t, c, "good", "1")
		},
		"end of input": func(c *Conn, peer *net.UnixConn) {
			send(t, peer, "\n", memfd(t, ""))
			peer.CloseWrite()
			_, err := c.Read()
			require.Equal(t, io.EOF, err)
		},
		"half a line before a reset": func(c *Conn, peer *net.UnixConn) {
			require.NoError(t, c.Write(nil, []byte("x\n")))
			send(t, peer, "half", memfd(t, ""))
			peer.Close()
			_, err := c.Read()
			require.True(t, IsReset(err))
		},
		"half a line before an interrupt": func(c *Conn, peer *net.UnixConn) {
			send(t, peer, "half", memfd(t, ""))
			c.Interrupt()
			_, err := c.Read()
			require.Equal(t, ErrInterrupted, err)
		},
		"close": func(c *Conn, peer *net.UnixConn) {
			write(t, peer, "one\n")
			send(t, peer, "two", memfd(t, ""))
			requireFiles(t, c, "one")
			require.NoError(t, c.Close())
		},
	}
	for name, run := range tests {
		t.Run(name, func(t *testing.T) {
			c, peer := connPair(t, limit)
			run(c, peer)
		})
		require.Zero(t, openMemfds(t), name)
	}
}

func TestTooManyFiles(t *testing.T) {
	c, peer := connPair(t, 1000)
	many := func(n int) []int {
		fds := make([]int, n)
		for i := range fds {
			fds[i] = memfd(t, "")
		}
		return fds
	}
	bad := func(want string) {
		t.Helper()
		_, err := c.Read()
		require.Equal(t, &FilesError{Line: []byte(want), TooMany: true}, err)
		require.Zero(t, openMemfds(t))
	}
	send(t, peer, "just right\n", many(MaxFiles)...)
	line, err := c.Read()
	require.NoError(t, err)
	require.Len(t, line.Files, MaxFiles)
	line.Close()

	send(t, peer, "at once\n", many(MaxFiles+1)...)
	bad("at once")
	send(t, peer, "far too many\n", many(200)...)
	bad("far too many")
	for range MaxFiles + 1 {
		send(t, peer, "x", memfd(t, ""))
	}
	write(t, peer, "\n")
	bad(strings.Repeat("x", MaxFiles+1))
	write(t, peer, "good\n")
	requireFiles(t, c, "good")

	require.Equal(t, ErrTooManyFiles, c.Write(many(MaxFiles+1), []byte("x\n")))
	require.Zero(t, openMemfds(t))
}

func TestFilesWhenThisProcessHasNoneLeft(t *testing.T) {
	c, peer := connPair(t, 1000)
	send(t, peer, "one\n", memfd(t, ""), memfd(t, ""))
	var old unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
	none := unix.Rlimit{Cur: 3, Max: old.Max}
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &none))
	_, err := c.Read()
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &old))
	require.Equal(t, &FilesError{Line: []byte("one")}, err)
	require.Zero(t, openMemfds(t))
}

func TestWriteSendsFilesWithTheirLine(t *testing.T) {
	a, b := pair(t)
	left, right := NewConn(a, 1<<20), NewConn(b, 1<<20)
	defer left.Close()
	defer right.Close()
	big := strings.Repeat("x", 900_000)
	require.NoError(t, left.Write([]int{memfd(t, "1")}, []byte("now"), []byte("\n")))
	require.NoError(t, left.Write([]int{memfd(t, "2")}, []byte(big), []byte("\n"))) // the rest waits
	require.Positive(t, left.Pending())
	require.NoError(t, left.Write(nil, []byte("plain\n")))
	require.NoError(t, left.Write([]int{memfd(t, "3"), memfd(t, "4")}, []byte("later\n")))
	require.NoError(t, left.Write(nil, []byte("plain\n")))
	require.NoError(t, left.Write([]int{memfd(t, "5")})) // nothing that they could travel with
	requireFiles(t, right, "now", "1")
	requireFiles(t, right, big, "2")
	requireFiles(t, right, "plain")
	requireFiles(t, right, "later", "3", "4")
	requireFiles(t, right, "plain")
	waitFor(t, func() bool { return openMemfds(t) == 0 })

	// What cannot be sent for its descriptors alone does not end the connection.
	require.ErrorIs(t, left.Write([]int{1 << 20}, []byte("x\n")), unix.EBADF)
	require.NoError(t, left.Write(nil, []byte("good\n")))
	requireFiles(t, right, "good")

	// Descriptors of a backlog that is dropped are closed.
	require.NoError(t, left.Write(nil, []byte(big)))
	require.NoError(t, left.Write([]int{memfd(t, "6")}, []byte("x\n")))
	require.Equal(t, 1, openMemfds(t))
	require.NoError(t, left.Close())
	require.Zero(t, openMemfds(t))
	require.Error(t, left.Write([]int{memfd(t, "7")}, []byte("x\n")))
	require.Zero(t, openMemfds(t))
}
