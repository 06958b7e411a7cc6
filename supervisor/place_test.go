package supervisor

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/execenv/gpu"
)

const gib = 1 << 30

// cardOf is a card of so many GiB of which used are in use.
func cardOf(index int, total, used int64, more ...func(*gpu.Device)) gpu.Device {
	d := gpu.Device{
		Index: index, UUID: fmt.Sprintf("GPU-%d", index), Name: "Test", Vendor: gpu.NVIDIA,
		Total: total * gib, Used: used * gib, ProcessesKnown: true,
	}
	for _, f := range more {
		f(&d)
	}
	return d
}

func holdOf(id string, device string, memory, uses int64, more ...func(*hold)) hold {
	h := hold{id: id + "/1", slug: id, devices: []string{device}, memory: memory * gib, uses: map[string]int64{device: uses * gib}}
	for _, f := range more {
		f(&h)
	}
	return h
}

func idle(h *hold)   { h.idle = true }
func pinned(h *hold) { h.pinned = true }
func alone(h *hold)  { h.exclusive = true }
func casual(h *hold) { h.casual = true }
func usedBy(pid int, used int64) func(*gpu.Device) {
	return func(d *gpu.Device) { d.Processes = append(d.Processes, gpu.Process{PID: pid, Memory: used * gib}) }
}

func shared(memory int64, more ...func(*need)) need {
	n := need{slug: "new", policy: "shared", count: 1, memory: memory * gib}
	for _, f := range more {
		f(&n)
	}
	return n
}

func exclusive(n *need) { n.policy = "exclusive" }
func auto(n *need)      { n.policy = "auto" }
func on(devices ...string) func(*need) {
	return func(n *need) { n.devices = devices }
}
func several(c int) func(*need) { return func(n *need) { n.count = c } }

