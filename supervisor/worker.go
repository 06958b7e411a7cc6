package supervisor

import (
	"errors"
	"fmt"
	"syscall"
	"time"

	"workerd/execenv"
	"workerd/protocol"
)

// startWorker executes a process for a seat that has none.
func (p *provider) startWorker(w *worker, reason string) {
	p.execute(w, evStart, reason, p.specFor(w))
}

// specFor is what a seat's next process runs.
func (p *provider) specFor(w *worker) *spec {
	if w.candidate && p.roll != nil {
		return p.roll.spec
	}
	return p.spec
}

// execute makes the next process of w. A process that cannot be made is an ending like any other.
func (p *provider) execute(w *worker, e Event, reason string, s *spec) {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	f, err := newLife(p, p.sup.number(), s, w.restarts)
	if err == nil {
		w.life = f
		p.track(f)
	}
	if !p.move(w, e, reason) {
		return
	}
	if err == nil {
		if f.body != nil {
			p.limitStart(f) // of a container: when it has been started
		}
		return
	}
	exit := &protocol.Exit{Reason: err.Error(), Time: time.Now().UTC()}
	p.died(w, nil, ending{cause: causeOf(err), code: -1, signature: err.Error()}, exit)
}

// onStarted is the engine's word that a worker's container runs.
func (p *provider) onStarted(f *life, b body) {
	f.begin(b)
	w := p.workerOf(f)
	switch {
	case w == nil || f.cause == causeAsked && f.stopping:
		f.signal(syscall.SIGKILL) // it was told to stop while it was being started
	case f.stopping:
		f.signal(syscall.SIGKILL)
	default:
		p.limitStart(f)
	}
}

// onNotStarted settles a start that the engine refused, or that was given up.
func (p *provider) onNotStarted(f *life, err error) {
	f.stopTimers()
	f.cancel()
	close(f.exited)
	p.bootDone()
	if f.paths.tmp != "" {
		_ = execenv.RemoveTmp(f.paths.tmp)
	}
	w := p.workerOf(f)
	f.exit = &protocol.Exit{Reason: err.Error(), Time: time.Now().UTC(), Output: tail(f.paths.log, tailBytes)}
	asked := w == nil || w.state == Draining
	if asked {
		f.exit.Reason = "stopped before it was started"
	}
	close(f.gone)
	if w == nil {
		return
	}
	if asked {
		p.onStopped(w, f)
		return
	}
	p.died(w, f, ending{cause: causeOf(err), code: -1, signature: err.Error()}, f.exit)
}

// causeOf says what an error of a start means for the restart policy.
func causeOf(err error) cause {
	if e, ok := errors.AsType[*execenv.EngineError](err); ok {
		switch e.Kind.Class() {
		case execenv.EngineUnavailable:
			return causeEngine
		case execenv.Permanent:
			return causePermanent
		}
		return causeExit
	}
	if e, ok := errors.AsType[*execenv.Error](err); ok {
		switch e.Kind {
		case execenv.Transient:
			return causeExit
		case execenv.EngineUnavailable:
			return causeEngine
		}
		return causePermanent
	}
	return causeExit
}

// track makes the provider's end wait for a life's goroutines.
func (p *provider) track(f *life) { p.lives.Go(f.wg.Wait) }

// limitStart arms start.timeout.
func (p *provider) limitStart(f *life) {
	if d := f.spec.manifest.Start.Timeout.D(); d > 0 {
		f.after(d, func() { p.onStartTimeout(f, d) })
	}
}

// after runs fn on the provider's goroutine after d, unless the process has ended by then.
func (f *life) after(d time.Duration, fn func()) {
	f.timers = append(f.timers, time.AfterFunc(d, func() {
		f.p.post(func() {
			if f.p.workerOf(f) != nil {
				fn()
			}
		})
	}))
}

func (p *provider) onStartTimeout(f *life, d time.Duration) {
	if f.readyAt.IsZero() && !f.stopping {
		p.onKill(f, causeStartTimeout, "not ready within start.timeout of "+d.String())
	}
}

// onConnected is the worker's answer to initialize on its first connection.
func (p *provider) onConnected(f *life, l *lane, init *protocol.InitializeResult) {
	p.adoptLane(f, l)
	p.bootDone()
	w := p.workerOf(f)
	if w == nil || f.connected {
		return
	}
	f.connected = true
	p.pool.setMethods(init.Methods)
	switch {
	case init.State == protocol.StateReady:
		p.onReady(f, l)
	case w.state == Starting:
		p.move(w, evConnected, "loading")
	}
}

