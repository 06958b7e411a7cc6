package supervisor

import (
	"bufio"
	"fmt"
	"net"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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
