package main

import (
	"bytes"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// fakeManager keeps descriptors as systemd does.
type fakeManager struct {
	t      *testing.T
	dir    string
	socket *net.UnixConn
	log    bytes.Buffer
}

func newFakeManager(t *testing.T) *fakeManager {
	t.Helper()
	m := &fakeManager{t: t, dir: t.TempDir()}
	var err error
	m.socket, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(m.dir, "notify"), Net: "unixgram"})
	require.NoError(t, err)
	t.Cleanup(func() { _ = m.socket.Close() })
	return m
}

// store makes what a workerd that was started with these files has.
func (m *fakeManager) store(files ...*os.File) *fdStore {
	return newFDStore(filepath.Join(m.dir, "notify"), files, slog.New(slog.NewTextHandler(&m.log, nil)))
}

// heard returns the next message, and the descriptor that came with it as a service gets it back.
func (m *fakeManager) heard() (message string, f *os.File) {
	m.t.Helper()
	buf, oob := make([]byte, 4096), make([]byte, 4096)
	require.NoError(m.t, m.socket.SetReadDeadline(time.Now().Add(10*time.Second)))
	n, oobn, _, _, err := m.socket.ReadMsgUnix(buf, oob)
	require.NoError(m.t, err)
	message = string(buf[:n])
	_, name, _ := bytes.Cut(buf[:n], []byte("FDNAME="))
	messages, err := unix.ParseSocketControlMessage(oob[:oobn])
	require.NoError(m.t, err)
	for _, c := range messages {
		fds, err := unix.ParseUnixRights(&c)
		require.NoError(m.t, err)
		require.Len(m.t, fds, 1)
		f = os.NewFile(uintptr(fds[0]), string(name))
		m.t.Cleanup(func() { _ = f.Close() })
	}
	return message, f
}

// silent checks that nothing more was said.
func (m *fakeManager) silent() {
	m.t.Helper()
	require.NoError(m.t, m.socket.SetReadDeadline(time.Now().Add(10*time.Millisecond)))
	n, err := m.socket.Read(make([]byte, 4096))
	require.ErrorIs(m.t, err, os.ErrDeadlineExceeded, "%d bytes", n)
}

func TestFDStoreHandsListenersOn(t *testing.T) {
	m := newFakeManager(t)
	path := filepath.Join(m.dir, "sock")
	first := m.store()
	l, err := first.Listen("ocr", path, nil)
	require.NoError(t, err)
	message, f := m.heard()
	require.Regexp(t, `^FDSTORE=1\nFDNAME=ocr@[0-9a-f]+\.[0-9a-f]+$`, message)
	require.NotNil(t, f)
	require.NoError(t, l.Close())

	c, err := net.Dial("unix", path)
	require.NoError(t, err, "nobody is refused between two")
	defer c.Close()
	second := m.store(f)
	l, err = second.Listen("ocr", path, nil)
	require.NoError(t, err)
	require.NoError(t, l.SetDeadline(time.Now().Add(10*time.Second)))
	accepted, err := l.AcceptUnix()
	require.NoError(t, err)
	require.NoError(t, accepted.Close())
	second.forgetRest()
	m.silent() // it is in the store already

	// Deleted under us and made again: the new one takes its place.
	require.NoError(t, os.Remove(path))
	again, err := second.Listen("ocr", path, nil)
	require.NoError(t, err)
	defer again.Close()
	require.NoError(t, l.Close())
	message, _ = m.heard()
	require.Equal(t, "FDSTOREREMOVE=1\nFDNAME="+f.Name(), message)
	message, f = m.heard()
	require.Contains(t, message, "FDSTORE=1\nFDNAME=ocr@")
	second.Forget("ocr")
	message, _ = m.heard()
	require.Equal(t, "FDSTOREREMOVE=1\nFDNAME="+f.Name(), message)
	second.Forget("ocr")
	m.silent()
	require.Empty(t, m.log.String())
}

func TestFDStoreDropsWhatIsOfNoUse(t *testing.T) {
	m := newFakeManager(t)
	paths := map[string]string{"moved": filepath.Join(m.dir, "moved"), "gone": filepath.Join(m.dir, "gone")}
	var files []*os.File
	for _, name := range []string{"moved", "gone"} {
		l, err := m.store().Listen(name, paths[name], nil)
		require.NoError(t, err)
		_, f := m.heard()
		files = append(files, f)
		require.NoError(t, l.Close())
	}
	// Another one's path by now.
	require.NoError(t, os.Remove(paths["moved"]))
	strange, err := os.Open(m.dir)
	require.NoError(t, err)
	s := m.store(files[0], files[1], strange)
	require.Contains(t, m.log.String(), "of no use")
	l, err := s.Listen("moved", paths["moved"], nil)
	require.NoError(t, err)
	defer l.Close()
	message, _ := m.heard()
	require.Equal(t, "FDSTOREREMOVE=1\nFDNAME="+files[0].Name(), message)
	message, _ = m.heard()
	require.Contains(t, message, "FDSTORE=1\nFDNAME=moved@")
	s.forgetRest() // the provider "gone" has no manifest any more
	message, _ = m.heard()
	require.Equal(t, "FDSTOREREMOVE=1\nFDNAME="+files[1].Name(), message)
	m.silent()
	_, err = net.Dial("unix", paths["gone"])
	require.ErrorIs(t, err, unix.ECONNREFUSED, "no descriptor of it is left here")
}

func TestFDStoreAsksOnceWhetherItIsARestart(t *testing.T) {
	m := newFakeManager(t)
	s := m.store()
	asked := 0
	s.stay = func() (bool, error) { asked++; return true, nil }
	require.True(t, s.Stay())
	require.True(t, s.Stay())
	require.Equal(t, 1, asked)

	s = m.store()
	s.stay = func() (bool, error) { return false, errors.New("no bus") }
	require.False(t, s.Stay())
	require.Contains(t, m.log.String(), "no bus")

	s = newFDStore("", nil, slog.Default())
	s.stay = func() (bool, error) { t.Error("nobody to ask"); return true, nil }
	require.False(t, s.Stay())
	l, err := s.Listen("a", filepath.Join(m.dir, "a"), nil)
	require.NoError(t, err, "without a service manager it is a listener like any other")
	require.NoError(t, l.Close())
	m.silent()
}
