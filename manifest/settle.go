package manifest

import (
	"errors"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// How long a changed file must have been quiet before it is taken as it is.
const (
	// A file that was renamed into place is whole; the wait lets a burst of events pass.
	quietArrived = 10 * time.Millisecond
	// A file written in place may be between two writes of its author.
	quietWritten = 500 * time.Millisecond
	// A file may be missing for a moment while its editor replaces it, a whole directory while it is unpacked anew.
	quietGone       = 500 * time.Millisecond
	quietGoneFolder = 2 * time.Second
	// A file saved again and again is applied once at the start and once at the end, at least each burstBound.
	quietBurst = 250 * time.Millisecond
	burstAge   = time.Second
	burstBound = 5 * time.Second
	// A quiet file that somebody still holds open for writing is waited for this long, with a look at each writerPoll.
	writerBound = 5 * time.Second
	writerPoll  = 50 * time.Millisecond
)

// change is a file that is not yet taken as it is now.
type change struct {
	since   time.Time // of the first sign
	last    time.Time // of the last sign: an event or another stamp
	stamp   stamp     // at the last look
	looked  bool      // stamp is set
	arrived bool      // the file came by rename or was created
	written bool      // it was written since
	burst   bool      // the file was applied a moment before
	folder  bool      // it is gone together with its directory
	writer  time.Time // since when it is quiet and still open for writing, zero if it is not
	polled  time.Time // last look at a writer
	ready   bool      // may be taken
}

// quiet returns how long the file must have shown no sign of change.
func (c *change) quiet() time.Duration {
	switch {
	case c.looked && c.stamp == stamp{} && c.folder:
		return quietGoneFolder
	case c.looked && c.stamp == stamp{}:
		return quietGone
	case !c.arrived, c.written, c.looked && c.stamp.size == 0:
		// An empty file that was just created has its content still to come.
		return quietWritten
	case c.burst:
		return quietBurst
	}
	return quietArrived
}

// due returns when to look at the file next.
func (c *change) due() time.Time {
	if !c.writer.IsZero() {
		return c.polled.Add(writerPoll)
	}
	due := c.last.Add(c.quiet())
	if bound := c.since.Add(burstBound); c.burst && c.arrived && !c.written && due.After(bound) {
		return bound
	}
	return due
}

// look takes note of the file's stamp now, and decides whether the file may be taken. writing reports whether somebody
// has it open for writing.
func (c *change) look(now time.Time, seen stamp, writing func() bool) {
	if c.looked && seen != c.stamp {
		c.last, c.writer = now, time.Time{}
	}
	c.stamp, c.looked = seen, true
	c.ready = false
	if c.writer.IsZero() && now.Before(c.due()) {
		return
	}
	if seen != (stamp{}) && writing() {
		if c.writer.IsZero() {
			c.writer = now
		}
		c.polled = now
		if now.Sub(c.writer) < writerBound {
			return
		}
	}
	c.ready = true
}

// beingWritten reports whether a process has the file open for writing. The kernel tells by refusing a read lease, which
// only the file's owner and root may ask for: for others the answer is no.
func beingWritten(path string) bool {
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return false
	}
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return false
	}
	defer unix.Close(fd) // drops the lease as well
	_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_RDLCK)
	if err == nil {
		_, err = unix.FcntlInt(uintptr(fd), unix.F_SETLEASE, unix.F_UNLCK)
	}
	return errors.Is(err, unix.EAGAIN)
}
