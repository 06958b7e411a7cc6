package supervisor

import "time"

// armIdle keeps one timer for idle_timeout while workers are up.
func (p *provider) armIdle() {
	if p.manifest == nil || p.idle != nil || p.closing != open {
		return
	}
	d := p.manifest.Start.IdleTimeout.D()
	if d <= 0 || !p.anyReady() {
		return
	}
	p.idle = time.AfterFunc(p.pool.load().idleIn(d, time.Now()), func() { p.post(p.onIdle) })
}

// disarmIdle lets settle arm the timer anew.
func (p *provider) disarmIdle() {
	if p.idle != nil {
		p.idle.Stop()
		p.idle = nil
	}
}

// onIdle stops workers that had nothing to do for idle_timeout; a request that arrives this instant keeps them.
func (p *provider) onIdle() {
	p.disarmIdle() // after an edit it may be another one than has gone off
	d := p.manifest.Start.IdleTimeout.D()
	l := p.pool.load()
	if d <= 0 || l.running > 0 || l.runnable || time.Since(l.lastBusy) < d {
		return // settle arms it again
	}
	for _, w := range p.seats() {
		if w.state != Ready {
			continue
		}
		if _, ok := p.pool.retire(w.life, w.life.lanes, true); !ok {
			return
		}
		p.stopWorker(w, "idle for "+d.String())
	}
}

// idleIn is how long it takes at least until the pool has been idle for d: all of it where something runs or waits, since
// lastBusy is of what came before that.
func (l load) idleIn(d time.Duration, now time.Time) time.Duration {
	if l.running > 0 || l.runnable {
		return d
	}
	return max(d-now.Sub(l.lastBusy), 0)
}
