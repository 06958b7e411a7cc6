package supervisor

import (
	"context"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	"workerd/execenv"
	"workerd/execenv/gpu"
	"workerd/protocol"
)

const (
	// lookEagerly is how often the devices are looked at while a worker waits for one.
	lookEagerly = 100 * time.Millisecond
	// lookCalmly is how often, while workers only have some.
	lookCalmly = 10 * time.Second
	// faultsEvery is how often what such workers print is looked through for faults.
	faultsEvery = time.Second
	// turnAfter is how long a worker waits before busy ones have to finish and go for it.
	turnAfter = 5 * time.Second
	// besideWait is how long a worker beside those that serve, a standby or a new version, may wait for memory that is coming back.
	besideWait = 2 * time.Second
)

// gpus is the goroutine that owns what workers hold of the machine's GPUs, and who waits for them. Verdicts are place.go's. It is
// asked by goroutines of lives, which wait for it; it posts to providers and never waits for one of their goroutines.
type gpus struct {
	inventory gpu.Inventory
	external  bool
	children  *execenv.Children
	instance  string
	first     int64                // the first worker number of this life of workerd
	living    func(id string) bool // whether a worker is there, or may be
	learned   *learned
	log       *slog.Logger

	inbox chan func()
	done  chan struct{}
	view  atomic.Pointer[protocol.GPUs]

	// All below belongs to run.
	tenants  map[string]*tenant // by id: who holds something
	left     map[string]hold    // by id: what workers of an earlier workerd have that are no tenants yet
	waiting  []*tenant          // in order of arrival
	snap     gpu.Snapshot
	looked   time.Time
	scanned  time.Time
	owners   owners
	faults   map[string][]fault // by UUID, lately
	cordoned map[berth]cordon
	killing  map[string]bool // dead workers whose remains are being killed
	kills    chan string
	viewers  []chan struct{} // who wants to see it all; closed after the next look
	problem  string          // the newest trouble with the inventory that was logged
}

// tenant is a worker that holds devices, or waits for some.
type tenant struct {
	life     *life
	need     need
	declared bool // need.memory is the manifest's
	hold     hold
	nodes    []string
	indices  []int
	meek     bool
	beside   bool // a standby or a candidate: nobody makes room for it
	// companion: a warm standby, which is where a worker of its provider is and has no memory of its own.
	companion bool
	patience  time.Duration
	since     time.Time
	answer    chan grant
	told      string // what it waits for, in words, as its provider was told
	loaded    bool   // it has been seen ready
	peak      int64
	warned    bool
	read      int64 // how much of its output has been looked through for faults
	faulty    bool
}

// grant is what a worker that waited has got.
type grant struct {
	devices []string // UUIDs
	nodes   []string // device nodes, of AMD cards
	indices []int    // of the devices, -1 where it is not known
	err     error
}

func newGPUs(s *Supervisor) *gpus {
	g := &gpus{
		inventory: s.cfg.GPUs, external: !s.cfg.IgnoreStrangers, children: s.cfg.Children, instance: s.cfg.Instance, first: s.first, living: s.living.has,
		learned: openLearned(s.cfg.StateDir, s.cfg.Log), log: s.cfg.Log,
		inbox: make(chan func(), 64), done: make(chan struct{}),
		tenants: map[string]*tenant{}, left: map[string]hold{}, owners: owners{}, faults: map[string][]fault{}, cordoned: map[berth]cordon{},
		killing: map[string]bool{}, kills: make(chan string),
	}
	if g.inventory == nil {
		g.inventory = gpu.None{}
	}
	g.view.Store(&protocol.GPUs{Devices: []protocol.GPUStatus{}, Waiting: []protocol.GPUWait{}})
	return g
}

// run serves until ctx ends, when all providers have.
func (g *gpus) run(ctx context.Context) {
	defer close(g.done)
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case f := <-g.inbox:
			f()
		case id := <-g.kills:
			delete(g.killing, id)
		case <-timer.C:
		case <-ctx.Done():
			for len(g.killing) > 0 {
				delete(g.killing, <-g.kills)
			}
			return
		}
		for more := true; more; {
			select {
			case f := <-g.inbox:
				f()
			default:
				more = false
			}
		}
		if next := g.turn(ctx, time.Now()); next > 0 {
			timer.Reset(next)
		} else {
			timer.Stop()
		}
	}
}

// do has run call f. It does not wait for that; false: g has ended.
func (g *gpus) do(f func()) bool {
	select {
	case g.inbox <- f:
		return true
	case <-g.done:
		return false
	}
}

// tell is do for a provider's goroutine, which must not wait for this one.
func (g *gpus) tell(f func()) {
	select {
	case g.inbox <- f:
	default:
		go g.do(f)
	}
}

// acquire waits until a worker has the devices that it needs, and reserves them. The error is a *protocol.Error of kind no_gpu
// that names what stands in the way, or ctx's.
func (g *gpus) acquire(ctx context.Context, t *tenant) (grant, error) {
	t.answer, t.since = make(chan grant, 1), time.Now()
	if !g.do(func() { g.enter(t) }) {
		return grant{}, errClosed(shutdown)
	}
	select {
	case a := <-t.answer:
		return a, a.err
	case <-ctx.Done():
		g.do(func() { g.leave(t.life.id) })
		return grant{}, ctx.Err()
	}
}

