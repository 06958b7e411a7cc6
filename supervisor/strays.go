package supervisor

import (
	"context"
	"slices"
	"sync"
	"time"

	"workerd/execenv"
)

// stray is a container that an engine may have started though it did not say so: it did not answer in time.
type stray struct {
	engine engine
	name   string
	log    string // where its output goes
}

// strays are those of each provider, until the engine has answered that they are not there any more. No worker of a provider is
// started before: it would not be the only one.
type strays struct {
	mu     sync.Mutex
	bySlug map[string][]stray
}

func (s *strays) add(slug string, x stray) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bySlug == nil {
		s.bySlug = map[string][]stray{}
	}
	s.bySlug[slug] = append(s.bySlug[slug], x)
}

func (s *strays) of(slug string) []stray {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.bySlug[slug])
}

func (s *strays) done(slug string, x stray) {
	s.mu.Lock()
	defer s.mu.Unlock()
	left := slices.DeleteFunc(s.bySlug[slug], func(other stray) bool { return other == x })
	if len(left) == 0 {
		delete(s.bySlug, slug)
		return
	}
	s.bySlug[slug] = left
}

// looks are the pauses before each look for what an engine may still make: it may be at a start that was given up, or that the workerd
// before asked for, and take its time.
var looks = []time.Duration{0, settleWithin, 6 * settleWithin}

// lookAgain calls look, until it has done what it is for, after each of these pauses, or until workerd ends.
func (s *Supervisor) lookAgain(look func() bool) {
	for _, pause := range looks {
		select {
		case <-s.ctx.Done():
			return
		case <-time.After(pause):
		}
		s.untilDone(look)
	}
}

// abandon notes a container whose start an engine did not answer. It is removed as soon as the engine answers, be that at the
// provider's next start or earlier, and if it comes up only afterwards, then.
func (s *Supervisor) abandon(slug string, x stray) {
	s.strays.add(slug, x)
	s.wg.Go(func() {
		s.lookAgain(func() bool { return s.clearStray(slug, x) == nil })
	})
}

// clearStrays removes what earlier starts of a provider may have left. The error is of an engine that still does not answer.
func (s *Supervisor) clearStrays(slug string) error {
	for _, x := range s.strays.of(slug) {
		if err := s.clearStray(slug, x); err != nil {
			return err
		}
	}
	return nil
}

func (s *Supervisor) clearStray(slug string, x stray) error {
	if err := removeStillborn(x.engine, x.name, s.cfg.Instance, x.log); err != nil {
		return err
	}
	s.strays.done(slug, x)
	return nil
}

// removeStillborn removes the container of a start that failed, if the engine made one, and saves what it printed. It is found
// by name, and ours only if its labels say so too. The error says that it may still be there.
func removeStillborn(e engine, name, instance, log string) error {
	ctx, cancel := context.WithTimeout(context.Background(), settleWithin) // the start's own context may be what ended
	defer cancel()
	c, err := e.Inspect(ctx, name)
	switch {
	case execenv.IsEngineError(err, execenv.EngineNoContainer):
		return nil
	case err != nil:
		return err
	}
	if _, _, ours := c.Worker(instance); !ours {
		return nil
	}
	saveLogs(ctx, e, c.ID, log)
	return e.Remove(ctx, c.ID)
}

// keepFailed keeps the container of a worker that failed, for somebody to look into, until container_ttl has passed. Of each
// provider the newest one stays: a model that crashes all night must not fill the disk.
func (s *Supervisor) keepFailed(b *containerBody, slug string) {
	ctx, cancel := context.WithTimeout(context.Background(), settleWithin)
	defer cancel()
	list, err := b.engine.List(ctx, map[string]string{execenv.LabelInstance: s.cfg.Instance, execenv.LabelSlug: slug, execenv.LabelKeep: "1"})
	if err != nil {
		s.log.Warn("older containers that were kept are not removed yet", keyProvider, slug, keyError, err)
	}
	for _, c := range list {
		if other, _, ours := c.Worker(s.cfg.Instance); ours && other == slug && c.State == execenv.ContainerExited && c.ID != b.id {
			_ = b.engine.Remove(ctx, c.ID)
		}
	}
	s.log.Info("the container of the failed worker is kept", keyProvider, slug, keyContainer, execenv.ContainerName(s.cfg.Instance, slug, b.n), "for", s.cfg.ContainerTTL)
	s.expire(b.engine, b.id, s.cfg.ContainerTTL)
}

// expire removes a container after a while; where workerd ends before, the next one sees to it.
func (s *Supervisor) expire(e engine, id string, after time.Duration) {
	s.wg.Go(func() {
		timer := time.NewTimer(after)
		defer timer.Stop()
		select {
		case <-s.ctx.Done():
			return
		case <-timer.C:
		}
		s.untilDone(func() bool {
			ctx, cancel := context.WithTimeout(s.ctx, settleWithin)
			defer cancel()
			return e.Remove(ctx, id) == nil
		})
	})
}

// keptFor is how long a dead container of an earlier life is still to be kept; 0: it is to go. One whose end cannot be dated
// ended long ago.
func keptFor(c execenv.Container, ttl time.Duration, now time.Time) time.Duration {
	if c.Labels[execenv.LabelKeep] == "" || c.State != execenv.ContainerExited || c.Finished.IsZero() {
		return 0
	}
	return max(0, ttl-now.Sub(c.Finished))
}
