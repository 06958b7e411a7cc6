package protocol

import (
	"bytes"
	"fmt"
	"sync"
)

const (
	// chunkSize is how much is received at once. Lines that fit are copied out of the shared buffer; a longer line gathers in
	// a slice of its own, into which is received directly from then on.
	chunkSize = 32 << 10

	// headSize is how much of a refused line is kept.
	headSize = 4 << 10
)

// chunks holds the receive buffers that no connection is using.
var chunks = sync.Pool{New: func() any { return new([chunkSize]byte) }}

// TooLongError is what Read returns for a line beyond the limit. The connection lives on: the rest of the line, up to its
// newline, is thrown away as it arrives.
type TooLongError struct {
	Limit int    // bytes that a line may have, its newline not counted
	Head  []byte // what the line begins with, at most 4 KiB
}

// Error names the limit.
func (e *TooLongError) Error() string {
	return fmt.Sprintf("a line of more than %d bytes", e.Limit)
}

// Answer is the error with which such a line is to be answered, under id null. Its detail has the limit, and the id where it
// can be told from the head.
func (e *TooLongError) Answer() *Error {
	return Errorf(TooLarge, "the message has more than %d bytes", e.Limit).
		WithDetail(&lineDetail{ID: rawDetail(headID(e.Head)), Limit: e.Limit})
}

// ID returns the raw id of the line, nil where it cannot be told from the head.
func (e *TooLongError) ID() []byte { return headID(e.Head) }

// headID returns the id of a message of which only the head is there, nil where it does not stand in it.
func headID(head []byte) []byte {
	var m Message
	s := scanner{b: head, m: &m}
	s.scanLine()
	id := s.rawID.Of(head)
	if s.seen&seenID == 0 || s.twice&seenID != 0 || !isID(id) || isNumber(id) && s.rawID.End == len(head) {
		return nil
	}
	return id
}

// framer cuts a stream of bytes into lines. Bytes go in with room and filled, lines come out with next. It keeps a shared
// buffer only while there are received bytes that next has not looked at.
type framer struct {
	max int // bytes of a line, its newline not counted

	rest   []byte           // received, not looked at
	chunk  *[chunkSize]byte // the shared buffer, where rest or the room lies in one
	acc    []byte           // what there is of the current line
	direct bool             // the room lies behind acc, and so does rest
	skip   bool             // the current line was too long: drop what is left of it

	taken int64 // bytes of the stream that have been looked at
	start int64 // where the current line begins in the stream
}

// room returns where to receive the next bytes. rest must be used up.
func (f *framer) room() []byte {
	if f.direct = len(f.acc) >= chunkSize; !f.direct {
		if f.chunk == nil {
			f.chunk = chunks.Get().(*[chunkSize]byte)
		}
		return f.chunk[:]
	}
	// Two bytes beyond the limit, "\r" and one more, are enough to see that a line is too long.
	want := min(max(len(f.acc), 2*chunkSize), f.max+2-len(f.acc))
	if cap(f.acc)-len(f.acc) < min(want, chunkSize) {
		f.acc = append(make([]byte, 0, len(f.acc)+want), f.acc...)
	}
	return f.acc[len(f.acc):cap(f.acc)]
}

// filled says that n bytes were received into the room; with none the shared buffer goes back.
func (f *framer) filled(n int) {
	switch {
	case n == 0:
		f.release()
	case f.direct:
		f.rest = f.acc[len(f.acc) : len(f.acc)+n]
	default:
		f.rest = f.chunk[:n]
	}
}

// release gives the shared buffer back.
func (f *framer) release() {
	if f.chunk != nil {
		chunks.Put(f.chunk)
		f.chunk = nil
	}
}

// next returns the next line that is not blank, nil where all that was received has been looked at. What begins at f.start
// afterwards is the line after it.
func (f *framer) next() (line []byte, begin int64, err error) {
	for len(f.rest) > 0 {
		i := bytes.IndexByte(f.rest, '\n')
		if i < 0 {
			return nil, 0, f.keep()
		}
		begin = f.start
		line, err = f.cut(i)
		f.taken += int64(i + 1)
		f.start = f.taken
		if f.rest = f.rest[i+1:]; len(f.rest) == 0 {
			f.rest = nil
			f.release()
		}
		if line != nil || err != nil {
			return line, begin, err
		}
	}
	return nil, 0, nil
}

// keep puts rest, which has no newline, to the current line.
func (f *framer) keep() error {
	n := len(f.rest)
	f.taken += int64(n)
	switch {
	case f.skip:
	case f.direct:
		f.acc = f.acc[:len(f.acc)+n]
	default:
		if f.acc == nil && n == chunkSize { // a long line: with room for what comes
			f.acc = make([]byte, 0, min(3*chunkSize, max(n, f.max+2)))
		}
		f.acc = append(f.acc, f.rest...)
	}
	f.rest = nil
	f.release()
	if n = len(f.acc); n > f.max+1 || n == f.max+1 && f.acc[n-1] != '\r' {
		f.skip = true
		return f.tooLong(f.acc)
	}
	return nil
}

// cut ends the current line with the first i bytes of rest. The line is nil where it is blank or dropped.
func (f *framer) cut(i int) ([]byte, error) {
	if f.skip {
		f.skip = false
		return nil, nil
	}
	last := f.rest[:i]
	switch {
	case f.direct:
		last = f.acc[:len(f.acc)+i]
	case f.acc != nil:
		last = append(f.acc, last...)
	}
	own := f.acc != nil
	f.acc, f.direct = nil, false
	last = bytes.TrimSuffix(last, []byte{'\r'})
	switch {
	case len(last) > f.max:
		return nil, f.tooLong(last)
	case blank(last):
		return nil, nil
	case own:
		return last[:len(last):len(last)], nil
	}
	return bytes.Clone(last), nil
}

// last returns the line that the end of input has ended, nil where there is none. It cannot be too long: keep has seen it.
func (f *framer) last() (line []byte, begin int64) {
	if f.acc == nil {
		return nil, 0
	}
	begin = f.start
	f.direct = false
	line, _ = f.cut(0)
	f.start = f.taken
	return line, begin
}

func (f *framer) tooLong(line []byte) error {
	f.acc, f.direct = nil, false
	return &TooLongError{Limit: f.max, Head: bytes.Clone(line[:min(len(line), headSize)])}
}

func blank(line []byte) bool {
	for _, c := range line {
		if !isSpace(c) {
			return false
		}
	}
	return true
}

func containsNewline(b []byte) bool { return bytes.IndexByte(b, '\n') >= 0 }
