package supervisor

import (
	"sync"
	"time"

	"workerd/protocol"
)

// What providers and their workers have to do with GPUs. gpus.go decides who gets one.

// lifeFacts is what placement knows of a worker. Its provider renews it after every event.
type lifeFacts struct {
	ready    bool
	standby  bool
	pinned   bool
	priority int
}

// living are the workers that are there, from before they are executed until nothing of them is left.
type living struct {
	mu  sync.Mutex
	ids map[string]bool
}

func (l *living) add(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ids == nil {
		l.ids = map[string]bool{}
	}
	l.ids[id] = true
}

func (l *living) remove(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.ids, id)
}

func (l *living) has(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.ids[id]
}

// tenantFor is what a seat's next process asks of the GPUs; nil where its version uses none.
func (p *provider) tenantFor(w *worker, s *spec, standby string) *tenant {
	if s.plan.GPU.Policy == "none" {
		return nil
	}
	t := &tenant{need: s.need(), declared: s.manifest.GPU.Memory > 0, meek: w.meek, patience: s.manifest.GPU.Wait.D()}
	if w.standby || w.candidate {
		t.beside, t.patience = true, besideWait
	}
	if standby == warm { // nothing of it is on a GPU before it takes a seat: then it is where that worker was
		for _, other := range p.seats() {
			if f := other.life; f != nil && f.body != nil && len(f.gpus) > 0 {
				t.hold.devices, t.nodes, t.indices, t.companion = f.gpus, f.nodes, f.indices, true
				break
			}
		}
	}
	return t
}

// need is what a worker of a version needs of the GPUs.
func (s *spec) need() need {
	g := s.manifest.GPU
	return need{slug: s.manifest.Slug, policy: g.Policy, count: g.Count, memory: int64(g.Memory), devices: g.Devices, priority: g.Priority}
}

// onWaits is the word that a worker waits for devices before it is executed.
func (p *provider) onWaits(f *life, words string) {
	w := p.workerOf(f)
	if w == nil || f.body != nil || w.state != Starting {
		return
	}
	f.waitsFor, w.reason = words, words
	p.bootDone() // who waits for others holds up no boot
}

// onEvict makes a worker leave for another one, and says whether it does. One that has work meanwhile does so only where it is
// the other one's turn; then it finishes what it runs.
func (p *provider) onEvict(f *life, reason string, busy bool) bool {
	w := p.workerOf(f)
	switch {
	case w == nil || f.stopping || w.state == Draining:
		return true
	case w.state != Ready && !w.standby:
		return false
	case w.standby:
		p.stopWorker(w, reason)
		return true
	}
	if _, ok := p.pool.retire(f, f.lanes, true); ok {
		p.stopWorker(w, reason)
		return true
	}
	if busy {
		p.drainWorker(w, reason)
	}
	return busy
}

// withoutGPU follows a start that got no device: whoever waits hears why. A worker that is to be there from boot on is tried again,
// at the next request at the latest; any other one with the next request.
func (p *provider) withoutGPU(w *worker, f *life, d decision, exit *protocol.Exit) {
	if p.manifest.Start.When == "boot" {
		w.retryAt, w.noGPU, w.meek = time.Now().Add(d.after), true, true
		p.move(w, evRetry, exit.Reason)
		w.timer = time.AfterFunc(d.after, func() { p.post(func() { p.onRetry(w) }) })
	} else {
		p.move(w, evExited, exit.Reason)
	}
	p.refused = f.refused
	if !p.othersUp(w) {
		p.pool.failWaiting(f.refused)
	}
}

// hurry starts the seats that would try again later to get a device: somebody waits now.
func (p *provider) hurry(reason string) {
	for _, w := range p.seats() {
		if w.state == Backoff && w.noGPU {
			w.meek = false
			p.execute(w, evStart, reason, p.spec)
		}
	}
}

