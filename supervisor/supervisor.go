package supervisor

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"

	"workerd/execenv"
	"workerd/execenv/gpu"
	"workerd/manifest"
)

// Config is what a Supervisor needs.
type Config struct {
	RuntimeDir string // sockets; absolute, 0700
	StateDir   string // logs, operator stops, the counter of worker numbers
	Instance   string // execenv.InstanceID
	Planner    *execenv.Planner
	Children   *execenv.Children
	// Cgroups is the delegated cgroup below which each worker that is a process of the host gets one of its own; nil: none.
	Cgroups *execenv.Cgroups
	Log     *slog.Logger

	// Doorman lets clients in as serve.allow says; nil: whoever gets at a front socket, which is the caller, is let in.
	Doorman Doorman
	// AuthorizeWorker says why the peer of a worker connection is refused; nil: nobody is.
	AuthorizeWorker func(*net.UnixConn) error

	// Listeners makes the front sockets; by default they end with this process.
	Listeners Listeners

	// GPUs lists the devices that workers are placed on; nil: there are none.
	GPUs gpu.Inventory
	// IgnoreStrangers makes placement count only what our own workers use of a device (gpu_external_check = false).
	IgnoreStrangers bool

	// Rescan makes the watcher read the directories again and returns what they say. Reload calls it.
	Rescan func(context.Context) (*manifest.Set, error)
	// Follow is told the files beside the manifests whose change matters.
	Follow func(files []string)
	// LogMaxSize is the size in bytes at which a running worker's log is rotated, 0 for never; LogMaxFiles how many earlier parts of a
	// log, and how many logs of earlier workers, are kept for each provider.
	LogMaxSize  int64
	LogMaxFiles int
	// ContainerTTL is how long the container of a failed worker is kept where its manifest asks for that.
	ContainerTTL time.Duration
	// Now and then the front sockets are looked at: one that was deleted comes back. Default 5 s.
	CheckSockets time.Duration
}

// Supervisor runs the providers that the newest set of manifests declares.
type Supervisor struct {
	cfg      Config
	log      *slog.Logger
	events   *broadcaster
	stops    *stops
	numbers  *numbers
	children *execenv.Children
	gate     chan struct{} // places for boots under way

	rotations rotations // of the logs of workers

	ctx      context.Context // of boots, and of what looks for leftovers; ends when workerd is told to stop
	cancel   context.CancelFunc
	clients  context.Context // of front connections; ends when all providers have ended
	hangUp   context.CancelFunc
	killed   chan struct{}
	killOnce sync.Once
	checks   chan chan struct{} // see Check

	apply     sync.Mutex        // one reconcile at a time; guards leftovers and unserved
	leftovers []*record         // workers of an earlier workerd that no provider has claimed yet
	unserved  []*manifest.Entry // those whose front socket could not be made
	reaped    map[string]bool   // engines that were asked for leftovers
	recorded  map[string]bool   // <slug>/<n> of all leftovers with a record; fixed before the first Apply
	first     int64             // the first worker number of this life

	passage passage

	mu        sync.RWMutex // guards what follows
	providers map[string]*provider
	listed    []*manifest.Entry // entries without a provider
	set       *manifest.Set
	longest   time.Duration // see StopWithin
	ending    bool
	staying   bool // at the end of this process listeners and paths of the front sockets stay, for the next one

	gpus   *gpus
	living living
	strays strays
	wg     sync.WaitGroup // providers
}

// New makes a Supervisor, and the state directory where it is missing. It starts nothing.
func New(cfg Config) (*Supervisor, error) {
	if cfg.CheckSockets <= 0 {
		cfg.CheckSockets = 5 * time.Second
	}
	if cfg.Listeners == nil {
		cfg.Listeners = ownListeners{}
	}
	if err := os.MkdirAll(cfg.StateDir, 0o700); err != nil {
		return nil, fmt.Errorf("state directory: %w", err)
	}
	n, err := openNumbers(filepath.Join(cfg.StateDir, "numbers-"+cfg.Instance), filepath.Join(cfg.StateDir, "logs"), cfg.Log)
	if err != nil {
		return nil, err
	}
	s := &Supervisor{
		cfg: cfg, log: cfg.Log, events: newBroadcaster(), numbers: n, children: cfg.Children,
		stops:  &stops{dir: filepath.Join(cfg.StateDir, "stops"), log: cfg.Log},
		gate:   make(chan struct{}, max(4, 2*runtime.NumCPU())),
		reaped: map[string]bool{}, recorded: map[string]bool{}, first: n.peek(),
		providers: map[string]*provider{}, killed: make(chan struct{}), checks: make(chan chan struct{}),
	}
	s.gpus = newGPUs(s)
	s.passage = passage{dirs: []string{cfg.RuntimeDir, filepath.Join(cfg.RuntimeDir, "front")}}
	s.ctx, s.cancel = context.WithCancel(context.Background()) // Run ends it
	s.clients, s.hangUp = context.WithCancel(context.Background())
	return s, nil
}

