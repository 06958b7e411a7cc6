package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// clientAndServer returns a Client and the Conn of the server that it talks to.
func clientAndServer(t testing.TB) (*Client, *Conn) {
	t.Helper()
	a, b := pair(t)
	c, server := NewClient(a), NewConn(b, 1<<20)
	t.Cleanup(func() {
		server.Close()
		c.Close()
	})
	return c, server
}

// next reads the next line of a server, which is sound.
func next(t testing.TB, server *Conn) (line string, m Message) {
	t.Helper()
	l, err := server.Read()
	require.NoError(t, err)
	require.Nil(t, Scan(l.Bytes, &m), "%s", l.Bytes)
	return string(l.Bytes), m
}

func say(t testing.TB, server *Conn, format string, args ...any) {
	t.Helper()
	require.NoError(t, server.Write(nil, fmt.Appendf(nil, format+"\n", args...)))
}

type outcome struct {
	result json.RawMessage
	err    error
}

// begin starts a call; its outcome comes on the channel.
func begin(ctx context.Context, c *Client, method string, params any, opts ...CallOption) chan outcome {
	ended := make(chan outcome, 1)
	go func() {
		result, err := c.Call(ctx, method, params, opts...)
		ended <- outcome{result, err}
	}()
	return ended
}

func TestCallLine(t *testing.T) {
	type args struct {
		Image string `json:"image"`
	}
	all := []CallOption{WithProgress(func(Progress) {}), WithTimeout(1500*time.Millisecond + 1), WithIdempotencyKey("k\n")}
	tests := []struct {
		params any
		opts   []CallOption
		want   string
	}{
		{nil, nil, `{}`},
		{args{"/d/p.png"}, nil, `{"image":"/d/p.png"}`},
		{json.RawMessage("{ \"a\" :\n1}"), nil, `{"a":1}`},
		{nil, all[1:2], `{"_meta":{"timeoutMs":1501}}`},
		{args{"x"}, all, `{"_meta":{"idempotencyKey":"k\n","progressToken":1,"timeoutMs":1501},"image":"x"}`},
		{json.RawMessage(`{"a":1,"_meta":{"timeoutMs":7,"mine":[1]}}`), all[:1], `{"a":1,"_meta":{"mine":[1],"progressToken":1,"timeoutMs":7}}`},
		{json.RawMessage(`{"_meta":{"timeoutMs":7}}`), all[1:2], `{"_meta":{"timeoutMs":1501}}`},
	}
	for _, tt := range tests {
		c, server := clientAndServer(t)
		ended := begin(t.Context(), c, "a/b", tt.params, tt.opts...)
		line, _ := next(t, server)
		assert.Equal(t, `{"jsonrpc":"2.0","id":1,"method":"a/b","params":`+tt.want+`}`, line)
		say(t, server, `{"jsonrpc":"2.0","id":1,"result":[1, 2]}`)
		require.Equal(t, outcome{json.RawMessage(`[1, 2]`), nil}, <-ended)
	}
}

func TestCallsThatAreNotSent(t *testing.T) {
	c, server := clientAndServer(t)
	for _, tt := range []struct {
		method string
		params any
		kind   Kind
	}{
		{"x", []int{1}, InvalidRequest},
		{"x", "text", InvalidRequest},
		{"", nil, InvalidRequest},
		{"x", map[string]float64{"a": math.NaN()}, InvalidParams},
		{"x", json.RawMessage(`{"a":`), InvalidParams},
		{"x", json.RawMessage(`{"_meta":1}`), InvalidParams},
		{"x", json.RawMessage("{\"a\":\"\xff\"}"), ParseError},
	} {
		_, err := c.Call(t.Context(), tt.method, tt.params, WithFiles(memfd(t, "")))
		assert.Equal(t, tt.kind, KindOf(err), "%v: %v", tt, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := c.Call(ctx, "x", nil, WithFiles(memfd(t, "")))
	assert.ErrorIs(t, err, context.Canceled)
	assert.Equal(t, Cancelled, KindOf(err))
	_, err = c.Call(t.Context(), "x", nil, WithFiles(1<<20))
	assert.Equal(t, InvalidRequest, KindOf(err))
	require.Zero(t, openMemfds(t))

	ended := begin(t.Context(), c, "good", nil)
	_, m := next(t, server)
	require.Equal(t, Request, m.Class)
	say(t, server, `{"jsonrpc":"2.0","id":9,"result":null}`)
	require.NoError(t, (<-ended).err)
}

func TestCallsArePipelined(t *testing.T) {
	c, server := clientAndServer(t)
	const n = 50
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			result, err := c.Call(context.Background(), "echo", map[string]int{"i": i})
			assert.NoError(t, err)
			assert.JSONEq(t, fmt.Sprintf(`{"i":%d}`, i), string(result))
		})
	}
	var answers []string
	for range n {
		line, m := next(t, server)
		answers = append(answers, fmt.Sprintf(`{"jsonrpc":"2.0","id":%s,"result":%s}`, m.ID.Of([]byte(line)), m.Params.Of([]byte(line))))
	}
	for i := range answers {
		say(t, server, "%s", answers[n-1-i])
	}
	wg.Wait()
}

