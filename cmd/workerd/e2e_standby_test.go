package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// prepared is a provider whose worker has a preload phase, and notes what it does.
type prepared struct {
	*e2e
	slug, script, file, starts string
}

func (e *e2e) prepared(slug, toml string) *prepared {
	e.t.Helper()
	p := &prepared{e2e: e, slug: slug, starts: filepath.Join(e.dir, slug+".starts")}
	text := e.manifest(`worker = "standby.py"`, fmt.Sprintf("python = %q", interpreter(e.t)), fmt.Sprintf("%s\n[env.variables]\nSTARTS = %q\nLOAD_SECONDS = \"0.3\"\n", toml, p.starts))
	p.file = e.write(slug, "standby.py", text)
	p.script = filepath.Join(filepath.Dir(p.file), "standby.py")
	return p
}

// version edits the worker script.
func (p *prepared) version(v string) {
	p.t.Helper()
	code, err := testWorkers.ReadFile("testdata/e2e/standby.py")
	require.NoError(p.t, err)
	replace(p.t, p.script, strings.Replace(string(code), `VERSION = "1"`, fmt.Sprintf("VERSION = %q", v), 1))
}

// phases lists what a process has done so far.
func (p *prepared) phases(pid int) string {
	var out []string
	for line := range strings.Lines(string(mustRead(p.t, p.starts))) {
		if f := strings.Fields(line); f[0] == fmt.Sprint(pid) {
			out = append(out, f[2])
		}
	}
	return strings.Join(out, " ")
}

func standbyOf(s protocol.ProviderStatus) protocol.WorkerStatus {
	for _, w := range s.Workers {
		if w.Role == protocol.RoleStandby {
			return w
		}
	}
	return protocol.WorkerStatus{}
}

// stands waits until n workers serve and a standby can take over, and nothing else is there.
func (p *prepared) stands(n int) (serving []int, standby int) {
	p.t.Helper()
	p.until("a standby", func() bool {
		s := p.status(p.slug)
		serving = nil
		for _, w := range s.Workers {
			if w.Role == "" && w.State == "ready" {
				serving = append(serving, w.PID)
			}
		}
		standby = standbyOf(s).PID
		return len(serving) == n && standbyOf(s).ReadySince != nil && len(s.Workers) == n+1
	})
	return serving, standby
}

func TestE2EStandbyTakesOver(t *testing.T) {
	for _, mode := range []string{"hot", "warm"} {
		t.Run(mode, func(t *testing.T) {
			e := newE2E(t)
			p := e.prepared("x", fmt.Sprintf("%s[serve]\nstandby = %q\n", undaunted, mode))
			e.start()
			serving, standby := p.stands(1)
			require.Equal(t, map[string]string{"hot": "preload load", "warm": "preload"}[mode], p.phases(standby))
			require.Contains(t, e.ok("status"), "1/1 +standby")
			require.Contains(t, e.ok("status", "x"), "standby x/2")
			w := e.dial("x")
			best := time.Hour
			for range 3 {
				pid := serving[0]
				require.Equal(t, pid, e.call(w, "echo", "{}").PID)
				begin := time.Now()
				require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				require.Equal(t, standby, e.call(w, "echo", "{}").PID)
				took := time.Since(begin)
				t.Logf("answered %s after the kill", took.Round(10*time.Microsecond))
				best = min(best, took)
				serving, standby = p.stands(1)
			}
			if mode == "hot" {
				require.Less(t, best, soon(250*time.Millisecond), "nothing was loaded")
			} else {
				require.Greater(t, best, 250*time.Millisecond, "the model was loaded first")
			}
			require.NotContains(t, e.ok("logs", "-n", "200", "x"), "Traceback")
		})
	}
}

// While workers are killed again and again, several callers get exactly one answer to each request, and never wait for a load.
func TestE2EStandbyUnderSiege(t *testing.T) {
	long(t)
	e := newE2E(t)
	p := e.prepared("x", undaunted+"[serve]\nreplicas = 2\nconcurrency = 2\nstandby = \"hot\"\n")
	e.start()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	kills := make(chan int, 1)
	go func() {
		n := 0
		for ; n < 8; n++ {
			serving, _ := p.stands(2)
			_ = syscall.Kill(serving[n%2], syscall.SIGKILL)
			p.until("it is seen", func() bool {
				for _, w := range p.status("x").Workers {
					if w.PID == serving[n%2] {
						return false
					}
				}
				return true
			})
		}
		cancel()
		kills <- n
	}()
	counts := gather(t, 4, func(i int, count func(string)) error { return e.besiege(ctx, "x", 3, i%2 == 1, count) })
	t.Logf("%d kills: %v", <-kills, counts)
	require.Positive(t, counts["answered"])
}

