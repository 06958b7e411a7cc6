package supervisor

import (
	"errors"
	"slices"

	"golang.org/x/sys/unix"

	"workerd/execenv"
	"workerd/manifest"
)

// makeCgroup makes the worker's own cgroup, if workerd has one to make it in. A worker is rather run without its limits than not
// at all: where they cannot be had for another reason that is said in the plan's warnings.
func (f *life) makeCgroup() *execenv.Cgroup {
	c := f.p.sup.cfg.Cgroups
	if c == nil {
		return nil
	}
	group, err := c.New(execenv.ContainerName(f.p.sup.cfg.Instance, f.p.slug, f.n), f.spec.manifest.Limits)
	if err != nil {
		f.p.log.Warn("the worker runs without a cgroup of its own, and so without its limits", keyWorker, f.id, keyError, err)
		return nil
	}
	return group
}

// noCgroup says that a process could not be executed for the sake of its cgroup: a kernel before 5.7, a filter of system calls
// that knows no clone3, or a cgroup that somebody else has changed.
func noCgroup(err error) bool {
	return slices.ContainsFunc([]error{unix.ENOSYS, unix.E2BIG, unix.EINVAL, unix.EBUSY, unix.EOPNOTSUPP, unix.EPERM, unix.ENODEV},
		func(e error) bool { return errors.Is(err, e) })
}

// adoptCgroup finds the cgroup of a worker of an earlier workerd; nil where it has none. Its controllers may have been taken
// away meanwhile, and its limits with them, so they are set anew.
func (s *Supervisor) adoptCgroup(r *record, l *manifest.Limits) *execenv.Cgroup {
	if s.cfg.Cgroups == nil || r.Cgroup == "" {
		return nil
	}
	group := s.cfg.Cgroups.Find(r.Cgroup, r.name())
	if group == nil {
		s.log.Warn("the cgroup of a worker's record is not one of ours", keyProvider, r.Slug, keyPID, r.PID, "cgroup", r.Cgroup)
		return nil
	}
	if l != nil {
		if err := group.Limit(*l); err != nil {
			s.log.Warn("limits of an adopted worker", keyProvider, r.Slug, keyError, err)
		}
	}
	return group
}

// sweepCgroups ends what is in the cgroups of workers that are not to be adopted.
func (s *Supervisor) sweepCgroups() {
	if s.cfg.Cgroups == nil {
		return
	}
	killed := s.cfg.Cgroups.Sweep(s.cfg.Instance, func(dir string) bool {
		return slices.ContainsFunc(s.leftovers, func(r *record) bool { return r.Cgroup == dir })
	})
	if len(killed) > 0 {
		s.log.Warn("ended what was in cgroups that an earlier workerd left", "cgroups", killed)
	}
}

// limitWorkers brings edited limits into force for the workers that run in a cgroup of their own: what runs is none the wiser.
func (p *provider) limitWorkers(l manifest.Limits) {
	for _, w := range p.workers {
		if w.life == nil {
			continue
		}
		b, ok := w.life.body.(*processBody)
		if !ok {
			continue
		}
		if err := b.limit(l); err != nil {
			p.log.Error("edited limits", keyWorker, w.life.id, keyError, err)
		}
	}
}
