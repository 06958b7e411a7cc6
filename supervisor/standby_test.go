package supervisor

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestDecideStandby(t *testing.T) {
	// wanted, one ready seat, nothing in the way
	well := func(s State, change ...func(*standbyFacts)) standbyFacts {
		f := standbyFacts{state: s, wanted: true, seats: []State{Ready}}
		for _, c := range change {
			c(&f)
		}
		return f
	}
	unwanted := func(f *standbyFacts) { f.wanted = false }
	stale := func(f *standbyFacts) { f.stale = true }
	rolling := func(f *standbyFacts) { f.rolling = true }
	crowded := func(f *standbyFacts) { f.crowded = true }
	rests := func(f *standbyFacts) { f.rests = true }
	seats := func(s ...State) func(*standbyFacts) { return func(f *standbyFacts) { f.seats = s } }
	tests := map[string]struct {
		f    standbyFacts
		want standbyStep
	}{
		"behind a ready worker":                      {well(Stopped), standbyRaise},
		"not behind one that loads":                  {well(Stopped, seats(Loading)), standbyKeep},
		"not behind one that starts":                 {well(Stopped, seats(Starting)), standbyKeep},
		"not while another waits for its restart":    {well(Stopped, seats(Ready, Backoff)), standbyKeep},
		"not while another drains":                   {well(Stopped, seats(Ready, Draining)), standbyKeep},
		"when some were never needed":                {well(Stopped, seats(Ready, Stopped)), standbyRaise},
		"when one of two has failed":                 {well(Stopped, seats(Ready, Failed)), standbyRaise},
		"not where nothing runs":                     {well(Stopped, seats(Stopped)), standbyKeep},
		"not in a change of version":                 {well(Stopped, rolling), standbyKeep},
		"not beside one that leaves":                 {well(Stopped, crowded), standbyKeep},
		"not after a death that restart.policy ends": {well(Stopped, rests), standbyKeep},
		"not unwanted":                               {well(Stopped, unwanted), standbyKeep},
		"a failed one is not tried again":            {well(Failed), standbyKeep},
		"a failed one that nobody wants":             {well(Failed, unwanted), standbyDismiss},
		"a ready one stays":                          {well(Ready), standbyKeep},
		"stays while its worker is restarted":        {well(Ready, seats(Starting)), standbyKeep},
		"stays while its worker waits for that":      {well(Ready, seats(Backoff)), standbyKeep},
		"stays beside one that leaves":               {well(Ready, crowded), standbyKeep},
		"stays after a death that nothing follows":   {well(Ready, rests), standbyKeep},
		"goes with the last worker":                  {well(Ready, seats(Stopped, Draining)), standbyDismiss},
		"goes when all have failed":                  {well(Ready, seats(Failed)), standbyDismiss},
		"goes when it is unwanted":                   {well(Ready, unwanted), standbyDismiss},
		"goes when it is stale":                      {well(Ready, stale), standbyDismiss},
		"stays while another version is tried":       {well(Ready, rolling), standbyKeep},
		"so does one that loads":                     {well(Loading, rolling), standbyKeep},
		"one that leaves is left alone":              {well(Draining, unwanted), standbyKeep},
	}
	for name, k := range tests {
		t.Run(name, func(t *testing.T) { require.Equal(t, k.want, decideStandby(k.f)) })
	}
}

