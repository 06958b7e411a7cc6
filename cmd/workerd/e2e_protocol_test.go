package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// bad is what a client may say that is no request, and what it is told.
var bad = []struct {
	name, line string
	id         string // under which the error comes
	kind       protocol.Kind
	detail     string // part of data.detail
}{
	{"no JSON", `hello`, `null`, protocol.ParseError, ""},
	{"half an object", `{"jsonrpc":"2.0","id":7,"method":`, `null`, protocol.ParseError, ""},
	{"two objects", `{"jsonrpc":"2.0","id":7,"method":"echo"} {}`, `null`, protocol.ParseError, ""},
	{"a batch", `[{"jsonrpc":"2.0","id":7,"method":"echo"}]`, `null`, protocol.InvalidRequest, ""},
	{"an empty batch", `[]`, `null`, protocol.InvalidRequest, ""},
	{"a number", `42`, `null`, protocol.InvalidRequest, ""},
	{"NaN", `{"jsonrpc":"2.0","id":7,"method":"echo","params":{"x":NaN}}`, `null`, protocol.ParseError, ""},
	{"Infinity", `{"jsonrpc":"2.0","id":7,"method":"echo","params":{"x":-Infinity}}`, `null`, protocol.ParseError, ""},
	{"invalid UTF-8", "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"echo\",\"params\":{\"x\":\"\xff\xfe\"}}", `null`, protocol.ParseError, ""},
	{"an overlong encoding", "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"\xc0\xaf\"}", `null`, protocol.ParseError, ""},
	{"a bare control character", "{\"jsonrpc\":\"2.0\",\"id\":7,\"method\":\"a\x01b\"}", `null`, protocol.ParseError, ""},
	{"the wrong version", `{"jsonrpc":"1.0","id":7,"method":"echo","params":{}}`, `7`, protocol.InvalidRequest, ""},
	{"no version", `{"id":"seven","method":"echo","params":{}}`, `"seven"`, protocol.InvalidRequest, ""},
	{"no method", `{"jsonrpc":"2.0","id":7,"params":{}}`, `7`, protocol.InvalidRequest, ""},
	{"params by position", `{"jsonrpc":"2.0","id":7,"method":"echo","params":[1,2]}`, `7`, protocol.InvalidRequest, ""},
	{"an object for an id", `{"jsonrpc":"2.0","id":{"a":7},"method":"echo"}`, `null`, protocol.InvalidRequest, `{"a":7}`},
	{"a broken number for an id", `{"jsonrpc":"2.0","id":7.5,"method":"echo"}`, `null`, protocol.InvalidRequest, `7.5`},
	{"true for an id", `{"jsonrpc":"2.0","id":true,"method":"echo"}`, `null`, protocol.InvalidRequest, `true`},
	{"an answer", `{"jsonrpc":"2.0","id":7,"result":{}}`, `null`, protocol.InvalidRequest, ""},
	{"a wrong timeout", `{"jsonrpc":"2.0","id":7,"method":"echo","params":{"_meta":{"timeoutMs":"soon"}}}`, `7`, protocol.InvalidParams, ""},
	{"a reserved method", `{"jsonrpc":"2.0","id":7,"method":"workerd.reboot"}`, `7`, protocol.MethodNotFound, ""},
	{"too much", `{"jsonrpc":"2.0","id":7,"method":"echo","params":{"x":"` + strings.Repeat("x", 100<<10) + `"}}`, `null`, protocol.TooLarge, `"limit":65536`},
}

