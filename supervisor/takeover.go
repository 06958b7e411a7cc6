package supervisor

import (
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"workerd/protocol"
)

// A provider's standby is a worker like its seats, with a process that gets no requests: its lanes are parked. When the process of a
// seat dies, the two change places: the standby's process serves, and the place of the dead one is where the next standby is
// raised, as the restart policy lets it.

// standby is the worker that stands by; nil where none is wanted.
func (p *provider) standby() *worker {
	for _, w := range p.workers {
		if w.standby && !w.leaving {
			return w
		}
	}
	return nil
}

// placeStandby makes or takes away the place of a standby, as the manifest says.
func (p *provider) placeStandby() {
	s := p.standby()
	switch wanted := standbyMode(p.manifest) != ""; {
	case wanted && s == nil:
		p.workers = append(p.workers, &worker{state: Stopped, since: time.Now(), standby: true})
	case !wanted && s != nil:
		s.leaving = true
		p.stopWorker(s, "no standby is wanted any more")
	}
}

func (p *provider) standbyFacts(s *worker) standbyFacts {
	f := standbyFacts{
		state:   s.state,
		wanted:  standbyMode(p.manifest) != "" && p.mayRun() && p.failure == nil,
		rolling: p.roll != nil,
		crowded: p.adopting,
		rests:   p.rests,
	}
	if s.life != nil && p.spec != nil {
		f.stale = s.life.spec.run != p.spec.run || s.life.standby != standbyMode(p.manifest)
	}
	for _, w := range p.workers {
		f.crowded = f.crowded || w != s && (w.leaving || w.candidate) && w.life != nil
	}
	for _, w := range p.seats() {
		f.seats = append(f.seats, w.state)
	}
	return f
}

// advanceStandby does what the standby needs next. It runs after every event.
func (p *provider) advanceStandby() {
	defer p.watchOmens()
	s := p.standby()
	if s == nil || s.life != nil && s.life.dead { // onExit follows
		return
	}
	switch decideStandby(p.standbyFacts(s)) {
	case standbyRaise:
		p.startWorker(s, "to stand by")
	case standbyDismiss:
		p.stopWorker(s, "nothing to stand by for")
	}
}

// retryStandby is the end of the standby's delay. Where it cannot be raised now, the next event that lets it does so.
func (p *provider) retryStandby(s *worker) {
	f := p.standbyFacts(s)
	if f.state != Backoff {
		return
	}
	f.state = Stopped
	if decideStandby(f) == standbyRaise {
		p.execute(s, evStart, "restart after "+s.reason, p.spec)
		return
	}
	p.move(s, evDrain, s.reason)
}

// renewStandby gives a standby that has failed, or waits to be tried again, another chance. One that runs is not touched.
func (p *provider) renewStandby(reason string) {
	p.standbyHist, p.rests = history{}, false
	if s := p.standby(); s != nil && (s.state == Failed || s.state == Backoff) {
		p.stopWorker(s, reason)
	}
}

// onDead is the first word of a death: the process has ended, and why is still to be established, which takes a look at what it
// leaves. A standby need not wait for that. onExit follows.
func (p *provider) onDead(f *life) {
	f.dead = true
	if w := p.workerOf(f); w != nil && w.state != Draining && !w.standby && !w.candidate {
		p.pool.retire(f, f.lanes, false)
		p.takeOver(w)
	}
}

// takeOver gives the seat of w, whose process has died, to the standby, and returns it; nil where none can take it. w is then where
// the next standby will be.
func (p *provider) takeOver(w *worker) *worker {
	s := p.standby()
	if s == nil || !p.mayRun() || !canTakeOver(s.state) || s.life.dead || p.standbyFacts(s).stale {
		return nil
	}
	f := s.life
	// Places, and what is told of them, go with the role.
	i, j := slices.Index(p.workers, w), slices.Index(p.workers, s)
	p.workers[i], p.workers[j] = s, w
	s.standby, w.standby = false, true
	w.takenAt = p.executions
	s.restarts, w.restarts = w.restarts+1, s.restarts
	s.lastExit, w.lastExit = w.lastExit, s.lastExit
	s.reason = "was the standby, and took over from a worker that died"
	if w.life != nil {
		w.life.heir = s
	}
	if p.roll != nil && p.roll.old == w {
		p.roll.old = s
	}
	p.publish() // before the first answer can be out: status must not lag behind it
	p.pool.unpark(f, f.lanes)
	if len(f.gpus) > 0 {
		n := p.spec.need()
		p.sup.gpus.tell(func() { p.sup.gpus.seated(f.id, n) })
	}
	p.log.Info("the standby takes over", keyWorker, f.id, keyState, string(s.state))
	p.sup.events.publish(protocol.Event{
		Time: time.Now().UTC(), Type: "state", Provider: p.slug, Worker: f.id,
		From: string(s.state), State: string(s.state), Reason: s.reason,
	})
	if s.state != Ready && f.standby == warm {
		p.wantModel(f)
	}
	if f.body != nil {
		f.noteRole(f.body, "")
	}
	return s
}

