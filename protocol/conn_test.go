package protocol

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
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

func write(t testing.TB, peer *net.UnixConn, text string) {
	t.Helper()
	_, err := peer.Write([]byte(text))
	require.NoError(t, err)
}

func requireLine(t testing.TB, c *Conn, want string) {
	t.Helper()
	got, err := c.Read()
	require.NoError(t, err)
	require.Equal(t, want, string(got.Bytes))
	require.Empty(t, got.Files)
	require.False(t, got.Partial)
}

func TestReadHalfCloseThenHangup(t *testing.T) {
	c, peer := connPair(t, 100)
	write(t, peer, "one\r\n\n  \ntwo")
	require.NoError(t, peer.CloseWrite())
	requireLine(t, c, "one")
	got, err := c.Read()
	require.NoError(t, err)
	require.Equal(t, Line{Bytes: []byte("two"), Partial: true}, got)
	for range 2 {
		_, err = c.Read()
		require.Equal(t, io.EOF, err)
	}
	require.NoError(t, c.Write(nil, []byte("answer\n")))

	gone := make(chan error, 1)
	go func() { gone <- c.WaitHangup(t.Context()) }()
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

func TestWaitHangupEnds(t *testing.T) {
	c, peer := connPair(t, 100)
	require.NoError(t, peer.CloseWrite())
	_, err := c.Read()
	require.Equal(t, io.EOF, err)

	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	wait := func(ctx context.Context) { go func() { gone <- c.WaitHangup(ctx) }() }
	wait(ctx)
	waitFor(t, func() bool { return waitingGoroutines() == 1 })
	cancel()
	require.ErrorIs(t, <-gone, context.Canceled)

	wait(t.Context()) // what the first one left behind does not end the second
	waitFor(t, func() bool { return waitingGoroutines() == 1 })
	require.NoError(t, c.Write(nil, []byte("x\n")))
	_, err = peer.Read(make([]byte, 10))
	require.NoError(t, err)
	select {
	case err := <-gone:
		t.Fatalf("hangup seen before the close: %v", err)
	default:
	}
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-gone, net.ErrClosed)
}

func TestWaitHangupBesideUnreadLines(t *testing.T) {
	c, peer := connPair(t, 100)
	write(t, peer, "not read yet\n")
	gone := make(chan error, 1)
	go func() { gone <- c.WaitHangup(t.Context()) }()
	require.NoError(t, peer.Close())
	require.NoError(t, <-gone)
	requireLine(t, c, "not read yet")
}

func threads(t *testing.T) int {
	status, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	_, rest, _ := strings.Cut(string(status), "Threads:")
	n, err := strconv.Atoi(strings.Fields(rest)[0])
	require.NoError(t, err)
	return n
}

func TestWaitingHoldsNoThreadAndNoBuffer(t *testing.T) {
	const n = 300
	conns := make([]*Conn, n)
	peers := make([]*net.UnixConn, n)
	for i := range conns {
		conns[i], peers[i] = connPair(t, 1<<20)
		write(t, peers[i], "first\n")
		requireLine(t, conns[i], "first")
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	threadsBefore := threads(t)

	var wg sync.WaitGroup
	for i, c := range conns {
		if i%2 == 0 {
			write(t, peers[i], "half a li") // which costs its own size, no buffer
		}
		wg.Go(func() {
			line, err := c.Read()
			assert.NoError(t, err)
			assert.Contains(t, []string{"half a line", "ne"}, string(line.Bytes))
			_, err = c.Read()
			assert.Equal(t, io.EOF, err)
			assert.NoError(t, c.WaitHangup(context.Background()))
		})
	}
	waitFor(t, func() bool { return waitingGoroutines() >= n })
	assert.LessOrEqual(t, threads(t), threadsBefore+20)
	runtime.GC()
	runtime.ReadMemStats(&after)
	perConn := (int64(after.HeapInuse+after.StackInuse) - int64(before.HeapInuse+before.StackInuse)) / n
	assert.Less(t, perConn, int64(chunkSize*3/4), "bytes that a waiting reader costs, which is less than a buffer")
	for _, p := range peers {
		write(t, p, "ne\n")
		require.NoError(t, p.CloseWrite())
	}
	waitFor(t, func() bool { return waitingGoroutines() >= n })
	assert.LessOrEqual(t, threads(t), threadsBefore+20)
	for _, p := range peers {
		p.Close()
	}
	wg.Wait()
}

var stacks [4 << 20]byte

// waitingGoroutines counts the goroutines that wait for a descriptor.
func waitingGoroutines() int {
	return bytes.Count(stacks[:runtime.Stack(stacks[:], true)], []byte("[IO wait"))
}

// waitFor polls until cond holds.
func waitFor(t testing.TB, cond func() bool) {
	t.Helper()
	require.Eventually(t, cond, 10*time.Second, time.Millisecond)
}

func TestCase86LinesOfAllSizesBothWays(t *testing.T) {
	a, b := pair(t)
	left, right := NewConn(a, 20<<20), NewConn(b, 20<<20)
	defer left.Close()
	defer right.Close()
	echo := make(chan error, 1)
	go func() {
		for {
			line, err := right.Read()
			if err != nil {
				echo <- err
				return
			}
			if err := right.Write(nil, line.Bytes, []byte("\n")); err != nil {
				echo <- err
				return
			}
		}
	}()
	for _, size := range []int{1, 200, 32767, 32768, 32769, 65535, 65536, 65537, 1 << 20, 20 << 20} {
		line := bytes.Repeat([]byte("0123456789abcdef"), size/16+1)[:size]
		require.NoError(t, left.Write(nil, line, []byte{'\n'}))
		got, err := left.Read()
		require.NoError(t, err)
		require.True(t, bytes.Equal(line, got.Bytes), "size %d", size)
		require.Zero(t, left.Pending())
	}
	require.NoError(t, a.CloseWrite())
	require.Equal(t, io.EOF, <-echo)
}

func TestReadRefusesALongLineAndLivesOn(t *testing.T) {
	const limit, dropped = 200_000, 60_000_000
	c, peer := connPair(t, limit)
	go func() {
		peer.Write(bytes.Repeat([]byte("a"), limit))
		peer.Write([]byte("\r\n"))
		b := bytes.Repeat([]byte("b"), limit)
		for range dropped / limit {
			peer.Write(b)
		}
		peer.Write([]byte("\ngood\n"))
		peer.Write(bytes.Repeat([]byte("c"), limit+1))
		peer.CloseWrite()
	}()
	requireLine(t, c, strings.Repeat("a", limit))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := c.Read()
	var tooLong *TooLongError
	require.ErrorAs(t, err, &tooLong)
	require.Equal(t, &TooLongError{Limit: limit, Head: bytes.Repeat([]byte("b"), headSize)}, tooLong)
	requireLine(t, c, "good")
	runtime.ReadMemStats(&after)
	// The race detector has sync.Pool forget a part of the buffers.
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(dropped*9/10))
	_, err = c.Read()
	require.ErrorAs(t, err, &tooLong)
	_, err = c.Read()
	require.Equal(t, io.EOF, err)
}