func TestCallReportsProgress(t *testing.T) {
	c, server := clientAndServer(t)
	var got []Progress
	ended := begin(t.Context(), c, "x", nil, WithProgress(func(p Progress) { got = append(got, p) }))
	next(t, server)
	for i := range 10 {
		say(t, server, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":%d.5,"total":10,"message":"page \"%d\""}}`, i, i)
	}
	for _, other := range []string{
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2,"progress":1}}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":"1","progress":1}}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1}}`,
		`{"jsonrpc":"2.0","method":"notifications/other","params":{"progressToken":1,"progress":1}}`,
		`{"jsonrpc":"2.0","id":1,"method":"request"}`,
		`{"jsonrpc":"2.0","id":77,"result":1}`,
		`junk`,
	} {
		say(t, server, "%s", other)
	}
	say(t, server, `{"jsonrpc":"2.0","id":1,"result":true}`)
	require.NoError(t, (<-ended).err)
	require.Len(t, got, 10)
	ten := 10.0
	require.Equal(t, Progress{Progress: 9.5, Total: &ten, Message: `page "9"`}, got[9])

	// Progress for a call that asked for none is nobody's.
	ended = begin(t.Context(), c, "x", nil)
	next(t, server)
	say(t, server, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":2,"progress":1}}`)
	say(t, server, `{"jsonrpc":"2.0","id":2,"result":true}`)
	require.NoError(t, (<-ended).err)
}

func TestSlowProgressCallbackMissesSome(t *testing.T) {
	c, server := clientAndServer(t)
	var got []Progress
	hold, held := make(chan struct{}), make(chan struct{}, 1)
	ended := begin(t.Context(), c, "slow", nil, WithProgress(func(p Progress) {
		if got = append(got, p); len(got) == 1 {
			held <- struct{}{}
			<-hold
		}
	}))
	other := begin(t.Context(), c, "other", nil)
	id := map[string]string{}
	for range 2 {
		line, m := next(t, server)
		id[string(m.Method.Of([]byte(line)))] = string(m.ID.Of([]byte(line)))
	}
	for i := range 10 * progressKept {
		say(t, server, `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%s,"progress":%d}}`, id["slow"], i)
		if i == 0 {
			<-held
		}
	}
	say(t, server, `{"jsonrpc":"2.0","id":%s,"result":1}`, id["slow"])
	say(t, server, `{"jsonrpc":"2.0","id":%s,"result":1}`, id["other"])
	require.NoError(t, (<-other).err, "a slow callback holds up nobody else")
	close(hold)
	require.NoError(t, (<-ended).err)
	require.Len(t, got, 1+progressKept)
	require.Equal(t, float64(10*progressKept-1), got[progressKept].Progress)
}

func TestCallErrors(t *testing.T) {
	c, server := clientAndServer(t)
	tests := []struct {
		answer string // %d is the id
		kind   Kind
		check  func(e *Error)
	}{
		{`{"jsonrpc":"2.0","id":%d,"error":{"code":-32000,"message":"no page","data":{"kind":"worker_error","retryable":true,"provider":"ocr","worker":"ocr/1","detail":{"type":"ValueError"}}}}`,
			WorkerError, func(e *Error) {
				assert.Equal(t, &Error{-32000, "no page", ErrorData{WorkerError, true, "ocr", "ocr/1", map[string]any{"type": "ValueError"}}}, e)
			}},
		{`{"jsonrpc":"2.0","id":%d,"error":{"code":"x"}}`, InvalidResponse, nil},
		{`{"jsonrpc":"2.0","id":%d,"error":{"code":1,"message":"of a stranger"}}`, "", func(e *Error) { assert.Equal(t, 1, e.Code) }},
		{`{"jsonrpc":"2.0","id":%d,"result":1,"error":{}}`, InvalidResponse, nil},
		{`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"dup","data":{"kind":"invalid_request","retryable":false,"detail":{"id":%d}}}}`, InvalidRequest, nil},
		{`{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"bad","data":{"kind":"parse_error","retryable":false,"detail":null}}}`, ParseError, nil},
	}
	for _, tt := range tests {
		ended := begin(t.Context(), c, "x", nil)
		line, m := next(t, server)
		answer := strings.Replace(tt.answer, "%d", string(m.ID.Of([]byte(line))), 1)
		say(t, server, "%s", answer)
		err := (<-ended).err
		e, ok := errors.AsType[*Error](err)
		require.True(t, ok, "%v", err)
		require.Equal(t, tt.kind, KindOf(err), answer)
		if tt.check != nil {
			tt.check(e)
		}
	}
}

