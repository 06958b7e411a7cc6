package protocol

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	// maxParts is how many parts go to the kernel as they are; more are joined first.
	maxParts = 8

	// joinBelow is the size up to which small messages share a segment of the backlog.
	joinBelow = 64 << 10
)

// ErrTooManyFiles refuses a message with more than MaxFiles descriptors.
var ErrTooManyFiles = fmt.Errorf("more than %d file descriptors", MaxFiles)

// segment is a part of the backlog. Its descriptors travel with its first byte, which is the first of a message.
type segment struct {
	data  []byte
	files []int
}

// writer is the writing half of a Conn.
type writer struct {
	wmu      sync.Mutex // guards what follows; never held while waiting
	writeErr error
	backlog  []segment
	pending  int  // bytes of the backlog
	flushing bool // a goroutine writes the backlog
	waiting  []*drainWaiter
	flushers sync.WaitGroup

	tryFn   func(fd uintptr)      // c.try, bound once: a method value allocates
	flushFn func(fd uintptr) bool // c.flushSome
	iov     [maxParts]unix.Iovec  // what try is to send
	iovLen  int
	rights  []byte
	sent    int // what try has done
	sendErr error
}

type drainWaiter struct {
	below int
	done  chan struct{}
}

// Write sends one whole message, newline included, given in parts. It never blocks: what the kernel does not take at once is
// copied and written in the background, in order. After an error all further Writes return it, and nothing of a message for
// which Write returns an error has been sent; what Pending says then was never sent either. An error that has to do with the
// descriptors alone (too many, not open, too many under way) is that of this message only.
//
// The descriptors in files travel with the first byte. They belong to the Conn from now on, whatever Write returns; it closes
// them when they are sent.
func (c *Conn) Write(files []int, parts ...[]byte) error {
	if len(files) > MaxFiles {
		closeAll(files)
		return ErrTooManyFiles
	}
	total := 0
	for _, p := range parts {
		total += len(p)
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	if c.writeErr != nil || total == 0 {
		closeAll(files)
		return c.writeErr
	}
	sent := 0
	if !c.flushing {
		var err error
		sent, err = c.sendNow(files, parts)
		if sent > 0 || err != nil {
			closeAll(files)
			files = nil
		}
		if err != nil {
			if sent == 0 && unsendable(err) {
				return os.NewSyscallError("sendmsg", err)
			}
			c.pending = total - sent
			c.failLocked(wrapSend(err))
			return c.writeErr
		}
	}
	if sent < total {
		c.queue(files, parts, sent, total-sent)
	}
	return nil
}

// unsendable says that a message could not be sent for the sake of its descriptors alone: the connection is as it was.
func unsendable(err error) bool {
	return errors.Is(err, ErrTooManyFiles) || errors.Is(err, unix.EBADF) || errors.Is(err, unix.ETOOMANYREFS)
}

func wrapSend(err error) error {
	if _, ok := err.(syscall.Errno); ok {
		return os.NewSyscallError("sendmsg", err)
	}
	return fmt.Errorf("write: %w", err)
}

// sendNow makes one attempt to send parts; it returns how many bytes the kernel took.
func (c *Conn) sendNow(files []int, parts [][]byte) (int, error) {
	if len(parts) > maxParts {
		parts = [][]byte{slices.Concat(parts...)}
	}
	c.iovLen = 0
	for _, p := range parts {
		if len(p) > 0 {
			setIov(&c.iov[c.iovLen], p)
			c.iovLen++
		}
	}
	if len(files) > 0 {
		c.rights = unix.UnixRights(files...)
	}
	c.sent, c.sendErr = 0, nil
	err := c.rc.Control(c.tryFn)
	clear(c.iov[:c.iovLen])
	c.rights = nil
	if err == nil {
		err = c.sendErr
	}
	return c.sent, err
}

func (c *Conn) try(fd uintptr) {
	c.sent, c.sendErr = c.send(fd, c.iov[:c.iovLen], c.rights)
}

// send is sendmsg for which a full socket is no error.
func (c *Conn) send(fd uintptr, iov []unix.Iovec, rights []byte) (int, error) {
	n, err := sendmsg(fd, iov, rights)
	switch {
	case err == errAgain:
		return 0, nil
	case err == error(unix.ECONNRESET):
		c.reset.Store(true)
	}
	return n, err
}

// queue copies what is left of a message to the backlog, and sees to it that somebody writes it. It keeps the descriptors.
func (c *Conn) queue(files []int, parts [][]byte, skip, left int) {
	var data []byte
	last := len(c.backlog) - 1
	join := last >= 0 && len(files) == 0 && len(c.backlog[last].files) == 0 && len(c.backlog[last].data)+left <= joinBelow
	if join {
		data = c.backlog[last].data
	} else {
		data = make([]byte, 0, left)
	}
	for _, p := range parts {
		n := min(skip, len(p))
		skip -= n
		data = append(data, p[n:]...)
	}
	if join {
		c.backlog[last].data = data
	} else {
		c.backlog = append(c.backlog, segment{data, files})
	}
	c.pending += left
	if !c.flushing {
		c.flushing = true
		c.flushers.Add(1)
		go c.flush()
	}
}

// flush writes the backlog until it is empty.
func (c *Conn) flush() {
	defer c.flushers.Done()
	if err := c.rc.Write(c.flushFn); err != nil { // closed
		c.failWrites(wrapSend(err))
	}
}

// flushSome writes what the kernel takes of the backlog. It is done when the backlog is empty or cannot be written.
func (c *Conn) flushSome(fd uintptr) bool {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	for len(c.backlog) > 0 {
		s := &c.backlog[0]
		var iov [1]unix.Iovec
		setIov(&iov[0], s.data)
		var rights []byte
		if len(s.files) > 0 {
			rights = unix.UnixRights(s.files...)
		}
		n, err := c.send(fd, iov[:], rights)
		if err != nil {
			c.failLocked(wrapSend(err))
			break
		}
		if n == 0 {
			return false
		}
		closeAll(s.files)
		s.files = nil
		c.pending -= n
		if s.data = s.data[n:]; len(s.data) == 0 {
			c.backlog[0] = segment{}
			c.backlog = c.backlog[1:]
		}
		c.wakeLocked()
	}
	c.backlog = nil
	c.flushing = false
	return true
}

// failWrites makes all further writes return err, unless there is an error already.
func (c *Conn) failWrites(err error) {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.failLocked(err)
	c.flushing = false
}

func (c *Conn) failLocked(err error) {
	if c.writeErr == nil {
		c.writeErr = err
	}
	for i := range c.backlog {
		closeAll(c.backlog[i].files)
	}
	c.backlog = nil
	c.wakeLocked()
}

// wakeLocked tells those that wait for the backlog to shrink.
func (c *Conn) wakeLocked() {
	c.waiting = slices.DeleteFunc(c.waiting, func(w *drainWaiter) bool {
		if c.pending > w.below && c.writeErr == nil {
			return false
		}
		close(w.done)
		return true
	})
}

// Pending returns how many bytes of what was written the kernel has not taken yet.
func (c *Conn) Pending() int {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	return c.pending
}

// WaitDrained returns nil when at most below bytes are pending: for a caller that takes no more work from one peer while
// another one is slow. A write error ends the wait, and so does ctx.
func (c *Conn) WaitDrained(ctx context.Context, below int) error {
	c.wmu.Lock()
	if c.writeErr != nil || c.pending <= below {
		defer c.wmu.Unlock()
		return c.writeErr
	}
	w := &drainWaiter{below, make(chan struct{})}
	c.waiting = append(c.waiting, w)
	c.wmu.Unlock()

	var err error
	select {
	case <-w.done:
	case <-ctx.Done():
		err = ctx.Err()
	}
	c.wmu.Lock()
	defer c.wmu.Unlock()
	c.waiting = slices.DeleteFunc(c.waiting, func(other *drainWaiter) bool { return other == w })
	return errors.Join(err, c.writeErr)
}