// Run serves until ctx ends, then stops every worker and returns when all are gone. Sets arrive by Apply at any time.
func (s *Supervisor) Run(ctx context.Context) error {
	check := time.NewTicker(s.cfg.CheckSockets)
	defer check.Stop()
	go s.gpus.run(s.clients)
	defer func() { <-s.gpus.done }()
	for {
		select {
		case <-check.C:
			s.rotateLogs()
			for _, p := range s.all() {
				if err := p.front.restore(); err != nil {
					p.log.Error("front socket", keyError, err)
				}
			}
			s.serveUnserved()
		case answered := <-s.checks:
			s.checked(answered)
		case <-ctx.Done():
			return s.shutdown()
		}
	}
}

// stays says whether front sockets outlive this process.
func (s *Supervisor) stays() bool {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.staying
}

// settleApply waits for a reconcile under way; later ones see that it is over.
func (s *Supervisor) settleApply() {
	s.apply.Lock()
	defer s.apply.Unlock()
	if len(s.unserved) > 0 { // their leftovers have waited for a front socket
		s.unserved = nil
		s.endUnclaimed()
	}
}

// Kill makes a Run that is stopping, or is told to stop later, kill every worker instead of waiting for it.
func (s *Supervisor) Kill() {
	s.killOnce.Do(func() { close(s.killed) })
}

// shutdown stops all workers in parallel.
func (s *Supervisor) shutdown() error {
	s.mu.Lock()
	s.ending = true
	s.mu.Unlock()
	s.settleApply()
	s.cancel() // nothing more is booted; providers are not closed yet, and must not mind
	providers := s.all()
	if s.cfg.Listeners.Stay() {
		s.mu.Lock()
		s.staying = true
		s.mu.Unlock()
		for _, p := range providers {
			p.front.pause()
		}
	}
	for _, p := range providers {
		p.postAsync(func() { p.close(shutdown) })
	}
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		s.wg.Wait()
		s.reapLast()
		s.endLastMonitors()
		s.sweepSockets(filepath.Join(s.cfg.RuntimeDir, "w")) // of workers that no record told of
	}()
	killed := s.killed
	for {
		select {
		case <-gone:
			s.hangUp()
			return nil
		case answered := <-s.checks:
			s.checked(answered)
		case <-killed:
			killed = nil
			for _, p := range providers {
				p.postAsync(p.closeNow)
			}
		}
	}
}

// Apply brings a set of manifests into force: new providers start, edited ones change as they say, missing ones end. It returns
// when every provider has been told, not when workers are ready.
func (s *Supervisor) Apply(set *manifest.Set) {
	s.apply.Lock()
	defer s.apply.Unlock()
	s.applyLocked(set)
}

// applyLocked is Apply for who holds the lock of it.
func (s *Supervisor) applyLocked(set *manifest.Set) {
	s.mu.Lock()
	if s.ending {
		s.mu.Unlock()
		return
	}
	first := s.set == nil
	s.set = set
	s.longest = max(s.longest, stopTime(set))
	running := make([]string, 0, len(s.providers))
	for slug := range s.providers {
		running = append(running, slug)
	}
	s.mu.Unlock()
	slices.Sort(running)
	steps, listed := reconcile(set, running)
	s.mu.Lock()
	s.listed = listed
	s.mu.Unlock()
	s.unserved = nil
	for _, st := range steps {
		s.take(st)
	}
	s.endUnclaimed()
	s.reapEngines(set)
	if first {
		s.sweepFronts()
	}
	if s.cfg.Follow != nil {
		s.cfg.Follow(followed(set))
	}
}

