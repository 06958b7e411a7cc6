package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"time"

	"workerd/execenv"
	"workerd/manifest"
)

// FindLeftovers looks for the workers of an earlier workerd of this instance that was killed. Those with a record wait for the
// first Apply, which adopts them or ends them; all else that carries this instance's marker is ended now. It is called once,
// before the first Apply.
func (s *Supervisor) FindLeftovers() {
	dir := filepath.Join(s.cfg.RuntimeDir, "w")
	boot, err := execenv.BootID()
	if err != nil {
		s.log.Error("boot id: workers of an earlier workerd are not adopted", keyError, err)
	}
	records, errs := readRecords(dir, s.cfg.Instance, boot)
	for _, err := range errs {
		s.log.Warn("ignored", keyError, err)
	}
	keep := map[string]bool{}
	for _, r := range records {
		if r.Container != "" { // its engine has to be asked, which may take its time
			keep[r.marker()] = true
			s.leftovers = append(s.leftovers, r)
			continue
		}
		p, err := adoptProcess(r.PID, r.Start, s.children)
		if err != nil {
			execenv.KillHelpers(r.PID, r.Start)
			r.remove()
			continue
		}
		if has, _ := execenv.HasMarker(r.PID, r.marker()); !has && !execenv.IsRunner(r.PID) {
			p.release() // a stranger who got the pid in the same tick: not ours to touch
			r.remove()
			continue
		}
		p.release()
		keep[r.marker()] = true
		s.leftovers = append(s.leftovers, r)
	}
	if killed := s.children.KillInstance(s.cfg.Instance, func(marker string) bool { return keep[marker] }); len(killed) > 0 {
		s.log.Warn("ended workers that an earlier workerd left without a record", keyPID, killed)
	}
	s.sweepCgroups()
	var tmp []string
	for _, r := range s.leftovers {
		s.numbers.above(r.N) // somebody may have deleted the state directory
		s.recorded[r.id()] = true
		tmp = append(tmp, r.Tmp)
	}
	s.gpus.leftBy(s.leftovers)
	s.first = s.numbers.peek()
	s.cfg.Planner.SweepTmp(tmp)
	s.sweepSockets(dir)
}

// sweepSockets removes the worker sockets and records that no leftover accounts for.
func (s *Supervisor) sweepSockets(dir string) {
	files, _ := filepath.Glob(filepath.Join(dir, "*", "*"))
	for _, f := range files {
		ours := slices.ContainsFunc(s.leftovers, func(r *record) bool { return f == r.Socket || f == r.file() })
		if !ours {
			_ = os.Remove(f)
		}
	}
}

// sweepFronts removes the front sockets that an earlier workerd left and no provider has taken over: who connects there is
// refused. One that somebody else listens on is left alone.
func (s *Supervisor) sweepFronts() {
	dirs, _ := filepath.Glob(filepath.Join(s.cfg.RuntimeDir, "front", "*"))
	for _, dir := range dirs {
		slug, socket := filepath.Base(dir), filepath.Join(dir, "sock")
		if s.lookup(slug) != nil {
			continue
		}
		l, err := s.cfg.Listeners.Listen(slug, socket, nil) // only where nobody does
		if err != nil {
			s.log.Warn("a front socket without provider is left", keySocket, socket, keyError, err)
			continue
		}
		_ = l.Close()
		_ = os.Remove(filepath.Join(s.cfg.RuntimeDir, slug+".sock"))
		_ = os.Remove(socket)
		_ = os.Remove(dir)
		s.cfg.Listeners.Forget(slug)
	}
}

// claim hands a provider the leftovers of its slug.
func (s *Supervisor) claim(slug string) []*record {
	var mine []*record
	s.leftovers = slices.DeleteFunc(s.leftovers, func(r *record) bool {
		if r.Slug == slug {
			mine = append(mine, r)
		}
		return r.Slug == slug
	})
	return mine
}

// endUnclaimed ends the leftovers whose provider is not there any more. Those of one that only has no front socket yet wait.
func (s *Supervisor) endUnclaimed() {
	s.leftovers = slices.DeleteFunc(s.leftovers, func(r *record) bool {
		if slices.ContainsFunc(s.unserved, func(e *manifest.Entry) bool { return e.Slug == r.Slug }) {
			return false
		}
		s.wg.Go(func() { s.endLeftover(r, 30*time.Second, "its manifest is gone") })
		return true
	})
}

