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
