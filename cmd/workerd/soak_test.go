package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
	"workerd/protocol/prototest"
)

// A day of a workerd in half an hour: load and idleness in turns, with timers that are short, and after each idle phase what it
// holds. `make soak` runs it.

var soakTime = flag.Duration("soak", 0, "run TestSoak for this `long`")

const (
	soakLoad = 10 * time.Second // of each turn; then it is idle
	soakIdle = 2 * time.Second
)

// held is what workerd holds after an idle phase.
type held struct {
	measured
	threads int
	files   int // below its directories
	bytes   int // in them
}

// soak is one run.
type soak struct {
	*e2e
	random  *rand.Rand
	edited  *edited
	version int

	calls, refused, kills, edits atomic.Int64
}

func TestSoak(t *testing.T) {
	if *soakTime <= 0 {
		prototest.Needs(t, "soak", "make soak")
	}
	s := &soak{e2e: newE2E(t), random: rand.New(rand.NewPCG(1, 0)), version: 1}
	s.env["WORKERD_LOG_MAX_SIZE"], s.env["WORKERD_LOG_MAX_FILES"] = "256KiB", "3"
	const short = undaunted + "[health]\ninterval = \"200ms\"\n[serve]\nrequest_timeout = \"5s\"\ncancel_grace = \"1s\"\n"
	s.provider("resident", short+"replicas = 2\nconcurrency = 2\nstandby = \"hot\"\n")
	s.bare("idle", short+"[start]\nwhen = \"request\"\nidle_timeout = \"300ms\"\n")
	s.bare("crashes", short)
	s.edited = s.editable("edited", short)
	s.start()
	var all []held
	for end := time.Now().Add(*soakTime); time.Now().Before(end); {
		s.load()
		s.rest()
		all = append(all, s.hold())
	}
	s.print(all)
	s.stop()
	illegal, _ := illegalMoves(s.log.String())
	require.Empty(t, illegal)
	require.Empty(t, growth(all))
}

// growth compares the first third of a run, its warm-up apart, with the last.
func growth(all []held) (grown []string) {
	rest := all[min(len(all)/4+1, len(all)-1):]
	third := max(1, len(rest)/3)
	for _, what := range []struct {
		name  string
		of    func(held) int
		slack func(before int) int
	}{
		{"descriptors", func(h held) int { return h.fds }, func(int) int { return 1 }},
		{"goroutines", func(h held) int { return h.goroutines }, func(int) int { return 1 }},
		{"threads", func(h held) int { return h.threads }, func(int) int { return 2 }},
		{"resident bytes", func(h held) int { return h.resident }, func(n int) int { return n/20 + 2<<20 }},
		{"files", func(h held) int { return h.files }, func(int) int { return 4 }},
		{"bytes in files", func(h held) int { return h.bytes }, func(int) int { return 1 << 20 }},
	} {
		middle := func(part []held) int {
			var values []int
			for _, h := range part {
				values = append(values, what.of(h))
			}
			slices.Sort(values)
			return values[len(values)/2]
		}
		before, after := middle(rest[:third]), middle(rest[len(rest)-third:])
		if after > before+what.slack(before) {
			grown = append(grown, fmt.Sprintf("%s: %d became %d", what.name, before, after))
		}
	}
	return grown
}

// load is one phase of it: tool servers that stay and others that come and go, operators, crashes, edits.
func (s *soak) load() {
	ctx, cancel := context.WithTimeout(s.t.Context(), soakLoad)
	defer cancel()
	var wg sync.WaitGroup
	for _, slug := range []string{"resident", "idle", "crashes", "edited"} {
		for n := range 3 {
			seed := s.random.Uint64()
			wg.Go(func() { s.client(ctx, slug, n, rand.New(rand.NewPCG(seed, 0))) })
		}
	}
	wg.Go(func() { s.operate(ctx) })
	for ctx.Err() == nil {
		switch s.random.IntN(6) {
		case 0:
			s.version++
			replace(s.t, s.edited.file, s.edited.text(s.version))
			s.edits.Add(1)
		case 1:
			_ = s.cmd.Process.Signal(syscall.SIGHUP)
		case 2:
			_ = s.control().Restart(ctx, "resident", false)
		case 3: // logs are rotated
			if w, err := connect(s.front("resident")); err == nil {
				_, _ = w.try("noise", `{"size":200000}`)
				_ = w.conn.Close()
			}
		default:
			slug := []string{"resident", "crashes", "idle"}[s.random.IntN(3)]
			for _, w := range s.status(slug).Workers {
				if w.PID > 0 && syscall.Kill(w.PID, syscall.SIGKILL) == nil {
					s.kills.Add(1)
					break
				}
			}
		}
		pause(ctx, time.Duration(s.random.IntN(500))*time.Millisecond)
	}
	wg.Wait()
}

