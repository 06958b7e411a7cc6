package supervisor

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"workerd/execenv/gpu"
)

// Placement of workers on GPUs. All in this file is pure: the books of one moment go in, a verdict for each waiting worker comes
// out. gpus.go makes the books, and does what the verdicts say.

// need is what one worker is to be given.
type need struct {
	slug     string
	policy   string // auto, shared, exclusive
	count    int
	memory   int64    // bytes on each device, declared or learned; 0: not known
	devices  []string // only these, as the manifest names them
	priority int
}

func (n need) exclusive() bool { return n.policy == "exclusive" }

// casual says that nobody said, and nothing showed, that a GPU is needed at all: the manifest has the default policy, and no figure.
func (n need) casual() bool {
	return n.policy == "auto" && n.memory == 0 && n.count == 1 && len(n.devices) == 0
}

// hold is what a worker has, from its placement until nothing of it is left.
type hold struct {
	id        string // <slug>/<n>
	slug      string
	devices   []string // UUIDs
	memory    int64    // reserved on each; 0: nothing is known of what it takes
	exclusive bool
	uses      map[string]int64 // what it was seen to use, by UUID; -1: something, but how much cannot be told
	idle      bool             // nothing runs or waits for its provider
	standby   bool
	pinned    bool
	priority  int
	last      time.Time // when it was last busy
	leaving   bool      // it is on its way out: its memory is coming back
	casual    bool      // as need.casual, and it uses nothing: it is in nobody's way
}

// using is what a hold uses of a device now, as far as anybody can tell.
func (h *hold) using(uuid string) int64 {
	if u := h.uses[uuid]; u >= 0 {
		return u
	}
	return h.memory
}

// takes is what is to be left to a hold on a device, what it uses already included.
func (h *hold) takes(uuid string) int64 { return max(h.memory, h.using(uuid)) }

func (h *hold) on(uuid string) bool { return slices.Contains(h.devices, uuid) }

// berth is a device, for one provider or (slug "") for all.
type berth struct{ uuid, slug string }

// books is what is known at one moment.
type books struct {
	snap     gpu.Snapshot
	cordoned map[berth]string // why nothing, or nothing of one provider, is placed there
	external bool             // what others use counts (gpu_external_check)
	holds    []hold
	owners   map[int]string   // pid: the worker that it is of, be that alive or not
	claims   map[string]int64 // what those who wait in front are going to take of what is free, by UUID
	// shut are devices that somebody in front waits to have alone.
	shut map[string]bool
}

// verdict is what is to be done for one worker that waits.
type verdict struct {
	placed  bool     // on devices; none where policy auto finds no GPU, or none that is free
	devices []string // UUIDs; or as the manifest names them, where there is nobody to ask
	leave   []string // ids of workers that make room: when they are gone it fits
	never   string   // why it can never be placed on what is here; "": it waits
	held    []string // who stands in the way, in words
	// Where it will fit when those in gone are gone.
	target []string
	gone   map[string]bool
}

// applicant is a worker that waits for devices.
type applicant struct {
	id   string
	need need
	// meek: nobody waits for it, so nobody is made to leave for it.
	meek bool
	// turn: it has waited long enough to make workers leave that are busy; they finish what they run.
	turn bool
}

// arrange decides over all that wait, in the order in which they came. One that comes later is placed only where that does not put
// off one before it: so nobody waits for ever.
func (b *books) arrange(apps []applicant) []verdict {
	out := make([]verdict, len(apps))
	b.claims, b.shut = map[string]int64{}, map[string]bool{}
	for i, a := range apps {
		v := b.place(a.need)
		switch {
		case v.placed:
			b.holds = append(b.holds, hold{id: a.id, slug: a.need.slug, devices: v.devices, memory: a.need.memory, exclusive: a.need.exclusive()})
		case a.meek:
			v.leave = nil
		case v.target != nil:
			b.claim(a.need, &v)
			if !a.turn && slices.ContainsFunc(v.leave, func(id string) bool { return !b.hold(id).idle }) {
				v.leave = nil
			}
			for _, id := range v.leave {
				b.hold(id).leaving = true
			}
		}
		out[i] = v
	}
	return out
}

// claim keeps what a worker that waits is going to take, and does not get from those who leave for it, from later ones.
func (b *books) claim(n need, v *verdict) {
	for _, uuid := range v.target {
		d := b.device(uuid)
		b.shut[uuid] = b.shut[uuid] || n.exclusive()
		more := int64(0)
		if d.Total > 0 {
			more = max(n.memory-(b.free(d, v.gone)-b.free(d, nil)), 0)
		}
		b.claims[uuid] += more
	}
}