func TestErrorWithoutIDFindsItsCall(t *testing.T) {
	c, server := clientAndServer(t)
	first := begin(t.Context(), c, "x", nil)
	next(t, server)
	second := begin(t.Context(), c, "x", nil)
	next(t, server)
	const format = `{"jsonrpc":"2.0","id":null,"error":{"code":-32700,"message":"m","data":{"kind":"parse_error","retryable":false%s}}}`
	say(t, server, format, "") // nobody can tell whose
	say(t, server, format, `,"detail":{"id":"other"}`)
	say(t, server, format, `,"detail":{"id":2}`)
	require.Equal(t, ParseError, KindOf((<-second).err))
	say(t, server, format, "")
	require.Equal(t, ParseError, KindOf((<-first).err))
}

func TestCallCancelled(t *testing.T) {
	c, server := clientAndServer(t)
	c.cancelWait = time.Minute
	ctx, cancel := context.WithCancel(t.Context())
	start := func() chan outcome {
		ended := begin(ctx, c, "x", nil)
		next(t, server)
		return ended
	}
	stop := func(id string) {
		t.Helper()
		cancel()
		line, m := next(t, server)
		require.Equal(t, NotifyCancelled, string(m.Method.Of([]byte(line))))
		require.Equal(t, id, string(m.RequestID.Of([]byte(line))))
		ctx, cancel = context.WithCancel(t.Context())
	}
	ended := start()
	stop("1")
	require.NoError(t, server.Write(nil, Errorf(Cancelled, "as you wish").AppendAnswer(nil, []byte("1"))))
	err := (<-ended).err
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, Cancelled, KindOf(err))

	ended = start() // the answer was faster
	stop("2")
	say(t, server, `{"jsonrpc":"2.0","id":2,"result":"done"}`)
	require.Equal(t, outcome{json.RawMessage(`"done"`), nil}, <-ended)

	c.cancelWait = time.Millisecond // no answer
	ended = start()
	stop("3")
	err = (<-ended).err
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, Cancelled, KindOf(err))
	say(t, server, `{"jsonrpc":"2.0","id":3,"result":"late"}`)

	ended = start()
	say(t, server, `{"jsonrpc":"2.0","id":4,"result":"next"}`)
	require.NoError(t, (<-ended).err)
	cancel()
}

func TestConnectionLost(t *testing.T) {
	c, server := clientAndServer(t)
	ended := begin(t.Context(), c, "x", nil)
	next(t, server)
	require.NoError(t, server.Close())
	e, ok := errors.AsType[*Error]((<-ended).err)
	require.True(t, ok)
	require.Equal(t, ConnectionLost, e.Data.Kind)
	require.False(t, e.Data.Retryable, "it may have run")
	_, err := c.Call(t.Context(), "x", nil, WithFiles(memfd(t, "")))
	e, ok = errors.AsType[*Error](err)
	require.True(t, ok)
	require.Equal(t, ConnectionLost, e.Data.Kind)
	require.True(t, e.Data.Retryable, "it was not sent")
	require.Zero(t, openMemfds(t))

	c, server = clientAndServer(t)
	ended = begin(t.Context(), c, "x", nil)
	next(t, server)
	require.NoError(t, c.Close())
	require.Equal(t, ConnectionLost, KindOf((<-ended).err))
	require.NoError(t, c.Close())
}

