package gpu

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// lane runs calls that may never return, one at a time: while one hangs, no other is begun. A call that was given up goes on in
// its goroutine; what it leaves behind must be read only by later calls on the same lane.
type lane struct {
	name string

	mu    sync.Mutex
	ended chan struct{} // of the call begun last; nil before the first
	since time.Time     // when that one began
}

// hangs is the error of a call that did not end in time, or did not begin since an earlier one has not ended.
type hangs struct {
	name  string
	since time.Time
}

func (h *hangs) Error() string {
	return fmt.Sprintf("%s does not answer since %s", h.name, h.since.Format(time.TimeOnly))
}

// run returns nil when call has ended. The results of call are its own to keep: they may be read only then.
func (l *lane) run(ctx context.Context, call func()) error {
	l.mu.Lock()
	if l.busyLocked() {
		defer l.mu.Unlock()
		return &hangs{l.name, l.since}
	}
	ended := make(chan struct{})
	l.ended, l.since = ended, time.Now()
	err := &hangs{l.name, l.since}
	l.mu.Unlock()
	go func() {
		defer close(ended)
		call()
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return err
	}
}

func (l *lane) busyLocked() bool {
	if l.ended == nil {
		return false
	}
	select {
	case <-l.ended:
		return false
	default:
		return true
	}
}

// wait waits for the call in progress, if there is one.
func (l *lane) wait(ctx context.Context) error {
	l.mu.Lock()
	ended, since := l.ended, l.since
	l.mu.Unlock()
	if ended == nil {
		return nil
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return &hangs{l.name, since}
	}
}