func (b *books) device(uuid string) *gpu.Device {
	i := slices.IndexFunc(b.snap.Devices, func(d gpu.Device) bool { return d.UUID == uuid })
	return &b.snap.Devices[i]
}

func (b *books) hold(id string) *hold {
	i := slices.IndexFunc(b.holds, func(h hold) bool { return h.id == id })
	return &b.holds[i]
}

const unlimited = math.MaxInt64

// free is how much can be allocated on a device when the holds in gone are gone. Where the memory of a device is not known, it is
// unlimited.
func (b *books) free(d *gpu.Device, gone map[string]bool) int64 {
	if d.Total <= 0 {
		return unlimited
	}
	var back, unfilled, gross int64
	for i := range b.holds {
		h := &b.holds[i]
		switch {
		case !h.on(d.UUID):
		case gone[h.id] && d.ProcessesKnown:
			back += h.using(d.UUID)
		case gone[h.id]:
			back += h.memory
		default:
			gross += h.takes(d.UUID)
			unfilled += h.takes(d.UUID) - h.using(d.UUID)
		}
	}
	used := max(d.Used-back, 0)
	switch {
	case !b.external:
		used = gross
	case !d.ProcessesKnown: // whose it is cannot be told: ours use what they reserved, as far as anything is used
		used = max(used, gross)
	default:
		used += unfilled
	}
	return d.Total - used - b.claims[d.UUID]
}

// strangers is what others use on a device, and which of their processes are known.
func (b *books) strangers(d *gpu.Device) (bytes int64, processes []gpu.Process) {
	if !b.external {
		return 0, nil
	}
	bytes = d.Used
	for i := range b.holds {
		if h := &b.holds[i]; d.ProcessesKnown {
			bytes -= h.using(d.UUID)
		} else if h.on(d.UUID) {
			bytes -= h.memory
		}
	}
	for _, p := range d.Processes {
		if id := b.owners[p.PID]; id == "" || !slices.ContainsFunc(b.holds, func(h hold) bool { return h.id == id }) {
			processes = append(processes, p)
		}
	}
	return max(bytes, 0), processes
}

// place finds devices for one worker.
func (b *books) place(n need) verdict {
	cards, never, blind := b.candidates(n)
	switch {
	case blind:
		return verdict{placed: true, devices: slices.Clone(n.devices[:min(n.count, len(n.devices))])}
	case never != "" && n.policy == "auto" && len(b.snap.Devices) == 0:
		return verdict{placed: true}
	case never != "" && n.casual():
		return verdict{placed: true, held: []string{never}}
	case never != "":
		return verdict{never: never}
	}
	if chosen := b.fit(n, cards, nil); chosen != nil {
		return verdict{placed: true, devices: chosen}
	}
	v := verdict{held: b.holders(n, cards)}
	if n.casual() { // a provider that may well need none must not wait for those who have a device alone
		v.placed = true
		return v
	}
	// What is leaving anyway is waited for before anybody else is asked to go.
	gone := map[string]bool{}
	for i := range b.holds {
		gone[b.holds[i].id] = b.holds[i].leaving
	}
	if v.target = b.fit(n, cards, gone); v.target != nil {
		v.gone = gone
		return v
	}
	for _, may := range []func(*hold) bool{
		func(h *hold) bool { return h.idle },
		func(h *hold) bool { return h.idle || h.priority <= n.priority },
	} {
		if v.leave = b.victims(n, cards, gone, may); v.leave != nil {
			for _, id := range v.leave {
				gone[id] = true
			}
			v.gone, v.target = gone, b.fit(n, cards, gone)
			return v
		}
	}
	return v
}

// candidates are the devices that a worker may be placed on, and where there are too few why it never will be. blind: nothing can
// be asked about the devices that it names, so it gets them as they are named.
func (b *books) candidates(n need) (cards []*gpu.Device, never string, blind bool) {
	if len(b.snap.Devices) == 0 {
		if len(n.devices) > 0 && b.snap.Problem != "" {
			return nil, "", true
		}
		return nil, "no GPU can be used here: " + cmp.Or(b.snap.Problem, "none is there"), false
	}
	var named []string
	for _, name := range n.devices {
		d, err := b.snap.Resolve(name)
		if err != nil {
			return nil, fmt.Sprintf("gpu.devices: %v", err), false
		}
		named = append(named, d.UUID)
	}
	var reasons []string
	enough := 0
	for i := range b.snap.Devices {
		d := &b.snap.Devices[i]
		if len(named) > 0 && !slices.Contains(named, d.UUID) {
			continue
		}
		if why := b.unfit(d, n); why != "" {
			reasons = append(reasons, deviceName(d)+" "+why)
			continue
		}
		cards = append(cards, d)
		if d.Total <= 0 || d.Total >= n.memory {
			enough++
		} else {
			reasons = append(reasons, fmt.Sprintf("%s has %s in all", deviceName(d), sizeWords(d.Total)))
		}
	}
	if enough < n.count {
		return nil, fmt.Sprintf("%s needed, which %s: %s", n.words(), haveWords(enough), strings.Join(reasons, ", ")), false
	}
	return cards, "", false
}

