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

// apply takes in the manifest that is in force on disk. Planning, which may run probes, happens apart; the newest wins.
func (p *provider) apply(m *manifest.Manifest, warnings []string) {
	p.invalid = nil
	p.file = m.File
	hash, stamp := m.Hash(), stampOf(m)
	if p.applied == hash && p.stamp == stamp && (p.planErr == nil || p.planning != p.planDone) {
		return
	}
	if p.manifest == nil { // shown, and its limits in force, while the first plan is being made
		p.manifest = m
		p.pool.setLimits(limitsOf(m))
	}
	edited := p.applied != hash
	p.applied, p.stamp = hash, stamp
	p.newest, p.notes = m, warnings
	p.replans = 0
	p.plan(m, warnings, edited)
}

// plan makes a plan apart from the provider's goroutine and brings it into force, unless a newer one was asked for meanwhile.
func (p *provider) plan(m *manifest.Manifest, warnings []string, edited bool) {
	p.planning++
	n := p.planning
	p.lives.Go(func() {
		s, err := p.makeSpec(p.ctx, n, m)
		guests := p.guestsOf(m)
		p.post(func() {
			if n == p.planning {
				if err == nil {
					p.front.admit(guests)
				}
				p.planDone, p.pulling = n, ""
				p.onPlanned(m, s, err, warnings, edited)
			}
		})
	})
}

// replan makes the plan of the version in force anew: what it is made of may have changed without its manifest, an image above all
// that was built anew under its name. Nothing is replaced because of that, and where it fails the plan stays. A newest manifest that
// could not be planned is tried again instead.
func (p *provider) replan() {
	if p.planErr != nil {
		p.planFailed()
		return
	}
	if p.closing != open || p.spec == nil || p.roll != nil || p.planning != p.planDone {
		return
	}
	p.planning++
	n, m := p.planning, p.spec.manifest
	p.lives.Go(func() {
		s, err := p.makeSpec(p.ctx, n, m)
		p.post(func() {
			if n != p.planning {
				return
			}
			p.planDone, p.pulling = n, ""
			switch {
			case err != nil:
				p.log.Warn("the plan is not renewed", keyError, err)
			case p.closing == open && p.roll == nil:
				p.force(s)
			}
		})
	})
}

// planFailed tries the newest manifest again at once, where no plan could be made of it.
func (p *provider) planFailed() {
	if p.closing == open && p.planErr != nil && p.planning == p.planDone {
		p.replans = 0
		p.plan(p.newest, p.notes, true)
	}
}

