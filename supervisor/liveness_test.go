package supervisor

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

func TestCheckNoticesAHang(t *testing.T) {
	r := newRig(t)
	check := func(within time.Duration) error {
		ctx, cancel := context.WithTimeout(t.Context(), within)
		defer cancel()
		return r.sup.Check(ctx)
	}
	require.NoError(t, check(20*time.Second))
	r.sup.mu.Lock()
	err := check(50 * time.Millisecond)
	r.sup.mu.Unlock()
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, check(20*time.Second))
}

func TestStopTime(t *testing.T) {
	set := func(times ...time.Duration) *manifest.Set {
		s := &manifest.Set{Entries: []manifest.Entry{{}}} // a broken one
		for _, d := range times {
			m := new(manifest.Manifest)
			m.Start.StopTimeout = manifest.Duration(d)
			s.Entries = append(s.Entries, manifest.Entry{Manifest: m})
		}
		return s
	}
	require.Zero(t, stopTime(set()))
	require.Equal(t, 3*time.Minute, stopTime(set(time.Second, 3*time.Minute, time.Minute)))
	require.Equal(t, endless, stopTime(set(time.Second, 0)))
}

// A timer that has gone off is let go of: a worker's pings would fill the memory otherwise.
func TestTimersAreLetGo(t *testing.T) {
	p := &provider{inbox: make(chan func(), 1), done: make(chan struct{})}
	f := &life{p: p}
	p.workers = []*worker{{life: f}}
	f.after(time.Hour, func() {})
	ran := 0
	for range 3 {
		f.after(0, func() { ran++ })
		(<-p.inbox)()
	}
	require.Equal(t, 3, ran)
	require.Len(t, f.timers, 1)
	f.stopTimers()
	require.Empty(t, f.timers)
}
