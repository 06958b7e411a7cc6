package supervisor

import (
	"context"
	"maps"
	"os"
	"slices"
	"strconv"
	"time"

	"workerd/execenv"
	"workerd/manifest"
)

// adoptContainers is adopt for a provider whose leftovers are containers: their engine is asked apart from the provider's
// goroutine, and the provider boots afterwards.
func (p *provider) adoptContainers(left []*record) {
	run, held := p.spec.run, p.held
	p.adopting = true
	p.lives.Go(func() {
		found := map[*record]body{}
		var usable, end []*record
		for _, r := range left {
			b, err := p.sup.findContainer(r)
			switch {
			case err != nil:
				p.log.Info("the container of an earlier workerd is not adopted", keyContainer, r.Container, keyError, err)
				end = append(end, r)
			case b == nil:
				r.remove() // gone
				p.sup.gpus.settled(r)
			case held || r.Run != run:
				end = append(end, r)
			default:
				usable, found[r] = append(usable, r), b
			}
		}
		_ = p.ask(context.Background(), func() { // and wait: a provider that ends must not end before
			more := p.inherit(usable, func(r *record) (body, error) { return found[r], nil })
			p.endThenBoot(append(end, more...))
		})
	})
}

// findContainer asks the engine for a record's container; nil where it does not run any more. It is ours only if name, id and
// labels agree: images that were made of a worker's container carry its labels.
func (s *Supervisor) findContainer(r *record) (body, error) {
	e, err := s.cfg.Planner.Engine(r.Engine)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(s.ctx, settleWithin)
	defer cancel()
	c, err := e.Inspect(ctx, r.Container)
	if execenv.IsEngineError(err, execenv.EngineNoContainer) {
		return nil, nil
	}
	if err != nil {
		// Its first process, if that is the same as then, is the container: nobody needs the engine to know that it runs.
		if st, statErr := execenv.ReadStat(r.PID); r.PID > 0 && statErr == nil && st.Start == r.Start && !st.Dead() {
			return newContainerBody(e, r.Engine, execenv.Container{ID: r.Container, State: execenv.ContainerRunning, PID: r.PID}, r.N, r.Log, s.children), nil
		}
		return nil, err
	}
	if slug, n, ok := c.Worker(s.cfg.Instance); !ok || slug != r.Slug || n != r.N {
		return nil, nil // a stranger's
	}
	if c.State != execenv.ContainerRunning {
		saveLogs(ctx, e, c.ID, r.Log)
		return nil, e.Remove(ctx, c.ID)
	}
	return newContainerBody(e, r.Engine, c, r.N, r.Log, s.children), nil
}

// endContainer stops and removes the container of a record; with an engine that does not answer, later.
func (s *Supervisor) endContainer(r *record, patience time.Duration) {
	if !s.tryEndContainer(r, patience) {
		s.wg.Go(func() { s.untilDone(func() bool { return s.tryEndContainer(r, 0) }) })
	}
	r.remove()
}

func (s *Supervisor) tryEndContainer(r *record, patience time.Duration) bool {
	e, err := s.cfg.Planner.Engine(r.Engine)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(context.Background(), patience+3*settleWithin)
	defer cancel()
	c, err := e.Inspect(ctx, r.Container)
	if err != nil {
		return execenv.IsEngineError(err, execenv.EngineNoContainer)
	}
	if slug, n, ok := c.Worker(s.cfg.Instance); !ok || slug != r.Slug || n != r.N {
		return true // a stranger's
	}
	_ = e.Stop(ctx, c.ID, patience)
	saveLogs(ctx, e, c.ID, r.Log)
	return e.Remove(ctx, c.ID) == nil
}

// untilDone tries something that an engine refuses to do, now and again, until it is done or workerd ends.
func (s *Supervisor) untilDone(try func() bool) {
	tick := time.NewTicker(settleWithin)
	defer tick.Stop()
	for !try() {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// reapContainers removes those of an instance's containers that the engine still has and that are left: ours whose worker left says
// so of. It says whether all of them are gone.
func (s *Supervisor) reapContainers(ctx context.Context, kind string, left func(slug string, n int64) bool) bool {
	e, err := s.cfg.Planner.Engine(kind)
	if err != nil {
		return false
	}
	list, err := e.List(ctx, map[string]string{execenv.LabelInstance: s.cfg.Instance})
	if err != nil {
		return false
	}
	all := true
	for _, c := range list {
		slug, n, ours := c.Worker(s.cfg.Instance)
		if !ours || !left(slug, n) {
			continue
		}
		if rest := keptFor(c, s.cfg.ContainerTTL, time.Now()); rest > 0 {
			if s.ctx.Err() == nil { // else the next workerd sees to it
				s.expire(e, c.ID, rest)
			}
			continue
		}
		s.log.Warn("removing a container that was left", keyProvider, slug, keyContainer, c.Name)
		if err := e.Remove(ctx, c.ID); err != nil {
			s.log.Warn("it cannot be removed yet", keyProvider, slug, keyContainer, c.Name, keyError, err)
			all = false
		}
		if socket, err := execenv.WorkerSocket(s.cfg.RuntimeDir, slug, n); err == nil {
			_ = os.Remove(socket) // it may have been made after all others were looked at
		}
	}
	return all
}

// reapEngines starts reapEngine for the engines that a set of manifests names, those that were not asked yet.
func (s *Supervisor) reapEngines(set *manifest.Set) {
	for i := range set.Entries {
		m := set.Entries[i].Manifest
		if m == nil || m.Env.Kind != manifest.Docker && m.Env.Kind != manifest.Podman || s.reaped[m.Env.Kind] {
			continue
		}
		s.reaped[m.Env.Kind] = true
		if m.Env.Kind == manifest.Podman {
			s.wg.Go(s.watchMonitors)
		}
		s.wg.Go(func() { s.reapEngine(m.Env.Kind) })
	}
}

// reapEngine removes what earlier lives of this instance left with an engine and no record tells of: containers with a number below
// first, which is where this life began.
func (s *Supervisor) reapEngine(kind string) {
	s.lookAgain(func() bool {
		ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
		defer cancel()
		return s.reapContainers(ctx, kind, func(slug string, n int64) bool {
			return n < s.first && !s.recorded[slug+"/"+strconv.FormatInt(n, 10)]
		})
	})
}

// reapLast looks once more, when no worker is left, for what the engines of this life still have of it.
func (s *Supervisor) reapLast() {
	ctx, cancel := context.WithTimeout(context.Background(), settleWithin)
	defer cancel()
	for _, kind := range slices.Sorted(maps.Keys(s.reaped)) {
		s.reapContainers(ctx, kind, func(string, int64) bool { return true })
	}
}