func TestE2EMalformedLines(t *testing.T) {
	e := newE2E(t)
	e.bare("x", "[serve]\nmax_message = \"64KiB\"")
	e.start()
	pid := e.ready("x")

	// Meanwhile another client's calls go on.
	ctx, cancel := context.WithCancel(t.Context())
	calls := make(chan int, 1)
	neighbour := make(chan error, 1)
	go func() {
		n := 0
		w, err := connect(e.front("x"))
		for err == nil && ctx.Err() == nil {
			var m message
			if m, err = w.try("echo", fmt.Sprintf(`{"text":"call %d"}`, n)); err == nil && m.said().Text != fmt.Sprintf("call %d", n) {
				err = fmt.Errorf("call %d was answered %s, %v", n, m.Result, m.Error)
			}
			n++
		}
		calls <- n
		neighbour <- err
	}()

	w := e.dial("x")
	own := 0
	for range 3 {
		for _, b := range bad {
			require.NoError(t, w.send(b.line), b.name)
			m, err := w.read()
			require.NoError(t, err, b.name)
			require.Equal(t, b.id, string(m.ID), "%s: %v", b.name, m.Error)
			require.Equal(t, b.kind, m.kind(), "%s: %v", b.name, m.Error)
			require.Equal(t, b.kind.Code(), m.Error.Code, b.name)
			require.NotEmpty(t, m.Error.Message, b.name)
			if b.detail != "" {
				detail, err := json.Marshal(m.Error.Data.Detail)
				require.NoError(t, err)
				require.Contains(t, string(detail), b.detail, b.name)
			}
		}
		e.call(w, "echo", "{}") // the connection lives on
		own++
	}
	// Without an id nothing is answered, and nothing is run.
	require.NoError(t, w.send(`{"jsonrpc":"2.0","method":"echo","params":{}}`))
	require.NoError(t, w.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"nobody's"}}`))
	require.NoError(t, w.silent())

	// A second request under an id that is under way is refused; the first is answered.
	require.NoError(t, w.send(`{"jsonrpc":"2.0","id":"twice","method":"echo","params":{"sleep":1,"text":"first"}}`+"\n"+
		`{"jsonrpc":"2.0","id":"twice","method":"echo","params":{"text":"second"}}`))
	own++
	m, err := w.read()
	require.NoError(t, err)
	require.Equal(t, "null", string(m.ID))
	require.Equal(t, protocol.InvalidRequest, m.kind())
	require.Equal(t, map[string]any{"id": "twice"}, m.Error.Data.Detail)
	m, err = w.read()
	require.NoError(t, err)
	require.Equal(t, "first", m.said().Text)
	require.NoError(t, w.send(`{"jsonrpc":"2.0","id":"twice","method":"echo","params":{"text":"third"}}`))
	own++
	m, err = w.read()
	require.NoError(t, err)
	require.Equal(t, "third", m.said().Text, "the id is free again")

	own += halfLines(t, e)
	cancel()
	others := <-calls
	require.NoError(t, <-neighbour)
	t.Logf("%d calls of the neighbour", others)
	s := e.call(w, "echo", "{}")
	require.Equal(t, own+others+1, s.Seen, "no other line has reached the worker")
	require.Equal(t, pid, s.PID)
	require.Equal(t, 0, e.status("x").Workers[0].Restarts)
}

// halfLines ends connections in the middle of a line, and returns how many requests reached the worker.
func halfLines(t *testing.T, e *e2e) int {
	half := `{"jsonrpc":"2.0","id":1,"meth`
	for range 20 {
		w := e.dial("x")
		_, err := w.conn.Write([]byte(half))
		require.NoError(t, err)
		require.NoError(t, w.conn.Close())
	}
	w := e.dial("x")
	_, err := w.conn.Write([]byte(half))
	require.NoError(t, err)
	require.NoError(t, w.conn.CloseWrite())
	m, err := w.read()
	require.NoError(t, err)
	require.Equal(t, protocol.ParseError, m.kind())
	_, err = w.read()
	require.Error(t, err, "then the connection closes")

	w = e.dial("x") // a last line without its newline counts, and the end of the input is not the client's departure
	_, err = w.conn.Write([]byte(`{"jsonrpc":"2.0","id":1,"method":"echo","params":{"sleep":0.2,"text":"last"}}`))
	require.NoError(t, err)
	require.NoError(t, w.conn.CloseWrite())
	m, err = w.read()
	require.NoError(t, err)
	require.Equal(t, "last", m.said().Text)
	_, err = w.read()
	require.Error(t, err)

	w = e.dial("x") // a line that comes byte by byte
	for _, b := range []byte(`{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":"drop by drop"}}` + "\r\n") {
		_, err = w.conn.Write([]byte{b})
		require.NoError(t, err)
	}
	m, err = w.read()
	require.NoError(t, err)
	require.Equal(t, "drop by drop", m.said().Text)
	return 2
}

func TestE2ECase86MessageSizes(t *testing.T) {
	e := newE2E(t)
	e.bare("x", "[serve]\nmax_message = \"110MB\"")
	e.bare("small", "[serve]\nmax_message = \"1MB\"")
	e.start()
	w, small := e.dial("x"), e.dial("small")
	w.r = bufio.NewReaderSize(w.conn, 1<<20)
	sizes := []int{1, 65_535, 65_536, 65_537, 1_000_000}
	if !testing.Short() && !raceDetector {
		sizes = append(sizes, 100_000_000)
	}
	for _, size := range sizes {
		text := bytes.Repeat([]byte{'x'}, size)
		begin := time.Now()
		sent := make(chan error, 1)
		go func() {
			sent <- w.send(`{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":"` + string(text) + `"}}`)
		}()
		require.NoError(t, w.conn.SetReadDeadline(time.Now().Add(patience)))
		answer, err := w.r.ReadBytes('\n')
		require.NoError(t, err)
		t.Logf("%d bytes there and back: %s", size, time.Since(begin).Round(time.Millisecond))
		require.NoError(t, <-sent)
		require.True(t, bytes.Contains(answer, text), "%.200s", answer)
	}
	pid := e.ready("small")
	m, err := small.try("repeat", `{"text":"x","times":2000000}`)
	require.NoError(t, err)
	require.Equal(t, protocol.TooLarge, m.kind(), "an answer beyond max_message")
	require.Equal(t, pid, e.call(small, "echo", "{}").PID, "connection and worker stay usable")
}

func TestE2ECase87ADepartedCallerIsNotComputedFor(t *testing.T) {
	e := newE2E(t)
	e.provider("x", "")
	e.start()
	pid := e.ready("x")
	w := e.dial("x")
	_, err := w.request("sleep", `{"seconds":60}`)
	require.NoError(t, err)
	e.until("it runs", func() bool { return e.status("x").InFlight == 1 })
	require.NoError(t, w.conn.Close())
	begin := time.Now()
	require.Equal(t, pid, e.call(e.dial("x"), "echo", "{}").PID)
	require.Less(t, time.Since(begin), soon(time.Second))

	call := e.command("call", "x", "sleep", "seconds=60")
	require.NoError(t, call.Start())
	e.until("it runs", func() bool { return e.status("x").InFlight == 1 })
	require.NoError(t, call.Process.Signal(syscall.SIGINT))
	require.Error(t, call.Wait())
	require.Equal(t, exitFailed, call.ProcessState.ExitCode())
	require.Equal(t, pid, e.call(e.dial("x"), "echo", "{}").PID)
}
