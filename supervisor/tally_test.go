package supervisor

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// Each request is counted once, by what it was answered.
func TestAnswersAreCounted(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	r.state("echo", "ready")
	c := r.dial("echo")
	for range 3 {
		require.Nil(t, c.call("echo", `{}`).Error)
	}
	require.Nil(t, c.call("sleep", `{"sec":0.03}`).Error)
	require.NotNil(t, c.call("raw", `{"raw":"{\"jsonrpc\":\"2.0\",\"id\":$ID,\"error\":{\"code\":1,\"message\":\"no\"}}\n"}`).Error)
	require.Equal(t, protocol.WorkerCrashed, c.call("crash", `{}`).kind())
	require.Equal(t, protocol.DeadlineExceeded, c.call("sleep", `{"sec":5,"_meta":{"timeoutMs":20}}`).kind())
	require.Nil(t, c.call("workerd.ping", `{}`).Error)
	c.send("{")
	require.Equal(t, protocol.ParseError, c.next().kind())

	a := r.sup.Answers()["echo"]
	require.EqualValues(t, 4, a.Results)
	require.EqualValues(t, 1, a.Errors)
	require.Equal(t, map[protocol.Kind]uint64{protocol.WorkerCrashed: 1, protocol.DeadlineExceeded: 1, protocol.ParseError: 1}, a.Refused)
	all := uint64(0)
	for _, n := range a.Within {
		all += n
	}
	require.EqualValues(t, 5, all, "what no worker answered has no duration: %v", a.Within)
	require.Greater(t, a.Seconds, 0.03)
}

func TestAnswersAreSortedByDuration(t *testing.T) {
	var ta tally
	for _, d := range []time.Duration{0, time.Millisecond, time.Millisecond + 1, time.Hour} {
		ta.answered(true, d)
	}
	a := ta.read()
	require.EqualValues(t, []uint64{2, 1, 1}, []uint64{a.Within[0], a.Within[1], a.Within[len(AnswerBounds)]})
	require.InDelta(t, 3600.002, a.Seconds, 1e-6)
}