// endLeftover stops a worker of an earlier workerd as any other is stopped, and returns when it and its tree are gone.
func (s *Supervisor) endLeftover(r *record, patience time.Duration, why string) {
	defer s.gpus.settled(r)
	log := s.log.With(keyProvider, r.Slug, keyPID, r.PID, keyReason, why)
	if r.Container != "" {
		log.Info("the container of an earlier workerd is ended", keyContainer, r.Container)
		s.endContainer(r, patience)
		return
	}
	group := s.adoptCgroup(r, nil)
	if p, err := adoptProcess(r.PID, r.Start, s.children); err == nil {
		log.Info("the worker of an earlier workerd is ended")
		if patience > 0 {
			kill := time.AfterFunc(patience, func() { p.signal(syscall.SIGKILL) })
			defer kill.Stop()
		}
		p.signal(syscall.SIGTERM)
		done := make(chan struct{})
		go func() { defer close(done); p.await() }()
		select {
		case <-done:
		case <-s.killed:
			p.signal(syscall.SIGKILL)
			<-done
		}
		p.release()
	}
	if group != nil {
		group.Kill()
	}
	s.children.KillTree(execenv.Tree{Marker: r.marker()}, execenv.Full)
	execenv.KillHelpers(r.PID, r.Start)
	if group != nil {
		group.Remove()
	}
	r.remove()
}

// adopt takes over the leftovers that run the version in force, one a seat, and ends the others. Afterwards, on the
// provider's goroutine, the provider boots what is missing.
func (p *provider) adopt() {
	left := p.left
	p.left = nil
	if slices.ContainsFunc(left, func(r *record) bool { return r.Container != "" }) {
		p.adoptContainers(left)
		return
	}
	end := p.inherit(left, func(r *record) (body, error) {
		proc, err := adoptProcess(r.PID, r.Start, p.sup.children)
		if err != nil {
			return nil, err
		}
		return &processBody{proc, r.marker(), p.sup.adoptCgroup(r, &p.spec.manifest.Limits)}, nil
	})
	p.endThenBoot(end)
}

// inherit gives leftovers of the version in force their places, and returns those that there is none for.
func (p *provider) inherit(left []*record, find func(*record) (body, error)) (end []*record) {
	var usable []*record
	bodies := map[*record]body{}
	for _, r := range left {
		if p.closing != open || p.held || r.Run != p.spec.run {
			end = append(end, r)
			continue
		}
		b, err := find(r)
		if err != nil { // it has just died; what it left has not
			end = append(end, r)
			continue
		}
		usable, bodies[r] = append(usable, r), b
	}
	seats := p.seats()
	seated, standby, others := heirs(usable, len(seats), standbyMode(p.manifest))
	for i, r := range seated {
		p.takeIn(seats[i], r, bodies[r])
	}
	if s := p.standby(); standby != nil && s != nil {
		p.takeIn(s, standby, bodies[standby])
	}
	for _, r := range others {
		bodies[r].release()
	}
	return append(end, others...)
}

// takeIn makes a worker of a leftover. Its process is not a child of ours, and it has its places already.
func (p *provider) takeIn(w *worker, r *record, b body) {
	f := makeLife(p, r.N, p.spec)
	f.restarts, f.adopted = r.Restarts, true
	f.started = time.Now().Add(-execenv.Age(r.Start)) // not r.Started, which a clock gave that may have been set since
	f.standby, f.parked = r.Standby, w.standby
	if w.standby && r.Standby == "" { // it served: one that has loaded
		f.standby = standbyMode(p.manifest)
	}
	f.paths = paths{socket: r.Socket, tmp: r.Tmp, log: r.Log}
	p.inheritGPUs(w, f, r)
	f.begin(b)
	w.life, w.restarts = f, r.Restarts
	p.track(f)
	p.move(w, evStart, "adopted from the workerd before")
	p.limitStart(f)
	switch {
	case !w.standby && r.Standby != "": // its worker has died meanwhile
		f.noteRole(b, "")
	case w.standby && r.Standby == "":
		f.noteRole(b, f.standby)
	}
}

// endThenBoot ends leftovers that are of no use, and then boots what is missing.
func (p *provider) endThenBoot(end []*record) {
	if len(end) == 0 {
		p.adopted()
		return
	}
	p.adopting = true
	patience := p.manifest.Start.StopTimeout.D()
	p.lives.Go(func() {
		for _, r := range end {
			p.sup.endLeftover(r, patience, "it runs another version than the manifest's")
		}
		_ = p.ask(context.Background(), p.adopted)
	})
}

// adopted ends the adoption: what is missing is started.
func (p *provider) adopted() {
	p.adopting = false
	p.boot()
	p.demand()
	if p.mayRun() && p.failure == nil {
		p.startSeats(min(p.wanted, p.manifest.Serve.Replicas), "boot", true)
	}
	p.wanted = 0
}

// endLeft ends the leftovers of a provider that will not run them.
func (p *provider) endLeft(why string) {
	patience := 30 * time.Second
	if p.manifest != nil {
		patience = p.manifest.Start.StopTimeout.D()
	}
	for _, r := range p.left {
		p.ending++
		p.lives.Go(func() {
			p.sup.endLeftover(r, patience, why)
			p.post(func() { p.ending-- })
		})
	}
	p.left = nil
}