// client is a tool server that stays (0), one that connects for each request (1), or one that does not wait for its answers.
func (s *soak) client(ctx context.Context, slug string, sort int, random *rand.Rand) {
	var w *wire
	for ctx.Err() == nil {
		if w == nil {
			var err error
			if w, err = connect(s.front(slug)); err != nil {
				pause(ctx, 10*time.Millisecond)
				continue
			}
		}
		if sort == 2 {
			for range 1 + random.IntN(5) {
				_ = w.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"echo","params":{}}`, serial.Add(1)))
			}
		} else if m, err := w.try("echo", `{}`); err != nil && !errors.Is(err, context.Canceled) {
			s.t.Errorf("%s: a request was lost: %v", slug, err)
		} else if kind := m.kind(); kind == "" {
			s.calls.Add(1)
		} else {
			s.refused.Add(1)
			if !slices.Contains(append(hit, protocol.ProviderStopped), kind) {
				s.t.Errorf("%s: %v", slug, m.Error)
			}
		}
		if sort > 0 {
			_ = w.conn.Close()
			w = nil
		}
		pause(ctx, time.Duration(random.IntN(20))*time.Millisecond)
	}
	if w != nil {
		_ = w.conn.Close()
	}
}

// operate does what operators do all day.
func (s *soak) operate(ctx context.Context) {
	for ctx.Err() == nil {
		_, _ = s.control().Status(ctx)
		follow, leave := context.WithTimeout(ctx, 500*time.Millisecond)
		_ = s.control().Logs(follow, "resident", 100, true, discard{})
		leave()
	}
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// rest waits until all is as it was before the load, and a little longer.
func (s *soak) rest() {
	for _, slug := range []string{"resident", "crashes", "edited"} {
		want := map[string]int{"resident": 3}[slug]
		s.until(slug+" is as it was", func() bool {
			p := s.status(slug)
			ready := 0
			for _, w := range p.Workers {
				if w.State == "ready" {
					ready++
				}
			}
			return ready == len(p.Workers) && ready == cmp.Or(want, 1) && p.InFlight == 0
		})
	}
	s.until("the idle one has stopped", func() bool { return s.status("idle").State == "stopped" })
	<-time.After(soakIdle) // logs are rotated and pruned, connections closed
}

// hold measures.
func (s *soak) hold() held {
	h := held{measured: s.least(), threads: threads(s.t, s.pid())}
	for _, dir := range []string{"run", "state", "cache"} {
		_ = filepath.WalkDir(filepath.Join(s.dir, dir), func(_ string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return nil
			}
			h.files++
			if info, err := d.Info(); err == nil {
				h.bytes += int(info.Size())
			}
			return nil
		})
	}
	return h
}

// print shows what was done, and some of the measurements.
func (s *soak) print(all []held) {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	defer func() { _ = w.Flush() }()
	fmt.Fprintf(w, "soak: %s, %d turns, %d requests answered and %d with an error, %d workers killed, %d edits\n",
		*soakTime, len(all), s.calls.Load(), s.refused.Load(), s.kills.Load(), s.edits.Load())
	fmt.Fprintln(w, "turn\tdescriptors\tgoroutines\tthreads\tMiB\tfiles\tKiB in files")
	for n, h := range all {
		if n%max(1, len(all)/12) == 0 || n == len(all)-1 {
			fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%.1f\t%d\t%d\n", n+1, h.fds, h.goroutines, h.threads, float64(h.resident)/(1<<20), h.files, h.bytes>>10)
		}
	}
}
