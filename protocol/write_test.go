package protocol

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestWriteNeverBlocksAndKeepsTheOrder(t *testing.T) {
	a, b := pair(t)
	c, peer := NewConn(a, 1<<20), NewConn(b, 1<<20)
	defer c.Close()
	defer peer.Close()
	line := func(i int) string {
		return fmt.Sprintf("%d %s", i, strings.Repeat("x", i*37%50_000))
	}
	const n = 400
	for i := range n { // nobody reads
		text := line(i)
		require.NoError(t, c.Write(nil, []byte(text[:1]), []byte(text[1:]), []byte("\n")))
	}
	require.Positive(t, c.Pending())
	for i := range n {
		requireLine(t, peer, line(i))
	}
	require.NoError(t, c.WaitDrained(t.Context(), 0))
	require.Zero(t, c.Pending())
}

func TestWriteFromManySides(t *testing.T) {
	a, b := pair(t)
	c, peer := NewConn(a, 1<<20), NewConn(b, 1<<20)
	defer c.Close()
	defer peer.Close()
	const writers, each = 8, 200
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			body := []byte(strings.Repeat(string(rune('a'+w)), 1000*w))
			for i := range each {
				if c.Write(nil, fmt.Appendf(nil, "%d %d ", w, i), body, []byte("\n")) != nil {
					return
				}
			}
		})
	}
	var next [writers]int
	for range writers * each {
		line, err := peer.Read()
		require.NoError(t, err)
		var w, i int
		_, err = fmt.Sscanf(string(line.Bytes[:min(len(line.Bytes), 20)]), "%d %d ", &w, &i)
		require.NoError(t, err)
		require.Equal(t, next[w], i)
		next[w]++
		require.Equal(t, 1000*w, bytes.Count(line.Bytes, []byte{byte('a' + w)}))
	}
	wg.Wait()
}

func TestWriteManyParts(t *testing.T) {
	a, b := pair(t)
	c, peer := NewConn(a, 1<<20), NewConn(b, 1<<20)
	defer c.Close()
	defer peer.Close()
	var parts [][]byte
	for i := range 20 {
		parts = append(parts, fmt.Appendf(nil, "%d,", i), nil)
	}
	require.NoError(t, c.Write(nil, append(parts, []byte("\n"))...))
	requireLine(t, peer, "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,")
}

// fill writes to c until the kernel takes no more.
func fill(t *testing.T, c *Conn) {
	for c.Pending() == 0 {
		require.NoError(t, c.Write(nil, bytes.Repeat([]byte("x"), 50_000)))
	}
}

func TestWaitDrained(t *testing.T) {
	c, peer := connPair(t, 100)
	require.NoError(t, c.WaitDrained(t.Context(), 0))
	fill(t, c)
	ctx, cancel := context.WithCancel(t.Context())
	waited := make(chan error, 1)
	wait := func(ctx context.Context, below int) { go func() { waited <- c.WaitDrained(ctx, below) }() }

	wait(ctx, 0)
	cancel()
	require.ErrorIs(t, <-waited, context.Canceled)
	require.NoError(t, c.WaitDrained(t.Context(), c.Pending()))

	wait(t.Context(), 0)
	go io.Copy(io.Discard, peer)
	require.NoError(t, <-waited)
	require.Zero(t, c.Pending())
	require.Empty(t, c.waiting)
}

func TestWriteErrorsStay(t *testing.T) {
	c, peer := connPair(t, 100)
	fill(t, c)
	waited := make(chan error, 1)
	go func() { waited <- c.WaitDrained(context.Background(), 0) }()
	require.NoError(t, peer.Close())
	require.ErrorIs(t, <-waited, unix.EPIPE)
	for range 2 {
		require.ErrorIs(t, c.Write(nil, []byte("x\n")), unix.EPIPE)
	}
	require.Positive(t, c.Pending(), "a short write")
}

func TestCloseDropsTheBacklog(t *testing.T) {
	c, _ := connPair(t, 100)
	fill(t, c)
	waited := make(chan error, 1)
	go func() { waited <- c.WaitDrained(context.Background(), 0) }()
	require.NoError(t, c.Close())
	require.ErrorIs(t, <-waited, net.ErrClosed)
}

func TestCloseWhenDrained(t *testing.T) {
	c, peer := connPair(t, 100)
	fill(t, c)
	require.NoError(t, c.Write(nil, []byte("last\n")))
	closed := make(chan error, 1)
	go func() { closed <- c.CloseWhenDrained(context.Background()) }()
	all, err := io.ReadAll(peer)
	require.NoError(t, err)
	require.True(t, bytes.HasSuffix(all, []byte("last\n")))
	require.NoError(t, <-closed)

	c, _ = connPair(t, 100)
	fill(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
	defer cancel()
	require.ErrorIs(t, c.CloseWhenDrained(ctx), context.DeadlineExceeded)
	_, err = c.Read()
	require.ErrorIs(t, err, net.ErrClosed)
}

func TestWriteDoesNotAllocate(t *testing.T) {
	c, peer := connPair(t, 100)
	line := []byte(strings.Repeat("x", 199) + "\n")
	buf := make([]byte, 1000)
	assert.Zero(t, testing.AllocsPerRun(200, func() {
		if c.Write(nil, line[:50], line[50:]) != nil || c.Write(nil, line) != nil {
			t.Fatal("write")
		}
		if _, err := io.ReadFull(peer, buf[:400]); err != nil {
			t.Fatal(err)
		}
	}))
}
