package supervisor

import (
	"context"
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
		var end []*record
		for _, r := range left {
			b, err := p.sup.findContainer(r)
			switch {
			case err != nil:
				p.log.Info("the container of an earlier workerd is not adopted", keyContainer, r.Container, keyError, err)
				end = append(end, r)
			case b == nil:
				r.remove() // gone
			case held || r.Run != run:
				end = append(end, r)
			default:
				found[r] = b
			}
		}
		_ = p.ask(context.Background(), func() { // and wait: a provider that ends must not end before
			seats := p.seats()
			for r, b := range found {
				if len(seats) == 0 || p.closing != open || p.held || p.spec.run != r.Run {
					end = append(end, r)
					continue
				}
				w := seats[0]
				seats = seats[1:]
				f := makeLife(p, r.N, p.spec)
				f.started, f.restarts, f.adopted = r.Started, r.Restarts, true
				f.paths = paths{socket: r.Socket, tmp: r.Tmp, log: r.Log}
				f.begin(b)
				w.life, w.restarts = f, r.Restarts
				p.track(f)
				p.move(w, evStart, "adopted from the workerd before")
				p.limitStart(f)
			}
			p.endThenBoot(end)
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
		return nil, err
	}
	if slug, n, ok := c.Worker(s.cfg.Instance); !ok || slug != r.Slug || n != r.N {
		return nil, nil // a stranger's
	}
	if c.State != execenv.ContainerRunning {
		saveLogs(ctx, e, c.ID, r.Log)
		return nil, e.Remove(ctx, c.ID)
	}
	return newContainerBody(e, r.Engine, c, r.Log, s.children), nil
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

// reapContainers removes what earlier lives of this instance left with an engine and no record tells of: containers of ours with
// a number below first, which is where this life began. It says whether the engine answered.
func (s *Supervisor) reapContainers(kind string) bool {
	e, err := s.cfg.Planner.Engine(kind)
	if err != nil {
		return false
	}
	ctx, cancel := context.WithTimeout(s.ctx, time.Minute)
	defer cancel()
	list, err := e.List(ctx, map[string]string{execenv.LabelInstance: s.cfg.Instance})
	if err != nil {
		return false
	}
	for _, c := range list {
		slug, n, ours := c.Worker(s.cfg.Instance)
		if !ours || n >= s.first || s.recorded[slug+"/"+strconv.FormatInt(n, 10)] {
			continue
		}
		s.log.Warn("removing the container that an earlier workerd left", keyProvider, slug, keyContainer, c.Name)
		_ = e.Remove(ctx, c.ID)
	}
	return true
}

// reapEngines starts reapContainers for the engines that a set of manifests names, those that were not asked yet, once for each.
func (s *Supervisor) reapEngines(set *manifest.Set) {
	for i := range set.Entries {
		m := set.Entries[i].Manifest
		if m == nil || m.Env.Kind != manifest.Docker && m.Env.Kind != manifest.Podman || s.reaped[m.Env.Kind] {
			continue
		}
		s.reaped[m.Env.Kind] = true
		s.wg.Go(func() { s.untilDone(func() bool { return s.reapContainers(m.Env.Kind) }) })
	}
}