func (g *gpus) enter(t *tenant) {
	if !g.living(t.life.id) { // what is told comes in any order: it has left already
		return
	}
	if t.need.memory == 0 {
		t.need.memory = g.learned.of(t.life.p.slug)
	}
	if t.hold.devices != nil { // it goes where another worker of its provider is, or was adopted: nothing to be decided
		t.hold.id, t.hold.slug = t.life.id, t.life.p.slug
		if !t.companion {
			t.hold.memory, t.hold.exclusive = t.need.memory, t.need.exclusive()
		}
		g.tenants[t.life.id] = t
		g.looked = time.Time{}
		t.answer <- grant{devices: t.hold.devices, nodes: t.nodes, indices: t.indices}
		return
	}
	g.waiting = append(g.waiting, t)
}

// leave forgets a worker of which nothing is left, or that waits no more.
func (g *gpus) leave(id string) {
	if t := g.tenants[id]; t != nil {
		g.learn(t)
		delete(g.tenants, id)
	}
	g.waiting = slices.DeleteFunc(g.waiting, func(t *tenant) bool { return t.life.id == id })
	g.looked = time.Time{}
}

// seated says that a standby serves now: what it was given without memory of its own is what its provider needs.
func (g *gpus) seated(id string, n need) {
	t := g.tenants[id]
	if t == nil || !t.companion {
		return
	}
	t.companion = false
	t.hold.memory, t.hold.exclusive = n.memory, n.exclusive()
	if n.memory == 0 {
		t.hold.memory = g.learned.of(t.life.p.slug)
	}
}

// turn looks at the devices where that is due, and does what follows. It returns when it wants to be called again; 0: when
// something happens.
func (g *gpus) turn(ctx context.Context, now time.Time) time.Duration {
	if len(g.waiting)+len(g.tenants)+len(g.viewers) == 0 {
		g.looked = time.Time{}
		return 0
	}
	every := lookCalmly
	switch {
	case len(g.viewers) > 0:
		every = 0
	case len(g.waiting) > 0:
		every = lookEagerly
	}
	if now.Sub(g.looked) >= every {
		g.look(ctx)
		g.looked = time.Now()
		g.measure()
		g.serve(g.looked)
		g.show()
		for _, looked := range g.viewers {
			close(looked)
		}
		g.viewers = nil
	}
	if now.Sub(g.scanned) >= faultsEvery {
		g.scanned = now
		g.scanOutput()
	}
	if len(g.waiting) > 0 {
		return lookEagerly
	}
	return faultsEvery
}

// look takes a snapshot. What cannot be asked is worth a line in the log, once.
func (g *gpus) look(ctx context.Context) {
	snap, err := g.inventory.Snapshot(ctx)
	if err != nil {
		snap = gpu.Snapshot{Problem: err.Error(), Time: time.Now()}
	}
	if snap.Problem != g.problem {
		g.problem = snap.Problem
		if snap.Problem != "" {
			g.log.Warn("GPUs cannot be looked at", keyReason, snap.Problem)
		} else {
			g.log.Info("GPUs can be looked at again", "source", snap.Source)
		}
	}
	g.snap = snap
	g.owners.renew(snap, g.instance)
}

// books is what is known now, for a decision.
func (g *gpus) books(now time.Time) *books {
	b := &books{snap: g.snap, external: g.external, owners: g.owners.ids(), cordoned: map[berth]string{}}
	for where, c := range g.cordoned {
		b.cordoned[where] = c.reason
	}
	for _, id := range sortedIDs(g.tenants) {
		t := g.tenants[id]
		if t.companion { // it has nothing of its own, and goes with the worker that it is beside
			continue
		}
		h := t.hold
		h.uses = g.uses(id)
		h.casual = t.need.casual() && len(h.uses) == 0
		if facts := t.life.facts.Load(); facts != nil {
			load := t.life.p.pool.load()
			h.standby, h.pinned, h.priority = facts.standby, facts.pinned, facts.priority
			h.idle = facts.ready && (facts.standby || load.running == 0 && load.waiting == 0)
			h.last = load.lastBusy
		}
		b.holds = append(b.holds, h)
	}
	for _, id := range sortedIDs(g.left) {
		h := g.left[id]
		h.uses = g.uses(id)
		h.casual = h.casual && len(h.uses) == 0
		b.holds = append(b.holds, h)
	}
	return b
}

// uses is what a worker's processes are seen to use on its devices.
func (g *gpus) uses(id string) map[string]int64 {
	out := map[string]int64{}
	for i := range g.snap.Devices {
		d := &g.snap.Devices[i]
		for _, p := range d.Processes {
			switch {
			case g.owners.of(p.PID) != id || out[d.UUID] < 0:
			case p.Memory < 0:
				out[d.UUID] = -1
			default:
				out[d.UUID] += p.Memory
			}
		}
	}
	return out
}
