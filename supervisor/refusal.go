package supervisor

import (
	"encoding/json"
	"time"

	"workerd/protocol"
)

// A worker that somebody else told to end (SIGTERM not from workerd) refuses what it has not begun. Such a request was not run: it
// goes to another worker, or waits for the next, as one that was never read. Only once, for a worker might say so for ever.

// rest is how long a worker gets no requests that said that it is stopping, and is still there.
var rest = time.Second // a test's machine may be slower

// refused says whether an answer is such a refusal, and then has r tried again.
func (l *lane) refused(r *request, answer []byte) bool {
	var e protocol.Error
	if r.refused || json.Unmarshal(answer, &e) != nil || e.Data.Kind != protocol.ShuttingDown {
		return false
	}
	f := l.life
	l.pool.rest(f, l, r)
	l.pool.resolve(r, l, true, &e)
	f.p.postAsync(func() { f.after(rest, func() { l.pool.wake(f, f.lanes) }) })
	return true
}

// rest withholds the lanes of a worker: l, which has refused r, those that are idle, and the others when they are free.
func (p *pool) rest(f *life, l *lane, r *request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	r.refused, f.resting, l.resting = true, true, true
	idle := p.idle[:0]
	for _, other := range p.idle {
		if other.life == f {
			other.resting = true
		} else {
			idle = append(idle, other)
		}
	}
	clear(p.idle[len(idle):])
	p.idle = idle
}

// wake puts them to use again.
func (p *pool) wake(f *life, lanes []*lane) {
	p.mu.Lock()
	f.resting = false
	for _, l := range lanes {
		if l.resting && l.inPool {
			l.resting = false
			p.offerLocked(l)
			p.mu.Lock()
		}
	}
	p.mu.Unlock()
}
