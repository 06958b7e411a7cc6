package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
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
	adopted bool            // of an earlier workerd
	ctx     context.Context // ends with the process
	cancel  context.CancelFunc
	wg      sync.WaitGroup // its goroutines

	started   time.Time
	restarts  int // of its seat when it was executed
	connected bool
	readyAt   time.Time
	lanes     []*lane
	cause     cause  // why workerd ends it; "" while it does not
	reason    string // for people
	stopping  bool   // SIGTERM or SIGKILL is under way
	timers    []*time.Timer
	progress  *protocol.Progress
	silent    bool // busy, and not answering ping

	exited chan struct{} // closed when the process has ended
	gone   chan struct{} // closed when exit is complete
	exit   *protocol.Exit

	peer     atomic.Int32  // pid of who listens on the worker's socket, as this host has it
	numbers  atomic.Uint64 // requests and pings towards this worker
	complain func(what string, line []byte)

	busy int // lanes with a request; guarded by pool.mu
}

// number returns the next number for a request or ping; they never repeat for a worker.
func (f *life) number() uint64 { return f.numbers.Add(1) }

// newLife executes a worker. The process is watched from here on; nothing has been dialled yet.
func newLife(p *provider, n int64, s *spec, restarts int) (*life, error) {
	f := makeLife(p, n, s)
	f.restarts = restarts
	if s.plan.Engine != "" {
		f.beginLater()
		return f, nil
	}
	b, err := f.exec()
	if err != nil {
		f.cancel()
		if f.paths.tmp != "" {
			_ = execenv.RemoveTmp(f.paths.tmp)
		}
		return nil, err
	}
	f.begin(b)
	return f, nil
}

func makeLife(p *provider, n int64, s *spec) *life {
	f := &life{
		p: p, n: n, id: fmt.Sprintf("%s/%d", p.slug, n), spec: s,
		started: time.Now(),
		exited:  make(chan struct{}), gone: make(chan struct{}),
	}
	f.ctx, f.cancel = context.WithCancel(context.Background()) // ends with the process, whatever ends workerd
	f.complain = limitedComplaints(p.log.With(keyWorker, f.id))
	return f
}

// begin watches the worker and shakes hands with it.
func (f *life) begin(b body) {
	f.body = b
	f.wg.Go(func() { f.watch(b) })
	f.wg.Go(f.handshake)
}

