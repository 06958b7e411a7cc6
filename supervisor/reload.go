package supervisor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"syscall"
	"time"

	"workerd/execenv"
	"workerd/manifest"
	"workerd/protocol"
)

// roll is a change of version under way, one seat after the other: a candidate is started beside the seat's worker and takes
// over when it is ready. There is never more than one worker beyond the seats.
type roll struct {
	spec   *spec
	below  int64 // workers with a lower number are replaced even if they run the same version (restart)
	cand   *worker
	old    *worker // the seat that cand is to replace
	reason string
}

// apply takes in the manifest that is in force on disk. Planning, which may run probes, happens apart; the newest wins.
func (p *provider) apply(m *manifest.Manifest, warnings []string) {
	p.invalid = nil
	p.file = m.File
	hash, stamp := m.Hash(), stampOf(m)
	if p.applied == hash && p.stamp == stamp && p.planErr == nil {
		return
	}
	if p.manifest == nil { // shown, and its limits in force, while the first plan is being made
		p.manifest = m
		p.pool.setLimits(limitsOf(m))
	}
	edited := p.applied != hash
	p.applied, p.stamp = hash, stamp
	p.replans = 0
	p.plan(m, warnings, edited)
}

// plan makes a plan apart from the provider's goroutine and brings it into force, unless a newer one was asked for meanwhile.
func (p *provider) plan(m *manifest.Manifest, warnings []string, edited bool) {
	p.planning++
	n := p.planning
	p.lives.Go(func() {
		err := p.pull(p.sup.ctx, m)
		if err == nil {
			err = p.prepare(p.sup.ctx, m)
		}
		var plan *execenv.Plan
		if err == nil {
			plan, err = p.sup.cfg.Planner.Plan(p.sup.ctx, m)
		}
		if err == nil {
			err = p.sup.cfg.Planner.Prepare(plan)
		}
		p.post(func() {
			if n == p.planning {
				p.planDone, p.pulling = n, ""
				p.onPlanned(m, plan, err, warnings, edited)
			}
		})
	})
}

// pull fetches the image of a docker or podman provider as env.pull says, on a timeout of its own and outside any start's
// clock. Whoever waits hears how far it is.
func (p *provider) pull(ctx context.Context, m *manifest.Manifest) error {
	if m.Env.Kind != manifest.Docker && m.Env.Kind != manifest.Podman || m.Env.Pull == "never" {
		return nil
	}
	e, err := p.sup.cfg.Planner.Engine(m.Env.Kind)
	if err != nil {
		return err
	}
	if m.Env.Pull == "missing" {
		if _, err := e.ImageInspect(ctx, m.Env.Image); !execenv.IsEngineError(err, execenv.EngineImageMissing) {
			return nil // it is there; or what is wrong with the engine is the plan's to say
		}
	}
	note := func(line string) {
		p.post(func() { p.pulling = "pulling " + m.Env.Image + ": " + line })
	}
	note("asking the registry")
	return e.Pull(ctx, m.Env.Image, m.Env.PullTimeout.D(), note)
}

// planned waits until the newest manifest has been planned.
func (p *provider) planned(ctx context.Context) error {
	return p.operate(ctx, true, func() (func() (error, bool), error) {
		return func() (error, bool) { return nil, p.planDone == p.planning || p.closing != open }, nil
	})
}

// reject notes that the manifest on disk is invalid. What runs goes on.
func (p *provider) reject(problems []protocol.ManifestError) {
	p.invalid = problems
}

// onPlanned brings a plan into force.
func (p *provider) onPlanned(m *manifest.Manifest, plan *execenv.Plan, err error, warnings []string, edited bool) {
	if p.closing != open {
		return
	}
	p.planErr = err
	if err != nil {
		p.log.Error("no plan", keyManifest, m.File, keyError, err)
		if p.spec == nil {
			p.manifest = m
			p.resize()
			p.failPlan(err)
		}
		p.planAgain(m, warnings, err)
		return
	}
	p.replans = 0
	p.rejected = nil
	p.manifest = m
	p.warnings = append(append([]string(nil), warnings...), plan.Warnings...)
	p.pool.setLimits(limitsOf(m))
	p.pool.setSchemas(compileSchemas(m, p.log))
	s := &spec{manifest: m, plan: plan, run: runKey(m, plan)}
	first, current := p.spec == nil, p.spec
	if p.roll != nil {
		current = p.roll.spec
	}
	switch {
	case first:
		p.spec = s
		p.recovered()
		p.resize()
		for _, w := range p.seats() {
			if w.state == Backoff { // there was no plan until now
				p.move(w, evDrain, "planned")
			}
		}
		p.adopt()
	case current.run != s.run:
		p.switchTo(s, 0, "a new version")
	default:
		if p.roll == nil {
			p.spec = s
		}
		p.resize()
		if edited && p.failure != nil {
			p.hist = history{}
			p.restartFailed("the manifest changed")
		}
		p.boot()
	}
	p.demand()
}

