// Package gputest stands in for GPUs in tests: Fake is an inventory in memory, and Library a libnvidia-ml.so.1 that says
// what a Script tells it.
package gputest

import (
	"context"
	"slices"
	"sync"
	"time"

	"workerd/execenv/gpu"
)

// Fake is an inventory that says what it was told. It may be used and told concurrently.
type Fake struct {
	mu    sync.Mutex
	snap  gpu.Snapshot
	err   error
	asked int
}

var _ gpu.Inventory = (*Fake)(nil)

// Set makes s what is said from now on. A zero Time means the time of asking.
func (f *Fake) Set(s gpu.Snapshot) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snap, f.err = cloned(s), nil
}

// Update changes what is said from now on.
func (f *Fake) Update(change func(s *gpu.Snapshot)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.snap = cloned(f.snap)
	change(&f.snap)
}

// Fail makes every Snapshot fail with err, until Set or Fail(nil).
func (f *Fake) Fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = err
}

// Asked is how often there was a Snapshot.
func (f *Fake) Asked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.asked
}

// Snapshot implements gpu.Inventory.
func (f *Fake) Snapshot(ctx context.Context) (gpu.Snapshot, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked++
	if err := ctx.Err(); err != nil {
		return gpu.Snapshot{}, err
	}
	if f.err != nil {
		return gpu.Snapshot{}, f.err
	}
	s := cloned(f.snap)
	if s.Time.IsZero() {
		s.Time = time.Now()
	}
	return s, nil
}

// cloned shares nothing with s.
func cloned(s gpu.Snapshot) gpu.Snapshot {
	s.Devices, s.Hidden = slices.Clone(s.Devices), slices.Clone(s.Hidden)
	for _, list := range [][]gpu.Device{s.Devices, s.Hidden} {
		for i := range list {
			list[i].Processes = slices.Clone(list[i].Processes)
		}
	}
	return s
}
