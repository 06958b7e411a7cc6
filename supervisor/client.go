package supervisor

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"strconv"
	"sync"
	"time"

	"workerd/protocol"
)

// slowClient is how many bytes of answers a client may leave unread before workerd reads no more requests of it, and runs none
// of those that wait.
const slowClient = 1 << 20

// client is one connection to a front socket. It may have any number of requests under way; answers go out as they come.
type client struct {
	p    *provider
	conn *protocol.Conn
	msg  protocol.Message // of the line being read; the reader's

	turn   turn           // guarded by pool.mu
	drains sync.WaitGroup // those that wait until it reads again; none is added when pool.leave was called

	mu      sync.Mutex // guards what follows
	pending map[string]*asker
	writing int           // answers on their way out, no longer pending
	free    chan struct{} // closed when no request is pending and no answer on its way out; nil: nobody waits for that
	ended   bool          // no more input: the connection closes after its last answer
}

func newClient(p *provider, conn *protocol.Conn) *client {
	return &client{p: p, conn: conn, pending: map[string]*asker{}}
}

// serve reads requests until the client has gone, or has said all it had to say and got its answers.
func (c *client) serve() {
	defer func() {
		_ = c.conn.Close()
		c.p.pool.leave(&c.turn)
		c.drains.Wait()
	}()
	ctx := c.p.sup.clients
	for {
		line, err := c.conn.Read()
		if err == nil {
			c.handle(line)
		} else if !c.unreadable(err) {
			if errors.Is(err, errEnd) {
				c.linger(ctx)
			}
			c.depart()
			return
		}
		if c.stalled() {
			if c.conn.WaitDrained(ctx, slowClient/2) != nil {
				c.depart()
				return
			}
		}
	}
}

// stalled says that the client does not read what it is sent.
func (c *client) stalled() bool { return c.conn.Pending() > slowClient }

// underWay is how many of the client's requests have no answer yet.
func (c *client) underWay() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.pending)
}

// unreadable answers a line that could not be had; false where the connection itself is over.
func (c *client) unreadable(err error) bool {
	if tooLong, ok := errors.AsType[*protocol.TooLongError](err); ok {
		c.refuse(tooLong.Answer().From(c.p.slug, ""), nil)
		return true
	}
	if files, ok := errors.AsType[*protocol.FilesError](err); ok {
		var m protocol.Message
		_ = protocol.Scan(files.Line, &m)
		e := protocol.Errorf(protocol.InvalidRequest, "attachments: %s", files).From(c.p.slug, "")
		c.refuse(e, m.ID.Of(files.Line))
		return true
	}
	return false
}

// handle acts on one line of a client.
func (c *client) handle(line protocol.Line) {
	m := &c.msg
	if e := protocol.Scan(line.Bytes, m); e != nil {
		closeFiles(line.Files)
		c.refuse(e.From(c.p.slug, ""), m.ID.Of(line.Bytes))
		return
	}
	switch m.Class {
	case protocol.Request:
		c.request(line, m)
	case protocol.Notification:
		closeFiles(line.Files)
		if string(m.MethodName(line.Bytes)) == protocol.NotifyCancelled {
			c.cancel(m.RequestID.Of(line.Bytes))
		}
	default:
		closeFiles(line.Files)
		e := protocol.Errorf(protocol.InvalidRequest, "an answer is no request: a tool server sends requests and notifications only").
			From(c.p.slug, "")
		c.refuse(e, nil)
	}
}

// request admits one request.
func (c *client) request(line protocol.Line, m *protocol.Message) {
	r := newRequest(c.p.pool, c, line, m)
	a := &r.first
	a.key = protocol.IDKey(a.id)
	c.mu.Lock()
	if _, twice := c.pending[a.key]; twice {
		c.mu.Unlock()
		closeFiles(line.Files)
		e := protocol.Errorf(protocol.InvalidRequest, "a request with this id is under way on this connection").
			WithDetail(protocol.IDDetail(a.id)).From(c.p.slug, "")
		c.refuse(e, nil)
		return
	}
	c.pending[a.key] = a
	c.mu.Unlock()
	method := m.MethodName(line.Bytes)
	if bytes.HasPrefix(method, reservedPrefix) && !c.builtin(r, string(method)) {
		return
	}
	if !m.IdempotencyKey.Empty() {
		r.method = string(method)
		r.key = protocol.Unquote(m.IdempotencyKey.Of(line.Bytes))
	}
	if s := c.p.pool.schemas.Load(); s != nil {
		if e := s.check(string(method), m.Params.Of(line.Bytes)); e != nil {
			r.key = ""
			r.fail(e.From(c.p.slug, ""))
			return
		}
	}
	timeout := time.Duration(m.TimeoutMs) * time.Millisecond
	c.p.pool.submit(r)
	a.arm(timeout)
}

var reservedPrefix = []byte(protocol.ReservedPrefix)

// cancel answers a request with kind cancelled, at once.
func (c *client) cancel(id []byte) {
	if len(id) == 0 {
		return
	}
	c.mu.Lock()
	a := c.pending[protocol.IDKey(id)]
	c.mu.Unlock()
	if a != nil {
		a.giveUp(protocol.Errorf(protocol.Cancelled, "cancelled by the caller").From(c.p.slug, ""), leaveCancelled)
	}
}

