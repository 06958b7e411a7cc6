package supervisor

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"workerd/protocol"
)

// redialFor is how long a worker that closed its connection but lives may take to accept another one.
const redialFor = 5 * time.Second

// lane is one connection to a worker. It carries one request at a time; its reader goroutine delivers the answer.
//
// Towards the worker a request has a number of the lane's own in place of the caller's id and progress token: numbers never
// repeat for a worker, so that a late, second or foreign answer can never be taken for the answer to something else.
type lane struct {
	life *life
	pool *pool
	msg  protocol.Message // of the line being read; the reader's

	// Guarded by pool.mu.
	inPool  bool
	retired bool
	resting bool // withheld, since its worker said that it is stopping

	mu      sync.Mutex
	conn    *protocol.Conn // nil while it is broken
	req     *request
	num     uint64 // of req on this connection
	asked   bool   // the last bytes written were a request, not a ping or a cancel
	timer   *time.Timer
	armed   time.Time // when timer goes off; zero: never
	due     time.Time // when req is overdue; zero: never
	overdue bool      // past its deadline and cancelled: the next expiry kills
	ping    uint64    // number of the ping that is out; 0: none
	pingAt  time.Time
	out     []byte // scratch for composing a line
}

func newLane(f *life, c *protocol.Conn) *lane {
	l := &lane{life: f, pool: f.p.pool, conn: c}
	l.timer = time.AfterFunc(time.Hour, l.expire)
	l.timer.Stop()
	return l
}

// smallLine is the size up to which a line is composed in the lane's scratch buffer instead of being written in pieces.
const smallLine = 32 << 10

// run sends a request to the worker. False means that not a byte of it was sent, since the lane is dead.
func (l *lane) run(r *request) bool {
	if r.local {
		l.pool.release(r, l)
		l.life.p.answerMethods(r)
		return true
	}
	if l.life.doomed() {
		return false
	}
	l.mu.Lock()
	if l.conn == nil {
		l.mu.Unlock()
		return false
	}
	l.num = l.life.number()
	l.req, l.overdue, l.asked, l.due = r, false, true, time.Time{}
	if t := time.Duration(l.pool.timeout.Load()); t > 0 {
		l.dueIn(t)
	}
	err := l.send(r)
	if err != nil {
		l.req = nil
		l.mu.Unlock()
		return false
	}
	wanted := r.wanted()
	l.mu.Unlock()
	if !wanted { // given up between its assignment and now
		l.cancel(r, false, 0)
	}
	return true
}

// cancel tells the worker that nobody waits for r any more. overdue: it has grace to return, then it is killed.
func (l *lane) cancel(r *request, overdue bool, grace time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.req != r || l.conn == nil {
		return
	}
	l.sendCancel()
	if overdue && grace > 0 { // none: it may go on for ever
		l.overdue = true
		l.dueIn(grace)
	}
}

// dueIn sets when the request in flight is overdue. A timer that goes off earlier is left alone: it looks again then. So a
// request that is answered in time costs no timer operation. l.mu must be held.
func (l *lane) dueIn(d time.Duration) {
	l.due = time.Now().Add(d)
	if l.armed.IsZero() || l.armed.After(l.due) {
		l.armed = l.due
		l.timer.Reset(d)
	}
}

// expire is the lane's timer: the request passed request_timeout, or it went on beyond cancel_grace.
func (l *lane) expire() {
	l.mu.Lock()
	r := l.req
	l.armed = time.Time{}
	if r == nil || l.due.IsZero() {
		l.mu.Unlock()
		return
	}
	if rest := time.Until(l.due); rest > 0 { // armed for an earlier request
		l.dueIn(rest)
		l.mu.Unlock()
		return
	}
	if l.overdue {
		l.mu.Unlock()
		l.life.kill(causeDeadline, "a request went on beyond its deadline and cancel_grace")
		return
	}
	limits := l.pool.currentLimits()
	l.due = time.Time{}
	if limits.cancelGrace > 0 { // none: it may go on for ever
		l.overdue = true
		l.dueIn(limits.cancelGrace)
	}
	l.mu.Unlock()
	// The caller first: a worker that hears of the cancel may answer before the next line runs.
	r.failKeeping(protocol.Errorf(protocol.DeadlineExceeded, "the request ran longer than request_timeout of %s", limits.requestTimeout).
		WithDetail(map[string]any{"limit": "request_timeout", "timeout_ms": limits.requestTimeout.Milliseconds()}).
		From(l.life.p.slug, l.life.id))
	l.mu.Lock()
	if l.req == r && l.conn != nil {
		l.sendCancel()
	}
	l.mu.Unlock()
}

