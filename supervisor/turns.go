package supervisor

// turn is a connection's part in the line of those who wait: its own requests in the order in which they came. One of
// them runs, then it is the next connection's turn.
type turn struct {
	head, tail *request
	n          int
	held       bool // its client does not read: nothing more is run for it
	free       bool // it is not to be held any more: its connection is over
	links      [2]link
}

// link is a turn's place in one of the two chains.
type link struct {
	prev, next *turn
	in         bool
}

// The chains that a turn may be in.
const (
	inRound  = iota // those that have something to run, in the order in which they come to it
	ofLength        // those with as many requests waiting
)

// chain is a doubly linked list through the turns themselves: it allocates nothing.
type chain struct{ first, last *turn }

func (c *chain) pushBack(t *turn, k int) {
	t.links[k] = link{prev: c.last, in: true}
	if c.last != nil {
		c.last.links[k].next = t
	} else {
		c.first = t
	}
	c.last = t
}

func (c *chain) pushFront(t *turn, k int) {
	t.links[k] = link{next: c.first, in: true}
	if c.first != nil {
		c.first.links[k].prev = t
	} else {
		c.last = t
	}
	c.first = t
}

func (c *chain) remove(t *turn, k int) {
	l := t.links[k]
	if !l.in {
		return
	}
	if l.prev != nil {
		l.prev.links[k].next = l.next
	} else {
		c.first = l.next
	}
	if l.next != nil {
		l.next.links[k].prev = l.prev
	} else {
		c.last = l.prev
	}
	t.links[k] = link{}
}

// queue is the line of waiting requests: round robin by connection, first come first served within one. Whatever it does to
// a request takes the same time however many wait, but for place and each, which are for people. It is guarded by pool.mu.
type queue struct {
	waiting  int
	round    chain
	byLength []chain // by how many requests of a connection wait
	longest  int     // the last of byLength that is not empty
}

// push puts a request at the end of its connection's.
func (q *queue) push(r *request) {
	t := r.turn
	r.queued, r.prev, r.next = true, t.tail, nil
	if t.tail != nil {
		t.tail.next = r
	} else {
		t.head = r
	}
	t.tail = r
	q.grown(t, 1)
	if t.n == 1 && !t.held {
		q.round.pushBack(t, inRound)
	}
}

// pushFront puts a request back that had been taken out already: it runs before all others.
func (q *queue) pushFront(r *request) {
	t := r.turn
	r.queued, r.returned, r.prev, r.next = true, true, nil, t.head
	if t.head != nil {
		t.head.prev = r
	} else {
		t.tail = r
	}
	t.head = r
	q.grown(t, 1)
	if !t.held {
		q.round.remove(t, inRound)
		q.round.pushFront(t, inRound)
	}
}

// next is the request that is to run now; nil where none may.
func (q *queue) next() *request {
	if q.round.first == nil {
		return nil
	}
	return q.round.first.head
}

// pop takes next out. Its connection comes to the next one when all others had theirs.
func (q *queue) pop() *request {
	r := q.next()
	q.remove(r)
	if t := r.turn; t.n > 0 {
		q.round.remove(t, inRound)
		q.round.pushBack(t, inRound)
	}
	return r
}

// remove takes any waiting request out.
func (q *queue) remove(r *request) {
	t := r.turn
	if r.prev != nil {
		r.prev.next = r.next
	} else {
		t.head = r.next
	}
	if r.next != nil {
		r.next.prev = r.prev
	} else {
		t.tail = r.prev
	}
	r.prev, r.next, r.queued = nil, nil, false
	q.grown(t, -1)
	if t.n == 0 {
		q.round.remove(t, inRound)
	}
}

// grown counts one request more or one less.
func (q *queue) grown(t *turn, by int) {
	if t.n > 0 {
		q.byLength[t.n].remove(t, ofLength)
	}
	t.n += by
	q.waiting += by
	for len(q.byLength) <= t.n {
		q.byLength = append(q.byLength, chain{})
	}
	if t.n > 0 {
		q.byLength[t.n].pushBack(t, ofLength)
	}
	// The longest one changes by one at a time, so that this is no search.
	switch {
	case t.n > q.longest:
		q.longest = t.n
	case q.longest > 0 && q.byLength[q.longest].first == nil:
		q.longest--
	}
}

// hold leaves a connection's requests where they are, but lets none of them run until release.
func (q *queue) hold(t *turn) {
	t.held = true
	q.round.remove(t, inRound)
}

func (q *queue) release(t *turn) {
	if !t.held {
		return
	}
	t.held = false
	if t.n > 0 {
		q.round.pushBack(t, inRound)
	}
}

// crowding returns the request that is to make room for one of t's in a full queue: the newest of the connection that has
// the most waiting, if that has more than t would have then. So a connection that floods takes what others do not use, and
// no more. What has been with a worker already stays.
func (q *queue) crowding(t *turn) *request {
	if q.longest < t.n+2 {
		return nil
	}
	if r := q.byLength[q.longest].first.tail; !r.returned {
		return r
	}
	return nil
}

// place says how many requests run until r does, itself counted, if nobody comes or goes. Those that are held come last.
func (q *queue) place(r *request) int {
	before := 0 // of its own connection
	for x := r.prev; x != nil; x = x.prev {
		before++
	}
	if r.turn.held {
		return q.waiting - (r.turn.n - before) + 1
	}
	place, mine := before+1, false
	for t := q.round.first; t != nil; t = t.links[inRound].next {
		switch {
		case t == r.turn:
			mine = true
		case mine:
			place += min(t.n, before)
		default:
			place += min(t.n, before+1)
		}
	}
	return place
}

// all returns the waiting requests in the order in which they are to run, those that are held at the end.
func (q *queue) all() []*request {
	out := make([]*request, 0, q.waiting)
	var heads []*request
	for t := q.round.first; t != nil; t = t.links[inRound].next {
		heads = append(heads, t.head)
	}
	for len(heads) > 0 {
		left := heads[:0]
		for _, r := range heads {
			out = append(out, r)
			if r.next != nil {
				left = append(left, r.next)
			}
		}
		heads = left
	}
	for n := 1; len(out) < q.waiting && n <= q.longest; n++ {
		for t := q.byLength[n].first; t != nil; t = t.links[ofLength].next {
			for r := t.head; t.held && r != nil; r = r.next {
				out = append(out, r)
			}
		}
	}
	return out
}