// breather is how long the worker that took over has the machine for what waited, before the next standby is raised.
const breather = 100 * time.Millisecond

// replaced settles the death of a worker whose seat the standby has taken: d is what the restart policy says of that death.
func (p *provider) replaced(w, heir *worker, d decision, exit *protocol.Exit) {
	heir.lastExit = exit
	heir.reason = "was the standby; the worker before " + exit.Reason
	if d.action == actRespawn {
		d = decision{action: actRetry, after: breather}
	}
	p.standbyEnded(w, d, exit.Reason)
	if p.executions > w.takenAt {
		p.rests = false // the next start has come before this end was settled
	}
}

// standbyEnded leaves a standby without a process as the restart policy's decision says; advanceStandby raises the next.
func (p *provider) standbyEnded(s *worker, d decision, reason string) {
	switch d.action {
	case actRespawn:
		p.move(s, evExited, reason)
	case actRetry:
		s.retryAt = time.Now().Add(d.after)
		p.move(s, evRetry, reason)
		s.timer = time.AfterFunc(d.after, func() { p.post(func() { p.onRetry(s) }) })
	case actStop:
		p.rests = true
		p.move(s, evExited, reason)
	case actFail:
		p.move(s, evFail, reason+" ("+d.reason+")")
	}
}

// standbyDied follows an ending of the standby's process that nobody asked for. It has a history of its own: a standby that cannot
// live, since two models do not fit into the memory for instance, must not take the worker down that serves.
func (p *provider) standbyDied(s *worker, f *life, e ending, exit *protocol.Exit) {
	s.life, s.lastExit = nil, exit
	d := p.judge(&p.standbyHist, f, e)
	p.log.Warn("the standby died", keyReason, exit.Reason, "ready", e.wasReady, "cause", string(e.cause))
	if d.action == actRespawn || d.action == actRetry && e.cause != causeEngine && e.cause != causeNoGPU {
		s.restarts++
	}
	p.standbyEnded(s, d, exit.Reason)
}

// judge applies the restart policy to an ending, and keeps the history.
func (p *provider) judge(h *history, f *life, e ending) decision {
	r := p.manifest.Restart
	d, next := decide(policy{
		policy: r.Policy, backoff: r.Backoff.D(), maxBackoff: r.MaxBackoff.D(),
		maxCrashes: r.MaxCrashes, window: r.Window.D(),
	}, *h, e, time.Now(), rand.Float64())
	*h = next
	switch {
	case !p.mayRun():
		d.action = actStop
	case f == nil && d.action == actRespawn: // nothing was executed: trying again at once would be a loop
		d = decision{action: actRetry, after: max(r.Backoff.D(), 100*time.Millisecond)}
	}
	return d
}

// onPreloaded is a warm standby's word that it waits for its model to be wanted: it is, where it has a seat by now.
func (p *provider) onPreloaded(f *life, l *lane) {
	w := p.workerOf(f)
	if w == nil || f.stopping || !f.readyAt.IsZero() {
		return
	}
	if !w.standby {
		l.sendLoad()
		return
	}
	if f.waiting {
		return
	}
	f.waiting, f.waitingAt = true, time.Now()
	f.startClock++ // how long it waits is no matter of start.timeout
	f.progress = &protocol.Progress{Message: "preloaded, waits to load"}
	p.log.Info("the standby has preloaded", keyWorker, f.id, "after", time.Since(f.started).Round(time.Millisecond).String())
	p.pingLater(f)
}

// wantModel tells a warm standby which has got a seat to load, within start.timeout from now on.
func (p *provider) wantModel(f *life) {
	f.waiting, f.progress = false, nil
	if f.body != nil { // else the clock starts with its container
		p.limitStart(f)
	}
	if len(f.lanes) > 0 { // else it is told when it has connected
		f.lanes[0].sendLoad()
	}
}

// preloaded is called by a lane that heard of a warm standby that it waits.
func (f *life) preloaded(l *lane) {
	f.p.post(func() { f.p.onPreloaded(f, l) })
}

// noteRole renews the record of a worker that serves now, or stands by: a later workerd is to know it as that.
func (f *life) noteRole(b body, standby string) {
	r := f.record(b)
	r.Standby = standby
	f.p.lives.Go(func() { // a disk may take its time
		if err := r.save(); err != nil {
			f.p.log.Warn("the record of the worker does not say what it does now", keyWorker, f.id, keyError, err)
		}
		if isClosed(f.exited) { // its watcher has removed the record before this one was written
			_ = os.Remove(r.file())
		}
	})
}