// serve reads the lane's connection until the worker is dead, redialling one that the living worker closed. It is the
// lane's only reader. The life waits for it.
func (l *lane) serve() {
	defer l.life.wg.Done()
	defer l.timer.Stop()
	for {
		unread := l.read()
		if !l.redial(unread) {
			return
		}
	}
}

// read delivers what arrives until the connection ends; unread says that a request in flight provably was not read.
func (l *lane) read() (unread bool) {
	conn := l.conn // only this goroutine replaces it
	for {
		line, err := conn.Read()
		if err == nil && line.Partial { // half an answer is no answer
			line.Close()
			continue
		}
		if err == nil {
			err = l.handle(line)
			if err == nil {
				continue
			}
		} else if tooLong, ok := errors.AsType[*protocol.TooLongError](err); ok {
			if l.handleTooLong(tooLong) {
				continue
			}
		}
		l.mu.Lock()
		left, known := conn.Unread()
		unread = l.asked && (protocol.IsReset(err) || conn.Pending() > 0 ||
			(errors.Is(err, protocol.ErrInterrupted) && known && left > 0))
		l.conn = nil
		l.mu.Unlock()
		_ = conn.Close()
		l.pool.lost(l)
		return unread
	}
}

// errGarbage ends a connection whose worker does not keep to the protocol: its framing can no longer be trusted.
var errGarbage = errors.New("the worker's line is not of the protocol")

// handle acts on one line of the worker.
func (l *lane) handle(line protocol.Line) error {
	m := &l.msg
	if e := protocol.Scan(line.Bytes, m); e != nil {
		closeFiles(line.Files)
		return l.garbage(line.Bytes, e.Message)
	}
	switch m.Class {
	case protocol.Response:
		return l.response(line, m)
	case protocol.Notification:
		closeFiles(line.Files)
		l.notification(line.Bytes, m)
	default:
		closeFiles(line.Files) // workers have no requests to make
		return l.garbage(line.Bytes, "a request from a worker")
	}
	return nil
}

func (l *lane) response(line protocol.Line, m *protocol.Message) error {
	num, err := strconv.ParseUint(string(m.ID.Of(line.Bytes)), 10, 64)
	l.mu.Lock()
	if err == nil && l.ping != 0 && num == l.ping {
		l.ping = 0
		l.mu.Unlock()
		closeFiles(line.Files)
		return nil
	}
	r := l.req
	if r == nil || err != nil || num != l.num {
		stale := r == nil || err == nil && num < l.num
		l.mu.Unlock()
		closeFiles(line.Files)
		if stale { // a second answer to an earlier request is not held against the one that runs now
			l.life.complain("an answer that nobody waits for", line.Bytes)
			return nil
		}
		return l.garbage(line.Bytes, "an answer to another request than the one that runs")
	}
	l.req = nil
	l.mu.Unlock()
	if !m.Error.Empty() && l.failedWith(r, line.Bytes) {
		closeFiles(line.Files)
		return errFault
	}
	if !m.Error.Empty() && l.refused(r, m.Error.Of(line.Bytes)) {
		closeFiles(line.Files)
		return nil
	}
	// The lane is free before the caller can know: its next request must not find it taken.
	l.pool.release(r, l)
	r.answer(line.Bytes, m, line.Files)
	return nil
}