// Edits of the worker's script while callers call: no request fails, and the standby follows.
func TestE2EEditsWithStandbyUnderTraffic(t *testing.T) {
	for _, mode := range []string{"none", "hot", "warm"} {
		t.Run(mode, func(t *testing.T) {
			e := newE2E(t)
			p := e.prepared("x", fmt.Sprintf("[serve]\nreplicas = 2\nconcurrency = 2\nstandby = %q\n", mode))
			e.start()
			e.ready("x")
			beyond := map[string]int{"none": 1, "hot": 2, "warm": 2}[mode]
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			most := e.mostAlive(ctx, "x")
			var answered atomic.Int64
			callers := make(chan error, 3)
			for i := range 3 {
				go func() {
					callers <- e.besiege(ctx, "x", 4, i == 0, func(what string) {
						answered.Add(1)
						if what == "crashed" {
							t.Error("a request was lost to an edit")
						}
					})
				}()
			}
			replaced := func(version string) {
				e.until("all run version "+version, func() bool {
					s := e.status("x")
					for _, w := range s.Workers {
						if w.ReadySince == nil || w.Role != "" && w.Role != protocol.RoleStandby || !strings.Contains(p.did(w.PID), version+" ") {
							return false
						}
					}
					return s.ManifestError == nil && (mode == "none" || standbyOf(s).ReadySince != nil)
				})
			}
			for _, v := range []string{"2", "3"} {
				p.version(v)
				replaced(v)
			}
			var standby int
			if mode != "none" {
				_, standby = p.stands(2)
			}
			p.version("broken")
			var s protocol.ProviderStatus
			e.until("the broken version is rolled back", func() bool { s = e.status("x"); return len(s.ManifestError) > 0 })
			require.Contains(t, s.ManifestError[0].Message, "did not become ready")
			require.Contains(t, s.Reason, "exited with code 1")
			require.Contains(t, e.ok("status", "x"), "manifest error")
			require.Equal(t, "3", e.call(e.dial("x"), "echo", "{}").Version)
			if mode != "none" {
				_, still := p.stands(2)
				require.Equal(t, standby, still, "what the broken version could not replace")
			}
			p.version("4")
			replaced("4")
			cancel()
			for range 3 {
				require.NoError(t, <-callers)
			}
			require.LessOrEqual(t, <-most, 2+beyond)
			t.Logf("%d requests, none failed", answered.Load())
			require.Positive(t, answered.Load())
		})
	}
}

// did says what a process has noted: version and phase.
func (p *prepared) did(pid int) string {
	data, _ := os.ReadFile(p.starts)
	var out strings.Builder
	for line := range strings.Lines(string(data)) {
		if id, rest, _ := strings.Cut(line, " "); id == fmt.Sprint(pid) {
			out.WriteString(rest)
		}
	}
	return out.String()
}

// A workerd that was killed and comes back takes over the standby as well: as a standby, or in the place of a worker that has died
// meanwhile. Nothing is loaded again.
func TestE2EStandbyIsAdopted(t *testing.T) {
	for _, mode := range []string{"hot", "warm"} {
		t.Run(mode, func(t *testing.T) {
			e := newE2E(t)
			p := e.prepared("x", fmt.Sprintf("%s[serve]\nstandby = %q\n", undaunted, mode))
			e.start()
			serving, standby := p.stands(1)
			e.killsRecorded()
			e.start()
			again, still := p.stands(1)
			require.Equal(t, serving, again)
			require.Equal(t, standby, still)
			require.Equal(t, serving[0], e.call(e.dial("x"), "echo", "{}").PID)
			require.Equal(t, map[string]string{"hot": "preload load", "warm": "preload"}[mode], p.phases(standby))

			// It still takes over, and is known as a worker that serves from then on.
			require.NoError(t, syscall.Kill(serving[0], syscall.SIGKILL))
			require.Equal(t, standby, e.call(e.dial("x"), "echo", "{}").PID)
			serving, standby = p.stands(1)
			e.killsRecorded()
			e.start()
			again, still = p.stands(1)
			require.Equal(t, serving, again)
			require.Equal(t, standby, still)

			// The worker dies while there is no workerd.
			e.killsRecorded()
			require.NoError(t, syscall.Kill(serving[0], syscall.SIGKILL))
			e.until("it is dead", func() bool { return !alive(serving[0]) })
			e.start()
			require.Equal(t, standby, e.call(e.dial("x"), "echo", "{}").PID)
			require.Equal(t, "preload load", p.phases(standby))
			p.stands(1)

			// The standby is not wanted any more.
			_, standby = p.stands(1)
			e.killsRecorded()
			text := strings.Replace(string(mustRead(t, p.file)), fmt.Sprintf("standby = %q", mode), `standby = "none"`, 1)
			replace(t, p.file, text)
			e.start()
			e.ready("x")
			e.until("it is gone", func() bool { return !alive(standby) })
			require.Len(t, e.status("x").Workers, 1)
		})
	}
}

// An orderly restart of workerd, a reload and the operator's commands with a standby.
func TestE2EOperatingWithAStandby(t *testing.T) {
	e := newE2E(t)
	p := e.prepared("x", "[serve]\nstandby = \"hot\"\n")
	e.start()
	serving, standby := p.stands(1)
	e.ok("reload")
	again, still := p.stands(1)
	require.Equal(t, serving, again)
	require.Equal(t, standby, still, "a reload without a change restarts nothing")
	e.ok("restart", "x")
	require.False(t, alive(serving[0]))
	require.False(t, alive(standby))
	p.stands(1)
	e.ok("stop", "x")
	require.Empty(t, e.marked("x/"))
	e.ok("start", "x")
	p.stands(1)
	require.Contains(t, e.ok("explain", "x"), "standby = \"hot\"")
	e.stop()
	e.start()
	p.stands(1)
}
