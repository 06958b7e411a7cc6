package supervisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"workerd/execenv"
	"workerd/manifest"
)

// preparation has one weights.prepare of a provider run at a time: two would write into the same folder.
type preparation struct {
	mu      sync.Mutex
	n       int    // the newest planning that has come here
	edition string // what it wants
	running string // the edition of the run under way
	cancel  context.CancelFunc
	ended   chan struct{} // closed at its end; nil: none is under way
}

var errSuperseded = errors.New("a newer version of the manifest is being planned")

// enter waits until planning n has the weights for itself, or ctx ends, and returns the context of its run and what ends that. A run that
// the newest planning does not want is ended; an older planning that wants what the newest does not want gets nowhere.
func (q *preparation) enter(ctx context.Context, n int, edition string) (context.Context, func(), error) {
	for {
		q.mu.Lock()
		if n >= q.n {
			q.n, q.edition = n, edition
		}
		if edition != q.edition {
			q.mu.Unlock()
			return nil, nil, errSuperseded
		}
		ended := q.ended
		if ended == nil {
			run, cancel := context.WithCancel(ctx)
			ended = make(chan struct{})
			q.running, q.cancel, q.ended = edition, cancel, ended
			q.mu.Unlock()
			return run, func() { q.leave(ended) }, nil
		}
		if q.running != edition {
			q.cancel()
		}
		q.mu.Unlock()
		select {
		case <-ended:
		case <-ctx.Done():
			return nil, nil, ctx.Err()
		}
	}
}

func (q *preparation) leave(ended chan struct{}) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.cancel()
	q.ended = nil
	close(ended)
}

// editionOf tells a script with its arguments from every other; "" without a script.
func editionOf(m *manifest.Manifest) (string, error) {
	if len(m.Weights.Prepare) == 0 {
		return "", nil
	}
	data, err := os.ReadFile(m.Weights.Prepare[0])
	if err != nil {
		return "", fmt.Errorf("weights.prepare: %w", err)
	}
	h := sha256.New()
	_, _ = h.Write(data) // a hash never fails
	for _, arg := range m.Weights.Prepare[1:] {
		_, _ = fmt.Fprintf(h, "\x00%s", arg)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// prepare runs weights.prepare, a script and its arguments, for planning n, unless it has run with the content and the arguments that it
// has now. What it fetched is there for good.
func (p *provider) prepare(ctx context.Context, n int, m *manifest.Manifest) (edition string, err error) {
	if edition, err = editionOf(m); err != nil {
		return "", err
	}
	ctx, leave, err := p.preparing.enter(ctx, n, edition)
	if err != nil {
		return "", err
	}
	defer leave()
	if edition == "" {
		return "", nil
	}
	done := filepath.Join(p.sup.cfg.StateDir, "prepared", p.slug, edition)
	if _, err := os.Stat(done); err == nil {
		return edition, nil
	}
	if err := p.runPrepare(ctx, m); err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(done), 0o700); err != nil {
		return "", err
	}
	return edition, execenv.WriteFile(done, []byte(m.Weights.Prepare[0]+"\n"), 0o600)
}

// runPrepare runs the script to its end, within prepare_timeout. Its output is a log of the provider, and its last line the
// progress that waiting requests see.
func (p *provider) runPrepare(ctx context.Context, m *manifest.Manifest) error {
	script := m.Weights.Prepare[0]
	if d := m.Weights.PrepareTimeout.D(); d > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, d)
		defer cancel()
	}
	defer p.pruneLogs() // a script that fails is run again and again
	n := p.sup.number()
	at, err := p.sup.places(p.slug, n)
	if err != nil {
		return err
	}
	defer func() { _ = execenv.RemoveTmp(at.tmp) }()
	p.log.Info("preparing weights", "script", script, "log", at.log)
	b, err := p.startPrepare(ctx, m, n, at)
	if err != nil {
		return err
	}
	defer b.release()
	gone := make(chan struct{})
	go func() { defer close(gone); b.await() }()
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	for ended := false; !ended; {
		select {
		case <-gone:
			ended = true
		case <-tick.C:
			line := lastLine(printed(ctx, b, at.log))
			p.post(func() { p.pulling = "preparing weights: " + line })
		case <-ctx.Done():
			b.signal(syscall.SIGKILL)
			<-gone
			ended = true
		}
	}
	e := b.settle()
	b.sweep()
	return prepared(ctx, script, e, tail(at.log, tailBytes))
}

// printed is the end of what a script has printed until now. That of a container is with its engine as long as it runs; all of it
// is taken, since podman 4 at times has nothing to say about the last line alone.
func printed(ctx context.Context, b body, log string) string {
	if c, ok := b.(*containerBody); ok {
		ctx, cancel := context.WithTimeout(ctx, settleWithin)
		defer cancel()
		c.peek(ctx, time.Time{})
	}
	return tail(log, tailBytes)
}

// startPrepare starts a script's process or container, with the best network that there is.
func (p *provider) startPrepare(ctx context.Context, m *manifest.Manifest, n int64, at paths) (b body, err error) {
	for _, network := range execenv.PrepareNetworks(m) {
		b, err = p.startPrepareWith(ctx, m, network, n, at)
		if !execenv.IsEngineError(err, execenv.EngineNoNetwork) {
			break
		}
		p.log.Warn("the engine does not give this network to weights.prepare", "network", network, keyError, err)
	}
	return b, err
}

func (p *provider) startPrepareWith(ctx context.Context, m *manifest.Manifest, network string, n int64, at paths) (body, error) {
	plan, err := p.sup.cfg.Planner.PlanPrepare(ctx, m, network)
	if err == nil {
		err = p.sup.cfg.Planner.Prepare(plan)
	}
	if err != nil {
		return nil, err
	}
	log, err := at.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd, err := p.sup.cfg.Planner.Command(plan, execenv.WorkerParams{N: n, Socket: at.socket, Tmp: at.tmp})
	if err != nil {
		return nil, err
	}
	if plan.Engine != "" {
		b, err := p.sup.runContainer(ctx, plan, n, cmd, at.log)
		if err != nil {
			return nil, err
		}
		return b, nil
	}
	proc, err := launch(cmd, log, nil, p.sup.children)
	if err != nil {
		return nil, execenv.Diagnose(cmd, err)
	}
	return &processBody{process: proc, marker: execenv.Marker(p.sup.cfg.Instance, p.slug, n)}, nil
}

// prepared says how a script ended. A failure may pass (it is about networks, mostly), so it is tried again later.
func prepared(ctx context.Context, script string, e ended, output string) error {
	fail := func(how string) error {
		return &execenv.Error{
			Kind: execenv.Transient, Key: "weights.prepare", Msg: script + " " + how,
			Err: errors.New(output), Watch: []string{script},
		}
	}
	switch {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return fail("did not end within prepare_timeout")
	case ctx.Err() != nil:
		return ctx.Err()
	case e.signal != 0:
		return fail(fmt.Sprintf("was killed by %s", e.signal))
	case e.code != 0:
		return fail(fmt.Sprintf("exited with code %d", e.code))
	}
	return nil
}
