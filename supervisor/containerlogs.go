package supervisor

import (
	"context"
	"io"
	"slices"
	"sync"
	"time"

	"workerd/execenv"
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

// followContainers writes what a provider's containers print from now on, those that replace them included, until ctx ends.
func (p *provider) followContainers(ctx context.Context, live []*containerBody, w io.Writer) error {
	out := &lineLock{w: w}
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	shown := map[string]bool{}
	attach := func(b *containerBody, since time.Time) {
		shown[b.id] = true
		if !b.readers.enter() {
			return
		}
		wg.Go(func() {
			defer b.readers.leave()
			if b.engine.Logs(ctx, b.id, execenv.LogOptions{Follow: true, Since: since}, out) != nil && out.broken() {
				cancel() // nobody reads any more
			}
		})
	}
	now := time.Now()
	for _, b := range live {
		attach(b, now)
	}
	events := p.sup.events.subscribe(ctx)
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
			if e.Provider != p.slug || !slices.Contains([]string{string(Loading), string(Ready)}, e.State) {
				continue
			}
			for _, b := range p.containers(ctx) {
				if !shown[b.id] {
					attach(b, time.Time{})
				}
			}
		}
	}
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
