package supervisor

import (
	"context"
	"log/slog"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"workerd/execenv"
	"workerd/manifest"
	"workerd/protocol"
)

// spec is a version of a provider: what its workers are run with.
type spec struct {
	manifest *manifest.Manifest
	plan     *execenv.Plan
	run      string // what a running worker can see of it: another value needs another worker
	schemas  *schemas
	faults   *regexp.Regexp // what tells that a worker has lost its GPU; nil: nothing
}

// provider is the goroutine that owns one provider's workers. All fields below inbox belong to it.
type provider struct {
	sup   *Supervisor
	slug  string
	log   *slog.Logger
	pool  *pool
	front *front
	tally tally

	inbox    chan func()
	poke     chan struct{}   // somebody waits and workers are missing
	done     chan struct{}   // closed when run has returned
	ctx      context.Context // of plans; close ends it, so that a plan that was given up is never taken for one that failed
	cancel   context.CancelFunc
	snapshot atomic.Pointer[protocol.ProviderStatus]
	lives    sync.WaitGroup // lives and their sweeps

	preparing preparation // guards itself

	file     string             // the manifest's path
	manifest *manifest.Manifest // the newest valid one: keys that apply live are read from it
	spec     *spec              // what new workers run; nil before the first plan
	warnings []string
	invalid  []protocol.ManifestError // the manifest on disk is invalid
	rejected []protocol.ManifestError // the version on disk did not become ready
	planErr  error                    // no plan could be made of it
	newest   *manifest.Manifest       // the newest valid one that was taken in, planned or not
	notes    []string                 // its warnings
	ending   int                      // leftovers of an earlier workerd that are being ended
	planning int                      // number of the newest planning; older results are dropped
	replans  int                      // tries of the newest plan that failed for a passing reason
	pulling  string                   // the pull under way, in words
	planDone int                      // the newest planning that has ended
	applied  [32]byte                 // hash of the newest manifest taken in
	stamp    string                   // of the files beside it
	booting  bool                     // waits at the gate, or has passed it
	gated    bool                     // holds a place in the gate

	left     []*record // workers of an earlier workerd, until the first plan
	adopting bool      // it is being found out which of them go on: nothing is started meanwhile
	wanted   int       // the seats that are to be started then
	workers  []*worker // seats, a standby, leaving ones and a candidate
	roll     *roll
	hist     history
	// Of the standby: its own endings, and whether restart.policy wants no new one until the next start.
	standbyHist history
	rests       bool
	executions  int             // of processes for seats
	failure     *protocol.Error // why it is failed; nil: it is not
	failed      *protocol.Exit
	refused     *protocol.Error // why the newest start got no GPU; nil: it got one, or needed none
	gpuFaults   int             // workers that were replaced since they had lost their GPU
	gpuWarning  string          // a worker takes more memory of it than is declared
	held        bool            // stopped by the operator
	closing     closing
	lastExit    *protocol.Exit
	deaths      int // processes that ended unasked, for operations that wait
	idle        *time.Timer
	waiters     []*waiter
	rollErr     error
}

// worker is one seat of a provider: the place of one worker, whatever process fills it.
type worker struct {
	state     State
	reason    string
	since     time.Time
	life      *life // nil while there is no process
	restarts  int
	lastExit  *protocol.Exit
	timer     *time.Timer // of backoff
	retryAt   time.Time
	again     bool // draining: start anew when gone
	leaving   bool // draining: the seat goes with it
	standby   bool // gets no requests until it takes over
	takenAt   int  // provider.executions when a standby took its seat over
	candidate bool // the next version, beside the one that it is to replace
	noGPU     bool // in backoff, since no device was to be had
	meek      bool // started though nobody waits for it: no other worker has to make room
}

func newProvider(s *Supervisor, slug string) *provider {
	p := &provider{
		sup: s, slug: slug,
		log:   s.log.With(keyProvider, slug),
		inbox: make(chan func(), 64),
		poke:  make(chan struct{}, 1),
		done:  make(chan struct{}),
	}
	p.ctx, p.cancel = context.WithCancel(context.Background())
	p.pool = newPool(slug, p.demand)
	p.held = s.stops.held(slug)
	if p.held {
		p.refuseHeld()
	}
	return p
}

// run is the provider's goroutine. It returns when the provider was closed and nothing of it is left.
func (p *provider) run() {
	defer close(p.done)
	for {
		select {
		case f := <-p.inbox:
			f()
		case <-p.poke:
			p.onDemand()
		}
		p.settle()
		if p.closing != open && !p.anyProcess() {
			break
		}
	}
	p.finish()
}

// finish ends what is left when the last worker is gone: connections close after their last answer, then the socket goes.
func (p *provider) finish() {
	p.disarmIdle()
	p.settle()
	p.front.close(p.closing == removed)
	// Goroutines of past lives may still want to post; they are waited for while the inbox is served.
	gone := make(chan struct{})
	go func() { p.lives.Wait(); close(gone) }()
	for {
		select {
		case f := <-p.inbox:
			f()
		case <-p.poke:
		case <-gone:
			for _, w := range p.waiters {
				w.done(errClosed(p.closing))
			}
			return
		}
	}
}