// adoptLane enters a lane with its process. One that comes after the process has ended is told so like the others were.
func (p *provider) adoptLane(f *life, l *lane) {
	f.lanes = append(f.lanes, l)
	if isClosed(f.gone) {
		l.interrupt()
	}
}

// onLane takes in one further connection of a ready worker. One that is still at a request of an earlier workerd says when it
// is free.
func (p *provider) onLane(f *life, l *lane, init *protocol.InitializeResult) {
	p.adoptLane(f, l)
	if w := p.workerOf(f); w != nil && w.state == Ready && init.State == protocol.StateReady {
		p.pool.add(l)
	}
}

// onReady is the worker's word that it has loaded, or that a connection which was lost is back.
func (p *provider) onReady(f *life, l *lane) {
	w := p.workerOf(f)
	if w == nil || f.stopping {
		return
	}
	if w.state == Ready {
		p.pool.add(l)
		return
	}
	if w.state != Starting && w.state != Loading {
		return
	}
	f.readyAt = time.Now()
	f.progress = nil
	if f.adopted && w.state == Starting {
		f.readyAt = f.started // it was ready before this workerd was; how long it took nobody knows
		p.move(w, evReady, "adopted")
	} else {
		p.move(w, evReady, fmt.Sprintf("ready after %s", f.readyAt.Sub(f.started).Round(time.Millisecond)))
	}
	if w.candidate {
		p.promote(w)
	}
	if p.failure != nil && !w.candidate {
		p.recovered()
	}
	p.publish() // before the first answer can be out: status must not lag behind it
	p.pool.add(l)
	f.addLanes(1)
	if d := p.manifest.Health.Interval.D(); d > 0 {
		f.after(d, func() { p.onHealth(f) })
	}
}

func (p *provider) onProgress(f *life, pr protocol.Progress) {
	w := p.workerOf(f)
	if w == nil || !f.readyAt.IsZero() {
		return
	}
	f.progress = &pr
	p.sup.events.publish(protocol.Event{
		Time: time.Now().UTC(), Type: "progress", Provider: p.slug, Worker: f.id, State: string(w.state), Progress: &pr,
	})
}

// onHealth pings a worker. One that is idle and silent for health.timeout is killed; one that is busy only after
// busy_timeout, which is unset by default: a library may hold the interpreter's lock for as long as it computes.
func (p *provider) onHealth(f *life) {
	h := p.manifest.Health
	interval, timeout := h.Interval.D(), h.Timeout.D()
	if interval <= 0 || f.stopping || len(f.lanes) == 0 {
		return
	}
	since := f.lanes[0].sendPing()
	wait := interval
	f.silent = false
	if !since.IsZero() {
		silence := time.Since(since)
		f.silent = silence >= min(timeout, interval)
		limit := timeout
		if p.pool.busyLanes(f) > 0 {
			limit = h.BusyTimeout.D()
		}
		if limit > 0 && silence >= limit {
			p.onKill(f, causePing, fmt.Sprintf("did not answer ping for %s", silence.Round(time.Second)))
			return
		}
		if limit > 0 {
			wait = min(interval, limit-silence)
		}
	} else if timeout > 0 {
		wait = min(interval, timeout)
	}
	f.after(max(wait, time.Millisecond), func() { p.onHealth(f) })
}

// stopWorker drains a worker, then ends it: SIGTERM when its requests are done or half of stop_timeout has passed, SIGKILL
// to everything at stop_timeout.
func (p *provider) stopWorker(w *worker, reason string) {
	f := w.life
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	if w.state == Draining {
		return
	}
	if !p.move(w, evDrain, reason) || f == nil {
		return
	}
	busy, _ := p.pool.retire(f, f.lanes, false)
	if f.stopping {
		return
	}
	if busy == 0 {
		p.terminate(f)
	}
	if d := p.manifest.Start.StopTimeout.D(); d > 0 {
		f.after(d/2, func() { p.terminate(f) })
		f.after(d, func() { p.onKill(f, causeAsked, "did not end within stop_timeout of "+d.String()) })
	}
}

// terminate sends the one SIGTERM of a stop.
func (p *provider) terminate(f *life) {
	if !f.stopping {
		f.stopping = true
		f.cause = causeAsked
		f.signal(syscall.SIGTERM)
	}
}

// onDrained: a retired worker has answered its last request.
func (p *provider) onDrained(f *life) {
	if w := p.workerOf(f); w != nil && w.state == Draining {
		p.terminate(f)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
