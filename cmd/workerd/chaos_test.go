package main

import (
	"cmp"
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
	"workerd/protocol"
	"workerd/protocol/prototest"
)

// The fault harness: the real binary and real Python workers in every kind of environment that is there, tool servers that
// behave and others that do not, and one fault after the other, drawn by a seed. `make chaos` runs it.

var (
	chaosTime = flag.Duration("chaos", 0, "run TestChaos for this `long`")
	chaosSeed = flag.Uint64("chaos.seed", 0, "`seed` of its faults; 0: a fresh one, which is printed")
	chaosOn   = flag.String("chaos.on", strings.Join(allKinds, ","), "the `kinds` of environment, where there are images")
)

// chaos is one run.
type chaos struct {
	*e2e
	kinds  []*live
	slugs  []*victim
	random *rand.Rand
	begin  time.Time
	seed   uint64
	disk   string          // a small one, for logs and state; "" for none
	memory string          // a cgroup of version 1 that limits all; "" for none
	ends   map[string]bool // kinds of environment whose memory has an end

	life atomic.Int64 // odd while workerd is down on purpose, and another number after each time

	mu       sync.Mutex
	faults   map[string]int
	answers  map[string]map[string]int // by what sort of request, by kind of answer
	slowest  time.Duration
	broken   []error
	recovery []time.Duration // from a fault to the next right answer of the provider that it met
}

// victim is a provider.
type victim struct {
	*live
	slug, worker, toml, file string
	raw                      bool // its worker breaks the protocol on request
	version                  atomic.Int64
	away                     atomic.Int64 // odd while its manifest is away, and another number after each time
}

func TestChaos(t *testing.T) {
	if *chaosTime <= 0 {
		prototest.Needs(t, "chaos", "make chaos")
	}
	c := newChaos(t)
	c.addVictims()
	c.start()
	for _, v := range c.slugs {
		c.ready(v.slug)
	}
	c.round(*chaosTime/2, true)
	before := c.least()
	c.round(*chaosTime/2, false)
	after := c.backTo(before)
	if !after.like(before) { // which goroutines are they?
		c.print(before, after, 0, nil)
		_, _ = c.signalled(syscall.SIGQUIT)
		c.fatal("descriptors, goroutines or memory: %+v became %+v", before, after)
	}
	_, err := c.signalled(syscall.SIGTERM)
	left := c.leftovers()
	for begin := time.Now(); len(left) > 0 && time.Since(begin) < 5*time.Second; left = c.leftovers() {
		<-time.After(100 * time.Millisecond) // an engine's helpers may be about to end
	}
	illegal, legal := illegalMoves(c.log.String())
	c.print(before, after, legal, left)
	require.Empty(t, illegal)
	require.NoError(t, err, "workerd exits with 0")
	require.Empty(t, c.broken)
	require.Empty(t, left)
	c.leftNothing()
}

// fatal ends the test and what its workerd, which has ended, left.
func (c *chaos) fatal(format string, args ...any) {
	c.t.Helper()
	for _, pid := range c.marked("") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
	c.t.Fatalf(format, args...)
}

// round has tool servers call while faults happen, until all is well again and the tool servers have gone. With own workerd
// itself is killed too.
func (c *chaos) round(long time.Duration, own bool) {
	ctx, stop := context.WithCancel(c.t.Context())
	defer stop()
	var tools sync.WaitGroup
	c.startTools(ctx, &tools)
	c.rage(long, own)
	c.calm()
	stop()
	tools.Wait()
	c.calm()
}

// newChaos makes a run with the kinds of environment that there are: WORKERD_TEST_IMAGES names the images of the others.
func newChaos(t *testing.T) *chaos {
	names := []string{manifest.Venv}
	if os.Getenv("WORKERD_TEST_IMAGES") != "" {
		names = strings.Split(*chaosOn, ",")
	}
	c := &chaos{begin: time.Now(), faults: map[string]int{}, answers: map[string]map[string]int{}, ends: map[string]bool{manifest.Docker: true}}
	c.seed = cmp.Or(*chaosSeed, rand.Uint64())
	fmt.Printf("chaos: %s with seed %d on %s\n", *chaosTime, c.seed, strings.Join(names, ", "))
	t.Cleanup(func() {
		if t.Failed() {
			fmt.Printf("chaos: to have the same faults again: make chaos CHAOS=%s CHAOS_SEED=%d\n", *chaosTime, c.seed)
			log := filepath.Join(os.TempDir(), fmt.Sprintf("workerd-chaos-%d.log", c.seed))
			if os.WriteFile(log, []byte(c.log.String()), 0o600) == nil {
				fmt.Printf("chaos: all that workerd said: %s\n", log)
			}
		}
	})
	for _, kind := range names {
		l := &live{kind: kind, mounts: orphanMounts()}
		c.kinds = append(c.kinds, l)
		t.Cleanup(func() { l.leftNoContainer() }) // when workerd has been stopped
	}
	if len(names) > 1 {
		c.e2e = newLive(t, manifest.Venv).e2e
	} else {
		c.e2e = newE2E(t)
	}
	for _, l := range c.kinds {
		l.e2e = c.e2e
		l.has("small")
	}
	c.shelter()
	c.random = rand.New(rand.NewPCG(c.seed, 0))
	return c
}