func TestPlace(t *testing.T) {
	split := func(d *gpu.Device) { d.Split = true }
	mig := func(card string) func(*gpu.Device) {
		return func(d *gpu.Device) { d.UUID, d.Card = "MIG-"+d.UUID, card }
	}
	blindTo := func(d *gpu.Device) { d.ProcessesKnown = false }
	for _, c := range []struct {
		name    string
		devices []gpu.Device
		holds   []hold
		need    need
		problem string
		books   func(*books)

		placed []string // nil: not placed
		leave  []string
		never  string
		held   []string
	}{
		{name: "auto without GPU", need: shared(0, auto), placed: []string{}},
		{name: "auto where nothing can be asked", need: shared(0, auto), problem: "NVML: mismatch", placed: []string{}},
		{name: "shared without GPU", need: shared(0), never: "no GPU can be used here: none is there"},
		{name: "shared where nothing can be asked", need: shared(0), problem: "NVML: mismatch", never: "no GPU can be used here: NVML: mismatch"},
		{name: "case 48: named devices where nothing can be asked", need: shared(8, on("GPU-7", "1")), problem: "NVML: mismatch", placed: []string{"GPU-7"}},
		{name: "best fit: the fullest that has room", devices: []gpu.Device{cardOf(0, 80, 0), cardOf(1, 24, 0), cardOf(2, 24, 20)}, need: shared(10), placed: []string{"GPU-1"}},
		{name: "unknown size: the emptiest", devices: []gpu.Device{cardOf(0, 24, 0), cardOf(1, 80, 0)}, holds: []hold{holdOf("a", "GPU-1", 10, 10)}, need: shared(0), placed: []string{"GPU-0"}},
		{name: "case 44: an index is resolved", devices: []gpu.Device{cardOf(0, 24, 0), cardOf(1, 24, 0)}, need: shared(1, on("1")), placed: []string{"GPU-1"}},
		{name: "a device that is not there", devices: []gpu.Device{cardOf(0, 24, 0)}, need: shared(1, on("3")), never: "gpu.devices: "},
		{name: "what is reserved and not used yet counts", devices: []gpu.Device{cardOf(0, 24, 2)}, holds: []hold{holdOf("a", "GPU-0", 20, 2)}, need: shared(10), held: []string{"a/1 (20 GiB)"}},
		{name: "what is used beyond the reservation counts", devices: []gpu.Device{cardOf(0, 24, 20)}, holds: []hold{holdOf("a", "GPU-0", 4, 20)}, need: shared(10), held: []string{"a/1 (20 GiB)"}},
		{name: "a stranger's memory counts and is named", devices: []gpu.Device{cardOf(0, 24, 20, usedBy(77, 20))}, need: shared(10), held: []string{"pid 77 on GPU 0 (GPU-0) (20 GiB)"}},
		{name: "a stranger's memory where it is not to count", devices: []gpu.Device{cardOf(0, 24, 20, usedBy(77, 20))}, need: shared(10),
			books: func(b *books) { b.external = false }, placed: []string{"GPU-0"}},
		{name: "what a dead worker left is named so", devices: []gpu.Device{cardOf(0, 24, 20, usedBy(77, 20))}, need: shared(10),
			books: func(b *books) { b.owners = map[int]string{77: "a/9"} }, held: []string{"pid 77 of a/9, which has ended, on GPU 0 (GPU-0) (20 GiB)"}},
		{name: "processes unknown: ours use what they reserved", devices: []gpu.Device{cardOf(0, 24, 10, blindTo)}, holds: []hold{holdOf("a", "GPU-0", 10, 0)}, need: shared(14), placed: []string{"GPU-0"}},
		{name: "processes unknown: more is used than ours reserved", devices: []gpu.Device{cardOf(0, 24, 16, blindTo)}, holds: []hold{holdOf("a", "GPU-0", 10, 0)}, need: shared(14), held: []string{"6 GiB on GPU 0 (GPU-0) of processes that cannot be told", "a/1 (10 GiB)"}},
		{name: "memory unknown: it is placed", devices: []gpu.Device{cardOf(0, 0, 0)}, need: shared(14), placed: []string{"GPU-0"}},
		{name: "larger than any", devices: []gpu.Device{cardOf(0, 24, 0), cardOf(1, 16, 0)}, need: shared(40), never: "1 GPU with 40 GiB needed, which none here has: GPU 0 (GPU-0) has 24 GiB in all, GPU 1 (GPU-1) has 16 GiB in all"},
		{name: "more than there are", devices: []gpu.Device{cardOf(0, 24, 0)}, need: shared(1, several(2)), never: "2 GPUs with 1 GiB each needed, which only 1 here can be: "},
		{name: "two", devices: []gpu.Device{cardOf(0, 24, 0), cardOf(1, 24, 20), cardOf(2, 24, 3)}, need: shared(10, several(2)), placed: []string{"GPU-2", "GPU-0"}},
		{name: "not two of different makers", devices: []gpu.Device{cardOf(0, 24, 0), cardOf(1, 24, 0, func(d *gpu.Device) { d.Vendor = gpu.AMD })}, need: shared(10, several(2)), held: nil},
		{name: "a card in MIG mode is none, its devices are", devices: []gpu.Device{cardOf(0, 80, 0, split), cardOf(0, 20, 0, mig("GPU-0"))}, need: shared(10), placed: []string{"MIG-GPU-0"}},
		{name: "a slice counts as itself", devices: []gpu.Device{cardOf(0, 80, 0, split), cardOf(0, 20, 0, mig("GPU-0"))}, need: shared(40), never: "1 GPU with 40 GiB needed, which none here has: GPU 0 (GPU-0) is divided by MIG, MIG-GPU-0 has 20 GiB in all"},
		{name: "not two slices", devices: []gpu.Device{cardOf(0, 20, 0, mig("GPU-0")), cardOf(1, 20, 0, mig("GPU-0"))}, need: shared(0, several(2)), never: "2 GPUs needed, which none here has: MIG-GPU-0 is a MIG device"},
		{name: "a sick card is left out", devices: []gpu.Device{cardOf(0, 24, 0, func(d *gpu.Device) { d.Ill = "lost" }), cardOf(1, 24, 0)}, need: shared(10), placed: []string{"GPU-1"}},
		{name: "a cordoned card is left out", devices: []gpu.Device{cardOf(0, 24, 0)}, need: shared(10), books: func(b *books) { b.cordoned = map[berth]string{{"GPU-0", ""}: "3 faults"} },
			never: "1 GPU with 10 GiB needed, which none here has: GPU 0 (GPU-0) is cordoned: 3 faults"},
		{name: "one that is cordoned for another provider is not", devices: []gpu.Device{cardOf(0, 24, 0)}, need: shared(10), books: func(b *books) { b.cordoned = map[berth]string{{"GPU-0", "other"}: "3 faults"} },
			placed: []string{"GPU-0"}},
		{name: "one that is cordoned for this one is", devices: []gpu.Device{cardOf(0, 24, 0)}, need: shared(10), books: func(b *books) { b.cordoned = map[berth]string{{"GPU-0", "new"}: "3 faults"} },
			never: "GPU 0 (GPU-0) is cordoned for this provider: 3 faults"},

		{name: "exclusive on an empty card", devices: []gpu.Device{cardOf(0, 24, 0), cardOf(1, 24, 0)}, holds: []hold{holdOf("a", "GPU-0", 1, 1)}, need: shared(0, exclusive), placed: []string{"GPU-1"}},
		{name: "exclusive beside another", devices: []gpu.Device{cardOf(0, 24, 1)}, holds: []hold{holdOf("a", "GPU-0", 1, 1, idle)}, need: shared(0, exclusive), leave: []string{"a/1"}, held: []string{"a/1 (1 GiB)"}},
		{name: "beside an exclusive one", devices: []gpu.Device{cardOf(0, 24, 1)}, holds: []hold{holdOf("a", "GPU-0", 1, 1, alone, pinned)}, need: shared(1), held: []string{"a/1 (1 GiB)"}},
		{name: "exclusive beside a stranger", devices: []gpu.Device{cardOf(0, 24, 1, usedBy(77, 1))}, need: shared(0, exclusive), held: []string{"pid 77 on GPU 0 (GPU-0) (1 GiB)"}},
		{name: "exclusive with a size beside a small stranger", devices: []gpu.Device{cardOf(0, 24, 1, usedBy(77, 1))}, need: shared(20, exclusive), placed: []string{"GPU-0"}},

		{name: "nobody said that a GPU is needed, and none is free", devices: []gpu.Device{cardOf(0, 24, 1)}, holds: []hold{holdOf("a", "GPU-0", 1, 1, alone)}, need: shared(0, auto), placed: []string{}},
		{name: "nobody said that a GPU is needed, and the only one is ill", devices: []gpu.Device{cardOf(0, 24, 1, func(d *gpu.Device) { d.Ill = "lost" })}, need: shared(0, auto), placed: []string{}},
		{name: "devices are named, and are ill", devices: []gpu.Device{cardOf(0, 24, 1, func(d *gpu.Device) { d.Ill = "lost" })}, need: shared(0, auto, on("0")), never: "is not sound: lost"},
		{name: "it was seen to need one", devices: []gpu.Device{cardOf(0, 24, 1)}, holds: []hold{holdOf("a", "GPU-0", 1, 1, alone)}, need: shared(2, auto), held: []string{"a/1 (1 GiB)"}},
		{name: "exclusive beside one that uses nothing and need not have it", devices: []gpu.Device{cardOf(0, 24, 0)}, holds: []hold{holdOf("a", "GPU-0", 0, 0, casual)}, need: shared(0, exclusive), placed: []string{"GPU-0"}},

		{name: "the one idle longest goes", devices: []gpu.Device{cardOf(0, 24, 20)},
			holds: []hold{
				holdOf("a", "GPU-0", 10, 10, idle, func(h *hold) { h.last = time.Unix(20, 0) }),
				holdOf("b", "GPU-0", 10, 10, idle, func(h *hold) { h.last = time.Unix(10, 0) }),
			}, need: shared(10), leave: []string{"b/1"}, held: []string{"a/1 (10 GiB)", "b/1 (10 GiB)"}},
		{name: "the one of less priority goes first", devices: []gpu.Device{cardOf(0, 24, 20)},
			holds: []hold{
				holdOf("a", "GPU-0", 10, 10, idle, func(h *hold) { h.last = time.Unix(20, 0) }),
				holdOf("b", "GPU-0", 10, 10, idle, func(h *hold) { h.last, h.priority = time.Unix(10, 0), 1 }),
			}, need: shared(10), leave: []string{"a/1"}, held: []string{"a/1 (10 GiB)", "b/1 (10 GiB)"}},
		{name: "a standby goes before all", devices: []gpu.Device{cardOf(0, 24, 20)},
			holds: []hold{
				holdOf("a", "GPU-0", 10, 10, idle),
				holdOf("b", "GPU-0", 10, 10, idle, func(h *hold) { h.priority, h.standby = 1, true }),
			}, need: shared(10), leave: []string{"b/1"}, held: []string{"a/1 (10 GiB)", "b/1 (10 GiB)"}},
		{name: "no more go than needed", devices: []gpu.Device{cardOf(0, 24, 22)},
			holds: []hold{
				holdOf("a", "GPU-0", 2, 2, idle, func(h *hold) { h.last = time.Unix(1, 0) }),
				holdOf("b", "GPU-0", 20, 20, idle, func(h *hold) { h.last = time.Unix(2, 0) }),
			}, need: shared(20), leave: []string{"b/1"}, held: []string{"a/1 (2 GiB)", "b/1 (20 GiB)"}},
		{name: "pinned ones stay", devices: []gpu.Device{cardOf(0, 24, 20)}, holds: []hold{holdOf("a", "GPU-0", 20, 20, idle, pinned)}, need: shared(10), held: []string{"a/1 (20 GiB)"}},
		{name: "of its own provider none goes", devices: []gpu.Device{cardOf(0, 24, 20)}, holds: []hold{holdOf("new", "GPU-0", 20, 20, idle)}, need: shared(10), held: []string{"new/1 (20 GiB)"}},
		{name: "nobody goes where that would not help", devices: []gpu.Device{cardOf(0, 24, 23, usedBy(77, 20))}, holds: []hold{holdOf("a", "GPU-0", 3, 3, idle)}, need: shared(10),
			held: []string{"a/1 (3 GiB)", "pid 77 on GPU 0 (GPU-0) (20 GiB)"}},
		{name: "what leaves is waited for", devices: []gpu.Device{cardOf(0, 24, 20)},
			holds: []hold{holdOf("a", "GPU-0", 10, 10, func(h *hold) { h.leaving = true }), holdOf("b", "GPU-0", 10, 10, idle)}, need: shared(10), held: []string{"a/1 (10 GiB)", "b/1 (10 GiB)"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := &books{snap: gpu.Snapshot{Devices: c.devices, Problem: c.problem}, external: true, holds: c.holds}
			if c.books != nil {
				c.books(b)
			}
			v := b.arrange([]applicant{{id: "new/2", need: c.need}})[0]
			assert.Equal(t, c.placed != nil, v.placed)
			if len(c.placed) > 0 {
				assert.Equal(t, c.placed, v.devices)
			}
			assert.Contains(t, v.never, c.never)
			assert.Equal(t, c.never == "", v.never == "", v.never)
			if !v.placed && c.never == "" {
				assert.Equal(t, c.held, v.held)
			}
			assert.ElementsMatch(t, c.leave, v.leave)
		})
	}
}

