package supervisor

import (
	"errors"
	"slices"
	"time"

	"workerd/protocol"
)

// roll is a change of version under way, one seat after the other: a candidate is started beside the seat's worker and takes
// over when it is ready. There is never more than one worker beyond the seats.
type roll struct {
	spec   *spec
	below  int64 // workers with a lower number are replaced even if they run the same version (restart)
	all    bool  // an operator waits for every seat
	cand   *worker
	old    *worker // the seat that cand is to replace
	reason string
}

// switchTo brings another version, or new processes of the same one (below), into force as on_change says.
func (p *provider) switchTo(s *spec, below int64, reason string) {
	p.hist = history{}
	p.renewStandby(reason)
	p.rollErr = nil
	all := below > 0 || p.roll != nil && p.roll.all
	p.cancelCandidate(reason)
	if p.manifest.Restart.OnChange != "stop-first" && p.anyReady() && p.mayRun() {
		p.roll = &roll{spec: s, below: below, all: all, reason: reason}
		p.resize()
		return
	}
	p.force(s)
	p.recovered()
	p.resize()
	if !p.mayRun() {
		return
	}
	if w := p.standby(); w != nil && w.life != nil {
		p.stopWorker(w, reason)
	}
	for _, w := range p.seats() {
		switch w.state {
		case Starting, Loading, Ready:
			w.again = true
			p.stopWorker(w, reason)
		case Backoff:
			p.execute(w, evStart, reason, s)
		}
	}
	p.restartFailed(reason)
	p.boot()
}

// restartFailed gives failed seats another chance: at once where they are wanted at boot, else with the next request.
func (p *provider) restartFailed(reason string) {
	p.recovered()
	for _, w := range p.seats() {
		if w.state == Failed {
			p.move(w, evDrain, reason)
		}
	}
	p.boot()
}

// advanceRoll takes the next step of a roll: it runs after every event, and does nothing while a step is under way.
func (p *provider) advanceRoll() {
	r := p.roll
	if r == nil {
		return
	}
	if !p.mayRun() {
		p.cancelCandidate("stopped")
		p.force(r.spec)
		p.roll = nil
		return
	}
	if r.cand != nil {
		return
	}
	old := p.outdated(r)
	if old == nil {
		p.force(r.spec)
		p.roll = nil
		p.rolled(r)
		return
	}
	for _, w := range p.workers {
		if w.leaving && w.life != nil || w.standby && w.state == Draining {
			return // one beyond the seats, and a standby, is all there may be
		}
	}
	r.old = old
	r.cand = &worker{state: Stopped, since: time.Now(), candidate: true}
	p.workers = append(p.workers, r.cand)
	p.startWorker(r.cand, r.reason)
}

// rolled follows a roll that has come round. It passed over the seats that had no process: their turn is now.
func (p *provider) rolled(r *roll) {
	p.resize()
	if p.failure != nil { // the version that has come in fails
		return
	}
	for _, w := range p.seats() {
		if w.state == Draining && r.all { // it was told to stop for being idle
			w.again = true
		}
	}
	p.restartFailed(r.reason)
	if r.all {
		p.startSeats(p.manifest.Serve.Replicas, r.reason, false)
	}
	if p.pool.load().runnable {
		p.demand()
	}
}

// outdated finds a seat whose process a roll replaces; nil when there is none left.
func (p *provider) outdated(r *roll) *worker {
	for _, w := range p.seats() {
		if f := w.life; f != nil && (f.spec.run != r.spec.run || f.n < r.below) && w.state != Draining {
			return w
		}
	}
	return nil
}

// force brings a version into force for what is executed from now on, and for what clients are held to.
func (p *provider) force(s *spec) {
	p.spec = s
	p.pool.setSchemas(s.schemas)
}

// promote makes a candidate that became ready the worker of the seat; the old one finishes what it runs.
func (p *provider) promote(w *worker) {
	r := p.roll
	w.candidate = false
	if r == nil || r.cand != w {
		return
	}
	old := r.old
	w.restarts, w.lastExit = old.restarts, old.lastExit
	p.force(r.spec)
	p.pool.setMethods(w.life.methods)
	r.cand, r.old = nil, nil
	if s := p.standby(); s != nil && s.life != nil && (s.life.spec.run != r.spec.run || s.life.n < r.below) {
		p.stopWorker(s, "replaced: "+r.reason) // the next one is of this version
	}
	old.leaving, old.again = true, false
	if r.below > 0 { // an operator waits, perhaps to be rid of a request that hangs
		p.stopWorker(old, "replaced: "+r.reason)
	} else {
		p.drainWorker(old, "replaced: "+r.reason)
	}
}

// candidateDied ends a roll: the version that runs stays, and the manifest on disk is shown with the reason.
func (p *provider) candidateDied(w *worker, exit *protocol.Exit) {
	r := p.roll
	p.move(w, evFail, exit.Reason)
	w.leaving, w.candidate = true, false
	p.roll = nil
	p.rollErr = errors.New(exit.Reason)
	if r != nil && r.below == 0 {
		p.rejected = []protocol.ManifestError{{
			File: p.file, Message: "the new version did not become ready, the last one runs on: " + exit.Reason,
		}}
	}
	p.log.Error("the new version did not become ready; the last one runs on", keyReason, exit.Reason)
	if !slices.ContainsFunc(p.seats(), func(w *worker) bool { return w.state != Failed }) {
		p.fail(exit) // the last one has failed meanwhile, and there was still this one to come
	}
}

// cancelCandidate gives up a roll whose candidate is not ready yet.
func (p *provider) cancelCandidate(reason string) {
	r := p.roll
	if r == nil {
		return
	}
	p.roll = nil
	if w := r.cand; w != nil {
		w.candidate, w.leaving = false, true
		p.stopWorker(w, reason)
	}
}
