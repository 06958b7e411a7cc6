package protocol

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"time"
)

const (
	// answerLimit bounds a line that a Client takes. workerd's own limit is lower; this one is against a broken peer.
	answerLimit = 1 << 30

	// cancelWait is how long a cancelled call waits for its answer, which comes at once.
	cancelWait = 5 * time.Second

	// progressKept bounds the progress that a slow callback has not seen; older news give way.
	progressKept = 64
)

// Client calls the methods of one provider over its front socket. It is safe for concurrent use: calls share the connection
// and are answered as they finish.
type Client struct {
	conn       *Conn
	done       chan struct{} // closed when the reader has ended
	cancelWait time.Duration // cancelWait, less in tests

	mu    sync.Mutex // guards what follows
	last  int64      // the newest id
	calls map[int64]*call
	lost  error // why there are no more answers
}

// call is one request that waits for its answer. The client's lock guards it.
type call struct {
	progress []Progress
	news     chan struct{} // there is progress
	done     chan struct{} // closed when result and err are set
	result   json.RawMessage
	err      error
	files    []int // that came with the answer
}

// Dial connects to a front socket. See SocketPath for where it is.
func Dial(ctx context.Context, path string) (*Client, error) {
	if err := CheckSocketPath(path); err != nil {
		return nil, err
	}
	var d net.Dialer
	conn, err := d.DialContext(ctx, "unix", path)
	if err != nil {
		return nil, err
	}
	return NewClient(conn.(*net.UnixConn)), nil
}

// NewClient returns a client over a connection, which it owns from now on.
func NewClient(uc *net.UnixConn) *Client { return newClient(uc, answerLimit) }

func newClient(uc *net.UnixConn, limit int) *Client {
	c := &Client{conn: NewConn(uc, limit), done: make(chan struct{}), cancelWait: cancelWait, calls: map[int64]*call{}}
	go c.read()
	return c
}

// Close ends the connection, which cancels the calls that are running: they return ConnectionLost.
func (c *Client) Close() error {
	err := c.conn.Close()
	<-c.done
	return err
}

// Call sends a request and waits for its answer. params is anything that marshals to a JSON object (a json.RawMessage too), or
// nil for none.
//
// The error is or wraps an *Error: the one that was answered, or one of kind ConnectionLost (retryable only where nothing of
// the request was sent), InvalidResponse, or InvalidRequest and InvalidParams for a request that was not sent because nothing
// could come of it. When ctx ends the request is cancelled, and the error wraps that of ctx too; an answer that was faster
// counts.
func (c *Client) Call(ctx context.Context, method string, params any, opts ...CallOption) (json.RawMessage, error) {
	var o callOptions
	for _, opt := range opts {
		opt(&o)
	}
	if err := ctx.Err(); err != nil {
		closeAll(o.files)
		return nil, fmt.Errorf("%w: %w", err, Errorf(Cancelled, "cancelled before it was sent"))
	}
	id, k, err := c.begin()
	if err != nil {
		closeAll(o.files)
		return nil, err
	}
	defer c.forget(id, k)
	line, err := requestLine(id, method, params, &o)
	if err != nil {
		closeAll(o.files)
		return nil, err
	}
	if err := c.conn.Write(o.files, line); err != nil {
		if unsendable(err) {
			return nil, Errorf(InvalidRequest, "%v", err)
		}
		return nil, connectionLost(err, true)
	}
	return c.wait(ctx, id, k, &o)
}

// connectionLost makes the error of a call whose connection ended.
func connectionLost(cause error, unsent bool) error {
	e := Errorf(ConnectionLost, "the connection to workerd ended: %v", cause)
	e.Data.Retryable = unsent
	return e
}

// begin enters a call.
func (c *Client) begin() (int64, *call, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost != nil {
		return 0, nil, connectionLost(c.lost, true)
	}
	c.last++
	k := &call{news: make(chan struct{}, 1), done: make(chan struct{})}
	c.calls[c.last] = k
	return c.last, k, nil
}

// forget removes a call; an answer that still comes is dropped.
func (c *Client) forget(id int64, k *call) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.calls, id)
	closeAll(k.files)
	k.files = nil
}

// wait gives progress to the caller until the answer is there.
func (c *Client) wait(ctx context.Context, id int64, k *call, o *callOptions) (json.RawMessage, error) {
	for {
		select {
		case <-k.news:
			c.report(k, o)
		case <-k.done:
			c.report(k, o)
			return c.take(k, o)
		case <-ctx.Done():
			return c.cancel(ctx, id, k, o)
		}
	}
}

func (c *Client) report(k *call, o *callOptions) {
	c.mu.Lock()
	progress := k.progress
	k.progress = nil
	c.mu.Unlock()
	if o.progress == nil {
		return // nobody asked for it
	}
	for _, p := range progress {
		o.progress(p)
	}
}

