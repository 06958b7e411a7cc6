package protocol

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Line is one message as it was received.
type Line struct {
	Bytes []byte // without the newline; owned by the caller
	Files []int  // the descriptors that came with the line; owned by the caller, who closes them

	// Partial says that the end of input ended the line, not a newline. From a client it counts all the same; of a worker
	// that has died it may be half an answer.
	Partial bool
}

// Close closes the descriptors of a line that nobody wants.
func (l *Line) Close() {
	closeAll(l.Files)
	l.Files = nil
}

// ErrInterrupted is what Read returns after Interrupt, when the lines that had arrived are read.
var ErrInterrupted = errors.New("reading was interrupted")

// IsReset says that a read ended because the peer closed while there were bytes that it had not read (ECONNRESET): on a
// connection whose last bytes were a request, the proof that nobody ever saw it.
func IsReset(err error) bool { return errors.Is(err, syscall.ECONNRESET) }

// Conn carries lines and descriptors over a unix stream socket. While the peer is silent and nothing is pending it holds no
// buffer and no goroutine but the reader's own. Read and WaitHangup are the reader's, one call at a time; all else may be called from anywhere.
type Conn struct {
	uc *net.UnixConn
	rc syscall.RawConn

	closed      atomic.Bool
	interrupted atomic.Bool
	reset       atomic.Bool // a write has eaten the ECONNRESET that Read is to report

	deadlineMu sync.Mutex // orders the setting of read deadlines

	rmu     sync.Mutex // guards what follows; held while Read or WaitHangup runs
	frame   framer
	files   inbox
	readErr error
	recvFn  func(fd uintptr) bool // c.receive, bound once: a method value allocates
	recvErr error                 // what recvFn found: nil is "bytes have come"
	left    int                   // after Interrupt: bytes that are still to be read; -1 before

	writer
}

// NewConn returns a Conn over uc, which it owns from now on. maxLine bounds the bytes of one line, its newline not counted.
func NewConn(uc *net.UnixConn, maxLine int) *Conn {
	c := &Conn{uc: uc, left: -1}
	c.frame.max = maxLine
	c.recvFn = c.receive
	c.tryFn = c.try
	c.flushFn = c.flushSome
	c.rc, _ = uc.SyscallConn() // fails for a nil connection only
	return c
}

// Read returns the next line. Blank lines are skipped; a carriage return before the newline is no part of the line; a last line
// without newline counts. The error is
//   - *TooLongError or *FilesError: this line cannot be had, the connection lives on;
//   - io.EOF: the peer has ended its input, which need not mean that it has gone (see WaitHangup);
//   - one for which IsReset is true, ErrInterrupted, an error that wraps net.ErrClosed, or one of the socket.
//
// All but the first group are for good. Half a line before any end but io.EOF is dropped.
func (c *Conn) Read() (Line, error) {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	for {
		line, begin, err := c.frame.next()
		if err != nil {
			c.files.drop(c.frame.taken)
			return Line{}, err
		}
		if line != nil {
			return c.claim(line, begin)
		}
		if c.readErr == nil {
			c.readErr = c.wait()
		}
		if c.readErr != nil {
			return c.end()
		}
	}
}

// claim puts a line and its descriptors together.
func (c *Conn) claim(line []byte, begin int64) (Line, error) {
	fds, bad := c.files.claim(begin, c.frame.start)
	if bad != nil {
		bad.Line = line
		return Line{}, bad
	}
	return Line{Bytes: line, Files: fds}, nil
}

// end returns the last line, then the error that ended the input.
func (c *Conn) end() (Line, error) {
	if c.readErr == io.EOF {
		if line, begin := c.frame.last(); line != nil {
			l, err := c.claim(line, begin)
			l.Partial = err == nil
			return l, err
		}
	}
	c.discard()
	return Line{}, c.readErr
}

// discard lets go of all that was received and is not read.
func (c *Conn) discard() {
	c.frame.release()
	c.frame.rest, c.frame.acc, c.frame.direct = nil, nil, false
	for _, set := range c.files.sets {
		closeAll(set.fds)
	}
	c.files.sets = nil
}

// wait returns nil when bytes have been received into the framer.
func (c *Conn) wait() error {
	for {
		if c.interrupted.Load() {
			return c.drain()
		}
		err := c.rc.Read(c.recvFn)
		if err == nil {
			return c.recvErr
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return fmt.Errorf("read: %w", err)
		}
		c.clearDeadline() // unless it is Interrupt's: one that WaitHangup has left
	}
}

// receive makes one attempt; it is done unless there is nothing yet. A shared buffer is taken only for the attempt.
func (c *Conn) receive(fd uintptr) bool {
	room := c.frame.room()
	if c.left >= 0 {
		room = room[:min(len(room), c.left)]
	}
	var oob [rightsSpace]byte
	n, oobn, flags, err := recvmsg(fd, room, oob[:], 0)
	c.frame.filled(n)
	switch {
	case err == errAgain:
		return false
	case err != nil:
		c.recvErr = os.NewSyscallError("recvmsg", err)
	case n == 0:
		c.recvErr = c.eof()
	default:
		c.recvErr = nil
		if oobn > 0 || flags&unix.MSG_CTRUNC != 0 {
			c.take(room[:n], bytes.Clone(oob[:oobn]), flags&unix.MSG_CTRUNC != 0) // the clone keeps oob on the stack
		}
		if c.left > 0 {
			c.left -= n
		}
	}
	return true
}