// makeSpec fetches what a version needs, an image and weights, and makes its plan, for planning n.
func (p *provider) makeSpec(ctx context.Context, n int, m *manifest.Manifest) (*spec, error) {
	if err := p.pull(ctx, m); err != nil {
		return nil, err
	}
	edition, err := p.prepare(ctx, n, m)
	if err != nil {
		return nil, err
	}
	plan, err := p.sup.cfg.Planner.Plan(ctx, m)
	if err != nil {
		return nil, err
	}
	if err := p.sup.cfg.Planner.Prepare(plan); err != nil {
		return nil, err
	}
	return &spec{manifest: m, plan: plan, run: runKey(m, plan, edition), schemas: compileSchemas(m, p.log), faults: compileFaults(m.GPU.FaultPatterns)}, nil
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

// plannedAnew waits until the newest manifest has been planned, and then until again has been done, which may begin another planning.
func (p *provider) plannedAnew(ctx context.Context, again func()) error {
	if err := p.planned(ctx); err != nil {
		return err
	}
	if err := p.ask(ctx, again); err != nil {
		return err
	}
	return p.planned(ctx)
}

// reject notes that the manifest on disk is invalid. What runs goes on.
func (p *provider) reject(problems []protocol.ManifestError) {
	p.invalid = problems
}

// onPlanned brings a plan into force.
func (p *provider) onPlanned(m *manifest.Manifest, s *spec, err error, warnings []string, edited bool) {
	if p.closing != open {
		return
	}
	p.planErr = err
	if err != nil {
		p.log.Error("no plan", keyManifest, m.File, keyError, err)
		again := p.planAgain(m, warnings, err)
		if p.spec == nil {
			p.manifest = m
			p.resize()
			p.failPlan(err, again)
		}
		return
	}
	p.replans = 0
	p.rejected = nil
	p.manifest = m
	p.warnings = append(append([]string(nil), warnings...), s.plan.Warnings...)
	p.pool.setLimits(limitsOf(m))
	p.limitWorkers(m.Limits)
	p.disarmIdle() // idle_timeout may be another one
	first, current := p.spec == nil, p.spec
	if p.roll != nil {
		current = p.roll.spec
	}
	switch {
	case first:
		p.force(s)
		p.recovered()
		p.resize()
		for _, w := range p.seats() {
			if w.state == Backoff || w.state == Failed { // there was no plan until now
				p.move(w, evDrain, "planned")
			}
		}
		p.adopt()
	case current.run != s.run:
		p.switchTo(s, 0, "a new version")
	default:
		if p.roll == nil {
			p.force(s)
		} else {
			p.roll.spec = s
		}
		p.resize()
		if edited {
			p.renewStandby("the manifest changed")
		}
		if edited && (p.failure != nil || p.count(Failed) > 0) {
			p.hist = history{}
			p.restartFailed("the manifest changed")
		}
		p.boot()
	}
	p.demand()
}

// planAgain tries once more later where the reason may pass: a probe that met its deadline, an engine that does not answer.
// It returns in what time, 0 for never.
func (p *provider) planAgain(m *manifest.Manifest, warnings []string, err error) time.Duration {
	if !mayPass(err) {
		return 0
	}
	p.replans++
	n := p.planning
	after := min(5*time.Second<<min(p.replans-1, 4), time.Minute)
	time.AfterFunc(after, func() {
		p.post(func() {
			if n == p.planning && p.closing == open {
				p.plan(m, warnings, true)
			}
		})
	})
	return after
}

// mayPass says whether a plan that failed may be made later though nobody changes anything. An engine's own word counts before that
// of what it is the cause of, or is caused by.
func mayPass(err error) bool {
	kind := execenv.Permanent
	if e, ok := errors.AsType[*execenv.EngineError](err); ok {
		kind = e.Kind.Class()
	} else if e, ok := errors.AsType[*execenv.Error](err); ok {
		kind = e.Kind
	}
	return kind == execenv.Transient || kind == execenv.EngineUnavailable
}

// failPlan makes a provider without any plan failed, or, where the next try comes by itself, wait for that: then the workers that an
// earlier workerd left stay too, and requests wait, or hear of an engine that cannot serve them now.
func (p *provider) failPlan(err error, again time.Duration) {
	exit := &protocol.Exit{Reason: err.Error(), Time: time.Now().UTC()}
	if again == 0 {
		for _, w := range p.seats() {
			p.move(w, evFail, exit.Reason)
		}
		p.fail(exit)
		p.endLeft("no plan can be made of its manifest")
		return
	}
	p.lastExit = exit
	if p.held {
		p.endLeft("stopped by the operator")
		return
	}
	p.recovered() // the reason before this one may have been another
	for _, w := range p.seats() {
		if w.state == Failed {
			p.move(w, evDrain, exit.Reason)
		}
		w.retryAt = time.Now().Add(again)
		p.move(w, evRetry, exit.Reason)
	}
	if _, ok := errors.AsType[*execenv.EngineError](err); ok || causeOf(err) == causeEngine {
		e := p.engineError(exit)
		p.pool.refuse(e, e)
	}
}

// runKey is what a running worker can see of a version: its fingerprint, what initialize told it, and the edition of the
// script that made its weights.
func runKey(m *manifest.Manifest, plan *execenv.Plan, edition string) string {
	return fmt.Sprintf("%s %d %d %s", plan.Fingerprint, m.Serve.Concurrency, m.Serve.MaxMessage, edition)
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