// planAgain tries once more later where the reason may pass: a probe that met its deadline, an engine that does not answer.
func (p *provider) planAgain(m *manifest.Manifest, warnings []string, err error) {
	e, ok := errors.AsType[*execenv.Error](err)
	if !ok || e.Kind != execenv.Transient && e.Kind != execenv.EngineUnavailable {
		return
	}
	p.replans++
	n := p.planning
	time.AfterFunc(min(5*time.Second<<min(p.replans-1, 4), time.Minute), func() {
		p.post(func() {
			if n == p.planning && p.closing == open {
				p.plan(m, warnings, true)
			}
		})
	})
}

// failPlan makes a provider without any plan failed, or, where the reason may pass, wait for the next try: its requests hear why.
func (p *provider) failPlan(err error) {
	exit := &protocol.Exit{Reason: err.Error(), Time: time.Now().UTC()}
	if causeOf(err) == causeEngine {
		for _, w := range p.seats() {
			p.move(w, evRetry, exit.Reason)
			p.engineDown(w, exit)
		}
		p.lastExit = exit
		return
	}
	for _, w := range p.seats() {
		p.move(w, evFail, exit.Reason)
	}
	p.fail(exit)
	p.endLeft("no plan can be made of its manifest")
}

// runKey is what a running worker can see of a version: its fingerprint, and what initialize told it.
func runKey(m *manifest.Manifest, plan *execenv.Plan) string {
	return fmt.Sprintf("%s %d %d", plan.Fingerprint, m.Serve.Concurrency, m.Serve.MaxMessage)
}

func limitsOf(m *manifest.Manifest) limits {
	return limits{
		capacity:       m.Serve.Replicas * m.Serve.Concurrency,
		queue:          m.Serve.Queue,
		requestTimeout: m.Serve.RequestTimeout.D(),
		cancelGrace:    m.Serve.CancelGrace.D(),
		maxMessage:     int64(m.Serve.MaxMessage),
		retryOnCrash:   m.Serve.RetryOnCrash,
		finishGone:     m.Serve.OnDisconnect == "finish",
	}
}

// stampOf sums up the files that go into a plan besides the manifest, as the file system knows them. It is taken before
// planning, so that a file that changes meanwhile is seen as changed.
func stampOf(m *manifest.Manifest) string {
	var b strings.Builder
	for _, f := range watchList(m) {
		st, err := os.Stat(f)
		if err != nil {
			fmt.Fprintf(&b, "%s -\n", f)
			continue
		}
		ino := uint64(0)
		if sys, ok := st.Sys().(*syscall.Stat_t); ok {
			ino = sys.Ino
		}
		fmt.Fprintf(&b, "%s %d %d %d\n", f, ino, st.Size(), st.ModTime().UnixNano())
	}
	return b.String()
}

// watchList names the files whose change may need a new worker though the manifest stays as it is.
func watchList(m *manifest.Manifest) []string {
	var files []string
	for _, f := range []string{m.Worker, m.Env.Python, m.Env.Setup, m.Env.SIF} {
		if f != "" {
			files = append(files, f)
		}
	}
	for _, argv := range [][]string{m.Command, m.Weights.Prepare} {
		if len(argv) > 0 {
			files = append(files, argv[0])
		}
	}
	for _, s := range m.Env.Secrets {
		if s.File != "" {
			files = append(files, s.File)
		}
	}
	return files
}

// switchTo brings another version, or new processes of the same one (below), into force as on_change says.
func (p *provider) switchTo(s *spec, below int64, reason string) {
	p.hist = history{}
	p.rollErr = nil
	p.cancelCandidate(reason)
	if p.manifest.Restart.OnChange != "stop-first" && p.anyReady() && p.mayRun() {
		p.roll = &roll{spec: s, below: below, reason: reason}
		p.resize()
		return
	}
	p.spec = s
	p.recovered()
	p.resize()
	if !p.mayRun() {
		return
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
		p.spec = r.spec
		p.roll = nil
		return
	}
	if r.cand != nil {
		return
	}
	for _, w := range p.workers {
		if w.leaving && w.life != nil {
			return // one beyond the seats is all there may be
		}
	}
	for _, w := range p.seats() {
		if f := w.life; f != nil && (f.spec.run != r.spec.run || f.n < r.below) && w.state != Draining {
			r.old = w
			r.cand = &worker{state: Stopped, since: time.Now(), candidate: true}
			p.workers = append(p.workers, r.cand)
			p.startWorker(r.cand, r.reason)
			return
		}
	}
	p.spec = r.spec
	p.roll = nil
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
	p.spec = r.spec
	r.cand, r.old = nil, nil
	old.leaving, old.again = true, false
	p.stopWorker(old, "replaced: "+r.reason)
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