// Who waits in front keeps its place, and nobody is held up for nothing.
func TestArrange(t *testing.T) {
	card := []gpu.Device{cardOf(0, 24, 20)}
	holds := func() []hold {
		return []hold{holdOf("a", "GPU-0", 10, 10, idle), holdOf("b", "GPU-0", 10, 10)}
	}
	named := func(slug string, n need) applicant { n.slug = slug; return applicant{id: slug + "/9", need: n} }
	arrange := func(h []hold, apps ...applicant) []verdict {
		b := &books{snap: gpu.Snapshot{Devices: card}, external: true, holds: h}
		return b.arrange(apps)
	}

	v := arrange(holds(), named("c", shared(10)), named("d", shared(4)))
	assert.Equal(t, []string{"a/1"}, v[0].leave)
	assert.True(t, v[1].placed, "what is left beside the one in front is free for others")

	v = arrange(holds(), named("c", shared(12)), named("d", shared(4)))
	assert.Equal(t, []string{"a/1"}, v[0].leave)
	assert.False(t, v[1].placed, "it would take what the one in front needs besides")
	assert.Empty(t, v[1].leave)

	busy := []hold{holdOf("a", "GPU-0", 10, 10), holdOf("b", "GPU-0", 10, 10)}
	c := named("c", shared(10))
	v = arrange(busy, c)
	assert.Empty(t, v[0].leave, "a busy one is not disturbed")
	c.turn = true
	v = arrange(busy, c)
	assert.Len(t, v[0].leave, 1, "but when its turn has come, one has to finish and go")
	c.need.priority = -1
	v = arrange(busy, c)
	assert.Empty(t, v[0].leave, "unless it has a higher priority")

	meek := named("c", shared(10))
	meek.meek = true
	v = arrange(holds(), meek, named("d", shared(4)))
	assert.Empty(t, v[0].leave, "nobody waits for it, so nobody leaves for it")
	assert.True(t, v[1].placed)

	v = arrange(holds(), named("c", shared(0, exclusive)), named("d", shared(1)))
	assert.False(t, v[1].placed, "the one in front waits to have the card alone")
	v = arrange([]hold{holdOf("a", "GPU-0", 20, 20, alone)}, named("c", shared(0)), named("d", shared(0, exclusive)))
	assert.False(t, v[0].placed || v[1].placed)
}

