package supervisor

import (
	"strconv"
	"sync"
	"time"

	"workerd/protocol"
)

// heartbeat is the longest that a caller who asked for progress hears nothing: clients give up after 60 s of silence.
const heartbeat = 15 * time.Second

// request is one line that a worker is to run, with everybody who waits for its answer.
type request struct {
	pool   *pool
	line   []byte // as the caller sent it; never changed
	msg    protocol.Message
	files  []int  // descriptors that came with the line; duplicates go to the worker, these stay for another try
	key    string // idempotency key, "" for none
	method string // only where a message needs it
	local  bool   // answered by workerd itself as soon as a worker is ready (workerd.methods with wait)

	mu      sync.Mutex
	askers  []*asker
	open    int // askers without an answer
	first   asker
	storage [1]*asker // backing of askers in the usual case of one

	turn *turn // of the first asker's connection

	// Guarded by pool.mu.
	prev, next *request // in turn
	queued     bool
	returned   bool // it has been with a worker, or about to be
	lane       *lane
	retried    bool
	refused    bool // by a worker that was stopping
}

// asker is one caller who waits for the answer of a request.
type asker struct {
	req   *request
	conn  *client
	begun time.Time
	until time.Time // when it gives up, as its timeoutMs says; zero: never
	id    []byte    // raw JSON, given back exactly as it came
	key   string    // canonical form of id, the key in the connection's table
	token []byte    // raw JSON progress token; nil: no progress wanted

	// Guarded by req.mu.
	done     bool
	last     float64 // the progress value sent last: MCP wants it to increase
	deadline *time.Timer
	beat     *time.Timer
}

// newRequest makes a request with its first asker. Nothing is armed or submitted yet.
func newRequest(p *pool, c *client, line protocol.Line, m *protocol.Message) *request {
	r := &request{pool: p, line: line.Bytes, msg: *m, files: line.Files, open: 1, turn: &c.turn}
	a := &r.first
	a.req, a.conn, a.begun = r, c, time.Now()
	if m.TimeoutMs > 0 {
		a.until = a.begun.Add(time.Duration(m.TimeoutMs) * time.Millisecond)
	}
	a.id = m.ID.Of(line.Bytes)
	if !m.ProgressToken.Empty() {
		a.token = m.ProgressToken.Of(line.Bytes)
	}
	r.storage[0] = a
	r.askers = r.storage[:1]
	return r
}

// arm starts the asker's own clocks: the caller's timeoutMs, which bounds the whole, and the heartbeat.
func (a *asker) arm(timeout time.Duration) {
	if timeout <= 0 && a.token == nil {
		return
	}
	r := a.req
	r.mu.Lock()
	defer r.mu.Unlock()
	if a.done {
		return
	}
	if timeout > 0 {
		a.deadline = time.AfterFunc(timeout, func() {
			e := protocol.Errorf(protocol.DeadlineExceeded, "no answer within the caller's timeoutMs of %d", timeout.Milliseconds()).
				WithDetail(map[string]any{"limit": "timeoutMs", "timeout_ms": timeout.Milliseconds()})
			a.giveUp(e, leaveOverdue)
		})
	}
	if a.token != nil {
		a.beat = time.AfterFunc(time.Duration(r.pool.beat.Load()), func() { a.tick() })
	}
}

// finish marks the asker answered and stops its clocks; false where somebody else was first. r.mu must be held.
func (a *asker) finishLocked() bool {
	if a.done {
		return false
	}
	a.done = true
	a.req.open--
	if a.deadline != nil {
		a.deadline.Stop()
	}
	if a.beat != nil {
		a.beat.Stop()
	}
	return true
}

// leave says why an asker no longer waits.
type leave int

const (
	leaveCancelled leave = iota // asked for: never kills, the slot is free when the worker returns
	leaveOverdue                // past a deadline: a worker that goes on beyond cancel_grace is killed
)

// giveUp answers one asker with e before the request is done. When nobody waits any more the request is taken out of the
// queue, or its worker is told to cancel.
func (a *asker) giveUp(e *protocol.Error, why leave) {
	r := a.req
	r.mu.Lock()
	if !a.finishLocked() {
		r.mu.Unlock()
		return
	}
	last := r.open == 0
	r.mu.Unlock()
	a.conn.answerError(a, e)
	if last {
		r.pool.abandon(r, why)
	}
}

