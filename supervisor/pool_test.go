package supervisor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A request that runs longer than idle_timeout, or waits so long, leaves the timer at rest: it goes off once in that time.
func TestIdleIn(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		load load
		want time.Duration
	}{
		{load{lastBusy: now}, time.Minute},
		{load{lastBusy: now.Add(-20 * time.Second)}, 40 * time.Second},
		{load{lastBusy: now.Add(-10 * time.Minute)}, 0},
		{load{lastBusy: now.Add(-10 * time.Minute), running: 1}, time.Minute},
		{load{lastBusy: now.Add(-10 * time.Minute), waiting: 1, runnable: true}, time.Minute},
		{load{lastBusy: now.Add(-10 * time.Minute), waiting: 1}, 0}, // its client does not read
	} {
		require.Equal(t, c.want, c.load.idleIn(time.Minute, now), "%+v", c.load)
	}
}