// nerves are the limits of all providers: faults are to be over soon.
const nerves = undaunted + `[health]
interval = "1s"
timeout = "5s"
[start]
timeout = "60s"
stop_timeout = "4s"
[serve]
replicas = 2
queue = 1000
request_timeout = "8s"
cancel_grace = "1s"
max_message = "4MiB"
`

func (c *chaos) addVictims() {
	for _, l := range c.kinds {
		limits := c.limits(l.kind)
		for _, raw := range []bool{false, true} {
			v := &victim{live: l, slug: l.kind + "-sdk", worker: "live.py", toml: nerves + "standby = \"hot\"\n" + limits, raw: raw}
			if raw {
				v.slug, v.worker, v.toml = l.kind+"-raw", "chaos.py", nerves+limits
			}
			v.file = l.write(v.slug, v.worker, v.text())
			c.slugs = append(c.slugs, v)
		}
	}
}

// text is the provider's manifest in its present version.
func (v *victim) text() string {
	what := `worker = "live.py"`
	if v.raw {
		python := "python3"
		if v.kind == manifest.Venv {
			python = interpreter(v.t)
		}
		what = fmt.Sprintf(`command = [%q, "-S", "-E", "chaos.py"]`, python)
	}
	return v.live.text(what, "small", v.toml+fmt.Sprintf("[env.variables]\nVERSION = \"%d\"\n", v.version.Load()))
}

// fails notes what must not happen.
func (c *chaos) fails(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.broken) < 20 {
		c.broken = append(c.broken, fmt.Errorf("after %s: "+format, append([]any{time.Since(c.begin).Round(time.Millisecond)}, args...)...))
	}
}

func (c *chaos) count(request, answer string, took time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.answers[request] == nil {
		c.answers[request] = map[string]int{}
	}
	c.answers[request][answer]++
	c.slowest = max(c.slowest, took)
}

// calm waits until every provider serves as it should.
func (c *chaos) calm() {
	for _, v := range c.slugs {
		last := ""
		c.t.Cleanup(func() {
			if c.t.Failed() && last != "" {
				c.t.Logf("last seen: %s", last)
			}
		})
		within(c.t, 3*patience, v.slug+" has all its workers", func() bool { // one version after the other, on a busy machine
			p := c.status(v.slug)
			up := map[string]int{}
			for _, w := range p.Workers {
				up[w.Role+w.State]++
			}
			standbys := 1
			if v.raw {
				standbys = 0
			}
			data, _ := json.Marshal(p)
			last = string(data)
			return p.State == "ready" && up["ready"] == 2 && up[protocol.RoleStandby+"ready"] == standbys &&
				len(p.Workers) == 2+standbys && len(p.ManifestError) == 0
		})
		last = ""
	}
	c.until("no zombie is left", func() bool { return len(zombies(c.pid())) == 0 })
}

// print shows what was done and what came of it.
func (c *chaos) print(before, after measured, moves int, left []string) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	defer func() { _ = w.Flush() }()
	fmt.Fprintln(w, "fault\ttimes")
	for _, name := range slices.Sorted(maps.Keys(c.faults)) {
		fmt.Fprintf(w, "%s\t%d\n", name, c.faults[name])
	}
	fmt.Fprintln(w, "\nrequest\tanswers")
	for _, name := range slices.Sorted(maps.Keys(c.answers)) {
		var list []string
		for _, kind := range slices.Sorted(maps.Keys(c.answers[name])) {
			list = append(list, fmt.Sprintf("%d %s", c.answers[name][kind], kind))
		}
		fmt.Fprintf(w, "%s\t%s\n", name, strings.Join(list, ", "))
	}
	slices.Sort(c.recovery)
	if n := len(c.recovery); n > 0 {
		fmt.Fprintf(w, "\nrecoveries\t%d, %s at the median, %s at most\n", n, c.recovery[n/2].Round(time.Millisecond), c.recovery[n-1].Round(time.Millisecond))
	}
	fmt.Fprintf(w, "slowest answer\t%s\n", c.slowest.Round(time.Millisecond))
	fmt.Fprintf(w, "workers started\t%d\n", strings.Count(c.log.String(), "state=starting"))
	fmt.Fprintf(w, "workerd before and after\t%d, %d descriptors; %d, %d goroutines; %d, %d MiB\n",
		before.fds, after.fds, before.goroutines, after.goroutines, before.resident>>20, after.resident>>20)
	fmt.Fprintf(w, "killed for memory\t%d\n", c.outOfMemory())
	fmt.Fprintf(w, "changes of state\t%d\n", moves)
	fmt.Fprintf(w, "requests lost, answered twice or wrong\t%d\n", len(c.broken))
	fmt.Fprintf(w, "left behind\t%d\n", len(left))
	for _, what := range left {
		fmt.Fprintf(w, "  %s\n", what)
	}
	for _, err := range c.broken {
		fmt.Fprintf(w, "  %v\n", err)
	}
}