// unfit says why nothing, or nothing of this kind, is placed on a device.
func (b *books) unfit(d *gpu.Device, n need) string {
	switch {
	case d.Split:
		return "is divided by MIG"
	case d.Ill != "":
		return "is not sound: " + d.Ill
	case b.cordoned[berth{uuid: d.UUID}] != "":
		return "is cordoned: " + b.cordoned[berth{uuid: d.UUID}]
	case b.cordoned[berth{d.UUID, n.slug}] != "":
		return "is cordoned for this provider: " + b.cordoned[berth{d.UUID, n.slug}]
	case d.Card != "" && n.count > 1:
		return "is a MIG device, of which a process can use one only"
	}
	return ""
}

// fit chooses devices for a worker, as if the holds in gone were gone; nil where it does not fit. Of those where it fits it takes
// the fullest, so that large ones stay free for what needs them; where nothing is known of its memory, the emptiest.
func (b *books) fit(n need, cards []*gpu.Device, gone map[string]bool) []string {
	type option struct {
		d     *gpu.Device
		free  int64
		holds int
	}
	var options []option
	for _, d := range cards {
		free, holds, alone := b.free(d, gone), 0, false
		for i := range b.holds {
			if h := &b.holds[i]; h.on(d.UUID) && !gone[h.id] && !h.casual {
				holds++
				alone = alone || h.exclusive
			}
		}
		_, claimed := b.claims[d.UUID]
		if alone || b.shut[d.UUID] || free < n.memory || n.exclusive() && (holds > 0 || claimed) {
			continue
		}
		if _, others := b.strangers(d); n.exclusive() && n.memory == 0 && len(others) > 0 {
			continue
		}
		options = append(options, option{d, free, holds})
	}
	slices.SortStableFunc(options, func(x, y option) int {
		order := []int{cmp.Compare(x.free, y.free)}
		if n.memory == 0 && !n.exclusive() {
			order = []int{cmp.Compare(x.holds, y.holds), cmp.Compare(y.free, x.free)}
		}
		return cmp.Or(append(order, cmp.Compare(x.d.Index, y.d.Index), strings.Compare(x.d.UUID, y.d.UUID))...)
	})
	for _, vendor := range []gpu.Vendor{gpu.NVIDIA, gpu.AMD} { // a worker gets all of one kind
		var out []string
		for _, o := range options {
			if o.d.Vendor == vendor && len(out) < n.count {
				out = append(out, o.d.UUID)
			}
		}
		if len(out) == n.count {
			return out
		}
	}
	return nil
}

// victims are the workers that may be asked to go, as few as needed, so that n fits: standbys first, then by priority, then who
// was busy longest ago. nil: not even without all of them.
func (b *books) victims(n need, cards []*gpu.Device, gone map[string]bool, may func(*hold) bool) []string {
	var order []*hold
	for i := range b.holds {
		h := &b.holds[i]
		if !h.pinned && !h.leaving && !h.casual && may(h) && (h.slug != n.slug || h.standby) && slices.ContainsFunc(cards, func(d *gpu.Device) bool { return h.on(d.UUID) }) {
			order = append(order, h)
		}
	}
	slices.SortStableFunc(order, func(x, y *hold) int {
		return cmp.Or(compareBool(y.standby, x.standby), compareBool(y.idle, x.idle), cmp.Compare(x.priority, y.priority), x.last.Compare(y.last), strings.Compare(x.id, y.id))
	})
	without := map[string]bool{}
	for id, g := range gone {
		without[id] = g
	}
	out := []string{}
	for _, h := range order {
		without[h.id] = true
		out = append(out, h.id)
		if b.fit(n, cards, without) == nil {
			continue
		}
		for i := len(out) - 1; i >= 0; i-- { // who turned out to be on another device stays
			without[out[i]] = false
			if b.fit(n, cards, without) != nil {
				out = slices.Delete(out, i, i+1)
			} else {
				without[out[i]] = true
			}
		}
		return out
	}
	return nil
}

func compareBool(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return 1
	}
	return -1
}