// followed lists the files beside the manifests whose change may need a new worker.
func followed(set *manifest.Set) []string {
	var files []string
	for i := range set.Entries {
		if m := set.Entries[i].Manifest; m != nil && set.Entries[i].ShadowedBy == "" {
			files = append(files, watchList(m)...)
		}
	}
	slices.Sort(files)
	return slices.Compact(files)
}

// take carries out one step of a reconcile.
func (s *Supervisor) take(st step) {
	p := s.lookup(st.slug)
	switch {
	case p == nil && (st.entry == nil || st.entry.Manifest == nil): // it ended this instant
	case st.entry == nil:
		p.post(func() { p.close(removed) })
	case p == nil:
		if err := s.create(st.entry); err != nil {
			s.unserve(st.entry, err)
		}
	case st.entry.Manifest == nil:
		problems := problemsOf(st.entry.Problems)
		p.post(func() { p.reject(problems) })
	default:
		e := st.entry
		p.post(func() {
			if p.closing == open {
				p.apply(e.Manifest, e.Warnings)
			}
		})
	}
}

// create makes a provider with its front socket and starts its goroutine.
func (s *Supervisor) create(e *manifest.Entry) error {
	p := newProvider(s, e.Slug)
	p.file = e.Manifest.File
	p.pool.setLimits(limitsOf(e.Manifest)) // before the socket is there: it serves from its first instant
	front, err := listenFront(p, p.guestsOf(e.Manifest))
	if err != nil {
		return err
	}
	p.front = front
	p.left = s.claim(e.Slug)
	p.apply(e.Manifest, e.Warnings)
	p.publish()
	s.mu.Lock()
	s.providers[e.Slug] = p
	s.mu.Unlock()
	s.wg.Go(func() {
		p.run()
		s.ended(p)
	})
	return nil
}

// unserve lists a provider whose front socket cannot be made now, as on a full disk.
func (s *Supervisor) unserve(e *manifest.Entry, err error) {
	s.log.Error("provider cannot be served yet", keyProvider, e.Slug, keyError, err)
	failed := *e
	failed.Problems = manifest.Problems{{File: e.File, Key: "slug", Message: err.Error()}}
	s.unserved = append(s.unserved, e)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listed = append(s.listed, &failed)
}

// serveUnserved tries once more to make the front sockets that could not be made. A reconcile under way does so itself.
func (s *Supervisor) serveUnserved() {
	if !s.apply.TryLock() {
		return
	}
	defer s.apply.Unlock()
	s.unserved = slices.DeleteFunc(s.unserved, func(e *manifest.Entry) bool {
		if s.create(e) != nil {
			return false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.listed = slices.DeleteFunc(s.listed, func(l *manifest.Entry) bool {
			return l.Slug == e.Slug && l.Manifest != nil && l.ShadowedBy == ""
		})
		return true
	})
}

// ended forgets a provider. One whose manifest came back meanwhile starts anew.
func (s *Supervisor) ended(p *provider) {
	s.mu.Lock()
	if s.providers[p.slug] == p {
		delete(s.providers, p.slug)
	}
	set, again := s.set, false
	if !s.ending && set != nil {
		again = slices.ContainsFunc(set.Entries, func(e manifest.Entry) bool {
			return e.Slug == p.slug && e.Manifest != nil && e.ShadowedBy == ""
		})
	}
	s.mu.Unlock()
	if !again {
		return
	}
	s.apply.Lock()
	defer s.apply.Unlock()
	s.mu.RLock()
	set = s.set // a newer one may have come
	s.mu.RUnlock()
	s.applyLocked(set)
}

func (s *Supervisor) lookup(slug string) *provider {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.providers[slug]
}

func (s *Supervisor) all() []*provider {
	s.mu.RLock()
	defer s.mu.RUnlock()
	out := make([]*provider, 0, len(s.providers))
	for _, p := range s.providers {
		out = append(out, p)
	}
	slices.SortFunc(out, func(a, b *provider) int { return cmp.Compare(a.slug, b.slug) })
	return out
}

// number returns a worker number that is never used again.
func (s *Supervisor) number() int64 { return s.numbers.take() }
