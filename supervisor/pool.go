package supervisor

import (
	"sync"
	"sync/atomic"
	"time"

	"workerd/protocol"
)

// limits are the parts of a manifest that bound a provider's requests. They apply live.
type limits struct {
	capacity       int // replicas x concurrency
	queue          int
	requestTimeout time.Duration
	cancelGrace    time.Duration
	maxMessage     int64
	retryOnCrash   bool
	finishGone     bool // on_disconnect = "finish"
}

// pool admits a provider's requests, lets them wait, and hands them to lanes. Its mutex guards the fields that follow; it
// is held for a few list operations only, never across a write.
type pool struct {
	slug    string
	beat    atomic.Int64 // the constant heartbeat, but in tests
	demand  func()       // pokes the provider's goroutine: somebody waits and workers are missing
	timeout atomic.Int64 // limits.requestTimeout, for lanes, which must not take mu
	// maxMessage bounds the lines of new connections.
	maxMessage atomic.Int64
	schemas    atomic.Pointer[schemas] // nil: no tool declares one

	mu       sync.Mutex
	limits   limits
	idle     []*lane // ready and free, the longest idle first
	running  int     // requests on a lane, answered or not
	queue    queue
	refusal  *protocol.Error // answered to every new request; nil: they are admitted
	short    bool            // fewer workers than wanted are up: a waiting request pokes demand
	phase    string          // what waiting requests wait for, for progress messages
	keys     map[string]*request
	lastBusy time.Time
	methods  []protocol.MethodInfo
}

func newPool(slug string, demand func()) *pool {
	p := &pool{slug: slug, demand: demand, short: true, keys: map[string]*request{}, lastBusy: time.Now()}
	p.beat.Store(int64(heartbeat))
	return p
}

// submit takes a request in: it runs at once, waits, joins the running one with its key, or is refused. The request is
// answered in every case.
func (p *pool) submit(r *request) {
	p.mu.Lock()
	if e := p.refusal; e != nil {
		p.mu.Unlock()
		r.fail(e)
		return
	}
	if r.key != "" {
		if joined, e := p.joinLocked(r); joined {
			p.mu.Unlock()
			closeFiles(r.files) // the running request has its own
			return
		} else if e != nil {
			p.mu.Unlock()
			r.key = ""
			r.fail(e)
			return
		}
	}
	if p.queue.next() == nil && r.turn.n == 0 {
		for l := p.takeLocked(r); l != nil; l = p.takeLocked(r) {
			p.mu.Unlock()
			if l.run(r) {
				return
			}
			p.mu.Lock()
			p.untakeLocked(r, l)
			drained := l.retired && l.life.busy == 0
			e := p.refusal
			if !drained && e == nil {
				continue
			}
			p.mu.Unlock()
			if drained {
				l.life.drained()
			}
			if e != nil { // refuse has emptied the queue meanwhile
				r.fail(e)
				return
			}
			p.mu.Lock()
		}
	}
	out, full := p.roomLocked(r)
	if out == r {
		p.mu.Unlock()
		r.fail(full)
		return
	}
	p.queue.push(r)
	message := ""
	if r.first.token != nil {
		message = waitingMessage(p.phase, p.queue.place(r))
	}
	poke := p.short && p.queue.next() != nil
	p.mu.Unlock()
	if out != nil {
		out.fail(full)
	}
	if poke {
		p.demand()
	}
	if message != "" {
		r.note(message)
	}
}

// roomLocked makes room for r where the queue is full. It returns who is refused for that, r itself where nobody has more
// than its share, and nil where there is room.
func (p *pool) roomLocked(r *request) (*request, *protocol.Error) {
	if p.running+p.queue.waiting < p.limits.capacity+p.limits.queue {
		return nil, nil
	}
	out := p.queue.crowding(r.turn)
	if out == nil {
		return r, p.fullLocked(r.turn)
	}
	full := p.fullLocked(out.turn)
	p.queue.remove(out)
	return out, full
}

// joinLocked makes r's asker one of the running request with the same key, if there is one. A key that is in use for
// another method is a mistake of the caller.
func (p *pool) joinLocked(r *request) (bool, *protocol.Error) {
	other := p.keys[r.key]
	if other == nil {
		p.keys[r.key] = r
		return false, nil
	}
	if other.method != r.method {
		return false, protocol.Errorf(protocol.InvalidRequest,
			"idempotencyKey %q belongs to a running request of method %q, not %q", r.key, other.method, r.method)
	}
	a := &r.first
	if under, limit := a.conn.underWay(), p.limits.capacity+p.limits.queue; under > max(limit, 1) {
		return false, p.fullLocked(r.turn) // joining takes no place in the queue, but its answer takes memory
	}
	if other.join(a) {
		return true, nil
	}
	p.keys[r.key] = r // the other one was answered this instant
	return false, nil
}

// forget drops the request's idempotency key.
func (p *pool) forget(r *request) {
	p.mu.Lock()
	if p.keys[r.key] == r {
		delete(p.keys, r.key)
	}
	p.mu.Unlock()
}

// fullLocked is the refusal of a request of t's connection.
func (p *pool) fullLocked(t *turn) *protocol.Error {
	return protocol.Errorf(protocol.QueueFull, "%d requests run and %d wait, %d of them on this connection, which is the limit of %s; try again later",
		p.running, p.queue.waiting, t.n, p.slug).
		WithDetail(map[string]any{
			"queue": p.limits.queue, "waiting": p.queue.waiting, "running": p.running, "capacity": p.limits.capacity, "connection": t.n,
		}).
		From(p.slug, "")
}

// release gives a lane back after its request ended; the next waiting request takes it over.
func (p *pool) release(r *request, l *lane) {
	p.mu.Lock()
	p.untakeLocked(r, l)
	p.offerLocked(l)
}

