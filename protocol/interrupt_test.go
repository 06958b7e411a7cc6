package protocol

import (
	"io"
	"net"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

// heldOpen returns a Conn whose peer's end is open twice, as it is after a worker has forked.
func heldOpen(t *testing.T) (c *Conn, worker *net.UnixConn, child *os.File) {
	c, worker = connPair(t, 1<<20)
	child, err := worker.File()
	require.NoError(t, err)
	t.Cleanup(func() { child.Close() })
	return c, worker, child
}

func TestInterruptWakesAReader(t *testing.T) {
	c, worker, child := heldOpen(t)
	ended := make(chan error, 1)
	started := make(chan struct{})
	go func() {
		close(started)
		_, err := c.Read()
		ended <- err
	}()
	<-started
	require.NoError(t, worker.Close()) // the child still has its end open: no end of input
	c.Interrupt()
	require.Equal(t, ErrInterrupted, <-ended)
	_, err := child.Write([]byte("a stranger's line\n"))
	require.NoError(t, err)
	_, err = c.Read()
	require.Equal(t, ErrInterrupted, err)
}

func TestInterruptDeliversWhatHadArrived(t *testing.T) {
	c, worker, child := heldOpen(t)
	write(t, worker, "one\ntwo\nthree\nhalf of the fou")
	requireLine(t, c, "one")
	write(t, worker, "rth\nfour\nhalf")
	require.NoError(t, worker.Close())
	c.Interrupt()
	requireLine(t, c, "two") // the first read after Interrupt that needs the socket settles how much had arrived
	requireLine(t, c, "three")
	requireLine(t, c, "half of the fourth")
	requireLine(t, c, "four")
	_, err := child.Write([]byte(" a line\nlate\n"))
	require.NoError(t, err)
	_, err = c.Read()
	require.Equal(t, ErrInterrupted, err)
	_, err = c.Read()
	require.Equal(t, ErrInterrupted, err)
}

func TestInterruptStopsAtWhatHadArrivedThoughMoreComes(t *testing.T) {
	c, worker, child := heldOpen(t)
	write(t, worker, "one\n")
	require.NoError(t, worker.Close())
	c.Interrupt()
	requireLine(t, c, "one")
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-stop:
				return
			default:
				child.Write([]byte("endless\n"))
			}
		}
	}()
	_, err := c.Read()
	require.Equal(t, ErrInterrupted, err)
	close(stop)
	c.Close() // a full socket holds the writer
	<-done
}

func TestInterruptKeepsTheWayItEnded(t *testing.T) {
	t.Run("orderly", func(t *testing.T) {
		c, worker := connPair(t, 100)
		write(t, worker, "answer\nhalf")
		require.NoError(t, worker.Close())
		c.Interrupt()
		requireLine(t, c, "answer")
		line, err := c.Read()
		require.NoError(t, err)
		require.True(t, line.Partial)
		_, err = c.Read()
		require.Equal(t, io.EOF, err)
	})
	t.Run("reset", func(t *testing.T) {
		c, worker := connPair(t, 100)
		require.NoError(t, c.Write(nil, []byte("request\n")))
		write(t, worker, "answer\nhalf")
		require.NoError(t, worker.Close())
		c.Interrupt()
		requireLine(t, c, "answer")
		_, err := c.Read()
		require.True(t, IsReset(err), "%v", err)
	})
	t.Run("held open, request unread", func(t *testing.T) {
		c, worker, _ := heldOpen(t)
		require.NoError(t, c.Write(nil, []byte("request\n")))
		require.NoError(t, worker.Close())
		c.Interrupt()
		_, err := c.Read()
		require.Equal(t, ErrInterrupted, err)
		n, ok := c.Unread()
		require.True(t, ok)
		require.Positive(t, n)
	})
	t.Run("waiting for the hangup", func(t *testing.T) {
		c, _ := connPair(t, 100)
		gone := make(chan error, 1)
		go func() { gone <- c.WaitHangup(t.Context()) }()
		c.Interrupt()
		require.Equal(t, ErrInterrupted, <-gone)
	})
}

func TestInterruptAgainstAReaderInALoop(t *testing.T) {
	for range 200 {
		c, worker, child := heldOpen(t)
		ended := make(chan error, 1)
		got := make(chan int, 1)
		go func() {
			for n := 0; ; n++ {
				if _, err := c.Read(); err != nil {
					ended <- err
					got <- n
					return
				}
			}
		}()
		write(t, worker, "one\ntwo\n")
		worker.Close()
		c.Interrupt()
		require.Equal(t, ErrInterrupted, <-ended)
		require.Equal(t, 2, <-got)
		c.Close()
		child.Close()
	}
}