// post hands f to the provider's goroutine. It must not be called from it.
func (p *provider) post(f func()) {
	select {
	case p.inbox <- f:
	case <-p.done:
	}
}

// postAsync is post for callers who might be the provider's goroutine itself.
func (p *provider) postAsync(f func()) {
	select {
	case p.inbox <- f:
	default:
		go p.post(f)
	}
}

// ask runs f on the provider's goroutine and waits for it.
func (p *provider) ask(ctx context.Context, f func()) error {
	ran := make(chan struct{})
	select {
	case p.inbox <- func() { f(); close(ran) }:
	case <-p.done:
		return errClosed(removed)
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-ran:
		return nil
	case <-p.done:
		return errClosed(removed)
	}
}

// demand is the pool's word that requests wait and workers are missing.
func (p *provider) demand() {
	select {
	case p.poke <- struct{}{}:
	default:
	}
}

// onDemand starts workers for waiting requests.
func (p *provider) onDemand() {
	if !p.mayRun() || p.failure != nil {
		return
	}
	l := p.pool.load()
	if !l.runnable {
		return
	}
	c := max(p.manifest.Serve.Concurrency, 1)
	p.hurry("a request waits")
	p.startSeats(min((l.running+l.waiting+c-1)/c, p.manifest.Serve.Replicas), "a request waits", false)
}

// mayRun says whether workers may be started at all.
func (p *provider) mayRun() bool { return p.closing == open && !p.held && p.spec != nil }

// startSeats starts stopped seats until at least n have a process or are about to. meek: nobody waits for them.
func (p *provider) startSeats(n int, reason string, meek bool) {
	if p.adopting {
		p.wanted = max(p.wanted, n)
		return
	}
	up := 0
	for _, w := range p.seats() {
		if w.state != Stopped && w.state != Failed {
			up++
		}
	}
	for _, w := range p.seats() {
		if up >= n {
			return
		}
		if w.state == Stopped {
			w.meek = meek
			p.startWorker(w, reason)
			up++
		}
	}
}

// seats are the workers that count as replicas: not the leaving ones, not a standby or a candidate.
func (p *provider) seats() []*worker {
	out := make([]*worker, 0, len(p.workers))
	for _, w := range p.workers {
		if !w.leaving && !w.candidate && !w.standby {
			out = append(out, w)
		}
	}
	return out
}

// resize makes as many seats as replicas are wanted; surplus ones drain.
func (p *provider) resize() {
	seats := p.seats()
	for len(seats) < p.manifest.Serve.Replicas {
		w := &worker{state: Stopped, since: time.Now()}
		p.workers = append(p.workers, w)
		seats = append(seats, w)
	}
	for _, w := range surplus(seats, p.manifest.Serve.Replicas) {
		w.leaving, w.again = true, false
		p.drainWorker(w, "fewer replicas are wanted")
	}
	p.placeStandby()
	p.dropGone()
}

// dropGone forgets leaving workers that have no process any more.
func (p *provider) dropGone() {
	kept := p.workers[:0]
	for _, w := range p.workers {
		if !w.leaving || w.life != nil {
			kept = append(kept, w)
		}
	}
	for i := len(kept); i < len(p.workers); i++ {
		p.workers[i] = nil
	}
	p.workers = kept
}

func (p *provider) anyProcess() bool {
	for _, w := range p.workers {
		if w.life != nil {
			return true
		}
	}
	return false
}

// workerOf finds the seat that a process fills; nil where the process is no longer anybody's.
func (p *provider) workerOf(f *life) *worker {
	for _, w := range p.workers {
		if w.life == f {
			return w
		}
	}
	return nil
}

// move is the only place that changes a worker's state.
func (p *provider) move(w *worker, e Event, reason string) bool {
	to, ok := next(w.state, e)
	if !ok {
		p.log.Error("illegal transition", keyError, illegal(w.state, e), keyReason, reason)
		return false
	}
	from := w.state
	w.state, w.reason, w.since = to, reason, time.Now()
	if from == to && e != evRespawn {
		return true
	}
	id, pid := "", 0
	if w.life != nil {
		id, pid = w.life.id, w.life.pid()
	}
	p.log.Info("state", keyWorker, id, keyFrom, string(from), keyState, string(to), keyReason, reason, keyPID, pid)
	p.sup.events.publish(protocol.Event{
		Time: time.Now().UTC(), Type: "state", Provider: p.slug, Worker: id,
		From: string(from), State: string(to), Reason: reason,
	})
	return true
}

// settle runs after every event: operations that wait are looked at, waiting requests hear what they wait for, and the
// snapshot for readers is renewed.
func (p *provider) settle() {
	p.advanceRoll()
	p.advanceStandby()
	p.dropGone()
	phase, short := p.phase()
	p.pool.announce(phase, short)
	p.armIdle()
	p.publish() // before any operation returns: status must show what it did
	kept := p.waiters[:0]
	for _, w := range p.waiters {
		if err, over := w.over(); over {
			w.done(err)
		} else {
			kept = append(kept, w)
		}
	}
	clear(p.waiters[len(kept):])
	p.waiters = kept
}

// anyReady says whether a worker takes requests.
func (p *provider) anyReady() bool {
	for _, w := range p.workers {
		if w.state == Ready && !w.standby {
			return true
		}
	}
	return false
}
