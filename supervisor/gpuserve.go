package supervisor

import (
	"fmt"
	"strings"
	"time"

	"workerd/protocol"
)

// serve decides over those that wait, and does what was decided.
func (g *gpus) serve(now time.Time) {
	g.uncordon(now)
	if len(g.waiting) == 0 {
		return
	}
	g.killRemains()
	apps := make([]applicant, len(g.waiting))
	for i, t := range g.waiting {
		wanted := !t.meek && !t.beside || t.life.p.pool.load().waiting > 0 && !t.beside
		apps[i] = applicant{id: t.life.id, need: t.need, meek: !wanted, turn: now.Sub(t.since) >= turnAfter}
	}
	verdicts := g.books(now).arrange(apps)
	still := g.waiting[:0:0]
	for i, t := range g.waiting {
		if v := verdicts[i]; !g.settle(t, v, now) {
			still = append(still, t)
			for _, id := range v.leave {
				g.evict(g.tenants[id], t)
			}
		}
	}
	g.waiting = still
}

// settle answers a worker that waits, if it is time to.
func (g *gpus) settle(t *tenant, v verdict, now time.Time) bool {
	waited := now.Sub(t.since)
	switch {
	case v.placed:
		t.hold = hold{id: t.life.id, slug: t.life.p.slug, devices: v.devices, memory: t.need.memory, exclusive: t.need.exclusive()}
		t.nodes, t.indices = g.describe(v.devices)
		if len(v.devices) > 0 {
			g.tenants[t.life.id] = t
		}
		g.log.Info("placed", keyWorker, t.life.id, "gpus", v.devices, "memory", t.need.memory, "waited", waited.Round(time.Millisecond).String())
		t.warn(v)
		t.answer <- grant{devices: v.devices, nodes: t.nodes, indices: t.indices}
	case v.never != "":
		t.answer <- grant{err: noGPU(t, v.never, nil)}
	case t.patience > 0 && waited >= t.patience:
		t.answer <- grant{err: noGPU(t, fmt.Sprintf("%s not free within %s: held by %s", t.need.words(), t.patience, heldWords(v.held)), v.held)}
	default:
		t.tell("waiting for GPU memory: held by " + heldWords(v.held))
		return false
	}
	return true
}

// describe returns the device nodes of the AMD cards among devices, and the index of each device.
func (g *gpus) describe(devices []string) (nodes []string, indices []int) {
	for _, uuid := range devices {
		index := -1
		for i := range g.snap.Devices {
			d := &g.snap.Devices[i]
			if d.UUID != uuid {
				continue
			}
			if d.Card == "" {
				index = d.Index
			}
			if d.Render != "" {
				nodes = append(nodes, d.Render)
			}
		}
		indices = append(indices, index)
	}
	return nodes, indices
}

// warn lets a provider's status say that its worker runs without a GPU since none was free.
func (t *tenant) warn(v verdict) {
	words := ""
	if len(v.devices) == 0 && len(v.held) > 0 {
		words = "gpu.policy: no GPU was free, so it runs without: " + heldWords(v.held) + `; "shared" waits for one, "none" needs none`
	}
	p := t.life.p
	p.postAsync(func() { p.gpuWarning = words })
}

// noGPU is the refusal of a worker.
func noGPU(t *tenant, reason string, held []string) error {
	detail := map[string]any{"count": t.need.count, "memory": t.need.memory, "policy": t.need.policy}
	if held != nil {
		detail["held"] = held
	}
	return protocol.Errorf(protocol.NoGPU, "%s", reason).WithDetail(detail).From(t.life.p.slug, "")
}

func heldWords(held []string) string {
	if len(held) == 0 {
		return "nobody that can be told"
	}
	return strings.Join(held, ", ")
}

// tell lets a worker's provider know what it waits for.
func (t *tenant) tell(words string) {
	if words == t.told {
		return
	}
	t.told = words
	f := t.life
	f.p.postAsync(func() { f.p.onWaits(f, words) })
}

// evict has a worker leave for another one. One that is busy finishes what it runs.
func (g *gpus) evict(t, for_ *tenant) {
	if t == nil || t.hold.leaving {
		return
	}
	t.hold.leaving = true
	f, reason := t.life, "evicted: its GPU memory is needed by "+for_.life.p.slug
	busy := time.Since(for_.since) >= turnAfter
	f.p.postAsync(func() {
		if !f.p.onEvict(f, reason, busy) {
			g.tell(func() { t.hold.leaving = false })
		}
	})
}
