package protocol

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// splitLines is what framing means, said the slow way: the events that a stream of bytes makes.
func splitLines(stream []byte, limit int) []string {
	var events []string
	lines := bytes.Split(stream, []byte("\n"))
	for i, line := range lines {
		if i == len(lines)-1 && len(line) == 0 {
			break
		}
		line = bytes.TrimSuffix(line, []byte("\r"))
		switch {
		case len(line) > limit:
			events = append(events, fmt.Sprintf("too long: %s", line[:min(limit, headSize)]))
		case len(bytes.Trim(line, " \t\r")) > 0:
			events = append(events, string(line))
		}
	}
	return events
}

// frameLines gives stream to a framer in chunks of the given sizes (over and over) and returns the events.
func frameLines(t *testing.T, stream []byte, limit int, sizes []byte) []string {
	var events []string
	f := framer{max: limit}
	note := func(line []byte, begin int64, err error) bool {
		var tooLong *TooLongError
		switch {
		case errors.As(err, &tooLong):
			require.LessOrEqual(t, len(tooLong.Head), headSize)
			events = append(events, fmt.Sprintf("too long: %s", tooLong.Head[:min(limit, headSize)]))
		case line != nil:
			require.Equal(t, string(line), string(stream[begin:int(begin)+len(line)]))
			events = append(events, string(line))
		}
		return line != nil || err != nil
	}
	for k, left := 0, stream; len(left) > 0; k++ {
		room := f.room()
		n := len(room)
		if len(sizes) > 0 {
			n = min(n, 1+int(sizes[k%len(sizes)])*int(sizes[k%len(sizes)]))
		}
		n = copy(room[:n], left)
		left = left[n:]
		f.filled(n)
		for note(f.next()) {
		}
		require.Nil(t, f.chunk, "a buffer is held while nothing is left to read")
		require.LessOrEqual(t, cap(f.acc), 4*(limit+2)+chunkSize)
	}
	line, begin := f.last()
	note(line, begin, nil)
	return events
}

// FuzzFraming says that the lines do not depend on how they arrive. An R in the stream stands for a long run of letters.
func FuzzFraming(f *testing.F) {
	f.Add([]byte("one\r\n\ntwo\nthree"), 10, []byte{1})
	f.Add([]byte("0123456789\r\n0123456789a\n01234567890\r\n   \n\r\n"), 10, []byte{0, 3})
	f.Add([]byte("RRRRxx\nshort\nRand half"), 200000, []byte{255, 200, 1})
	f.Add([]byte("RRRRRRRRR\nshort\n"), 50000, []byte{})
	run := bytes.Repeat([]byte("x"), 20000)
	f.Fuzz(func(t *testing.T, stream []byte, limit int, sizes []byte) {
		stream = bytes.ReplaceAll(stream[:min(len(stream), 100)], []byte("R"), run)
		limit = 1 + int(uint(limit)%(1<<18))
		want, got := splitLines(stream, limit), frameLines(t, stream, limit, sizes)
		if !slices.Equal(want, got) {
			t.Fatalf("limit %d: %d events %.200q, want %d %.200q", limit, len(got), got, len(want), want)
		}
	})
}

func TestFramingAtTheEdges(t *testing.T) {
	for _, size := range []int{1, chunkSize - 1, chunkSize, chunkSize + 1, 65535, 65536, 65537, 1 << 20} {
		x := bytes.Repeat([]byte("x"), size)
		var stream []byte
		for _, end := range []string{"\n", "\r\n", "x\n", "x\r\n", "\r\r\n", "xx\n", "\nshort\n\n", "xxxx\r\nshort\n", "\n", "x"} {
			stream = append(append(stream, x...), end...)
		}
		for _, sizes := range [][]byte{nil, {255}, {181, 3}} {
			require.Equal(t, splitLines(stream, size), frameLines(t, stream, size, sizes), "size %d, chunks %v", size, sizes)
		}
	}
}

func TestTooLongAnswerNamesTheID(t *testing.T) {
	pad := bytes.Repeat([]byte("x"), headSize)
	for head, want := range map[string]string{
		`{"jsonrpc":"2.0","id":7,"method":"m","params":{"a":"`:     `{"id":7,"limit":100}`,
		`{"jsonrpc":"2.0","id":"a b","params":{"id":8,"a":"`:       `{"id":"a b","limit":100}`,
		`{"jsonrpc":"2.0","method":"m","params":{"id":8,"a":"`:     `{"limit":100}`,
		`{"jsonrpc":"2.0","id":null,"a":"`:                         `{"limit":100}`,
		`{"jsonrpc":"2.0","id":7,"id":8,"a":"`:                     `{"limit":100}`,
		`{"jsonrpc":"2.0","id":7`:                                  `{"limit":100}`,
		`{"jsonrpc":"2.0","id":"`:                                  `{"limit":100}`,
		`junk `:                                                    `{"limit":100}`,
		`{"jsonrpc":"2.0","method":"m","params":{"id":8},"id":9,"`: `{"id":9,"limit":100}`,
	} {
		b := []byte(head)
		if head[len(head)-1] != '7' { // 7 is where a number is cut off
			b = append(b, pad...)
		}
		e := (&TooLongError{Limit: 100, Head: b[:min(len(b), headSize)]}).Answer()
		require.Equal(t, TooLarge, e.Data.Kind)
		answer := string(e.AppendAnswer(nil, nil))
		require.Contains(t, answer, `"id":null`)
		require.Contains(t, answer, `"detail":`+want, head)
	}
}
