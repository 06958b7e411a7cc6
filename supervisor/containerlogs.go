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
		wg.Go(func() {
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
