package supervisor

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"workerd/execenv"
	"workerd/manifest"
	"workerd/protocol"
)

// life is one process of a worker, from its exec to the day it and everything it forked are gone. The provider's goroutine
// owns it but for the fields marked otherwise.
type life struct {
	p       *provider
	n       int64
	id      string // <slug>/<n>
	spec    *spec
	body    body // nil until a container has been started
	paths   paths
	standby string          // the kind of standby that it was executed as: "hot", "warm"; "": none
	gpus    []string        // UUIDs of the devices that it was given, before it was executed
	nodes   []string        // their device nodes, of AMD cards
	indices []int           // their indices
	release func()          // gives them back; nil: there are none
	adopted bool            // of an earlier workerd
	ctx     context.Context // ends with the process
	cancel  context.CancelFunc
	wg      sync.WaitGroup // its goroutines

	started   time.Time
	restarts  int // of its seat when it was executed
	connected bool
	methods   []protocol.MethodInfo
	readyAt   time.Time
	lanes     []*lane
	cause     cause  // why workerd ends it; "" while it does not
	reason    string // for people
	stopping  bool   // SIGTERM or SIGKILL is under way
	timers    map[*time.Timer]bool
	progress  *protocol.Progress
	silent    bool // busy, and not answering ping
	waiting   bool // a warm standby that has preloaded
	waitingAt time.Time
	pinging   bool            // onHealth comes round
	stopClock bool            // the stop's limit is armed
	dead      bool            // the process has ended
	heir      *worker         // the standby that has taken its seat over when it died
	refused   *protocol.Error // why it was given no device
	waitsFor  string          // the devices that it waits for before it is executed, in words
	// startClock numbers the limits of the start: one that is not the newest means nothing.
	startClock int

	exited chan struct{} // closed when the process has ended
	gone   chan struct{} // closed when exit is complete
	exit   *protocol.Exit

	facts    atomic.Pointer[lifeFacts] // for placement
	looking  atomic.Bool               // its output is being looked through for a fault
	peer     atomic.Int32              // pid of who listens on the worker's socket, as this host has it
	numbers  atomic.Uint64             // requests and pings towards this worker
	complain func(what string, line []byte)
	omen     omen

	// Guarded by pool.mu.
	busy    int  // lanes with a request
	parked  bool // its lanes get no requests: it stands by
	resting bool // its lanes get none for a while
}

// number returns the next number for a request or ping; they never repeat for a worker.
func (f *life) number() uint64 { return f.numbers.Add(1) }

// beginning is how a life begins.
type beginning struct {
	restarts int    // of its seat
	standby  string // hot, warm; "": none
	tenant   *tenant
}

// newLife executes a worker. The process is watched from here on; nothing has been dialled yet. What has to wait, for a GPU or for
// a container's engine, is executed later.
func newLife(p *provider, n int64, s *spec, b beginning) (*life, error) {
	f := makeLife(p, n, s)
	f.standby, f.parked = b.standby, b.standby != ""
	f.restarts = b.restarts
	if s.plan.Engine != "" || b.tenant != nil {
		f.beginLater(b.tenant)
		return f, nil
	}
	err := f.makePlaces()
	if err == nil {
		var started body
		if started, err = f.exec(); err == nil {
			f.begin(started)
			return f, nil
		}
	}
	f.cancel()
	f.letGo()
	if f.paths.tmp != "" {
		_ = execenv.RemoveTmp(f.paths.tmp)
	}
	return nil, err
}

func makeLife(p *provider, n int64, s *spec) *life {
	f := &life{
		p: p, n: n, id: fmt.Sprintf("%s/%d", p.slug, n), spec: s,
		started: time.Now(),
		exited:  make(chan struct{}), gone: make(chan struct{}),
	}
	f.ctx, f.cancel = context.WithCancel(context.Background()) // ends with the process, whatever ends workerd
	f.complain = limitedComplaints(p.log.With(keyWorker, f.id))
	p.sup.living.add(f.id)
	return f
}

// letGo says that nothing is left of the worker: its devices are free.
func (f *life) letGo() {
	f.p.sup.living.remove(f.id)
	if f.release != nil {
		f.release()
	}
}