// answerLine sends a worker's answer under the asker's own id.
func (c *client) answerLine(a *asker, line []byte, id protocol.Span, files []int) {
	c.forget(a)
	if len(line) <= smallLine && len(files) == 0 {
		buf := lineBuffers.Get().(*[]byte)
		*buf = append((*buf)[:0], line[:id.Start]...)
		*buf = append(*buf, a.id...)
		*buf = append(*buf, line[id.End:]...)
		*buf = append(*buf, '\n')
		_ = c.conn.Write(nil, *buf) // what cannot be sent at once is copied
		lineBuffers.Put(buf)
	} else {
		_ = c.conn.Write(files, line[:id.Start], a.id, line[id.End:], newline)
	}
	c.answered()
}

var lineBuffers = sync.Pool{New: func() any { b := make([]byte, 0, 1024); return &b }}

// answerError sends an error under the asker's own id.
func (c *client) answerError(a *asker, e *protocol.Error) {
	c.forget(a)
	c.refuse(e, a.id)
	c.answered()
}

// answerResult sends a result of workerd's own.
func (c *client) answerResult(a *asker, result any) {
	body, err := json.Marshal(result)
	if err != nil {
		c.answerError(a, protocol.Errorf(protocol.InvalidResponse, "workerd's own answer: %s", err))
		return
	}
	c.forget(a)
	_ = c.conn.Write(nil, []byte(`{"jsonrpc":"2.0","id":`), a.id, []byte(`,"result":`), body, []byte("}\n"))
	c.answered()
}

// progressLine passes a worker's progress on under the asker's own token. Progress is dropped while the client is slow: the
// next one says more.
func (c *client) progressLine(line []byte, at protocol.Span, token []byte) {
	if c.conn.Pending() == 0 {
		_ = c.conn.Write(nil, line[:at.Start], token, line[at.End:], newline)
	}
}

// progressNote sends progress of workerd's own.
func (c *client) progressNote(token []byte, value float64, message string) {
	if c.conn.Pending() > 0 {
		return
	}
	text, _ := json.Marshal(message)
	line := append([]byte(`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":`), token...)
	line = append(line, `,"progress":`...)
	line = strconv.AppendFloat(line, value, 'f', -1, 64)
	line = append(line, `,"message":`...)
	line = append(line, text...)
	_ = c.conn.Write(nil, append(line, "}}\n"...))
}

// refuse sends an error of workerd's own; a lost connection is the reader's to see.
func (c *client) refuse(e *protocol.Error, id []byte) {
	c.p.tally.refuse(e.Data.Kind)
	_ = c.conn.Write(nil, e.AppendAnswer(nil, id))
}

// forget frees the asker's id before its answer goes out: the client may use it again as soon as it has read that. answered
// follows when it is out.
func (c *client) forget(a *asker) {
	c.mu.Lock()
	if c.pending[a.key] == a {
		delete(c.pending, a.key)
	}
	c.writing++
	c.mu.Unlock()
}

// doneLocked says that a connection has no more input, and that its last answer is out.
func (c *client) doneLocked() bool { return c.ended && len(c.pending) == 0 && c.writing == 0 }

// answered follows an answer; after the last one it closes a connection that has no more input.
func (c *client) answered() {
	c.mu.Lock()
	c.writing--
	c.freeLocked()
	over := c.doneLocked()
	c.mu.Unlock()
	if over {
		go func() { _ = c.conn.CloseWhenDrained(c.p.sup.clients) }()
	}
}

func (c *client) freeLocked() {
	if c.free != nil && len(c.pending) == 0 && c.writing == 0 {
		close(c.free)
		c.free = nil
	}
}

// closeAnswered closes a connection whose provider is gone, as soon as the last answer is out: a worker may have ended, and its lane
// been released, before what it answered is passed on.
func (c *client) closeAnswered(ctx context.Context) {
	free := make(chan struct{})
	c.mu.Lock()
	c.free = free
	c.freeLocked()
	c.mu.Unlock()
	select {
	case <-free:
	case <-ctx.Done():
	}
	_ = c.conn.CloseWhenDrained(ctx)
}

// linger follows the end of a client's input: its requests are answered, unless it goes away altogether first.
func (c *client) linger(ctx context.Context) {
	c.mu.Lock()
	c.ended = true
	over := c.doneLocked()
	c.mu.Unlock()
	if over {
		_ = c.conn.CloseWhenDrained(ctx)
		return
	}
	_ = c.conn.WaitHangup(ctx)
}

// depart gives up what a client that has gone was waiting for.
func (c *client) depart() {
	c.mu.Lock()
	pending := make([]*asker, 0, len(c.pending))
	for _, a := range c.pending {
		pending = append(pending, a)
	}
	clear(c.pending)
	c.freeLocked()
	c.mu.Unlock()
	if len(pending) == 0 {
		return
	}
	keep := c.p.pool.currentLimits().finishGone
	for _, a := range pending {
		a.depart(keep)
	}
}
