package supervisor

import (
	"context"
	"fmt"

	"workerd/protocol"
)

// waiter is an operation that waits for the provider to get somewhere. over is asked after every event.
type waiter struct {
	over func() (error, bool)
	ch   chan error
}

func (w *waiter) done(err error) { w.ch <- err }

// operate runs begin on the provider's goroutine and, where wait is set, waits until over says so. The operation goes on when
// the caller stops waiting.
func (p *provider) operate(ctx context.Context, wait bool, begin func() (over func() (error, bool), err error)) error {
	w := &waiter{ch: make(chan error, 1)}
	var refused error
	err := p.ask(ctx, func() {
		w.over, refused = begin()
		if refused == nil && wait {
			p.waiters = append(p.waiters, w)
		}
	})
	if err == nil {
		err = refused
	}
	if err != nil || !wait {
		return err
	}
	select {
	case err := <-w.ch:
		return err
	case <-ctx.Done():
		return ctx.Err()
	case <-p.done:
		select {
		case err := <-w.ch:
			return err
		default:
			return errClosed(p.closing)
		}
	}
}

func errClosed(c closing) error {
	if c == shutdown {
		return protocol.Errorf(protocol.ShuttingDown, "workerd is stopping")
	}
	return protocol.Errorf(protocol.ProviderStopped, "the provider's manifest was removed")
}

// start makes every replica run; it is done when all are ready, and fails with the reason when one cannot be.
func (p *provider) start(ctx context.Context, wait bool) error {
	if err := p.plannedAnew(ctx, p.planFailed); err != nil {
		return err
	}
	return p.operate(ctx, wait, func() (func() (error, bool), error) {
		if err := p.runnable(); err != nil {
			return nil, err
		}
		p.release()
		p.hist = history{}
		p.renewStandby("started by the operator")
		p.restartFailed("started by the operator")
		deaths := p.deaths
		for _, w := range p.seats() {
			if w.state == Backoff {
				w.meek = false
				p.execute(w, evStart, "started by the operator", p.spec)
			}
		}
		p.startSeats(p.manifest.Serve.Replicas, "started by the operator", false)
		return func() (error, bool) { return p.arrived(0, deaths) }, nil
	})
}

// runnable says why nothing could be started.
func (p *provider) runnable() error {
	switch {
	case p.closing != open:
		return errClosed(p.closing)
	case p.planErr != nil && p.spec == nil:
		return protocol.Errorf(protocol.WorkerStartFailed, "%s", p.planErr).From(p.slug, "")
	case p.spec == nil && p.invalid != nil:
		return fmt.Errorf("%w: %s", protocol.ErrInvalidManifest, p.invalid[0].Message)
	case p.spec == nil:
		return protocol.Errorf(protocol.WorkerStartFailed, "the environment is still being probed").From(p.slug, "")
	}
	return nil
}

// release ends an operator's stop.
func (p *provider) release() {
	if p.held {
		p.held = false
		p.sup.stops.set(p.slug, false)
	}
	if p.failure == nil {
		p.pool.admit()
	}
}

// refuseHeld answers requests of a provider that the operator stopped.
func (p *provider) refuseHeld() {
	e := protocol.Errorf(protocol.ProviderStopped, "%s was stopped by the operator; `workerd start %s` starts it", p.slug, p.slug).From(p.slug, "")
	p.pool.refuse(e, e)
}

// stop ends every worker and keeps it that way, over workerd's restarts too, until start. Requests on a worker are finished
// within stop_timeout; it is done when the last process is gone.
func (p *provider) stop(ctx context.Context, wait bool) error {
	return p.operate(ctx, wait, func() (func() (error, bool), error) {
		if p.closing != open {
			return nil, errClosed(p.closing)
		}
		p.held = true
		p.sup.stops.set(p.slug, true)
		p.cancelCandidate("stopped by the operator")
		p.recovered()
		p.refuseHeld()
		for _, w := range p.workers {
			w.again = false
			if w.state != Stopped {
				p.stopWorker(w, "stopped by the operator")
			}
		}
		p.endLeft("stopped by the operator") // of an earlier workerd, where no plan could be made yet
		return func() (error, bool) { return nil, !p.anyProcess() && p.ending == 0 || !p.held }, nil
	})
}

