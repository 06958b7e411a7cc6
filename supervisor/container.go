package supervisor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"workerd/execenv"
)

// engine is what the supervisor needs of docker or podman. Every verb has a deadline of its own.
type engine interface {
	Run(ctx context.Context, c execenv.Command) (id string, err error)
	Inspect(ctx context.Context, id string) (execenv.Container, error)
	Kill(ctx context.Context, id, signal string) error
	Remove(ctx context.Context, id string) error
	Logs(ctx context.Context, id string, opt execenv.LogOptions, w io.Writer) error
	List(ctx context.Context, labels map[string]string) ([]execenv.Container, error)
}

var _ engine = (*execenv.Engine)(nil)

const (
	// settleWithin is how long an engine may take to notice that a container's process has ended.
	settleWithin = 10 * time.Second
	// lookEvery is how often a container is looked at whose process cannot be waited on from here.
	lookEvery = 2 * time.Second
	// termAgain is how soon after its start a container may not have heard a SIGTERM: it is sent once more then.
	termAgain = time.Second
)

// containerBody is a worker in a container of docker or podman. The engine alone starts, stops and removes it; that its process
// has ended is seen by a pidfd like any other's.
type containerBody struct {
	engine  engine
	kind    string
	id      string
	n       int64  // the worker's number
	log     string // where its output is saved before it is removed
	started time.Time
	init    *process // the container's first process, which need not be the worker; nil where it cannot be seen from here
	ended   chan struct{}
	removed atomic.Bool
	kept    atomic.Bool    // it is not to be removed yet
	wg      sync.WaitGroup // signals under way
	readers readers        // who follows its output
	output  output         // what becomes of its output
}

var _ body = (*containerBody)(nil)

// runContainer starts the container of a provider's worker and returns when it runs, or why it does not. Then nothing of it is
// left, or it is a stray.
func (s *Supervisor) runContainer(ctx context.Context, pl *execenv.Plan, n int64, cmd execenv.Command, log string) (*containerBody, error) {
	e, err := s.engineOf(pl)
	if err == nil {
		err = s.clearStrays(pl.Slug)
	}
	if err != nil {
		return nil, err
	}
	return s.runOn(ctx, e, pl, n, cmd, log)
}

// runOn is runContainer on an engine that has nothing of an earlier start any more.
func (s *Supervisor) runOn(ctx context.Context, e engine, pl *execenv.Plan, n int64, cmd execenv.Command, log string) (*containerBody, error) {
	if ctx.Err() != nil {
		return nil, context.Cause(ctx)
	}
	// An engine whose client is killed goes on by itself, and what it makes then comes up behind everybody's back. So whoever gives a
	// start up lets the engine come to its end first.
	running, cancel := endingLater(ctx, settleWithin)
	defer cancel()
	var c execenv.Container
	id, err := e.Run(running, cmd)
	if err == nil && ctx.Err() == nil {
		c, err = e.Inspect(ctx, id)
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	if err == nil {
		return newContainerBody(e, pl.Kind, c, n, log, s.children), nil
	}
	x := stray{e, execenv.ContainerName(s.cfg.Instance, pl.Slug, n), log}
	// Whoever waits for the start hears at once of an engine that does not answer.
	if unanswered(err) || running.Err() != nil || removeStillborn(e, x.name, s.cfg.Instance, log) != nil {
		s.abandon(pl.Slug, x)
	}
	return nil, err
}

// endingLater returns a context that ends when ctx has ended and d has passed since.
func endingLater(ctx context.Context, d time.Duration) (context.Context, context.CancelFunc) {
	later, cancel := context.WithCancel(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
			cancel()
		case <-later.Done():
		}
	})
	return later, func() { stop(); cancel() }
}

// newContainerBody takes charge of a container that is there.
func newContainerBody(e engine, kind string, c execenv.Container, n int64, log string, children *execenv.Children) *containerBody {
	b := &containerBody{engine: e, kind: kind, id: c.ID, n: n, log: log, started: time.Now(), ended: make(chan struct{})}
	if c.State == execenv.ContainerRunning && c.PID > 0 {
		if st, err := execenv.ReadStat(c.PID); err == nil {
			if p, err := adoptProcess(c.PID, st.Start, children); err == nil {
				b.init = p
			}
		}
	}
	return b
}

func (b *containerBody) pid() int {
	if b.init == nil {
		return 0
	}
	return b.init.pid
}

func (b *containerBody) container() string { return b.id }

// await returns when the container's first process has ended. Where that cannot be seen from here the engine is asked now and
// then.
func (b *containerBody) await() {
	defer close(b.ended)
	if b.init != nil {
		b.init.await()
		return
	}
	for {
		ctx, cancel := context.WithTimeout(context.Background(), settleWithin)
		c, err := b.engine.Inspect(ctx, b.id)
		cancel()
		if err == nil && c.State != execenv.ContainerRunning || execenv.IsEngineError(err, execenv.EngineNoContainer) {
			return
		}
		time.Sleep(lookEvery)
	}
}

