package protocol

import (
	"io"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// handOn makes a listener at path and closes it, but for a descriptor of it.
func handOn(t *testing.T, path string) (f *os.File, id string) {
	t.Helper()
	l, err := Listen(path)
	require.NoError(t, err)
	f, err = l.File()
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	id, err = SocketID(path)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	return f, id
}

func TestInheritServesWhoConnectedMeanwhile(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	f, id := handOn(t, path)
	c, err := net.Dial("unix", path)
	require.NoError(t, err, "nobody accepts now, and nobody is refused")
	defer c.Close()
	_, err = c.Write([]byte("hello"))
	require.NoError(t, err)

	l, err := Inherit(f, path, id)
	require.NoError(t, err)
	require.NoError(t, f.Close(), "the listener has its own descriptor")
	require.NoError(t, l.SetDeadline(time.Now().Add(10*time.Second)))
	uc, err := l.AcceptUnix()
	require.NoError(t, err)
	require.NoError(t, c.Close())
	said, err := io.ReadAll(uc)
	require.NoError(t, err)
	require.Equal(t, "hello", string(said))
	require.NoError(t, uc.Close())
	require.NoError(t, l.Close())
	require.FileExists(t, path, "who listens also removes the path")
}

func TestInheritRefusesWhatThePathDoesNotLeadTo(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	f, id := handOn(t, path)
	refused := func(f *os.File, id, why string) {
		t.Helper()
		_, err := Inherit(f, path, id)
		require.ErrorContains(t, err, why)
	}
	require.NoError(t, os.Rename(path, path+".away"))
	refused(f, id, ErrNotInherited.Error())
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	refused(f, id, "is no socket")
	require.NoError(t, os.Remove(path))
	other, otherID := handOn(t, path)
	refused(f, id, ErrNotInherited.Error())

	// What is no listener, whatever its name says.
	refused(mustOpen(t, dir), otherID, dir)
	c, err := net.Dial("unix", path)
	require.NoError(t, err)
	defer c.Close()
	conn, err := c.(*net.UnixConn).File()
	require.NoError(t, err)
	defer conn.Close()
	refused(conn, otherID, "does not listen")
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer tcp.Close()
	tcpFile, err := tcp.(*net.TCPListener).File()
	require.NoError(t, err)
	defer tcpFile.Close()
	refused(tcpFile, otherID, "but one of tcp")

	require.NoError(t, os.Chmod(dir, 0o777))
	refused(other, otherID, "others could replace the socket")
}

func mustOpen(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}
