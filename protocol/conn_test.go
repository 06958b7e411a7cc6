package protocol

import (
	"context"
	"io"
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// pair returns two ends of a connected unix stream socket.
func pair(t testing.TB) (*net.UnixConn, *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	a, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	require.NoError(t, err)
	b, err := l.AcceptUnix()
	require.NoError(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

// connPair returns a Conn and the plain other end.
func connPair(t testing.TB, maxLine int) (*Conn, *net.UnixConn) {
	t.Helper()
	a, b := pair(t)
	c := NewConn(a, maxLine)
	t.Cleanup(func() { c.Close() })
	return c, b
}

func TestReadHalfCloseThenHangup(t *testing.T) {
	c, peer := connPair(t, 100)
	_, err := peer.Write([]byte("one\r\n\n  \ntwo"))
	require.NoError(t, err)
	require.NoError(t, peer.CloseWrite())
	for _, want := range []Line{{Bytes: []byte("one")}, {Bytes: []byte("two"), Partial: true}} {
		got, err := c.Read()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for range 2 {
		_, err = c.Read()
		require.Equal(t, io.EOF, err)
	}
	require.NoError(t, c.Write(nil, []byte("answer\n")))

	gone := make(chan error, 1)
	go func() { gone <- c.WaitHangup(context.Background()) }()
	buf := make([]byte, 100)
	n, err := peer.Read(buf)
	require.NoError(t, err)
	require.Equal(t, "answer\n", string(buf[:n]))
	select {
	case err := <-gone:
		t.Fatalf("hangup seen before the close: %v", err)
	default:
	}
	require.NoError(t, peer.Close())
	require.NoError(t, <-gone)
}