// beginLater starts the worker's container apart from the provider's goroutine: an engine takes its time. What ends the life
// meanwhile ends the start.
func (f *life) beginLater() {
	f.wg.Go(func() {
		b, err := f.runContainer()
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

// runContainer makes the worker's places and has the engine start it.
func (f *life) runContainer() (body, error) {
	e, err := f.p.sup.engineOf(f.spec.plan)
	if err != nil {
		return nil, err
	}
	if f.paths, err = f.p.sup.places(f.p.slug, f.n); err != nil {
		return nil, err
	}
	log, err := f.paths.open()
	if err != nil {
		return nil, err
	}
	_ = log.Close() // the output stays with the engine until the end
	cmd, err := f.p.sup.cfg.Planner.Command(f.spec.plan, execenv.WorkerParams{N: f.n, Socket: f.paths.socket, Tmp: f.paths.tmp})
	if err != nil {
		return nil, err
	}
	name := execenv.ContainerName(f.p.sup.cfg.Instance, f.p.slug, f.n)
	return runContainer(f.ctx, e, f.spec.plan.Kind, name, f.p.sup.cfg.Instance, cmd, f.paths.log, f.p.sup.children)
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
	close(f.exited)
	f.cancel()
	_ = os.Remove(f.paths.socket) // a forked child may hold the listener: no path leads to it any more
	_ = os.Remove(r.file())
	e := b.settle()
	if f.spec.plan.Kind == manifest.Apptainer && e.code > 0 {
		e = containerEnded(e.code)
	}
	f.p.post(func() { f.p.onExit(f, e) })
}

// record describes the worker for a later workerd.
func (f *life) record(b body) *record {
	boot, _ := execenv.BootID()
	r := &record{
		Version: recordVersion, Instance: f.p.sup.cfg.Instance, BootID: boot, Slug: f.p.slug, N: f.n, Run: f.spec.run,
		Socket: f.paths.socket, Tmp: f.paths.tmp, Log: f.paths.log, Started: f.started.UTC(), Restarts: f.restarts,
	}
	b.enter(r)
	return r
}

// exec makes the worker's places and executes it.
func (f *life) exec() (b body, err error) {
	if f.paths, err = f.p.sup.places(f.p.slug, f.n); err != nil {
		return nil, err
	}
	log, err := f.paths.open()
	if err != nil {
		return nil, err
	}
	defer func() { _ = log.Close() }()
	cmd, err := f.p.sup.cfg.Planner.Command(f.spec.plan, execenv.WorkerParams{N: f.n, Socket: f.paths.socket, Tmp: f.paths.tmp})
	if err != nil {
		return nil, err
	}
	proc, err := launch(cmd, log, f.p.sup.children)
	if err != nil {
		return nil, execenv.Diagnose(cmd, err)
	}
	return &processBody{proc, f.marker()}, nil
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

// handshake connects to the new worker and reports its state; a failure ends the worker.
func (f *life) handshake() {
	conn, init, err := f.connect(f.ctx)
	if err != nil {
		if f.ctx.Err() == nil {
			f.killFor(err)
		}
		return
	}
	l := newLane(f, conn)
	f.wg.Add(1)
	f.p.post(func() { f.p.onConnected(f, l, init) })
	l.serve()
}

// killFor ends a worker whose handshake went wrong.
func (f *life) killFor(err error) {
	c := causeConnection
	if isProtocolMismatch(err) {
		c = causePermanent
	}
	f.kill(c, err.Error())
}

// addLanes opens the further connections that concurrency allows; each takes requests as soon as it is there.
func (f *life) addLanes(from int) {
	for range f.spec.manifest.Serve.Concurrency - from {
		f.wg.Go(func() {
			conn, init, err := f.connect(f.ctx)
			if err != nil {
				if f.ctx.Err() == nil {
					f.killFor(err)
				}
				return
			}
			l := newLane(f, conn)
			f.wg.Add(1)
			f.p.post(func() { f.p.onLane(f, l, init) })
			l.serve()
		})
	}
}

// connect dials the worker's socket until it accepts, and says initialize. It ends with ctx. The wait between two tries
// grows to 50 ms: a worker binds its socket when its interpreter is up, and no event would tell of listen(2).
//
// A connection that ends before initialize is answered is tried again: its worker may be dying, which its pidfd is to say.
func (f *life) connect(ctx context.Context) (*protocol.Conn, *protocol.InitializeResult, error) {
	wait := time.Millisecond
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		uc, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: f.paths.socket, Net: "unix"})
		if err == nil {
			var conn *protocol.Conn
			var init *protocol.InitializeResult
			conn, init, err = f.initialize(ctx, uc)
			if _, lost := errors.AsType[*lostError](err); !lost {
				return conn, init, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("the worker does not accept on its socket: %w", err)
		case <-timer.C:
			wait = min(wait*3/2, 50*time.Millisecond)
			timer.Reset(wait)
		}
	}
}

// initialize performs the handshake of one connection.
func (f *life) initialize(ctx context.Context, uc *net.UnixConn) (*protocol.Conn, *protocol.InitializeResult, error) {
	if authorize := f.p.sup.cfg.AuthorizeWorker; authorize != nil {
		if err := authorize(uc); err != nil {
			_ = uc.Close()
			return nil, nil, err
		}
	}
	f.peer.CompareAndSwap(0, peerPID(uc))
	serve := f.spec.manifest.Serve
	conn := protocol.NewConn(uc, int(serve.MaxMessage))
	id := f.number()
	answer, err := exchange(ctx, conn, initializeLine(id, serve.Concurrency, int64(serve.MaxMessage)))
	if err != nil {
		_ = conn.Close()
		return nil, nil, &lostError{err}
	}
	init, err := parseInitialize(answer, id)
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, init, nil
}

// signal asks or makes the worker end. One that is still being started is not started any more.
func (f *life) signal(sig syscall.Signal) {
	if f.body == nil {
		f.cancel()
		return
	}
	f.body.signal(sig)
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
	if init.State == protocol.StateReady {
		f.becameReady(l)
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
	for _, t := range f.timers {
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
