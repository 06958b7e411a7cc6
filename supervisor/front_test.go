package supervisor

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
	"workerd/protocol"
)

// A front socket whose path exists serves, by the limits of its manifest: who connects in the first instant is not told that
// a message may have no byte and a queue no place.
func TestFrontServesFromItsFirstInstant(t *testing.T) {
	r := newRig(t)
	for i := range 30 {
		slug := fmt.Sprintf("p%02d", i)
		path := filepath.Join(r.run, "front", slug, "sock")
		answered := make(chan error, 1)
		go func() {
			deadline := time.Now().Add(30 * time.Second)
			c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
			for err != nil && time.Now().Before(deadline) { // no pause: the first instant is what is wanted
				c, err = net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
			}
			if err != nil {
				answered <- err
				return
			}
			defer func() { _ = c.Close() }()
			a, err := (&caller{t: t, c: c, r: bufio.NewReader(c)}).try("echo", `{"text":"first"}`)
			if err == nil && a.kind() != "" {
				err = a.Error
			}
			answered <- err
		}()
		r.serve(slug, "[start]\nwhen = \"request\"\n")
		require.NoError(t, <-answered)
		require.NoError(t, r.sup.Stop(t.Context(), slug, true))
		require.Equal(t, protocol.ProviderStopped, r.dial(slug).call("echo", `{}`).kind())
	}
}

// heldListeners hold up whoever makes a listener, once hold is closed.
type heldListeners struct {
	ownListeners
	hold, entered, let chan struct{}
}

func (h *heldListeners) Listen(name, path string, ready func(string) error) (*net.UnixListener, error) {
	if isClosed(h.hold) {
		close(h.entered)
		<-h.let
	}
	return h.ownListeners.Listen(name, path, ready)
}

// A front socket that was deleted, and is being made again while its manifest goes, is not there afterwards.
func TestFrontIsNotMadeAgainWhenItsManifestHasGone(t *testing.T) {
	h := &heldListeners{hold: make(chan struct{}), entered: make(chan struct{}), let: make(chan struct{})}
	r := newRigOf(t, &rig{listeners: h})
	r.serve("echo", "[start]\nwhen = \"request\"\n")
	p := r.sup.lookup("echo")
	close(h.hold)
	require.NoError(t, os.Remove(p.front.path))
	made := make(chan error, 1)
	go func() { made <- p.front.restore() }()
	<-h.entered
	r.sup.Apply(&manifest.Set{})
	select {
	case <-p.done: // too early: what is being made is nobody's
	case <-time.After(300 * time.Millisecond):
	}
	close(h.let)
	require.NoError(t, <-made)
	<-p.done
	require.NoFileExists(t, p.front.path)
	require.NoFileExists(t, p.front.link)
	require.NoError(t, p.front.restore(), "later it is not made either")
	require.NoFileExists(t, p.front.path)
}

// A worker whose answer is too long keeps its connection, however it sets its spaces: one that is in the middle of writing
// would die of the end of it.
func TestTooLargeAnswerKeepsTheConnection(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+"[serve]\nmax_message = \"16KiB\"\n")
	r.state("echo", "ready")
	c := r.dial("echo")
	connection := func() *protocol.Conn {
		var conn *protocol.Conn
		p := r.sup.lookup("echo")
		require.NoError(t, p.ask(t.Context(), func() {
			l := p.workers[0].life.lanes[0]
			l.mu.Lock()
			defer l.mu.Unlock()
			conn = l.conn
		}))
		return conn
	}
	require.Nil(t, c.call("echo", `{}`).Error)
	before := connection()
	for _, raw := range []string{
		`{"jsonrpc":"2.0","id":$ID,"result":"$KIB"}`,
		`{ "id" : $ID, "jsonrpc": "2.0", "result": {"id": 1, "text": "$KIB"}}`,
	} {
		require.Equal(t, protocol.TooLarge, c.call("raw", fmt.Sprintf(`{"raw":%q}`, raw+"\n")).kind())
		require.Nil(t, c.call("echo", `{}`).Error)
		require.Same(t, before, connection(), raw)
	}
}

// 53: what an earlier workerd left of providers that are gone is removed; what somebody else has there is not touched.
func TestCase53LeftFrontSocketsAreRemoved(t *testing.T) {
	r := newRig(t)
	listen := func(slug string) *net.UnixListener {
		dir := filepath.Join(r.run, "front", slug)
		require.NoError(t, os.MkdirAll(dir, 0o700))
		require.NoError(t, os.Symlink("front/"+slug+"/sock", filepath.Join(r.run, slug+".sock")))
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(dir, "sock"), Net: "unix"})
		require.NoError(t, err)
		l.SetUnlinkOnClose(false)
		return l
	}
	for _, slug := range []string{"gone", "echo"} {
		require.NoError(t, listen(slug).Close())
	}
	foreign := listen("foreign")
	defer func() { _ = foreign.Close() }()
	plain := filepath.Join(r.run, "front", "plain", "sock")
	require.NoError(t, os.MkdirAll(filepath.Dir(plain), 0o700))
	require.NoError(t, os.WriteFile(plain, nil, 0o600))

	r.serve("echo", "[start]\nwhen = \"request\"\n")
	require.NoDirExists(t, filepath.Join(r.run, "front", "gone"))
	_, err := os.Lstat(filepath.Join(r.run, "gone.sock"))
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Nil(t, r.dial("echo").call("workerd.ping", `{}`).Error)
	require.FileExists(t, plain)
	c, err := net.Dial("unix", filepath.Join(r.run, "foreign.sock"))
	require.NoError(t, err)
	require.NoError(t, c.Close())
}
