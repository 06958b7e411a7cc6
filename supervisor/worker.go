package supervisor

import (
	"errors"
	"fmt"
	"os"
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
	w.noGPU, p.refused = false, nil
	standby := ""
	if w.standby {
		standby = standbyMode(p.manifest)
	} else {
		p.rests = false
		p.executions++
	}
	f, err := newLife(p, p.sup.number(), s, beginning{w.restarts, standby, p.tenantFor(w, s, standby)})
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
	if p.workerOf(f) == nil || f.stopping {
		f.signal(syscall.SIGKILL) // it was told to stop while it was being started
		return
	}
	p.limitStart(f)
}

// onNotStarted settles a start that the engine refused, or that was given up.
func (p *provider) onNotStarted(f *life, err error) {
	f.stopTimers()
	f.cancel()
	close(f.exited)
	p.bootDone()
	f.letGo()
	if f.paths.tmp != "" {
		_ = execenv.RemoveTmp(f.paths.tmp)
	}
	_ = os.Remove(f.paths.socket) // it may have run for a moment
	w := p.workerOf(f)
	f.exit = &protocol.Exit{Reason: err.Error(), Time: time.Now().UTC(), Output: tail(f.paths.log, tailBytes)}
	if st, err := os.Stat(f.paths.log); err == nil && st.Size() == 0 {
		_ = os.Remove(f.paths.log) // one that waits for a GPU for days must not leave a file for each try
	}
	p.lives.Go(p.pruneLogs)
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		f.exit.Reason, f.refused = e.Message, e
	}
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
	if protocol.KindOf(err) == protocol.NoGPU {
		return causeNoGPU
	}
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
	f.startClock++
	n := f.startClock
	if d := f.spec.manifest.Start.Timeout.D(); d > 0 {
		f.after(d, func() {
			if n == f.startClock {
				p.onStartTimeout(f, d)
			}
		})
	}
}

// after runs fn on the provider's goroutine after d, unless the process has ended by then.
func (f *life) after(d time.Duration, fn func()) {
	if f.timers == nil {
		f.timers = map[*time.Timer]bool{}
	}
	var t *time.Timer
	t = time.AfterFunc(d, func() {
		f.p.post(func() {
			delete(f.timers, t) // pings go on for as long as the worker does
			if f.p.workerOf(f) != nil {
				fn()
			}
		})
	})
	f.timers[t] = true
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
	if f.methods = init.Methods; !w.candidate { // whose methods count when it serves
		p.pool.setMethods(init.Methods)
	}
	switch {
	case init.State == protocol.StateReady:
		p.onReady(f, l)
		return
	case w.state == Starting:
		p.move(w, evConnected, "loading")
	}
	switch {
	case init.State == protocol.StatePreloaded:
		p.onPreloaded(f, l)
	case f.standby == warm && !w.standby:
		l.sendLoad() // it has got a seat meanwhile
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
	if f.standby == warm && w.standby && !f.waiting && !f.adopted {
		p.log.Warn("the warm standby has loaded without being told to: its program does not look at "+execenv.StandbyVar, keyWorker, f.id)
	}
	f.readyAt = time.Now()
	f.progress, f.waiting = nil, false
	if f.adopted && w.state == Starting {
		f.readyAt = f.started // it was ready before this workerd was; how long it took nobody knows
		p.move(w, evReady, "adopted")
	} else {
		p.move(w, evReady, fmt.Sprintf("ready after %s", f.readyAt.Sub(f.started).Round(time.Millisecond)))
	}
	if w.candidate {
		p.promote(w)
	}
	if p.failure != nil && !w.candidate && !w.standby {
		p.recovered()
	}
	p.publish() // before the first answer can be out: status must not lag behind it
	f.lookAtGPUs()
	p.pool.add(l)
	f.addLanes(1)
	p.pingLater(f)
}

// pingLater begins the pings of a worker that is ready, or waits as a warm standby.
func (p *provider) pingLater(f *life) {
	if d := p.manifest.Health.Interval.D(); d > 0 && !f.pinging {
		f.pinging = true
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
	if interval <= 0 || f.stopping || len(f.lanes) == 0 || !f.waiting && f.readyAt.IsZero() {
		f.pinging = false
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
	p.drainWorker(w, reason)
	if f := w.life; f != nil && !f.stopping {
		p.limitStop(f)
	}
}

// drainWorker is stopWorker with patience, for what an edit replaces: no request may fail because of it. What runs has its own
// limits (request_timeout); stop_timeout counts from when the worker is free.
func (p *provider) drainWorker(w *worker, reason string) {
	if w.timer != nil {
		w.timer.Stop()
		w.timer = nil
	}
	f := w.life
	if w.state == Draining || !p.move(w, evDrain, reason) || f == nil {
		return
	}
	if busy, _ := p.pool.retire(f, f.lanes, false); busy == 0 {
		p.terminate(f)
	}
}

// limitStop arms the limits of a stop: once, from when it is called first.
func (p *provider) limitStop(f *life) {
	d := p.manifest.Start.StopTimeout.D()
	if d <= 0 || f.stopClock {
		return
	}
	f.stopClock = true
	f.after(d/2, func() { p.terminate(f) })
	f.after(d, func() { p.onKill(f, causeAsked, "did not end within stop_timeout of "+d.String()) })
}

// terminate sends the one SIGTERM of a stop.
func (p *provider) terminate(f *life) {
	if !f.stopping {
		f.stopping = true
		f.cause = causeAsked
		f.signal(syscall.SIGTERM)
		p.limitStop(f)
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