// begin watches the worker and shakes hands with it.
func (f *life) begin(b body) {
	f.body = b
	f.wg.Go(func() { f.watch(b) })
	f.wg.Go(f.handshake)
}

// beginLater starts the worker apart from the provider's goroutine: a GPU may have to be waited for, and an engine takes its time.
// What ends the life meanwhile ends the start.
func (f *life) beginLater(t *tenant) {
	f.wg.Go(func() {
		b, err := f.startLater(t)
		f.wg.Add(1) // until the provider has heard of it
		f.p.post(func() {
			defer f.wg.Done()
			if err != nil {
				f.p.onNotStarted(f, err)
			} else {
				f.p.onStarted(f, b)
			}
		})
	})
}

func (f *life) startLater(t *tenant) (body, error) {
	if err := f.makePlaces(); err != nil {
		return nil, err
	}
	if t != nil {
		t.life = f
		got, err := f.p.sup.gpus.acquire(f.ctx, t)
		if err != nil {
			return nil, err
		}
		f.holds(got)
	}
	if f.spec.plan.Engine == "" {
		return f.exec()
	}
	cmd, err := f.command()
	if err != nil {
		return nil, err
	}
	b, err := f.p.sup.runContainer(f.ctx, f.spec.plan, f.n, cmd, f.paths.log)
	if err != nil {
		return nil, err // not b, which would be a body that is nil
	}
	return b, nil
}

// holds notes which devices the worker has been given.
func (f *life) holds(g grant) {
	f.gpus, f.nodes, f.indices = g.devices, g.nodes, g.indices
	if len(g.devices) > 0 {
		f.release = func() { f.p.sup.gpus.tell(func() { f.p.sup.gpus.leave(f.id) }) }
	}
}

// makePlaces makes the worker's places and its log, to which a container's output comes at the end only.
func (f *life) makePlaces() (err error) {
	if f.paths, err = f.p.sup.places(f.p.slug, f.n); err != nil {
		return err
	}
	log, err := f.paths.open()
	if err != nil {
		return err
	}
	return log.Close()
}

// watch follows the worker to its end. The record lets a later workerd take over.
func (f *life) watch(b body) {
	r := f.record(b)
	if !f.adopted {
		if err := r.save(); err != nil {
			f.p.log.Warn("no record of the worker: a later workerd cannot adopt it", keyWorker, f.id, keyError, err)
		}
	}
	b.await()
	f.p.post(func() { f.p.onDead(f) })
	close(f.exited)
	f.cancel()
	_ = os.Remove(f.paths.socket) // a forked child may hold the listener: no path leads to it any more
	e := b.settle()
	_ = os.Remove(r.file()) // only now: by it the next workerd would find what the worker left, were this one killed meanwhile
	if f.spec.plan.Kind == manifest.Apptainer && e.code > 0 {
		oom := e.oom
		e = containerEnded(e.code)
		e.oom = oom
	}
	f.p.post(func() { f.p.onExit(f, e) })
}

// record describes the worker for a later workerd.
func (f *life) record(b body) *record {
	boot, _ := execenv.BootID()
	r := &record{
		Version: recordVersion, Instance: f.p.sup.cfg.Instance, BootID: boot, Slug: f.p.slug, N: f.n, Run: f.spec.run,
		Socket: f.paths.socket, Tmp: f.paths.tmp, Log: f.paths.log, Started: f.started.UTC(), Restarts: f.restarts,
		Standby: f.standby, GPUs: f.gpus,
	}
	if g := f.spec.manifest.GPU; len(f.gpus) > 0 {
		r.GPUPolicy, r.GPUMemory = g.Policy, int64(g.Memory)
	}
	b.enter(r)
	return r
}

// exec executes the worker.
func (f *life) exec() (b body, err error) {
	log, err := f.paths.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd, err := f.command()
	if err != nil {
		return nil, err
	}
	group := f.makeCgroup()
	proc, err := launch(cmd, log, group, f.p.sup.children)
	if err != nil && group != nil {
		group.Remove()
		if noCgroup(err) {
			f.p.log.Warn("the worker runs without its limits", keyWorker, f.id, keyError, err)
			group = nil
			proc, err = launch(cmd, log, nil, f.p.sup.children)
		}
	}
	if err != nil {
		return nil, execenv.Diagnose(cmd, err)
	}
	return &processBody{proc, f.marker(), group}, nil
}

