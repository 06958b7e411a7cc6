package protocol

import (
	"bytes"
	"fmt"

	"golang.org/x/sys/unix"
)

// FilesError is what Read returns for a line whose descriptors did not all arrive; those that did are closed. The connection
// lives on.
type FilesError struct {
	Line    []byte // the whole line, so that it can be answered
	TooMany bool   // more than MaxFiles; else this process could not take them all
}

// Error says why.
func (e *FilesError) Error() string {
	if e.TooMany {
		return fmt.Sprintf("a line with more than %d file descriptors", MaxFiles)
	}
	return "the file descriptors of a line could not be received: too many open files"
}

// arrived is a set of descriptors that came with the received byte at a position of the stream.
type arrived struct {
	at  int64
	fds []int
	bad *FilesError // they did not all arrive; fds is empty then
}

// inbox holds descriptors until the line that they came with is whole. A sender puts them on the sendmsg that carries the
// line's first byte, and nothing of another line; the kernel ends a receive with the bytes of such a sendmsg. So they belong to
// the line of the last byte that was received with them.
type inbox struct {
	sets []arrived // at most two: of the line that is not whole yet, and of a later one
}

// add takes descriptors that came with data, whose last byte is at position at. cut means that some were lost.
func (b *inbox) add(data []byte, at int64, fds []int, cut bool) {
	set := arrived{at: at, fds: fds}
	if cut {
		set.bad = &FilesError{TooMany: len(fds) >= MaxFiles}
	}
	sameLine := bytes.IndexByte(data[:len(data)-1], '\n') < 0
	if n := len(b.sets); n > 0 && sameLine {
		set.fds = append(b.sets[n-1].fds, fds...)
		if set.bad == nil {
			set.bad = b.sets[n-1].bad
		}
		b.sets = b.sets[:n-1]
	}
	if len(set.fds) > MaxFiles && set.bad == nil {
		set.bad = &FilesError{TooMany: true}
	}
	if set.bad != nil {
		closeAll(set.fds)
		set.fds = nil
	}
	b.sets = append(b.sets, set)
}

// claim hands out the descriptors of the line that covers positions begin to end, and closes those before it.
func (b *inbox) claim(begin, end int64) ([]int, *FilesError) {
	var fds []int
	var bad *FilesError
	for len(b.sets) > 0 && b.sets[0].at < end {
		if set := b.sets[0]; set.at < begin {
			closeAll(set.fds)
		} else {
			fds, bad = set.fds, set.bad
		}
		b.sets = b.sets[1:]
	}
	if len(b.sets) == 0 {
		b.sets = nil
	}
	return fds, bad
}

// drop closes all descriptors that came before position end.
func (b *inbox) drop(end int64) { b.claim(end, end) }

func closeAll(fds []int) {
	for _, fd := range fds {
		unix.Close(fd)
	}
}
