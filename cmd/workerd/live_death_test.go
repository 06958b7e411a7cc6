package main

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
	"workerd/protocol"
)

// However a worker ends, it is seen at once, with the reason and the last output, and the next one serves.
func TestLiveDeathIsSeenAtOnce(t *testing.T) {
	kill := func(pid int) func(*live) {
		return func(l *live) { require.NoError(l.t, syscall.Kill(pid, syscall.SIGKILL)) }
	}
	eachKind(t, allKinds, func(t *testing.T, l *live) {
		l.add("x", undaunted)
		l.start()
		for name, way := range map[string]struct {
			kinds  []string
			end    func(w protocol.WorkerStatus) func(*live)
			signal string
			code   int
		}{
			"kill -9 of the worker": {allKinds, func(w protocol.WorkerStatus) func(*live) { return kill(w.PID) }, "SIGKILL", 0},
			"exit":                  {allKinds, func(protocol.WorkerStatus) func(*live) { return later("import os; os._exit(3)") }, "", 3},
			"segmentation fault": {allKinds, func(protocol.WorkerStatus) func(*live) {
				return later("import os; os.kill(os.getpid(), 11)")
			}, "SIGSEGV", 0},
			"kill by the engine": {engines, func(w protocol.WorkerStatus) func(*live) {
				return func(l *live) { l.engine("kill", w.Container) }
			}, "SIGKILL", 0},
			"removal by the engine": {engines, func(w protocol.WorkerStatus) func(*live) {
				return func(l *live) { l.engine("rm", "--force", w.Container) }
			}, "", -1},
			"the container's init": {engines, func(w protocol.WorkerStatus) func(*live) {
				return func(l *live) {
					pid, err := strconv.Atoi(l.engine("container", "inspect", "--format", "{{.State.Pid}}", w.Container))
					require.NoError(l.t, err)
					kill(pid)(l)
				}
			}, "SIGKILL", 0},
			"Apptainer's runner": {[]string{manifest.Apptainer}, func(w protocol.WorkerStatus) func(*live) {
				return func(l *live) { kill(l.runner(w.PID))(l) }
			}, "SIGKILL", 0},
		} {
			if !strings.Contains(strings.Join(way.kinds, " "), l.kind) {
				continue
			}
			w := l.worker("x")
			run[any](l, "x", "print('last words before', name)", map[string]any{"name": name})
			deaths := w.Restarts
			begin := time.Now()
			way.end(w)(l)
			l.until(name+" is seen", func() bool {
				p := l.status("x")
				return len(p.Workers) == 1 && p.Workers[0].Restarts > deaths
			})
			took := time.Since(begin)
			exit := l.status("x").LastExit
			t.Logf("%s: seen after %s: %s", name, took.Round(time.Millisecond), exit.Reason)
			require.Less(t, took, soon(3*time.Second), name)
			switch {
			case way.signal != "":
				require.NotNil(t, exit.Signal, "%s: %+v", name, exit)
				require.Equal(t, way.signal, *exit.Signal, name)
			case way.code >= 0:
				require.NotNil(t, exit.Code, "%s: %+v", name, exit)
				require.Equal(t, way.code, *exit.Code, name)
			}
			if way.code >= 0 { // an engine that removed the container has removed its output too
				require.Contains(t, exit.Output, "last words before "+name)
			}
			require.False(t, exit.OOMKilled, name)
			require.Equal(t, 1, l.calls("x"), name)
			l.until("the old one is gone", func() bool { return !alive(w.PID) && len(l.owned()) <= 1 })
			l.until("its mounts are gone", func() bool {
				return l.kind != manifest.Apptainer || len(l.marked("x/")) <= 3 && len(l.freshMounts()) == 0
			})
		}
	})
}

// later has the worker of x run code after it has answered.
func later(code string) func(*live) { return func(l *live) { l.later("x", code) } }