// inheritGPUs has an adopted worker keep its devices.
func (p *provider) inheritGPUs(w *worker, f *life, r *record) {
	t := p.tenantFor(w, p.spec, "")
	if t == nil || len(r.GPUs) == 0 {
		p.sup.gpus.settled(r)
		return
	}
	f.holds(grant{devices: r.GPUs})
	t.life, t.answer, t.since = f, make(chan grant, 1), time.Now()
	t.hold.devices, t.companion = r.GPUs, r.Standby == warm && w.standby
	g := p.sup.gpus
	g.tell(func() { g.enter(t); delete(g.left, f.id) })
}

// leftBy enters what the workers of an earlier workerd have. Until its provider has planned, each keeps that: nobody can make it leave.
// It is called before any worker can want a device.
func (g *gpus) leftBy(records []*record) {
	left := map[string]hold{}
	for _, r := range records {
		if h := r.hold(); len(h.devices) > 0 {
			left[h.id] = h
		}
	}
	g.tell(func() {
		for id, h := range left {
			if h.memory == 0 {
				h.memory = g.learned.of(h.slug)
				h.casual = h.casual && h.memory == 0
			}
			g.left[id] = h
		}
	})
}

// settled says that a worker of an earlier workerd is gone, or has no devices.
func (g *gpus) settled(r *record) {
	if len(r.GPUs) > 0 {
		g.tell(func() {
			delete(g.left, r.id())
			g.looked = time.Time{}
		})
	}
}

// hold is what the worker has of the GPUs. One of whose policy nothing was recorded has its devices alone; a warm standby has nothing
// of its own.
func (r *record) hold() hold {
	if r.Standby == warm {
		return hold{}
	}
	return hold{
		id: r.id(), slug: r.Slug, devices: r.GPUs, memory: r.GPUMemory, pinned: true,
		exclusive: r.GPUPolicy == "" || r.GPUPolicy == "exclusive",
		casual:    r.GPUPolicy == "auto" && r.GPUMemory == 0 && len(r.GPUs) == 1,
	}
}

// noRoomBeside makes a change of version that found no device beside the old worker stop that one first.
func (p *provider) noRoomBeside(w *worker, exit *protocol.Exit) {
	r := p.roll
	p.move(w, evFail, exit.Reason)
	w.leaving, w.candidate = true, false
	if r == nil {
		return
	}
	p.roll = nil
	p.force(r.spec)
	reason := r.reason + ", and there is no room for it beside the old one: " + exit.Reason
	p.log.Info("the old worker is stopped first", keyReason, reason)
	if s := p.standby(); s != nil && s.life != nil {
		p.stopWorker(s, reason)
	}
	for old := p.outdated(r); old != nil; old = p.outdated(r) {
		old.again = true
		if r.below > 0 {
			p.stopWorker(old, reason)
		} else {
			p.drainWorker(old, reason)
		}
		if old.state != Draining {
			break
		}
	}
	p.rolled(r)
}

// endedByFault says whether a worker that ended by itself had lost its GPU.
func (p *provider) endedByFault(f *life) bool {
	words := f.faultIn([]byte(f.exit.Output))
	if words == "" {
		return false
	}
	p.sup.gpus.tell(func() { p.sup.gpus.faulted(f.id, p.slug, f.gpus, words) })
	f.exit.Reason += ": " + faultReason(words)
	return true
}

// publishFacts tells placement about the workers.
func (p *provider) publishFacts() {
	for _, w := range p.workers {
		if f := w.life; f != nil && p.spec != nil && p.spec.plan.GPU.Policy != "none" {
			g := p.manifest.GPU
			f.facts.Store(&lifeFacts{ready: w.state == Ready, standby: w.standby, pinned: g.Pinned, priority: g.Priority})
		}
	}
}

// lookAtGPUs has what the worker takes measured soon.
func (f *life) lookAtGPUs() {
	if len(f.gpus) > 0 {
		f.p.sup.gpus.tell(func() { f.p.sup.gpus.looked = time.Time{} })
	}
}
