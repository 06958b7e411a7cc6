package supervisor

import (
	"context"
	"time"

	"workerd/manifest"
)

// Check returns when the supervisor's own goroutine has answered, also while it stops; or with ctx's error. One that does not
// answer hangs. Providers are not asked: what one of them waits for, say a file system, is no fault of the others.
func (s *Supervisor) Check(ctx context.Context) error {
	answered := make(chan struct{})
	select {
	case s.checks <- answered:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-answered:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// checked answers a Check: what the goroutine needs, the list of providers, can be had.
func (s *Supervisor) checked(answered chan struct{}) {
	s.all()
	close(answered)
}

const (
	// stopMargin is what a stop takes at most beyond the workers' own time: engines that answer late, answers on their way out.
	stopMargin = time.Minute
	// endless stands for the time of a stop that is not bounded.
	endless = 365 * 24 * time.Hour
)

// stopTime is how long a set's workers may take to stop.
func stopTime(set *manifest.Set) time.Duration {
	var longest time.Duration
	for i := range set.Entries {
		m := set.Entries[i].Manifest
		if m == nil {
			continue
		}
		d := m.Start.StopTimeout.D()
		if d <= 0 {
			return endless
		}
		longest = max(longest, d)
	}
	return longest
}

// StopWithin returns how long a stop can take at most: the longest stop_timeout of any manifest that was ever in force, since the
// last good one of a broken manifest is still, and what comes after it.
func (s *Supervisor) StopWithin() time.Duration {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.longest + stopMargin
}