// Every cell: in each state of the standby and of two seats, with each combination of facts, what is decided is an event that can
// happen in that state, is done when it was done once, and raises nothing beside something else.
func TestDecideStandbyEveryCell(t *testing.T) {
	cells := 0
	for _, s := range states {
		for _, a := range states {
			for _, b := range states {
				for bits := range 1 << 5 {
					f := standbyFacts{state: s, seats: []State{a, b},
						wanted: bits&1 != 0, stale: bits&2 != 0, rolling: bits&4 != 0, crowded: bits&8 != 0, rests: bits&16 != 0}
					cells++
					step := decideStandby(f)
					cell := fmt.Sprintf("%+v", f)
					switch step {
					case standbyRaise:
						to, ok := next(s, evStart)
						assert.True(t, ok && s == Stopped, cell)
						assert.True(t, f.wanted && !f.rolling && !f.crowded && !f.rests && (a == Ready || b == Ready), cell)
						f.state = to
						assert.Equal(t, standbyDismiss == decideStandby(f), f.stale, "raised and dismissed at once: %s", cell)
					case standbyDismiss:
						to, ok := next(s, evDrain)
						assert.True(t, ok, cell)
						f.state = to
						assert.NotEqual(t, standbyDismiss, decideStandby(f), cell)
					default:
						up := s == Starting || s == Loading || s == Ready || s == Backoff
						assert.False(t, up && (!f.wanted || f.stale), cell)
					}
				}
			}
		}
	}
	require.Equal(t, 7*7*7*32, cells)
}

// A dead worker leaves its place to the next standby with what its restart policy says; each is an event that can happen to a worker
// whose process is gone.
func TestCanTakeOverEveryState(t *testing.T) {
	want := map[State]bool{Starting: true, Loading: true, Ready: true}
	for _, s := range states {
		require.Equal(t, want[s], canTakeOver(s), s)
	}
	for _, dead := range []State{Starting, Loading, Ready} {
		for _, e := range []Event{evExited, evRetry, evFail} {
			_, ok := next(dead, e)
			require.True(t, ok, "%s --%s-->", dead, e)
		}
	}
}

func TestHeirs(t *testing.T) {
	serves := func(n int64) *record { return &record{N: n} }
	stands := func(n int64, mode string) *record { return &record{N: n, Standby: mode} }
	numbers := func(rs []*record) []int64 {
		out := []int64{}
		for _, r := range rs {
			out = append(out, r.N)
		}
		return out
	}
	tests := map[string]struct {
		left    []*record
		seats   int
		mode    string
		seated  []int64
		standby int64
		end     []int64
	}{
		"nothing":                            {nil, 1, "hot", []int64{}, 0, []int64{}},
		"who served keeps the seat":          {[]*record{stands(1, "hot"), serves(2)}, 1, "hot", []int64{2}, 1, []int64{}},
		"the standby takes an empty seat":    {[]*record{stands(1, "hot")}, 1, "hot", []int64{1}, 0, []int64{}},
		"a warm one too":                     {[]*record{stands(1, "warm")}, 1, "warm", []int64{1}, 0, []int64{}},
		"two seats":                          {[]*record{stands(1, "hot"), serves(2)}, 2, "hot", []int64{2, 1}, 0, []int64{}},
		"no standby is wanted any more":      {[]*record{stands(1, "hot"), serves(2)}, 1, "", []int64{2}, 0, []int64{1}},
		"another kind is wanted":             {[]*record{stands(1, "hot"), serves(2)}, 1, "warm", []int64{2}, 0, []int64{1}},
		"the other way round":                {[]*record{stands(1, "warm"), serves(2)}, 1, "hot", []int64{2}, 0, []int64{1}},
		"one too many that served stands by": {[]*record{serves(1), serves(2)}, 1, "hot", []int64{1}, 2, []int64{}},
		"but not as a warm one":              {[]*record{serves(1), serves(2)}, 1, "warm", []int64{1}, 0, []int64{2}},
		"one standby is enough":              {[]*record{serves(1), stands(2, "hot"), serves(3)}, 1, "hot", []int64{1}, 3, []int64{2}},
		"no seats":                           {[]*record{serves(1)}, 0, "", []int64{}, 0, []int64{1}},
	}
	for name, k := range tests {
		t.Run(name, func(t *testing.T) {
			seated, standby, end := heirs(k.left, k.seats, k.mode)
			require.Equal(t, k.seated, numbers(seated))
			require.Equal(t, k.end, numbers(end))
			if k.standby == 0 {
				require.Nil(t, standby)
			} else {
				require.Equal(t, k.standby, standby.N)
			}
		})
	}
}