// depart is giveUp for a caller that is gone: nothing is written. keep leaves the request running.
func (a *asker) depart(keep bool) {
	r := a.req
	r.mu.Lock()
	if !a.finishLocked() {
		r.mu.Unlock()
		return
	}
	last := r.open == 0
	r.mu.Unlock()
	if last && !keep {
		r.pool.abandon(r, leaveCancelled)
	}
}

// fail answers everybody who still waits with e and ends the request.
func (r *request) fail(e *protocol.Error) {
	r.failKeeping(e)
	r.end()
}

// failKeeping is fail for a request that its worker has not let go of yet.
func (r *request) failKeeping(e *protocol.Error) {
	for a := r.take(); a != nil; a = r.take() {
		a.conn.answerError(a, e)
	}
}

// answer hands the worker's answer line to everybody who still waits, each under its own id.
func (r *request) answer(line []byte, m *protocol.Message, files []int) {
	for a := r.take(); a != nil; a = r.take() {
		a.conn.p.tally.answered(m.Error.Empty(), time.Since(a.begun))
		a.conn.answerLine(a, line, m.ID, dupFiles(files))
	}
	closeFiles(files)
	r.end()
}

// take marks one asker as answered and returns it; nil when none waits.
func (r *request) take() *asker {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == 0 {
		return nil
	}
	for _, a := range r.askers {
		if a.finishLocked() {
			return a
		}
	}
	return nil
}

// wanted says whether anybody waits for the answer.
func (r *request) wanted() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.open > 0
}

// appendLeft appends the milliseconds after which nobody waits any more, at least 1, to be the timeoutMs that the worker gets;
// null where somebody who joined waits without an end.
func (r *request) appendLeft(dst []byte) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	var last time.Time
	for _, a := range r.askers {
		switch {
		case a.done:
		case a.until.IsZero():
			return append(dst, "null"...)
		case a.until.After(last):
			last = a.until
		}
	}
	return strconv.AppendInt(dst, max(1, time.Until(last).Milliseconds()), 10)
}

// end releases what the request holds once it can no longer run.
func (r *request) end() {
	closeFiles(r.files)
	r.files = nil
	if r.key != "" {
		r.pool.forget(r)
	}
}

// endLocked is end where pool.mu is held.
func (r *request) endLocked() {
	closeFiles(r.files)
	r.files = nil
	if r.key != "" && r.pool.keys[r.key] == r {
		delete(r.pool.keys, r.key)
	}
}

// join adds a caller to a request that is running already, and reports whether it still could.
func (r *request) join(a *asker) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.open == 0 {
		return false
	}
	a.req = r
	r.askers = append(r.askers, a)
	r.open++
	return true
}

// progress passes a worker's progress notification on to every asker with a token.
func (r *request) progress(line []byte, m *protocol.Message) {
	r.mu.Lock()
	defer r.mu.Unlock()
	value, _ := strconv.ParseFloat(string(m.Progress.Of(line)), 64)
	for _, a := range r.askers {
		if a.done || a.token == nil {
			continue
		}
		a.last = value
		if a.beat != nil {
			a.beat.Reset(time.Duration(r.pool.beat.Load()))
		}
		a.conn.progressLine(line, m.ProgressToken, a.token)
	}
}

// note sends a progress message of workerd's own (queued, starting, loading) to every asker with a token.
func (r *request) note(message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, a := range r.askers {
		a.noteLocked(message)
	}
}

// noteLocked sends a message with a progress value a little above the last one: the value must increase, and workerd
// knows nothing of how far the worker is.
func (a *asker) noteLocked(message string) {
	if a.done || a.token == nil {
		return
	}
	a.last += 1e-6
	a.conn.progressNote(a.token, a.last, message)
	if a.beat != nil {
		a.beat.Reset(time.Duration(a.req.pool.beat.Load()))
	}
}

// tick is the heartbeat: the caller hears where its request stands.
func (a *asker) tick() {
	message := a.req.pool.standing(a.req)
	a.req.mu.Lock()
	defer a.req.mu.Unlock()
	a.noteLocked(message)
}
