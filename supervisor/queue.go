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

func (p *pool) pushBackLocked(r *request) {
	r.queued = true
	r.prev, r.next = p.tail, nil
	if p.tail != nil {
		p.tail.next = r
	} else {
		p.head = r
	}
	p.tail = r
	p.waiting++
}

func (p *pool) pushFrontLocked(r *request) {
	r.queued = true
	r.prev, r.next = nil, p.head
	if p.head != nil {
		p.head.prev = r
	} else {
		p.tail = r
	}
	p.head = r
	p.waiting++
}

func (p *pool) unlinkLocked(r *request) {
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		p.head = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		p.tail = r.prev
	}
	r.prev, r.next, r.queued = nil, nil, false
	p.waiting--
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
	var out []*request
	for r := p.head; r != nil; r = r.next {
		out = append(out, r)
	}
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
	place := 1
	for x := r.prev; x != nil; x = x.prev {
		place++
	}
	return waitingMessage(p.phase, place)
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
	lastBusy                time.Time
}

func (p *pool) load() load {
	p.mu.Lock()
	defer p.mu.Unlock()
	return load{p.running, p.waiting, p.limits.queue, p.lastBusy}
}

func (p *pool) currentLimits() limits {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.limits
}