// take returns the answer of a call that is done.
func (c *Client) take(k *call, o *callOptions) (json.RawMessage, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if o.answerFiles != nil {
		*o.answerFiles, k.files = k.files, nil
	}
	return k.result, k.err
}

// cancel tells workerd that the answer is no longer wanted, and waits for the one that comes all the same.
func (c *Client) cancel(ctx context.Context, id int64, k *call, o *callOptions) (json.RawMessage, error) {
	note := fmt.Appendf(nil, `{"jsonrpc":"2.0","method":%q,"params":{"requestId":%d}}`+"\n", NotifyCancelled, id)
	err := error(Errorf(Cancelled, "cancelled; there was no answer to that"))
	if c.conn.Write(nil, note) == nil {
		timer := time.NewTimer(c.cancelWait)
		defer timer.Stop()
		select {
		case <-k.done:
			var result json.RawMessage
			if result, err = c.take(k, o); err == nil {
				return result, nil
			}
		case <-timer.C:
		}
	}
	return nil, fmt.Errorf("%w: %w", ctx.Err(), err)
}

// read takes what comes from workerd until the connection ends.
func (c *Client) read() {
	defer close(c.done)
	for {
		line, err := c.conn.Read()
		var tooLong *TooLongError
		var files *FilesError
		switch {
		case err == nil:
			c.handle(&line)
			line.Close()
		case errors.As(err, &tooLong):
			c.fail(idNumber(headID(tooLong.Head)), tooLong.Answer())
		case errors.As(err, &files):
			var m Message
			if Scan(files.Line, &m) == nil {
				c.fail(idNumber(m.ID.Of(files.Line)), Errorf(InvalidResponse, "%v", files))
			}
		default:
			c.end(err)
			return
		}
	}
}

// end fails all calls.
func (c *Client) end(err error) {
	c.conn.Close()
	c.mu.Lock()
	defer c.mu.Unlock()
	c.lost = err
	for id, k := range c.calls {
		c.finish(id, k, nil, connectionLost(err, false))
	}
}

// finish ends a call. The lock is held.
func (c *Client) finish(id int64, k *call, result json.RawMessage, err error) {
	delete(c.calls, id)
	k.result, k.err = result, err
	close(k.done)
}

// fail ends the call with that id, if there is one.
func (c *Client) fail(id int64, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if k := c.calls[id]; k != nil {
		c.finish(id, k, nil, err)
	}
}

// handle takes one line. It leaves in it the descriptors that nobody takes.
func (c *Client) handle(line *Line) {
	var m Message
	if err := Scan(line.Bytes, &m); err != nil {
		if !m.ID.Empty() {
			c.fail(idNumber(m.ID.Of(line.Bytes)), Errorf(InvalidResponse, "%s", err.Message))
		}
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	switch m.Class {
	case Notification:
		c.note(line.Bytes, &m)
	case Response:
		id := idNumber(m.ID.Of(line.Bytes))
		var err error
		if !m.Error.Empty() {
			e := decodeError(m.Error.Of(line.Bytes))
			if err = e; m.ID.Empty() {
				id = c.meant(e)
			}
		}
		if k := c.calls[id]; k != nil {
			k.files, line.Files = line.Files, nil
			c.finish(id, k, m.Result.Of(line.Bytes), err)
		}
	}
}

// note keeps progress for the call that it is about. The lock is held.
func (c *Client) note(line []byte, m *Message) {
	k := c.calls[idNumber(m.ProgressToken.Of(line))]
	if k == nil || m.Progress.Empty() {
		return
	}
	p := Progress{Message: Unquote(m.Text.Of(line))}
	p.Progress, _ = strconv.ParseFloat(string(m.Progress.Of(line)), 64)
	if !m.Total.Empty() {
		total, _ := strconv.ParseFloat(string(m.Total.Of(line)), 64)
		p.Total = &total
	}
	if len(k.progress) == progressKept {
		k.progress = k.progress[1:]
	}
	k.progress = append(k.progress, p)
	select {
	case k.news <- struct{}{}:
	default:
	}
}

// meant returns the id of the call that an error with id null is about: the one in its detail, or the only one there is; 0
// where that cannot be told. The lock is held.
func (c *Client) meant(e *Error) int64 {
	detail, _ := e.Data.Detail.(map[string]any)
	if id, ok := detail["id"]; ok {
		number, _ := id.(float64)
		return int64(number)
	}
	if len(c.calls) == 1 {
		for id := range c.calls {
			return id
		}
	}
	return 0
}

// decodeError reads an error object; one that is not what PROTOCOL.md says becomes InvalidResponse.
func decodeError(raw []byte) *Error {
	var e Error
	if err := json.Unmarshal(raw, &e); err != nil {
		return Errorf(InvalidResponse, "the error object of an answer: %v", err)
	}
	return &e
}

// idNumber returns the number of an id that a Client gave, 0 for any other.
func idNumber(raw []byte) int64 {
	id, err := strconv.ParseInt(string(raw), 10, 64)
	if err != nil {
		return 0
	}
	return id
}
