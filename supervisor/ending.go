package supervisor

import (
	"fmt"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"workerd/execenv"
	"workerd/protocol"
)

// onKill ends a worker's process at once for a reason of workerd's own.
func (p *provider) onKill(f *life, c cause, reason string) {
	if p.workerOf(f) == nil || isClosed(f.exited) {
		return
	}
	if f.cause == "" || f.cause == c {
		f.cause, f.reason = c, reason
	}
	f.stopping = true
	f.signal(syscall.SIGKILL)
}

// onExit settles the end of a process: what it forked goes, its requests are resolved, and the policy says what follows.
func (p *provider) onExit(f *life, e ended) {
	f.stopTimers()
	p.bootDone()
	w := p.workerOf(f)
	p.pool.retire(f, f.lanes, false)
	f.exit = f.describe(e)
	failure := f.neverRan(e)
	if failure != nil {
		f.exit.Reason = failure.Error()
	}
	asked := w != nil && w.state == Draining
	if !asked && w != nil {
		end := ending{cause: causeExit, code: e.code, wasReady: !f.readyAt.IsZero(), signature: f.exit.Reason + lastLine(f.exit.Output)}
		switch {
		case f.cause != "":
			end.cause = f.cause
		case e.mute: // it went with its engine, for all that can be known
			end.cause = causeEngine
		case e.outOfMemory():
			end.cause = causeOOM
		case p.endedByFault(f):
			end.cause = causeGPU
		case failure != nil:
			end.cause = causeOfRun(failure)
		}
		if end.wasReady {
			end.readyFor = time.Since(f.readyAt)
		}
		p.died(w, f, end, f.exit)
	}
	close(f.gone)
	for _, l := range f.lanes {
		l.interrupt()
	}
	p.sweep(f, w, asked)
}

// sweep looks through all processes for what a dead worker left, apart from the provider's goroutine. A worker that was
// told to stop counts as stopped only then.
func (p *provider) sweep(f *life, w *worker, asked bool) {
	p.lives.Add(1)
	go func() {
		defer p.lives.Done()
		keep := p.keeps(f, asked)
		if killed := f.body.sweep(); len(killed) > 0 {
			p.log.Info("killed what the worker left behind", keyWorker, f.id, keyPID, killed)
		}
		f.letGo()
		_ = execenv.RemoveTmp(f.paths.tmp)
		f.wg.Wait()
		f.body.release()
		f.omen.close()
		if keep != nil {
			p.sup.keepFailed(keep, p.slug)
		}
		p.sup.removeLater(f.body)
		p.pruneLogs()
		if asked {
			p.post(func() { p.onStopped(w, f) })
		}
	}()
}

// keeps returns the container of a failed worker where the manifest says that it is kept, and marks it; else nil.
func (p *provider) keeps(f *life, asked bool) *containerBody {
	b, ok := f.body.(*containerBody)
	if !ok || asked || f.cause == causeAsked || !f.spec.manifest.Env.KeepFailed {
		return nil
	}
	b.kept.Store(true)
	return b
}

// onStopped is the end of a stop: the process and its tree are gone.
func (p *provider) onStopped(w *worker, f *life) {
	w.lastExit, w.life = f.exit, nil
	if !w.standby {
		p.lastExit = f.exit
	}
	switch {
	case w.again && p.mayRun():
		w.again = false
		p.execute(w, evRespawn, "restarted", p.spec)
	default:
		w.again = false
		p.move(w, evExited, w.reason)
	}
	if p.pool.load().runnable {
		p.demand()
	}
}

// died follows an ending that nobody asked for.
func (p *provider) died(w *worker, f *life, e ending, exit *protocol.Exit) {
	var heir *worker
	if f != nil {
		heir = f.heir
	}
	if w.standby && heir == nil {
		p.standbyDied(w, f, e, exit)
		return
	}
	w.life, p.lastExit = nil, exit
	if heir == nil {
		w.lastExit = exit
	}
	p.deaths++
	if w.candidate {
		if e.cause == causeNoGPU {
			p.noRoomBeside(w, exit)
		} else {
			p.candidateDied(w, exit)
		}
		return
	}
	d := p.judge(&p.hist, f, e)
	if e.cause == causeGPU {
		p.gpuFaults++
	}
	p.log.Warn("worker died", keyReason, exit.Reason, "ready", e.wasReady, "cause", string(e.cause))
	if f == nil || !f.dead { // it was never executed
		heir = p.takeOver(w)
	}
	if heir != nil {
		p.replaced(w, heir, d, exit)
		return
	}
	if e.cause == causeNoGPU && d.action == actRetry {
		p.withoutGPU(w, f, d, exit)
		return
	}
	switch d.action {
	case actRespawn:
		w.restarts++
		p.execute(w, evRespawn, exit.Reason, p.spec)
	case actRetry:
		if e.cause == causeEngine {
			p.engineDown(w, exit)
		} else {
			w.restarts++
		}
		w.retryAt = time.Now().Add(d.after)
		p.move(w, evRetry, exit.Reason)
		w.timer = time.AfterFunc(d.after, func() { p.post(func() { p.onRetry(w) }) })
	case actStop:
		p.rest(w, f, e, exit)
	case actFail:
		p.move(w, evFail, exit.Reason+" ("+d.reason+")")
		if !p.othersUp(w) {
			p.fail(exit)
		}
	}
}

