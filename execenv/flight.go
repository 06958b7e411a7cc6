package execenv

import (
	"context"
	"sync"
	"time"
)

// flight is one answer that many ask for: one of them finds it out, the others wait for it, and it holds for a while. The
// asker whose context ends takes nobody else's answer along: the next one finds it out anew.
type flight[T any] struct {
	turn chan struct{} // holds one token while somebody finds out; guards what follows

	val  T
	err  error
	till time.Time // zero: nothing is known
}

func newFlight[T any]() *flight[T] { return &flight[T]{turn: make(chan struct{}, 1)} }

// get returns the answer, or what find says. An answer holds for hold, an error for the shorter time errorHold.
func (f *flight[T]) get(ctx context.Context, hold time.Duration, find func(context.Context) (T, error)) (T, error) {
	select {
	case f.turn <- struct{}{}:
	case <-ctx.Done():
		var none T
		return none, context.Cause(ctx)
	}
	defer func() { <-f.turn }()
	if time.Now().Before(f.till) {
		return f.val, f.err
	}
	val, err := find(ctx)
	if ctx.Err() != nil {
		f.till = time.Time{}
		return val, err
	}
	if err != nil {
		hold = min(hold, errorHold)
	}
	f.val, f.err, f.till = val, err, time.Now().Add(hold)
	return val, err
}

// forget makes the next asker find out anew.
func (f *flight[T]) forget(ctx context.Context) {
	select {
	case f.turn <- struct{}{}:
		f.till = time.Time{}
		<-f.turn
	case <-ctx.Done():
	}
}

const (
	// engineHold is how long what an engine said of itself holds: its mode changes with a restart of its daemon at most.
	engineHold = 30 * time.Second
	// imageHold joins the questions of many providers for one image, and is short enough for a build beside.
	imageHold = 2 * time.Second
	// errorHold is short, so that an engine that is back is seen soon, and long enough that all who waited for one that
	// hangs get the same answer instead of a deadline each.
	errorHold = 2 * time.Second
)

// flights are the answers to one kind of question, by what is asked.
type flights[T any] struct {
	mu  sync.Mutex
	all map[string]*flight[T]
}

func (f *flights[T]) of(key string) *flight[T] {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.all == nil {
		f.all = map[string]*flight[T]{}
	}
	if f.all[key] == nil {
		f.all[key] = newFlight[T]()
	}
	return f.all[key]
}