// later has a worker run code after it has answered.
func (l *live) later(slug, code string) {
	l.t.Helper()
	run[any](l, slug, "import threading\ndef f(code=code2):\n exec(code)\nthreading.Timer(0.05, f).start()", map[string]any{"code2": code})
}

// Each request has exactly one answer while the worker is killed again and again, as in a venv.
func TestLiveEachRequestIsAnsweredOnceWhileTheWorkerIsKilled(t *testing.T) {
	eachKind(t, containers, func(t *testing.T, l *live) {
		l.bare("x", undaunted)
		l.start()
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		l.call(l.dial("x"), "echo", "{}")
		kills := make(chan int, 1)
		go func() { // 10 s, and on until engines on a busy machine have started a few
			defer cancel()
			killed := 0
			for begin := time.Now(); ctx.Err() == nil && (killed < 3 || time.Since(begin) < 10*time.Second); {
				round, end := context.WithTimeout(ctx, time.Second)
				killed += l.killEvery(round, "x", 250*time.Millisecond)
				end()
			}
			kills <- killed
		}()
		counts := gather(t, 8, func(i int, count func(string)) error { return l.besiege(ctx, "x", 1, i%2 == 1, count) })
		killed := <-kills
		t.Logf("%d kills, %d results, %d worker_crashed", killed, counts["answered"], counts["crashed"])
		require.GreaterOrEqual(t, killed, 3)
		require.Greater(t, counts["answered"], 10)
		require.LessOrEqual(t, counts["crashed"], killed, "a kill costs the one request that ran at most")
	})
}

// A cache that somebody empties costs the next start nothing: what it needs is made again.
func TestLiveAnEmptiedCacheIsFilledAgain(t *testing.T) {
	eachKind(t, allKinds, func(t *testing.T, l *live) {
		l.add("x", "")
		l.start()
		before := l.worker("x")
		require.Equal(t, 1, l.calls("x"))
		require.NoError(t, os.RemoveAll(filepath.Join(l.dir, "cache")))
		require.NoError(t, syscall.Kill(before.PID, syscall.SIGKILL))
		l.until("the next one is ready", func() bool {
			p := l.status("x")
			return p.State == "ready" && p.Workers[0].PID != before.PID
		})
		require.Equal(t, 1, l.calls("x"))
		require.Equal(t, before.Restarts+1, l.worker("x").Restarts, "the first try")
	})
}

// The container of the worker that failed last stays where the manifest asks for that, over a restart of workerd too, until
// container_ttl has passed.
func TestLiveFailedContainerIsKept(t *testing.T) {
	eachKind(t, engines, func(t *testing.T, l *live) {
		l.add("x", "[env]\nkeep_failed = true\n"+undaunted)
		l.start()
		var last string
		for n := range 2 {
			w := l.worker("x")
			last = w.Container
			run[any](l, "x", "open('/tmp/trace', 'w').write('found')", nil)
			require.NoError(t, syscall.Kill(w.PID, syscall.SIGKILL))
			l.until("the next one is ready", func() bool {
				p := l.status("x")
				return p.State == "ready" && len(p.Workers) == 1 && p.Workers[0].Restarts == n+1
			})
		}
		kept := func() bool {
			l.engine("container", "inspect", last) // it is there
			return len(l.owned()) == 2 && !l.running(last)
		}
		l.until("the newest failed one and the running one are there", kept)
		l.kills()
		l.start()
		l.worker("x")
		l.ok("restart", "x")
		l.until("a stop is no failure, and the kept one stays", kept)
		l.stop()
		require.Len(t, l.owned(), 1)
		require.NotEmpty(t, l.engine("container", "logs", last))

		l.env["WORKERD_CONTAINER_TTL"] = "1ms"
		l.start()
		l.worker("x")
		l.until("it has gone", func() bool { return len(l.owned()) == 1 && l.running(l.owned()[0]) })
	})
}