// garbage answers the request in flight with invalid_response and gives the connection up; without one it is only noted.
func (l *lane) garbage(line []byte, what string) error {
	l.life.complain(what, line)
	l.mu.Lock()
	r := l.req
	l.req = nil
	l.mu.Unlock()
	if r == nil {
		return nil
	}
	e := protocol.Errorf(protocol.InvalidResponse, "the worker's answer is not valid: %s", what).
		WithDetail(map[string]any{"answer": excerpt(line)}).From(l.life.p.slug, l.life.id)
	l.pool.lost(l) // before the slot is freed: the next request must not be given this connection
	l.pool.resolve(r, l, false, e)
	return errGarbage
}

// handleTooLong deals with a line beyond max_message, of which only the head is known. False: give the connection up.
func (l *lane) handleTooLong(t *protocol.TooLongError) bool {
	l.mu.Lock()
	r, num := l.req, l.num
	mine := r != nil && string(t.ID()) == strconv.FormatUint(num, 10)
	if !mine && bytes.Contains(t.Head, []byte(`"notifications/progress"`)) {
		l.mu.Unlock()
		return true
	}
	l.req = nil
	l.mu.Unlock()
	if r == nil {
		l.life.complain("a line beyond max_message without a request", t.Head)
		return true
	}
	e := protocol.Errorf(protocol.TooLarge, "the worker's answer is longer than max_message of %d bytes", t.Limit).
		WithDetail(map[string]any{"limit": t.Limit}).From(l.life.p.slug, l.life.id)
	if mine {
		l.pool.release(r, l)
		r.fail(e)
		return true
	}
	l.pool.lost(l)
	l.pool.resolve(r, l, false, e)
	return false
}

func (l *lane) notification(line []byte, m *protocol.Message) {
	switch string(m.MethodName(line)) {
	case protocol.NotifyReady:
		l.life.becameReady(l)
	case protocol.NotifyPreloaded:
		l.life.preloaded(l)
	case protocol.NotifyProgress:
		num, err := strconv.ParseUint(string(m.ProgressToken.Of(line)), 10, 64)
		l.mu.Lock()
		r := l.req
		mine := r != nil && err == nil && num == l.num
		l.mu.Unlock()
		if mine {
			r.progress(line, m)
		} else if r == nil {
			l.life.loadProgress(line)
		}
	}
}

// redial follows the end of a connection: the worker died (its request is resolved, false), or it lives and takes another
// connection (true), or it lives and does not (it is killed, then as died).
func (l *lane) redial(unread bool) bool {
	f := l.life
	ctx, cancel := context.WithTimeout(f.ctx, redialFor)
	defer cancel()
	conn, init, err := f.connect(ctx)
	if err != nil {
		select {
		case <-f.exited:
		default:
			f.kill(causeConnection, "closed its connection and took no other within "+redialFor.String()+": "+err.Error())
		}
		if unread { // the next worker's, whatever the reason that this one ended for
			l.conclude(true, protocol.Errorf(protocol.WorkerCrashed, "the worker ended").From(f.p.slug, f.id))
		}
		<-f.gone
		l.conclude(unread, f.crashError())
		return false
	}
	l.conclude(unread, protocol.Errorf(protocol.WorkerCrashed, "the worker closed its connection with this request; it may have run").
		From(f.p.slug, f.id))
	l.mu.Lock()
	l.conn = conn
	l.ping = 0
	l.mu.Unlock()
	f.reconnected(l, init)
	return true
}

// conclude resolves what was in flight.
func (l *lane) conclude(unread bool, e *protocol.Error) {
	l.mu.Lock()
	r := l.req
	l.req = nil
	l.mu.Unlock()
	if r != nil {
		l.pool.resolve(r, l, unread, e)
	}
}

// interrupt makes the reader take what has arrived and end: the process is gone, and what still comes is not its own.
func (l *lane) interrupt() {
	l.mu.Lock()
	if l.conn != nil {
		l.conn.Interrupt()
	}
	l.mu.Unlock()
}