// Random machines, workers and orders: no device is given more than it has, an exclusive worker is alone, the same books give the
// same verdicts, and everybody who could be placed on the empty machine is placed in the end.
func TestPlacementProperties(t *testing.T) {
	for seed := range uint64(400) {
		rng := rand.New(rand.NewPCG(seed, 7))
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			simulate(t, rng)
		})
	}
}

// Small ones come without end; a large one, and one that wants a card alone, are placed all the same.
func TestNobodyStarves(t *testing.T) {
	for _, large := range []need{shared(20), shared(1, exclusive)} {
		large.slug = "large"
		snap := gpu.Snapshot{Devices: []gpu.Device{cardOf(0, 24, 0)}}
		big := &simulated{applicant: applicant{id: "large/1", need: large}, busy: 3}
		var all, waiting []*simulated
		for round := 0; big.hold == nil; round++ {
			require.Less(t, round, 100, "%+v", large)
			n := shared(4)
			n.slug = fmt.Sprintf("p%d", round)
			small := &simulated{applicant: applicant{id: n.slug + "/1", need: n}, busy: 3}
			all, waiting = append(all, small), append(waiting, small)
			if round == 10 {
				all, waiting = append(all, big), append(waiting, big)
			}
			waiting = oneRound(t, rand.New(rand.NewPCG(1, 2)), snap, map[string]int64{}, all, waiting)
			for _, w := range all { // workers that stop by themselves
				if w.hold != nil && w.busy < -2 {
					w.hold = nil
				}
			}
		}
	}
}

