package supervisor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Every cell of the table, written out a second time: a change of the machine has to be made twice, on purpose.
func TestStateMachineEveryCell(t *testing.T) {
	const no = State("")
	want := map[State]map[Event]State{
		//                   start           connected            ready           drain            exited           respawn            retry            fail
		Stopped:  {evStart: Starting, evConnected: no, evReady: no, evDrain: Stopped, evExited: no, evRespawn: no, evRetry: Backoff, evFail: Failed},
		Starting: {evStart: no, evConnected: Loading, evReady: Ready, evDrain: Draining, evExited: Stopped, evRespawn: Starting, evRetry: Backoff, evFail: Failed},
		Loading:  {evStart: no, evConnected: no, evReady: Ready, evDrain: Draining, evExited: Stopped, evRespawn: Starting, evRetry: Backoff, evFail: Failed},
		Ready:    {evStart: no, evConnected: no, evReady: no, evDrain: Draining, evExited: Stopped, evRespawn: Starting, evRetry: Backoff, evFail: Failed},
		Draining: {evStart: no, evConnected: no, evReady: no, evDrain: Draining, evExited: Stopped, evRespawn: Starting, evRetry: no, evFail: no},
		Backoff:  {evStart: Starting, evConnected: no, evReady: no, evDrain: Stopped, evExited: no, evRespawn: no, evRetry: Backoff, evFail: Failed},
		Failed:   {evStart: Starting, evConnected: no, evReady: no, evDrain: Stopped, evExited: no, evRespawn: no, evRetry: no, evFail: Failed},
	}
	require.Len(t, want, len(states))
	for _, s := range states {
		require.Len(t, want[s], len(events), "row %s", s)
		for _, e := range events {
			got, ok := next(s, e)
			assert.Equal(t, want[s][e], got, "%s --%s-->", s, e)
			assert.Equal(t, want[s][e] != no, ok, "%s --%s-->", s, e)
		}
	}
}

var testPolicy = policy{policy: "always", backoff: 200 * time.Millisecond, maxBackoff: time.Minute, maxCrashes: 5, window: 5 * time.Minute}

func TestDecide(t *testing.T) {
	now := time.Now()
	with := func(f func(*policy)) policy { p := testPolicy; f(&p); return p }
	never := with(func(p *policy) { p.policy = "never" })
	onFailure := with(func(p *policy) { p.policy = "on-failure" })
	unlimited := with(func(p *policy) { p.maxCrashes = 0 })
	at := func(ago ...time.Duration) history {
		h := history{streak: len(ago)}
		for _, a := range ago {
			h.crashes = append(h.crashes, now.Add(-a))
		}
		return h
	}
	stable := ending{cause: causeExit, wasReady: true, readyFor: time.Minute}
	brief := ending{cause: causeExit, wasReady: true, readyFor: time.Second}
	tests := map[string]struct {
		p    policy
		h    history
		e    ending
		want action
	}{
		"stable: at once":                   {testPolicy, history{}, stable, actRespawn},
		"stable after others: at once":      {testPolicy, at(time.Second, 2*time.Second), stable, actRespawn},
		"brief: after a delay":              {testPolicy, history{}, brief, actRetry},
		"exit 0 counts under always":        {testPolicy, at(1, 2, 3, 4), ending{cause: causeExit, code: 0, wasReady: true}, actFail},
		"fifth within the window":           {testPolicy, at(1, 2, 3, 4), brief, actFail},
		"old ones are out of the window":    {testPolicy, at(time.Hour, time.Hour, 1, 2, 3), brief, actRetry},
		"no limit":                          {unlimited, at(1, 2, 3, 4, 5, 6, 7, 8), brief, actRetry},
		"never":                             {never, history{}, stable, actStop},
		"on-failure, exit 0":                {onFailure, history{}, ending{cause: causeExit, code: 0, wasReady: true}, actStop},
		"on-failure, exit 1":                {onFailure, history{}, ending{cause: causeExit, code: 1, wasReady: true, readyFor: time.Hour}, actRespawn},
		"on-failure, signal":                {onFailure, history{}, ending{cause: causeExit, code: -1, wasReady: true}, actRetry},
		"asked":                             {testPolicy, history{}, ending{cause: causeAsked}, actStop},
		"permanent":                         {testPolicy, history{}, ending{cause: causePermanent}, actFail},
		"127 before ready":                  {testPolicy, history{}, ending{cause: causeExit, code: 127}, actFail},
		"127 after ready is like any other": {testPolicy, history{}, ending{cause: causeExit, code: 127, wasReady: true}, actRetry},
		"deadline kill is not counted":      {testPolicy, at(1, 2, 3, 4), ending{cause: causeDeadline, wasReady: true}, actRespawn},
		"ping is counted":                   {testPolicy, at(1, 2, 3, 4), ending{cause: causePing, wasReady: true, readyFor: time.Hour}, actFail},
		"start timeout is counted":          {testPolicy, at(1, 2, 3, 4), ending{cause: causeStartTimeout}, actFail},
		"the same failure five times, slowly": {testPolicy, history{streak: 4, same: 4, signature: "x"},
			ending{cause: causeExit, code: 1, signature: "x"}, actFail},
		"another failure": {testPolicy, history{streak: 4, same: 4, signature: "x"}, ending{cause: causeExit, code: 1, signature: "y"}, actRetry},
	}
	for name, k := range tests {
		t.Run(name, func(t *testing.T) {
			d, _ := decide(k.p, k.h, k.e, now, 0.5)
			require.Equal(t, k.want, d.action, "%+v", d)
		})
	}
}

// 66: delays grow, are capped, and a stable run resets them.
func TestCase66Delays(t *testing.T) {
	p := testPolicy
	p.maxCrashes = 0
	now, h := time.Now(), history{}
	last := time.Duration(0)
	for i := range 20 {
		var d decision
		d, h = decide(p, h, ending{cause: causeExit, code: 1, signature: string(rune('a' + i))}, now, float64(i%2))
		require.Equal(t, actRetry, d.action)
		require.LessOrEqual(t, d.after, p.maxBackoff)
		if last < p.maxBackoff*3/4 {
			require.Greater(t, d.after, last)
		}
		last = d.after
	}
	require.Greater(t, last, 40*time.Second)
	d, h := decide(p, h, ending{cause: causeExit, wasReady: true, readyFor: time.Minute}, now, 0)
	require.Equal(t, actRespawn, d.action)
	d, _ = decide(p, h, ending{cause: causeExit, code: 1, signature: "z"}, now, 0)
	require.Equal(t, p.backoff, d.after)
}

// decide changes nothing of the history that it is given.
func TestDecideIsPure(t *testing.T) {
	now := time.Now()
	h := history{crashes: []time.Time{now.Add(-time.Hour), now}, streak: 1, signature: "s", same: 1}
	_, n := decide(testPolicy, h, ending{cause: causeExit, code: 1, signature: "s"}, now, 0)
	require.Equal(t, history{crashes: []time.Time{now.Add(-time.Hour), now}, streak: 1, signature: "s", same: 1}, h)
	require.Len(t, n.crashes, 2)
	require.Equal(t, 2, n.same)
}
