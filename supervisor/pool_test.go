package supervisor

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"workerd/protocol"
)

// socketPair is both ends of a connection of workerd's.
func socketPair(t *testing.T) (ends [2]*net.UnixConn) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	for i, fd := range fds {
		f := os.NewFile(uintptr(fd), "pair")
		c, err := net.FileConn(f)
		require.NoError(t, err)
		require.NoError(t, f.Close())
		t.Cleanup(func() { _ = c.Close() })
		ends[i] = c.(*net.UnixConn)
	}
	return ends
}

// poolClient is a connection to a pool without provider, and its other end.
func poolClient(t *testing.T, p *pool) (*client, *caller) {
	t.Helper()
	ends := socketPair(t)
	conn := protocol.NewConn(ends[0], 1<<20)
	t.Cleanup(func() { _ = conn.Close() })
	c := newClient(&provider{slug: p.slug, pool: p, sup: &Supervisor{clients: t.Context()}}, conn)
	return c, &caller{t: t, c: ends[1], r: bufio.NewReader(ends[1])}
}

// asked is a request of a client, entered as its reader does it.
func (c *client) asked(t *testing.T, id int) *request {
	t.Helper()
	line := protocol.Line{Bytes: fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":"echo","params":{}}`, id)}
	var m protocol.Message
	require.Nil(t, protocol.Scan(line.Bytes, &m))
	r := newRequest(c.p.pool, c, line, &m)
	r.method = "echo"
	r.first.key = protocol.IDKey(r.first.id)
	c.pending[r.first.key] = &r.first
	return r
}

// A request whose lane turns out to be dead after all that waited was refused is refused too: nobody would run it.
func TestRefusedWhileGivenToADeadLane(t *testing.T) {
	for _, waits := range []bool{false, true} {
		t.Run(fmt.Sprintf("waits=%t", waits), func(t *testing.T) {
			p := newPool("p", func() {})
			p.setLimits(limits{capacity: 1, queue: 1})
			c, peer := poolClient(t, p)
			r, l := c.asked(t, 1), &lane{life: &life{}, pool: p}
			given := func() { p.submit(r) }
			if waits {
				p.submit(r)
				given = func() { p.add(l) }
			} else {
				p.add(l)
			}
			l.mu.Lock() // it has no connection, which is seen when this is let go
			done := make(chan struct{})
			go func() { defer close(done); given() }()
			eventually(t, func() bool { return p.load().running == 1 }, func() string { return "a lane is taken" })
			stopped := protocol.Errorf(protocol.ProviderStopped, "stopped").From("p", "")
			p.refuse(stopped, stopped)
			l.mu.Unlock()
			<-done
			require.Zero(t, p.load().waiting)
			require.Equal(t, protocol.ProviderStopped, peer.next().kind())
		})
	}
}

// A request that runs longer than idle_timeout, or waits so long, leaves the timer at rest: it goes off once in that time.
func TestIdleIn(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		load load
		want time.Duration
	}{
		{load{lastBusy: now}, time.Minute},
		{load{lastBusy: now.Add(-20 * time.Second)}, 40 * time.Second},
		{load{lastBusy: now.Add(-10 * time.Minute)}, 0},
		{load{lastBusy: now.Add(-10 * time.Minute), running: 1}, time.Minute},
		{load{lastBusy: now.Add(-10 * time.Minute), waiting: 1, runnable: true}, time.Minute},
		{load{lastBusy: now.Add(-10 * time.Minute), waiting: 1}, 0}, // its client does not read
	} {
		require.Equal(t, c.want, c.load.idleIn(time.Minute, now), "%+v", c.load)
	}
}

// A client that has said all it had to say gets an answer that is on its way out when the end of its input is seen.
func TestHalfClosedWhileAnswered(t *testing.T) {
	c, peer := poolClient(t, newPool("p", func() {}))
	first, second := c.asked(t, 1), c.asked(t, 2)
	over, cancel := context.WithCancel(t.Context())
	cancel()
	c.forget(&first.first) // as its lane does before it writes
	c.forget(&second.first)
	c.linger(over)
	for _, r := range []*request{first, second} {
		c.refuse(protocol.Errorf(protocol.Cancelled, "an answer").From("p", ""), r.first.id)
		c.answered()
		require.Equal(t, string(r.first.id), string(peer.next().ID))
	}
	_, err := peer.read()
	require.ErrorIs(t, err, io.EOF, "then it is closed")
}

// Nor is an answer lost that is about to be passed on when its provider ends, whose worker has gone already.
func TestAnsweredWhileItsProviderEnds(t *testing.T) {
	c, peer := poolClient(t, newPool("p", func() {}))
	waits, writes := c.asked(t, 1), c.asked(t, 2)
	c.forget(&writes.first)
	closed := make(chan struct{})
	go func() { defer close(closed); c.closeAnswered(t.Context()) }()
	eventually(t, func() bool { c.mu.Lock(); defer c.mu.Unlock(); return c.free != nil }, func() string { return "it waits" })
	for _, r := range []*request{writes, waits} {
		if r == waits {
			c.forget(&r.first)
		}
		c.refuse(protocol.Errorf(protocol.Cancelled, "an answer").From("p", ""), r.first.id)
		c.answered()
		require.Equal(t, string(r.first.id), string(peer.next().ID))
	}
	<-closed
	_, err := peer.read()
	require.ErrorIs(t, err, io.EOF)
}

// What was attached to a request that joins a running one is closed: nobody will read it.
func TestJoinedClosesFiles(t *testing.T) {
	p := newPool("p", func() {})
	p.setLimits(limits{capacity: 1, queue: 1})
	c, _ := poolClient(t, p)
	running, again := c.asked(t, 1), c.asked(t, 2)
	running.key, again.key = "k", "k"
	p.submit(running)
	near, far, err := os.Pipe()
	require.NoError(t, err)
	again.files = dupFiles([]int{int(far.Fd())})
	require.NoError(t, far.Close())
	p.submit(again)
	require.Equal(t, 2, running.open)
	require.NoError(t, near.SetReadDeadline(time.Now().Add(10*time.Second)))
	_, err = near.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "nobody holds the other end")
	require.NoError(t, near.Close())
}