// simulated is a worker of the simulation: it waits, then holds, is busy for some rounds, and is idle after that.
type simulated struct {
	applicant
	waited int
	busy   int
	done   bool
	uses   int64 // of its memory, so far
	hold   *hold
}

func simulate(t *testing.T, rng *rand.Rand) {
	var devices []gpu.Device
	stranger := map[string]int64{}
	for i := range 1 + rng.IntN(4) {
		d := cardOf(i, []int64{8, 16, 24, 80}[rng.IntN(4)], 0)
		stranger[d.UUID] = rng.Int64N(4) * gib
		devices = append(devices, d)
	}
	empty := gpu.Snapshot{Devices: devices}
	var all, waiting []*simulated
	for i := range 12 {
		n := need{
			slug: fmt.Sprintf("p%d", i), policy: []string{"shared", "shared", "shared", "exclusive"}[rng.IntN(4)],
			count: 1 + rng.IntN(2), memory: rng.Int64N(20) * gib, priority: rng.IntN(2),
		}
		if rng.IntN(4) == 0 {
			n.devices = []string{fmt.Sprint(rng.IntN(len(devices)))}
			n.count = 1
		}
		fresh := &books{snap: withUse(empty, nil, stranger), external: true}
		if !fresh.arrange([]applicant{{id: "x/1", need: n}})[0].placed {
			continue // not even on the empty machine
		}
		all = append(all, &simulated{applicant: applicant{id: fmt.Sprintf("p%d/1", i), need: n}, busy: 1 + rng.IntN(5)})
	}
	later := slices.Clone(all)
	for round := 0; len(later)+len(waiting) > 0; round++ {
		require.Less(t, round, 2000, "somebody waits for ever: %v", waiting)
		for len(later) > 0 && rng.IntN(2) == 0 {
			waiting, later = append(waiting, later[0]), later[1:]
		}
		waiting = oneRound(t, rng, empty, stranger, all, waiting)
	}
}

