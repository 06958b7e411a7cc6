package supervisor

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"workerd/execenv"
	"workerd/manifest"
	"workerd/protocol"
)

// containers returns the containers of a provider's workers that run now.
func (p *provider) containers(ctx context.Context) []*containerBody {
	var out []*containerBody
	_ = p.ask(ctx, func() {
		for _, w := range p.workers {
			if w.life == nil {
				continue
			}
			if b, ok := w.life.body.(*containerBody); ok {
				out = append(out, b)
			}
		}
	})
	return out
}

// inContainers says whether a provider's workers print to an engine.
func (p *provider) inContainers(ctx context.Context) bool {
	in := false
	_ = p.ask(ctx, func() {
		m := p.manifest
		in = m != nil && (m.Env.Kind == manifest.Docker || m.Env.Kind == manifest.Podman)
		for _, w := range p.workers {
			if w.life != nil {
				_, held := w.life.body.(*containerBody)
				in = in || held
			}
		}
	})
	return in
}

// containersEvery is how often those who follow a provider's output look for containers that no event told of: a worker prints long
// before it is first heard of.
const containersEvery = time.Second

// followContainers writes the last lines of a provider's logs and then what its workers print, those to come included, until ctx
// ends. What a container prints comes from its engine; all else, such as what weights.prepare prints, from the logs.
func (p *provider) followContainers(ctx context.Context, lines int, w io.Writer) error {
	ctx, cancel := context.WithCancel(ctx)
	f := &containerFollower{out: &lineLock{w: w}, cancel: cancel, shown: map[string]bool{}}
	defer f.wg.Wait()
	defer cancel()
	events := p.sup.events.subscribe(ctx)
	begin := time.Now()
	var live []*containerBody
	for _, b := range p.containers(ctx) {
		if b.peek(ctx, begin); f.own(b) {
			live = append(live, b)
		}
	}
	shown := newLogShow(&p.sup.rotations, f.out)
	shown.skip = func(log string) bool { return f.skips(log) || p.printsToEngine(log) }
	if err := shown.last(p.sup.logDir(p.slug), lines); err != nil {
		return err
	}
	for _, b := range live {
		f.attach(ctx, b, begin)
	}
	f.wg.Go(func() {
		if followLogs(ctx, p.sup.logDir(p.slug), shown) != nil {
			cancel()
		}
	})
	tick := time.NewTicker(containersEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-p.done:
			return nil
		case e, ok := <-events:
			if !ok {
				return nil
			}
			if e.Provider != p.slug {
				continue
			}
		case <-tick.C:
		}
		for _, b := range p.containers(ctx) {
			if f.own(b) {
				f.attach(ctx, b, time.Time{})
			}
		}
	}
}

// printsToEngine says whether a log is that of a container that has not ended: what it has is a copy, which somebody wanted to see.
func (p *provider) printsToEngine(log string) bool {
	snap := p.snapshot.Load()
	return snap != nil && slices.ContainsFunc(snap.Workers, func(w protocol.WorkerStatus) bool {
		return w.Container != "" && p.logFile(w.ID) == log
	})
}

// containerFollower shows what the containers of a provider print. Its goroutines end with the context that they are given.
type containerFollower struct {
	out    *lineLock
	cancel context.CancelFunc
	wg     sync.WaitGroup
	mu     sync.Mutex
	shown  map[string]bool // the logs of workers whose output comes from the engine
}

func (f *containerFollower) skips(log string) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.shown[log]
}

// own says whether a container's output is to be shown from its engine, from now on: not twice, and not where the log has it.
func (f *containerFollower) own(b *containerBody) (mine bool) {
	b.output.unlessSaved(func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		if !f.shown[b.log] && b.readers.enter() {
			f.shown[b.log], mine = true, true
		}
	})
	return mine
}

// attach shows what a container that is its own prints.
func (f *containerFollower) attach(ctx context.Context, b *containerBody, since time.Time) {
	f.wg.Go(func() {
		defer b.readers.leave()
		if b.engine.Logs(ctx, b.id, execenv.LogOptions{Follow: true, Since: since}, f.out) != nil && f.out.broken() {
			f.cancel() // nobody reads any more
		}
	})
}

// readersFor is how long a dead container stays for those who follow its output and have not come to its end.
const readersFor = 2 * time.Second

// readers are those who follow a container's output. An engine that is told to remove a container does not see to it that they
// have got its last lines.
type readers struct {
	mu     sync.Mutex
	n      int
	closed bool
	none   chan struct{} // closed when the last one has left; nil: nobody waits for that
}

// enter says whether there is still something to read.
func (r *readers) enter() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.n++
	return true
}

func (r *readers) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.n--; r.n == 0 && r.none != nil {
		close(r.none)
	}
}

// close lets nobody in any more and waits, for a while, until all have left.
func (r *readers) close(patience time.Duration) {
	r.mu.Lock()
	r.closed = true
	if r.n == 0 || r.none != nil {
		r.mu.Unlock()
		return
	}
	r.none = make(chan struct{})
	r.mu.Unlock()
	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-r.none:
	case <-timer.C:
	}
}

// lineLock lets several containers write to one reader, each write whole.
type lineLock struct {
	mu  sync.Mutex
	w   io.Writer
	err error
}

func (l *lineLock) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return 0, l.err
	}
	n, err := l.w.Write(b)
	l.err = err
	return n, err
}

func (l *lineLock) broken() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err != nil
}