// settle asks the engine how the container ended, and saves its output. For an engine that does not answer it does not wait
// long: requests are to hear of it, and the container is removed later.
func (b *containerBody) settle() ended {
	ctx, cancel := context.WithTimeout(context.Background(), settleWithin)
	defer cancel()
	e := ended{code: -1}
	c, err := b.inspectEnded(ctx)
	switch {
	case err != nil:
		e.note = "the engine cannot say how: " + err.Error()
		e.mute = unanswered(err) || ctx.Err() != nil
	case c.ExitCode != nil:
		e = containerEnded(*c.ExitCode)
		e.oom = c.OOMKilled
		e.note = c.Error
	}
	if !e.mute {
		b.save()
	}
	return e
}

// inspectEnded asks until the engine has noticed the end. An engine that is down is asked a few times, one that hangs once.
func (b *containerBody) inspectEnded(ctx context.Context) (execenv.Container, error) {
	begin := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 250*time.Millisecond) {
		c, err := b.engine.Inspect(ctx, b.id)
		limit := settleWithin
		switch {
		case err == nil && c.State != execenv.ContainerRunning:
			return c, nil
		case execenv.IsEngineError(err, execenv.EngineNoContainer):
			return c, err
		case unanswered(err):
			limit = time.Second
		}
		if time.Since(begin) > limit {
			if err == nil {
				err = errors.New("it still calls the container running")
			}
			return c, err
		}
		time.Sleep(pause)
	}
}

// unanswered says that an engine did not answer at all.
func unanswered(err error) bool {
	e, ok := errors.AsType[*execenv.EngineError](err)
	return ok && e.Kind.Class() == execenv.EngineUnavailable
}

// containerEnded reads a container's exit code: an init, or Apptainer's runner, passes a signal on as 128 and its number.
func containerEnded(code int) ended {
	if code > 128 && code <= 128+64 {
		return ended{code: -1, signal: syscall.Signal(code - 128), known: true}
	}
	return ended{code: code, known: true}
}

// signal has the engine send a signal; whoever called does not wait for it.
func (b *containerBody) signal(sig syscall.Signal) {
	name := map[syscall.Signal]string{unix.SIGTERM: "TERM", unix.SIGKILL: "KILL"}[sig]
	b.wg.Go(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 2*settleWithin)
		defer cancel()
		err := b.engine.Kill(ctx, b.id, name)
		if sig == unix.SIGKILL && err != nil {
			_ = b.engine.Remove(ctx, b.id)
		}
		if sig != unix.SIGTERM || time.Since(b.started) > 2*termAgain {
			return
		}
		select { // so early the worker's init may not have been there to hear it
		case <-b.ended:
		case <-time.After(termAgain):
			_ = b.engine.Kill(ctx, b.id, name)
		}
	})
}

// sweep removes the container, unless it is to be kept.
func (b *containerBody) sweep() []int {
	b.wg.Wait()
	b.readers.close(readersFor)
	for pause := 100 * time.Millisecond; !b.kept.Load() && !b.removed.Load() && pause < 10*time.Second; pause *= 4 {
		if !b.tryRemove() {
			time.Sleep(pause)
		}
	}
	return nil
}

func (b *containerBody) tryRemove() bool {
	if !b.output.isSaved() {
		b.save()
	}
	ctx, cancel := context.WithTimeout(context.Background(), settleWithin)
	defer cancel()
	if b.engine.Remove(ctx, b.id) == nil {
		b.removed.Store(true)
	}
	return b.removed.Load()
}

// removeLater goes on trying to remove a dead worker's container until workerd ends; the next one finds it by its labels.
func (s *Supervisor) removeLater(b body) {
	c, ok := b.(*containerBody)
	if !ok || c.removed.Load() || c.kept.Load() {
		return
	}
	s.log.Warn("the container of a dead worker cannot be removed yet", keyContainer, c.id)
	s.wg.Go(func() { s.untilDone(c.tryRemove) })
}

func (b *containerBody) release() {
	if b.init != nil {
		b.init.release()
	}
}

func (b *containerBody) enter(r *record) {
	r.Engine, r.Container = b.kind, b.id
	if b.init != nil {
		r.PID, r.Start = b.init.pid, b.init.start
	}
}

// String names the container for logs.
func (b *containerBody) String() string { return fmt.Sprintf("%s container %.12s", b.kind, b.id) }

// engineOf returns the engine of a plan.
func (s *Supervisor) engineOf(pl *execenv.Plan) (engine, error) {
	e, err := s.cfg.Planner.EngineOf(pl)
	if err != nil {
		return nil, err
	}
	return e, nil
}