// command makes the folders that the worker needs and that somebody may have removed meanwhile, and what to execute.
func (f *life) command() (execenv.Command, error) {
	planner := f.p.sup.cfg.Planner
	if err := planner.Prepare(f.spec.plan); err != nil {
		// It was all right when the plan was made: whatever it is (a file system that is away) may pass.
		return execenv.Command{}, &execenv.Error{Kind: execenv.Transient, Msg: "make the worker's folders", Err: err}
	}
	return planner.Command(f.spec.plan, execenv.WorkerParams{N: f.n, Socket: f.paths.socket, Tmp: f.paths.tmp, GPUs: f.gpus, Nodes: f.nodes, Indices: f.indices, Warm: f.standby == warm})
}

// pid is the worker's own process, 0 while there is none. In a container that is not the first one, which is an init or the
// engine's runner: it is the one that listens on the worker's socket.
func (f *life) pid() int {
	if f.body == nil {
		return 0
	}
	if peer := int(f.peer.Load()); peer > 0 && f.spec.plan.Kind != manifest.Venv {
		return peer
	}
	return f.body.pid()
}

// marker is the value of WORKERD_WORKER by which everything that the worker forks is known.
func (f *life) marker() string { return execenv.Marker(f.p.sup.cfg.Instance, f.p.slug, f.n) }

// signal asks or makes the worker end. One that is still being started is not started any more; of one that has ended, which
// whoever signals may not have heard yet, nothing is touched.
func (f *life) signal(sig syscall.Signal) {
	switch {
	case f.body == nil:
		f.cancel()
	case !isClosed(f.exited):
		f.body.signal(sig)
	}
}

// kill ends the worker's whole tree for a reason of workerd's. It may be called from any goroutine.
func (f *life) kill(c cause, reason string) {
	f.p.post(func() { f.p.onKill(f, c, reason) })
}

// drained tells the provider that a retired worker runs nothing any more. Called from lanes.
func (f *life) drained() {
	f.p.postAsync(func() { f.p.onDrained(f) })
}

// becameReady is called by a lane that read notifications/ready.
func (f *life) becameReady(l *lane) {
	f.p.post(func() { f.p.onReady(f, l) })
}

// reconnected puts a lane with a new connection to use, if the worker is free to run.
func (f *life) reconnected(l *lane, init *protocol.InitializeResult) {
	switch init.State {
	case protocol.StateReady:
		f.becameReady(l)
	case protocol.StatePreloaded:
		f.preloaded(l)
	}
}

// loadProgress passes a notification on that the worker sent while it loads.
func (f *life) loadProgress(line []byte) {
	var n struct {
		Params protocol.Progress `json:"params"`
	}
	if json.Unmarshal(line, &n) != nil {
		return
	}
	f.p.post(func() { f.p.onProgress(f, n.Params) })
}

// crashError is the answer to a request that died with the worker. Only after gone.
func (f *life) crashError() *protocol.Error {
	return protocol.Errorf(protocol.WorkerCrashed, "the worker ended with this request: %s", f.exit.Reason).
		WithDetail(f.exit).From(f.p.slug, f.id)
}

// stopTimers stops what was armed for this process.
func (f *life) stopTimers() {
	for t := range f.timers {
		t.Stop()
	}
	f.timers = nil
}

// limitedComplaints logs a worker's breaches of the protocol, at most one a second.
func limitedComplaints(log *slog.Logger) func(string, []byte) {
	var mu sync.Mutex
	var last time.Time
	var dropped int
	return func(what string, line []byte) {
		mu.Lock()
		defer mu.Unlock()
		if time.Since(last) < time.Second {
			dropped++
			return
		}
		log.Warn("the worker does not keep to the protocol", keyReason, what, "line", excerpt(line), "dropped", dropped)
		last, dropped = time.Now(), 0
	}
}

// excerpt is the start of a line, for people.
func excerpt(line []byte) string {
	const most = 200
	if len(line) <= most {
		return string(line)
	}
	return string(line[:most]) + "..."
}
