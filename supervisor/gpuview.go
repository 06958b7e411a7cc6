package supervisor

import (
	"context"
	"math"
	"slices"
	"strings"

	"workerd/execenv"
	"workerd/execenv/gpu"
	"workerd/protocol"
)

// GPUs looks at the devices and describes them, who has them and who waits for one. Where that takes longer than ctx allows it is as
// of the last look.
func (s *Supervisor) GPUs(ctx context.Context) protocol.GPUs {
	looked := make(chan struct{})
	s.gpus.tell(func() { s.gpus.viewers = append(s.gpus.viewers, looked) })
	select {
	case <-looked:
	case <-s.gpus.done:
	case <-ctx.Done():
	}
	return s.KnownGPUs()
}

// KnownGPUs is GPUs as of the last look, without another one.
func (s *Supervisor) KnownGPUs() protocol.GPUs { return *s.gpus.view.Load() }

// show renews the view for readers.
func (g *gpus) show() {
	b := g.books(g.looked)
	v := &protocol.GPUs{
		Driver: g.snap.Driver, Source: g.snap.Source, Problem: g.snap.Problem, Time: g.snap.Time.UTC(),
		Devices: make([]protocol.GPUStatus, 0, len(g.snap.Devices)), Waiting: make([]protocol.GPUWait, 0, len(g.waiting)),
	}
	for i := range g.snap.Devices {
		v.Devices = append(v.Devices, g.deviceStatus(b, &g.snap.Devices[i]))
	}
	for _, t := range g.waiting {
		v.Waiting = append(v.Waiting, protocol.GPUWait{
			ID: t.life.id, Provider: t.life.p.slug, Count: t.need.count, MemoryBytes: t.need.memory, Since: t.since.UTC(), Reason: t.told,
		})
	}
	g.view.Store(v)
}

// cordonedFor says which providers are kept from a device that others may use.
func (b *books) cordonedFor(uuid string) string {
	var out []string
	for where, reason := range b.cordoned {
		if where.uuid == uuid && where.slug != "" {
			out = append(out, "cordoned for "+where.slug+": "+reason)
		}
	}
	slices.Sort(out)
	return strings.Join(out, "; ")
}

func (g *gpus) deviceStatus(b *books, d *gpu.Device) protocol.GPUStatus {
	s := protocol.GPUStatus{
		Index: d.Index, UUID: d.UUID, Name: d.Name, Vendor: string(d.Vendor), Card: d.Card, State: protocol.GPUUsable,
		TotalBytes: d.Total, UsedBytes: d.Used, Faults: len(g.faults[d.UUID]), Workers: []protocol.GPUWorker{}, Others: []protocol.GPUProcess{},
	}
	switch {
	case d.Split:
		s.State, s.Reason = protocol.GPUSplit, "in MIG mode: its MIG devices are used"
	case d.Ill != "":
		s.State, s.Reason = protocol.GPUIll, d.Ill
	case b.cordoned[berth{uuid: d.UUID}] != "":
		s.State, s.Reason = protocol.GPUCordoned, b.cordoned[berth{uuid: d.UUID}]
	default:
		s.Reason = b.cordonedFor(d.UUID)
	}
	if free := b.free(d, nil); free != math.MaxInt64 {
		s.FreeBytes = max(free, 0)
	}
	for i := range b.holds {
		h := &b.holds[i]
		if !h.on(d.UUID) {
			continue
		}
		s.ReservedBytes += h.takes(d.UUID)
		s.Workers = append(s.Workers, protocol.GPUWorker{
			ID: h.id, Provider: h.slug, ReservedBytes: h.memory, UsedBytes: h.uses[d.UUID], Exclusive: h.exclusive,
			Idle: h.idle, Standby: h.standby, Pinned: h.pinned, Priority: h.priority, Leaving: h.leaving,
		})
	}
	_, others := b.strangers(d)
	for _, p := range others {
		o := protocol.GPUProcess{PID: p.PID, UsedBytes: p.Memory, Worker: b.owners[p.PID]}
		if st, err := execenv.ReadStat(p.PID); err == nil {
			o.Name = st.Comm
		}
		s.Others = append(s.Others, o)
	}
	return s
}
