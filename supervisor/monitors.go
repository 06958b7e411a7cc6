package supervisor

import (
	"context"
	"slices"
	"strings"
	"time"

	"workerd/execenv"
	"workerd/manifest"
)

// watchMonitors ends, now and then, what podman has lost: the process of a container that it knows nothing of any more, and its
// monitor. They are left where a podman that starts a container is killed, or meets one that removes it.
func (s *Supervisor) watchMonitors() {
	tick := time.NewTicker(settleWithin)
	defer tick.Stop()
	var before []execenv.Monitor
	for {
		select {
		case <-s.ctx.Done():
			return
		case <-tick.C:
		}
		before = s.endMonitors(s.ctx, before)
	}
}

// endMonitors ends those of the monitors seen before that watch no worker of this life and whose container podman does not have. It
// returns all that there are now. Podman is asked only where one of them is in question.
func (s *Supervisor) endMonitors(ctx context.Context, before []execenv.Monitor) (now []execenv.Monitor) {
	now = execenv.Monitors(s.cfg.Instance)
	if len(now) == 0 {
		return nil
	}
	ours := map[string]bool{}
	for _, p := range s.all() {
		if snap := p.snapshot.Load(); snap != nil {
			for _, w := range snap.Workers {
				ours["workerd-"+s.cfg.Instance+"-"+strings.Replace(w.ID, "/", "-", 1)] = true
			}
		}
	}
	doubtful := slices.DeleteFunc(slices.Clone(now), func(m execenv.Monitor) bool { return ours[m.Name] || !slices.Contains(before, m) })
	if len(doubtful) == 0 {
		return now
	}
	e, err := s.cfg.Planner.Engine(manifest.Podman)
	if err != nil {
		return now
	}
	ctx, cancel := context.WithTimeout(ctx, settleWithin)
	defer cancel()
	list, err := e.List(ctx, map[string]string{execenv.LabelInstance: s.cfg.Instance})
	if err != nil {
		return now
	}
	for _, m := range doubtful {
		if !slices.ContainsFunc(list, func(c execenv.Container) bool { return c.Name == m.Name }) {
			s.log.Warn("ended a container that podman has lost", keyContainer, m.Name)
			m.End()
		}
	}
	return now
}

// endLastMonitors is endMonitors when no worker is left.
func (s *Supervisor) endLastMonitors() {
	if !s.reaped[manifest.Podman] {
		return
	}
	s.endMonitors(context.Background(), execenv.Monitors(s.cfg.Instance)) // the engine's deadline bounds it
}