// eof is what the end of input means: it may hide a reset that a write was told of.
func (c *Conn) eof() error {
	if c.reset.Load() {
		return os.NewSyscallError("recvmsg", syscall.ECONNRESET)
	}
	return io.EOF
}

// take puts received descriptors to their line.
func (c *Conn) take(data, oob []byte, cut bool) {
	var fds []int
	msgs, _ := unix.ParseSocketControlMessage(oob) // the kernel made it
	for i := range msgs {
		got, err := unix.ParseUnixRights(&msgs[i])
		if err == nil {
			fds = append(fds, got...)
		}
	}
	if len(fds) == 0 && !cut {
		return
	}
	c.files.drop(c.frame.start) // of lines that were blank or dropped
	if c.frame.skip && !containsNewline(data) {
		closeAll(fds) // of a line that is being dropped
		return
	}
	c.files.add(data, c.frame.taken+int64(len(data))-1, fds, cut)
}

// Interrupt makes Read return what has arrived up to now and then ErrInterrupted, without waiting. It is for a peer that has
// died while another process keeps its end open, so that no end of input comes, and what still comes is not its own.
func (c *Conn) Interrupt() {
	c.deadlineMu.Lock()
	defer c.deadlineMu.Unlock()
	c.interrupted.Store(true)
	c.uc.SetReadDeadline(time.Unix(1, 0)) // fails only where Read does already
}

func (c *Conn) clearDeadline() {
	c.deadlineMu.Lock()
	defer c.deadlineMu.Unlock()
	if !c.interrupted.Load() {
		c.uc.SetReadDeadline(time.Time{})
	}
}

// drain is wait after Interrupt. How much is read is settled at its first call, since others may go on writing.
func (c *Conn) drain() error {
	again := false
	err := c.rc.Control(func(fd uintptr) {
		if c.left < 0 {
			n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ)
			if c.left = n; err != nil {
				c.left = 0
			}
		}
		if c.left > 0 {
			again = !c.receive(fd)
			return
		}
		var one [1]byte // how it ends: a reset says that the peer never read what was sent last
		n, _, _, err := recvmsg(fd, one[:], nil, unix.MSG_PEEK)
		switch {
		case err == errAgain || n > 0:
			c.recvErr = ErrInterrupted
		case err != nil:
			c.recvErr = os.NewSyscallError("recvmsg", err)
		default:
			c.recvErr = c.eof()
		}
	})
	switch {
	case err != nil:
		return fmt.Errorf("read: %w", err)
	case again:
		return ErrInterrupted
	}
	return c.recvErr
}

// WaitHangup returns nil when the peer has closed its end altogether. After the end of input this tells a client that only
// said all it had to say from one that has gone. It may be called instead of Read at any time, and holds no thread while it waits.
func (c *Conn) WaitHangup(ctx context.Context) error {
	c.rmu.Lock()
	defer c.rmu.Unlock()
	stop := context.AfterFunc(ctx, func() { c.uc.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		err := c.rc.Read(hungUp)
		switch {
		case err == nil:
			return nil
		case !errors.Is(err, os.ErrDeadlineExceeded):
			return fmt.Errorf("wait for hangup: %w", err)
		case c.interrupted.Load():
			return ErrInterrupted
		case ctx.Err() == nil:
			c.clearDeadline()
		}
	}
}

func hungUp(fd uintptr) bool {
	p := []unix.PollFd{{Fd: int32(fd)}}
	n, err := unix.Poll(p, 0)
	return err == nil && n > 0 && p[0].Revents&unix.POLLHUP != 0
}

// Unread returns how many bytes of what was written the peer's end has not read yet, in the kernel's own measure: only zero
// and not zero say something. ok is false where the socket cannot tell.
func (c *Conn) Unread() (n int, ok bool) {
	if c.closed.Load() {
		return 0, false
	}
	err := c.rc.Control(func(fd uintptr) {
		var ioctlErr error
		n, ioctlErr = unix.IoctlGetInt(int(fd), unix.TIOCOUTQ)
		ok = ioctlErr == nil
	})
	return n, ok && err == nil
}

// Close closes the connection at once and waits until its own goroutine has gone. What is pending is dropped and descriptors
// that no line was read for are closed.
func (c *Conn) Close() error {
	c.closed.Store(true)
	err := c.uc.Close()
	c.failWrites(net.ErrClosed)
	c.flushers.Wait()

	c.rmu.Lock() // a reader returns now that the socket is closed
	defer c.rmu.Unlock()
	if c.readErr == nil {
		c.readErr = fmt.Errorf("read: %w", net.ErrClosed)
	}
	c.discard()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

// CloseWhenDrained closes the connection when the kernel has taken all that is pending, or ctx ends. The peer can still read
// what the kernel has.
func (c *Conn) CloseWhenDrained(ctx context.Context) error {
	err := c.WaitDrained(ctx, 0)
	return errors.Join(err, c.Close())
}
