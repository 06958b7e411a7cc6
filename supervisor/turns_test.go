package supervisor

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// waitingOf makes a queue with requests in it: one letter names a connection, each occurrence one request of it.
func waitingOf(order string) (*queue, map[rune]*turn, map[*request]string) {
	q, turns, names := &queue{}, map[rune]*turn{}, map[*request]string{}
	for _, c := range order {
		if turns[c] == nil {
			turns[c] = &turn{}
		}
		r := &request{turn: turns[c]}
		names[r] = fmt.Sprintf("%c%d", c, turns[c].n+1)
		q.push(r)
	}
	return q, turns, names
}

func drain(q *queue, names map[*request]string) string {
	var out []string
	for q.next() != nil {
		out = append(out, names[q.pop()])
	}
	return fmt.Sprint(out)
}

func TestTurns(t *testing.T) {
	for _, c := range []struct{ arrive, run string }{
		{"", "[]"},
		{"a", "[a1]"},
		{"aaa", "[a1 a2 a3]"},
		{"aaaab", "[a1 b1 a2 a3 a4]"},
		{"aaabbc", "[a1 b1 c1 a2 b2 a3]"},
		{"abab", "[a1 b1 a2 b2]"},
	} {
		q, _, names := waitingOf(c.arrive)
		require.Equal(t, c.run, drain(q, names), c.arrive)
	}
}

// A connection that has just had its turn and asks again comes after all others that wait.
func TestTurnsGoOn(t *testing.T) {
	q, turns, names := waitingOf("aab")
	require.Equal(t, "a1", names[q.pop()])
	again := &request{turn: turns['b']}
	names[again] = "b2"
	q.push(again)
	require.Equal(t, "[b1 a2 b2]", drain(q, names))
}

func TestTurnsGivenBack(t *testing.T) {
	q, _, names := waitingOf("aabb")
	first, second := q.pop(), q.pop()
	q.pushFront(second)
	q.pushFront(first)
	require.Equal(t, "[a1 b1 a2 b2]", drain(q, names), "what was not read runs first, each connection's in its order")
}

func TestTurnsHeld(t *testing.T) {
	q, turns, names := waitingOf("aabb")
	q.hold(turns['a'])
	late := &request{turn: turns['a']}
	names[late] = "a3"
	q.push(late)
	require.Equal(t, 3+2, q.place(late))
	require.Equal(t, "[b1 b2]", drain(q, names))
	require.Equal(t, 3, q.waiting)
	q.release(turns['a'])
	require.Equal(t, "[a1 a2 a3]", drain(q, names))
}

// Who has the most waiting makes room, while that is more than the newcomer would have.
func TestCrowding(t *testing.T) {
	for _, c := range []struct {
		waiting  string
		newcomer rune
		out      string
	}{
		{"aaaa", 'b', "a4"},
		{"aaab", 'b', "a3"},
		{"aabb", 'b', ""},
		{"aabb", 'c', "a2"},
		{"abcd", 'e', ""},
		{"aaaa", 'a', ""},
		{"aaab", 'a', ""},
		{"aaabbbb", 'c', "b4"},
	} {
		q, turns, names := waitingOf(c.waiting)
		if turns[c.newcomer] == nil {
			turns[c.newcomer] = &turn{}
		}
		require.Equal(t, c.out, names[q.crowding(turns[c.newcomer])], "%s, then %c", c.waiting, c.newcomer)
	}
	q, _, _ := waitingOf("aa")
	first, second := q.pop(), q.pop()
	q.pushFront(second)
	q.pushFront(first)
	require.Nil(t, q.crowding(&turn{}), "what has been with a worker may have run")
}

// Whatever comes, goes, is given back or held: places are those in which requests then run, all is in that order, and the
// counts hold.
func TestTurnsAtRandom(t *testing.T) {
	for seed := range uint64(50) {
		rnd := rand.New(rand.NewPCG(seed, 4))
		q, turns := &queue{}, make([]turn, 1+rnd.IntN(6))
		var waiting, taken []*request
		for range 120 {
			at := &turns[rnd.IntN(len(turns))]
			switch op := rnd.IntN(10); {
			case op < 5:
				r := &request{turn: at}
				q.push(r)
				waiting = append(waiting, r)
			case op < 7 && q.next() != nil:
				r := q.pop()
				waiting = slices.DeleteFunc(waiting, func(x *request) bool { return x == r })
				taken = append(taken, r)
			case op == 7 && len(waiting) > 0:
				i := rnd.IntN(len(waiting))
				q.remove(waiting[i])
				waiting = slices.Delete(waiting, i, i+1)
			case op == 8 && len(taken) > 0:
				r := taken[len(taken)-1]
				taken = taken[:len(taken)-1]
				q.pushFront(r)
				waiting = append(waiting, r)
			case op == 9 && at.held:
				q.release(at)
			case op == 9:
				q.hold(at)
			}
			longest := 0
			for i := range turns {
				longest = max(longest, turns[i].n)
			}
			if longest != q.longest {
				t.Fatalf("seed %d: longest is %d, not %d", seed, q.longest, longest)
			}
		}
		require.Equal(t, len(waiting), q.waiting, "seed %d", seed)
		want := q.all()
		require.ElementsMatch(t, waiting, want)
		places := map[*request]int{}
		for _, r := range waiting {
			places[r] = q.place(r)
		}
		i := 0
		for q.next() != nil {
			r := q.pop()
			require.Same(t, want[i], r, "seed %d", seed)
			i++
			require.Equal(t, i, places[r], "seed %d", seed)
		}
		for ; i < len(want); i++ {
			require.True(t, want[i].turn.held)
		}
	}
}

// What is done to a request for each that comes allocates nothing, however many wait.
func TestTurnsAllocateNothing(t *testing.T) {
	q, turns, _ := waitingOf("aaaabbbc")
	r := &request{turn: turns['b']}
	require.Zero(t, testing.AllocsPerRun(100, func() {
		q.push(r)
		q.crowding(turns['c'])
		q.remove(r)
		q.pushFront(q.pop())
	}))
}