// rest leaves a seat without a process until the next start. Where it is not the worker's fault that there is none, whoever waits gets
// what may be retried, and nothing is started for them now: it would be refused again.
func (p *provider) rest(w *worker, f *life, e ending, exit *protocol.Exit) {
	p.move(w, evExited, exit.Reason)
	refusal, hopeless := p.startError(exit), false
	switch {
	case e.cause == causeNoGPU:
		p.refused = f.refused
		refusal, hopeless = f.refused, true
	case e.cause == causeEngine:
		refusal, hopeless = p.engineError(exit), !e.wasReady
	}
	if !e.wasReady && !p.othersUp(w) {
		p.pool.failWaiting(refusal)
	}
	if !hopeless {
		p.demand()
	}
}

func (p *provider) onRetry(w *worker) {
	if w.standby {
		p.retryStandby(w)
		return
	}
	if w.state == Backoff && p.mayRun() {
		if p.failure == nil {
			p.pool.admit()
		}
		p.execute(w, evStart, "restart after "+w.reason, p.spec)
	}
}

// othersUp says whether another seat serves or may come to serve.
func (p *provider) othersUp(w *worker) bool {
	for _, x := range p.workers {
		if x != w && !x.standby && (x.state == Ready || x.state == Loading || x.state == Starting || x.state == Backoff) {
			return true
		}
	}
	return false
}

func (p *provider) startError(exit *protocol.Exit) *protocol.Error {
	return protocol.Errorf(protocol.WorkerStartFailed, "the worker of %s did not start: %s", p.slug, exit.Reason).
		WithDetail(exit).From(p.slug, "")
}

// engineDown answers requests while the container engine does not answer, until the next start is tried.
func (p *provider) engineDown(w *worker, exit *protocol.Exit) {
	if !p.othersUp(w) {
		e := p.engineError(exit)
		p.pool.refuse(e, e)
	}
}

func (p *provider) engineError(exit *protocol.Exit) *protocol.Error {
	return protocol.Errorf(protocol.EngineUnavailable, "%s", exit.Reason).From(p.slug, "")
}

// fail ends all further tries: waiting requests get worker_start_failed, later ones provider_failed at once.
func (p *provider) fail(exit *protocol.Exit) {
	p.failed = exit
	p.failure = protocol.Errorf(protocol.ProviderFailed, "%s has failed and is not restarted until its manifest changes or an operator restarts it: %s",
		p.slug, exit.Reason).WithDetail(exit).From(p.slug, "")
	p.publish() // status must not lag behind the answers
	p.pool.refuse(p.startError(exit), p.failure)
}

// recovered forgets a failure: requests are admitted again.
func (p *provider) recovered() {
	p.failure, p.failed = nil, nil
	if !p.held && p.closing == open {
		p.pool.admit()
	}
}

// describe says how a process ended, with the last lines that it printed.
func (f *life) describe(e ended) *protocol.Exit {
	x := &protocol.Exit{Time: time.Now().UTC(), Output: tail(f.paths.log, tailBytes)}
	switch {
	case e.signal != 0:
		name := unix.SignalName(e.signal)
		x.Signal = &name
		x.Reason = "killed by " + name
	case e.known:
		code := e.code
		x.Code = &code
		x.Reason = fmt.Sprintf("exited with code %d", code)
	case f.body.container() != "":
		x.Reason = "ended"
	default:
		x.Reason = "unknown (adopted)" // no child of ours, and a kernel before 6.15
	}
	x.OOMKilled = e.oom
	switch {
	case e.outOfMemory():
		x.Reason += ": out of memory (limits.memory)"
	case e.oom:
		x.Reason += "; a process that it had started was killed for memory (limits.memory)"
	}
	for _, more := range []string{e.note, f.reason} {
		if more != "" {
			x.Reason += ": " + more
		}
	}
	if f.readyAt.IsZero() && f.cause != causeAsked {
		x.Reason += " before it was ready"
	}
	return x
}

// runWords is how much of the output is looked through for why a worker never ran: Apptainer's whole help may follow.
const runWords = 64 << 10

// neverRan says why what stands between workerd and a worker, Apptainer or the init of its container, did not run it; nil where
// the end was the worker's own.
func (f *life) neverRan(e ended) *execenv.EngineError {
	if f.connected || f.adopted || f.cause != "" || !e.known {
		return nil
	}
	return f.spec.plan.RunFailure(e.code, endOf(f.paths.log, runWords))
}

// causeOfRun is causeOf for a worker that never ran. What is refused without a word that is known may pass: the plan's probe has run
// the same image, and an image's mount, for instance, fails for want of resources too. It counts as a crash.
func causeOfRun(err *execenv.EngineError) cause {
	if err.Kind == execenv.EngineRefused {
		return causeExit
	}
	return causeOf(err)
}

func lastLine(s string) string {
	s = strings.TrimRight(s, "\n")
	if i := strings.LastIndexByte(s, '\n'); i >= 0 {
		return s[i+1:]
	}
	return s
}