// restart replaces every worker as on_change says. It is done when the new ones are ready and the old ones gone.
func (p *provider) restart(ctx context.Context, wait bool) error {
	if err := p.plannedAnew(ctx, p.replan); err != nil {
		return err
	}
	return p.operate(ctx, wait, func() (func() (error, bool), error) {
		if err := p.runnable(); err != nil {
			return nil, err
		}
		p.release()
		deaths, below := p.deaths, p.sup.numbers.peek()
		running := p.spec
		if p.roll != nil {
			running = p.roll.spec
		}
		for _, w := range p.workers {
			if w.leaving { // the patience that an edit had ends here
				p.stopWorker(w, "restarted by the operator")
			}
		}
		p.switchTo(running, below, "restarted by the operator")
		if p.roll == nil {
			p.startSeats(p.manifest.Serve.Replicas, "restarted by the operator", false)
		}
		return func() (error, bool) { return p.arrived(below, deaths) }, nil
	})
}

// arrived says whether all replicas are ready, with numbers of at least below and nothing of the old ones left; or that they
// will not be. deaths is how many there had been when the operation began.
func (p *provider) arrived(below int64, deaths int) (error, bool) {
	if p.held {
		return protocol.Errorf(protocol.ProviderStopped, "%s was stopped meanwhile", p.slug), true
	}
	if p.failure != nil {
		return p.startError(p.failed), true
	}
	if p.rollErr != nil && below > 0 {
		return protocol.Errorf(protocol.WorkerStartFailed, "the new worker did not become ready, the last one runs on: %s", p.rollErr).
			From(p.slug, ""), true
	}
	if p.refused != nil && p.deaths > deaths {
		return p.refused, true
	}
	if p.adopting { // what is wanted is started afterwards
		return nil, false
	}
	ready, pending := 0, 0
	for _, w := range p.workers {
		switch {
		case w.standby && (w.life == nil || w.life.n >= below): // what stands by holds nobody up
		case w.leaving || w.candidate || w.standby:
			pending++
		case w.state == Ready && w.life.n >= below:
			ready++
		case w.state != Stopped && w.state != Failed:
			pending++
		}
	}
	if p.roll == nil && pending == 0 && ready >= p.manifest.Serve.Replicas {
		return nil, true
	}
	if pending == 0 && p.roll == nil && p.deaths > deaths {
		return p.startError(p.lastExit), true
	}
	if pending == 0 && p.roll == nil { // such as for being idle, while others still load
		return fmt.Errorf("%d of %d workers were stopped meanwhile", p.manifest.Serve.Replicas-ready, p.manifest.Serve.Replicas), true
	}
	return nil, false
}

// closing is the end of a provider itself.
type closing int

const (
	open     closing = iota
	removed          // its manifest is gone
	shutdown         // workerd stops
)

// close begins the end of a provider.
func (p *provider) close(c closing) {
	if p.closing == open {
		p.closing = c
		p.cancel()
		e := errClosed(c).(*protocol.Error).From(p.slug, "")
		p.cancelCandidate(e.Message)
		p.pool.refuse(e, e)
		p.endLeft(e.Message)
		for _, w := range p.workers {
			w.again = false
			if w.state != Stopped {
				p.stopWorker(w, e.Message)
			}
		}
	}
}

// closeNow is close without patience: everything is killed.
func (p *provider) closeNow() {
	p.close(shutdown)
	for _, w := range p.workers {
		if w.life != nil {
			p.onKill(w.life, causeAsked, "workerd was told to stop at once")
		}
	}
}