func TestCallFiles(t *testing.T) {
	c, server := clientAndServer(t)
	var files []int
	ended := begin(t.Context(), c, "x", nil, WithFiles(memfd(t, "there")), WithAnswerFiles(&files))
	requireFiles(t, server, `{"jsonrpc":"2.0","id":1,"method":"x","params":{}}`, "there")
	require.NoError(t, server.Write([]int{memfd(t, "back")}, []byte(`{"jsonrpc":"2.0","id":1,"result":1}`+"\n")))
	require.NoError(t, (<-ended).err)
	require.Len(t, files, 1)
	require.Equal(t, "back", content(t, files[0]))
	closeAll(files)

	ended = begin(t.Context(), c, "x", nil) // takes none
	next(t, server)
	require.NoError(t, server.Write([]int{memfd(t, "")}, []byte(`{"jsonrpc":"2.0","id":2,"result":1}`+"\n")))
	require.NoError(t, (<-ended).err)
	waitFor(t, func() bool { return openMemfds(t) == 0 })
}

func TestAnswersThatCannotBeHad(t *testing.T) {
	a, b := pair(t)
	c, server := newClient(a, 1000), NewConn(b, 1000)
	defer c.Close()
	defer server.Close()
	ended := begin(t.Context(), c, "x", nil)
	next(t, server)
	say(t, server, `{"jsonrpc":"2.0","id":1,"result":"%s"}`, strings.Repeat("x", 1000))
	require.Equal(t, TooLarge, KindOf((<-ended).err))

	ended = begin(t.Context(), c, "x", nil)
	next(t, server)
	fds := make([]int, MaxFiles+1)
	for i := range fds {
		fds[i] = memfd(t, "")
	}
	send(t, b, `{"jsonrpc":"2.0","id":2,"result":1}`+"\n", fds...)
	err := (<-ended).err
	require.Equal(t, InvalidResponse, KindOf(err))
	require.ErrorContains(t, err, "more than 16 file descriptors")
	require.Zero(t, openMemfds(t))
}

func TestDial(t *testing.T) {
	path := filepath.Join(socketDir(t), "sock")
	_, err := Dial(t.Context(), path)
	require.ErrorIs(t, err, os.ErrNotExist)
	_, err = Dial(t.Context(), "/"+strings.Repeat("x", MaxSocketPath))
	var long *PathTooLongError
	require.ErrorAs(t, err, &long)

	l, err := Listen(path)
	require.NoError(t, err)
	defer l.Close()
	c, err := Dial(t.Context(), path)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

func TestSocketPath(t *testing.T) {
	require.Equal(t, "/run/x/front/ocr/sock", SocketPath("ocr", "/run/x"))
	require.Equal(t, "./ocr", SocketPath("./ocr", "/run/x"))
	t.Setenv("WORKERD_RUNTIME_DIR", "/run/y")
	require.Equal(t, "/run/y/front/ocr/sock", SocketPath("ocr", ""))
}

func TestCase58RuntimeDir(t *testing.T) {
	mine := t.TempDir()
	require.NoError(t, os.Chmod(mine, 0o700))
	open := t.TempDir()
	require.NoError(t, os.Chmod(open, 0o770))
	long := filepath.Join(mine, strings.Repeat("x", 100))
	require.NoError(t, os.Mkdir(long, 0o700))
	theirs := t.TempDir()
	if os.Geteuid() == 0 {
		require.NoError(t, os.Chown(theirs, 12345, -1))
	} else {
		theirs = "/proc/1"
	}
	file := filepath.Join(mine, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	fallback := fmt.Sprintf("/tmp/workerd-%d", unix.Geteuid())
	tests := []struct {
		own, xdg, job string
		want, note    string
	}{
		{"/run/x", mine, "7", "/run/x", ""},
		{"", mine, "", mine + "/workerd", ""},
		{"", mine, "7_1", mine + "/workerd-7_1", ""},
		{"", mine, "../x", mine + "/workerd", ""},
		{"", "", "", fallback, "not set"},
		{"", "", "7", fallback + "-7", "not set"},
		{"", "run", "", fallback, "relative"},
		{"", open, "", fallback, "can be written by others"},
		{"", theirs, "", fallback, "belongs to uid"},
		{"", file, "", fallback, "no directory"},
		{"", mine + "/gone", "", fallback, "no such file"},
		{"", long, "", fallback, "107"},
	}
	for _, tt := range tests {
		env := map[string]string{"WORKERD_RUNTIME_DIR": tt.own, "XDG_RUNTIME_DIR": tt.xdg, "SLURM_JOB_ID": tt.job}
		dir, note := RuntimeDir(func(name string) string { return env[name] })
		assert.Equal(t, tt.want, dir)
		assert.Contains(t, note, tt.note)
		assert.Equal(t, tt.note == "", note == "")
	}
}