// oneRound is one round: verdicts are carried out, workers go on a little.
func oneRound(t *testing.T, rng *rand.Rand, empty gpu.Snapshot, stranger map[string]int64, all, waiting []*simulated) []*simulated {
	var apps []applicant
	for _, w := range waiting {
		w.turn = w.waited > 10
		apps = append(apps, w.applicant)
	}
	book := func() *books {
		b := &books{snap: withUse(empty, all, stranger), external: true}
		for _, w := range all {
			if w.hold != nil {
				w.hold.idle = w.busy <= 0
				b.holds = append(b.holds, *w.hold)
			}
		}
		return b
	}
	verdicts := book().arrange(apps)
	require.Equal(t, verdicts, book().arrange(apps), "the same books, the same verdicts")
	var still []*simulated
	for i, w := range waiting {
		v := verdicts[i]
		require.Empty(t, v.never)
		for _, id := range v.leave {
			byID(all, id).hold.leaving = true
		}
		if !v.placed {
			w.waited++
			still = append(still, w)
			continue
		}
		w.hold = &hold{id: w.id, slug: w.need.slug, devices: v.devices, memory: w.need.memory, exclusive: w.need.exclusive(), priority: w.need.priority, uses: map[string]int64{}}
	}
	checkGiven(t, empty, stranger, all)
	for _, w := range all {
		switch {
		case w.hold == nil:
		case w.hold.leaving && w.busy <= 0:
			w.hold, w.done = nil, true
		default:
			w.busy--
			w.uses = min(w.need.memory, w.uses+rng.Int64N(8)*gib)
			for _, d := range w.hold.devices {
				w.hold.uses[d] = w.uses
			}
		}
	}
	return still
}

func byID(all []*simulated, id string) *simulated {
	return all[slices.IndexFunc(all, func(w *simulated) bool { return w.id == id })]
}

func withUse(s gpu.Snapshot, all []*simulated, stranger map[string]int64) gpu.Snapshot {
	s.Devices = slices.Clone(s.Devices)
	for i := range s.Devices {
		d := &s.Devices[i]
		d.Used = stranger[d.UUID]
		for _, w := range all {
			if w.hold != nil && w.hold.on(d.UUID) {
				d.Used += w.uses
			}
		}
	}
	return s
}

func checkGiven(t *testing.T, s gpu.Snapshot, stranger map[string]int64, all []*simulated) {
	reserved, owners := maps.Clone(stranger), map[string][]*simulated{}
	for _, w := range all {
		if w.hold == nil {
			continue
		}
		require.Len(t, w.hold.devices, w.need.count)
		for _, d := range w.hold.devices {
			reserved[d] += w.need.memory
			owners[d] = append(owners[d], w)
		}
	}
	for _, d := range s.Devices {
		require.LessOrEqual(t, reserved[d.UUID], d.Total, "%s over its memory", d.UUID)
		for _, w := range owners[d.UUID] {
			require.True(t, !w.need.exclusive() || len(owners[d.UUID]) == 1, "%s is not alone on %s", w.id, d.UUID)
		}
	}
}