func TestReadSeesAReset(t *testing.T) {
	c, peer := connPair(t, 100)
	require.NoError(t, c.Write(nil, []byte("request\n")))
	write(t, peer, "earlier answer\nhalf a")
	n, ok := c.Unread()
	require.True(t, ok)
	require.Positive(t, n)
	require.NoError(t, peer.Close()) // with the request unread
	requireLine(t, c, "earlier answer")
	_, err := c.Read()
	require.True(t, IsReset(err), "%v", err)
	_, err = c.Read()
	require.True(t, IsReset(err), "%v", err)
	require.NoError(t, c.WaitHangup(t.Context()))
	require.ErrorIs(t, c.Write(nil, []byte("x\n")), syscall.EPIPE)
}

// The kernel reports a reset once: a write that runs into it leaves Read only the end of input.
func TestReadSeesAResetThatAWriteWasToldOf(t *testing.T) {
	c, peer := connPair(t, 100)
	c.reset.Store(true)
	require.NoError(t, peer.Close())
	_, err := c.Read()
	require.True(t, IsReset(err), "%v", err)
}

func TestReadSeesAnOrderlyEnd(t *testing.T) {
	c, peer := connPair(t, 100)
	require.NoError(t, c.Write(nil, []byte("request\n")))
	_, err := io.ReadFull(peer, make([]byte, 8))
	require.NoError(t, err)
	n, ok := c.Unread()
	require.True(t, ok)
	require.Zero(t, n)
	require.NoError(t, peer.Close())
	_, err = c.Read()
	require.Equal(t, io.EOF, err)
}

func TestCloseEndsAReader(t *testing.T) {
	c, _ := connPair(t, 100)
	ended := make(chan error, 1)
	go func() {
		_, err := c.Read()
		ended <- err
	}()
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-ended, net.ErrClosed)
	require.NoError(t, c.Close())
	_, err := c.Read()
	require.ErrorIs(t, err, net.ErrClosed)
	require.ErrorIs(t, c.Write(nil, []byte("x\n")), net.ErrClosed)
	require.ErrorIs(t, c.WaitDrained(t.Context(), 0), net.ErrClosed)
	_, ok := c.Unread()
	require.False(t, ok)
	c.Interrupt()
	require.False(t, errors.Is(c.CloseWhenDrained(t.Context()), io.EOF))
}

func TestReadAllocatesTheLineOnly(t *testing.T) {
	c, peer := connPair(t, 1000)
	line := []byte(strings.Repeat("x", 199) + "\n")
	assert.LessOrEqual(t, testing.AllocsPerRun(200, func() {
		if _, err := peer.Write(line); err != nil {
			t.Fatal(err)
		}
		if got, err := c.Read(); err != nil || len(got.Bytes) != 199 {
			t.Fatal(err)
		}
	}), 2.0)
}