// offerLocked puts a free lane to use: a waiting request runs on it, or it becomes idle. It unlocks the pool.
func (p *pool) offerLocked(l *lane) {
	if l.retired {
		drained := l.life.busy == 0
		p.mu.Unlock()
		if drained {
			l.life.drained()
		}
		return
	}
	if l.life.parked || l.life.resting {
		l.resting = l.life.resting
		p.mu.Unlock()
		return
	}
	r := p.nextLocked()
	if r == nil {
		p.idle = append(p.idle, l)
		p.mu.Unlock()
		return
	}
	p.assignLocked(r, l)
	p.mu.Unlock()
	if l.run(r) {
		return
	}
	p.mu.Lock()
	p.untakeLocked(r, l)
	drained := l.retired && l.life.busy == 0
	e := p.refusal
	if e == nil {
		p.queue.pushFront(r)
	}
	p.mu.Unlock()
	if drained {
		l.life.drained()
	}
	if e != nil { // refuse has emptied the queue meanwhile
		r.fail(e)
		return
	}
	p.dispatch() // this lane is dead, which its reader sees to; another may be free
}

// add makes a lane available.
func (p *pool) add(l *lane) {
	p.mu.Lock()
	if l.inPool {
		p.mu.Unlock()
		return
	}
	l.inPool = true
	p.lastBusy = time.Now() // idleness counts from when there was a worker, not from before it had loaded
	p.offerLocked(l)
}

// unpark puts the lanes of a standby that takes over to use.
func (p *pool) unpark(f *life, lanes []*lane) {
	p.mu.Lock()
	f.parked = false
	for _, l := range lanes {
		if l.inPool && !l.retired {
			p.offerLocked(l)
			p.mu.Lock()
		}
	}
	p.mu.Unlock()
}

// lost takes a lane whose connection ended out of the pool; what it was running is the caller's to resolve.
func (p *pool) lost(l *lane) {
	p.mu.Lock()
	p.dropIdleLocked(l)
	l.inPool, l.resting = false, false
	p.mu.Unlock()
}

// retire ends the assignment of requests to a worker's lanes and returns how many are busy. With onlyIdle it does so only
// where nothing runs or waits, atomically, so that an idle stop cannot race a request; it then reports false.
func (p *pool) retire(f *life, lanes []*lane, onlyIdle bool) (busy int, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if onlyIdle && (p.running > 0 || p.queue.next() != nil) {
		return f.busy, false
	}
	p.short = true // in the same breath, or a request that arrives now would wait unheard
	for _, l := range lanes {
		l.retired = true
		p.dropIdleLocked(l)
	}
	return f.busy, true
}

// resolve settles a request that was on a lane whose worker or connection is gone: never read, or allowed a second try:
// it waits for the next worker; else it is answered with e.
func (p *pool) resolve(r *request, l *lane, unread bool, e *protocol.Error) {
	p.mu.Lock()
	p.untakeLocked(r, l)
	drained := l.retired && l.life.busy == 0
	again := unread || (p.limits.retryOnCrash && !r.retried)
	if again && !r.wanted() {
		again = false
	}
	refusal := p.refusal
	if again && refusal == nil {
		if !unread {
			r.retried = true
		}
		p.queue.pushFront(r)
	}
	p.mu.Unlock()
	if drained {
		l.life.drained()
	}
	switch {
	case again && refusal == nil:
		p.dispatch()
	case again:
		r.fail(refusal)
	default:
		r.fail(e)
	}
}

// dispatch hands waiting requests to idle lanes, and asks for workers where requests remain.
func (p *pool) dispatch() {
	p.mu.Lock()
	for p.queue.next() != nil && len(p.idle) > 0 {
		l := p.idle[0]
		copy(p.idle, p.idle[1:])
		p.idle = p.idle[:len(p.idle)-1]
		p.offerLocked(l)
		p.mu.Lock()
	}
	poke := p.queue.next() != nil && p.short
	p.mu.Unlock()
	if poke {
		p.demand()
	}
}

// abandon is called when nobody waits for r any more.
func (p *pool) abandon(r *request, why leave) {
	p.mu.Lock()
	if r.queued {
		p.queue.remove(r)
		p.lastBusy = time.Now()
		p.mu.Unlock()
		r.end()
		return
	}
	l, grace := r.lane, p.limits.cancelGrace
	p.mu.Unlock()
	if l != nil {
		l.cancel(r, why == leaveOverdue, grace)
	}
}

// refuse answers every waiting request with waiting, where that is not nil, and every later one with later until admit.
func (p *pool) refuse(waiting, later *protocol.Error) {
	p.mu.Lock()
	p.refusal = later
	p.short = true // in the same breath, or a request that arrives now would wait unheard
	var out []*request
	if waiting != nil {
		out = p.queue.all()
	}
	for _, r := range out {
		p.queue.remove(r)
	}
	p.mu.Unlock()
	for _, r := range out {
		r.fail(waiting)
	}
}

// admit ends refuse.
func (p *pool) admit() {
	p.mu.Lock()
	p.refusal = nil
	p.mu.Unlock()
}

// failWaiting answers every waiting request with e; later ones are admitted.
func (p *pool) failWaiting(e *protocol.Error) {
	p.mu.Lock()
	refusal := p.refusal
	p.mu.Unlock()
	p.refuse(e, refusal)
}

// setLimits applies edited limits.
func (p *pool) setLimits(l limits) {
	p.mu.Lock()
	p.limits = l
	p.timeout.Store(int64(l.requestTimeout))
	p.maxMessage.Store(l.maxMessage)
	p.mu.Unlock()
}
