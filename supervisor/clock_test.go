package supervisor

import (
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// afterJump is t as it would read after somebody had set the clock by d: another wall time, the same monotonic one. Only the time
// package can make such a time, so this knows how it lays one out, and checks that.
func afterJump(t *testing.T, at time.Time, d time.Duration) time.Time {
	t.Helper()
	jumped := at
	wall := (*uint64)(unsafe.Pointer(&jumped)) // a bit, 33 bits of seconds, 30 of nanoseconds; then the monotonic reading
	require.NotZero(t, *wall>>63, "it has a monotonic reading")
	*wall += uint64(int64(d/time.Second)) << 30
	require.Zero(t, jumped.Sub(at), "by the monotonic clock no time has passed")
	require.Equal(t, at.Round(0).Add(d), jumped.Round(0))
	return jumped
}

// 66: a clock that is set changes neither what follows a crash nor after how long.
func TestCase66ClockJumps(t *testing.T) {
	begin := time.Now()
	brief := ending{cause: causeExit, code: 1, wasReady: true, readyFor: time.Second}
	type step struct {
		action action
		after  time.Duration
	}
	run := func(jump time.Duration) (steps []step) {
		h := history{}
		for n := range 12 { // far enough apart for some to leave the window of crashes
			now := begin.Add(time.Duration(n) * time.Minute)
			if n%2 == 1 {
				now = afterJump(t, now, jump)
			}
			var d decision
			d, h = decide(testPolicy, h, brief, now, 0.5)
			steps = append(steps, step{d.action, d.after})
		}
		return steps
	}
	calm := run(0)
	require.Contains(t, calm, step{actFail, 0}, "%v", calm)
	for _, jump := range []time.Duration{time.Hour, -time.Hour, 24 * 365 * time.Hour} {
		require.Equal(t, calm, run(jump), "%s", jump)
	}
}
