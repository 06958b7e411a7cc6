package supervisor

import (
	"fmt"
	"time"
)

// takeLocked assigns r to the lane that has been idle longest; nil where none is free.
func (p *pool) takeLocked(r *request) *lane {
	if len(p.idle) == 0 {
		return nil
	}
	l := p.idle[0]
	copy(p.idle, p.idle[1:])
	p.idle = p.idle[:len(p.idle)-1]
	p.assignLocked(r, l)
	return l
}

func (p *pool) assignLocked(r *request, l *lane) {
	r.lane = l
	l.life.busy++
	p.running++
}

// untakeLocked undoes an assignment whose request was never sent: the lane turned out to be dead.
func (p *pool) untakeLocked(r *request, l *lane) {
	r.lane = nil
	l.life.busy--
	p.running--
	p.lastBusy = time.Now()
}

// nextLocked takes the request out that is to run next; nil where there is none. One that nobody waits for any more is
// dropped, and what a client that does not read has sent is left where it is.
func (p *pool) nextLocked() *request {
	for r := p.queue.next(); r != nil; r = p.queue.next() {
		switch {
		case !r.wanted():
			p.queue.remove(r)
			r.endLocked()
		case !r.turn.free && r.first.conn.stalled():
			p.holdLocked(r.turn, r.first.conn)
		default:
			return p.queue.pop()
		}
	}
	return nil
}

// holdLocked runs nothing more for a client until it has read what there is for it: else the answers to all that it asked
// for would lie in memory.
func (p *pool) holdLocked(t *turn, c *client) {
	p.queue.hold(t)
	c.drains.Go(func() {
		err := c.conn.WaitDrained(c.p.sup.clients, slowClient/2)
		p.mu.Lock()
		t.free = t.free || err != nil
		p.queue.release(t)
		p.mu.Unlock()
		p.dispatch()
	})
}

// leave says that a connection is over: what waits of it is of others who joined.
func (p *pool) leave(t *turn) {
	p.mu.Lock()
	t.free = true
	p.mu.Unlock()
}

func (p *pool) dropIdleLocked(l *lane) {
	for i, x := range p.idle {
		if x == l {
			p.idle = append(p.idle[:i], p.idle[i+1:]...)
			return
		}
	}
}

// announce tells everybody who waits what they wait for. short says whether a further request should poke demand.
func (p *pool) announce(phase string, short bool) {
	p.mu.Lock()
	p.short = short
	if phase == p.phase {
		p.mu.Unlock()
		return
	}
	p.phase = phase
	out := p.queue.all()
	p.mu.Unlock()
	for i, r := range out {
		r.note(waitingMessage(phase, i+1))
	}
}

// standing says where a request stands, for its heartbeat.
func (p *pool) standing(r *request) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !r.queued {
		return "running"
	}
	return waitingMessage(p.phase, p.queue.place(r))
}

func waitingMessage(phase string, place int) string {
	if phase == "" {
		return fmt.Sprintf("queued, place %d", place)
	}
	return fmt.Sprintf("%s (queued, place %d)", phase, place)
}

// load is the pool's counters at one instant.
type load struct {
	running, waiting, queue int
	runnable                bool // something waits that a worker is to run: not only what its client does not read for
	lastBusy                time.Time
}

func (p *pool) load() load {
	p.mu.Lock()
	defer p.mu.Unlock()
	return load{p.running, p.queue.waiting, p.limits.queue, p.queue.next() != nil, p.lastBusy}
}

func (p *pool) currentLimits() limits {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.limits
}
