package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/execenv"
	"workerd/protocol"
)

const quick = `
[restart]
backoff = "1ms"
max_backoff = "20ms"
max_crashes = 100000
[start]
stop_timeout = "2s"
`

func TestServeAndCall(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	c := r.dial("echo")
	a := c.call("echo", `{"text":"hello"}`)
	require.Nil(t, a.Error)
	st := r.state("echo", "ready")
	require.Len(t, st.Workers, 1)
	require.Equal(t, a.pid(t), st.Workers[0].PID)
	require.Positive(t, st.Workers[0].RSSBytes)
	for i := range 20 {
		a := c.call("echo", fmt.Sprintf(`{"text":"%d"}`, i))
		require.Contains(t, string(a.Result), fmt.Sprintf(`"text":"%d"`, i))
	}
	require.Equal(t, protocol.MethodNotFound, c.call("nope", "{}").kind())
}

// 25: concurrent first requests make one start.
func TestCase25OneStartForManyFirstRequests(t *testing.T) {
	r := newRig(t)
	starts := filepath.Join(t.TempDir(), "starts")
	r.serve("slow", "[start]\nwhen = \"request\"\n", "LOAD=1s", "STARTS="+starts)
	require.Equal(t, "stopped", r.status("slow").State)
	var wg sync.WaitGroup
	answers := make([]reply, 50)
	for i := range answers {
		c := r.dial("slow")
		wg.Go(func() { answers[i], _ = c.try("echo", fmt.Sprintf(`{"text":"n%d"}`, i)) })
	}
	wg.Wait()
	for i, a := range answers {
		require.Nil(t, a.Error, "%+v", a.Error)
		require.Contains(t, string(a.Result), fmt.Sprintf(`"n%d"`, i))
	}
	require.Len(t, lines(starts), 1)
}

// Each request of eight callers gets exactly one answer while the worker is killed over and over.
func TestKilledOverAndOver(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+"[serve]\nqueue = 64\n")
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	kinds := map[protocol.Kind]int{}
	for i := range 8 {
		c := r.dial("echo")
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				text := fmt.Sprintf("%d-%d", i, n)
				a, err := c.try("echo", fmt.Sprintf(`{"text":%q}`, text))
				if err != nil {
					t.Errorf("client %d: %v", i, err)
					return
				}
				if a.Error == nil && !containsText(a, text) {
					t.Errorf("wrong answer to %s: %s", text, a.Result)
				}
				mu.Lock()
				kinds[a.kind()]++
				mu.Unlock()
			}
		})
	}
	for range 20 {
		st := r.until("echo", "a ready worker", func(s protocol.ProviderStatus) bool {
			return s.State == "ready" && len(s.Workers) > 0 && s.Workers[0].PID != 0
		})
		_ = syscall.Kill(st.Workers[0].PID, syscall.SIGKILL)
		r.until("echo", "another worker", func(s protocol.ProviderStatus) bool {
			return s.Workers[0].PID != 0 && s.Workers[0].PID != st.Workers[0].PID
		})
	}
	close(stop)
	wg.Wait()
	t.Log(kinds)
	delete(kinds, "")
	delete(kinds, protocol.WorkerCrashed)
	require.Empty(t, kinds, "only results and worker_crashed")
}

func containsText(a reply, text string) bool {
	return strings.Contains(string(a.Result), `"text":"`+text+`"`)
}

// 91: what was sent to an idle worker that had just been killed is answered by the next one.
func TestCase91KilledWhileIdleCostsNoRequest(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	c := r.dial("echo")
	pid := c.call("echo", `{"text":"first"}`).pid(t)
	for i := range 200 {
		_ = syscall.Kill(pid, syscall.SIGKILL)
		a := c.call("echo", fmt.Sprintf(`{"text":"%d"}`, i))
		require.Nil(t, a.Error, "round %d: %+v", i, a.Error)
		next := a.pid(t)
		require.NotEqual(t, pid, next)
		pid = next
	}
}

// 92: a death in mid-request is answered with its reason and the worker's last lines.
func TestCase92DeathInARequest(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	c := r.dial("echo")
	a := c.call("crash", `{"code":3}`)
	require.Equal(t, protocol.WorkerCrashed, a.kind())
	detail := a.Error.Data.Detail.(map[string]any)
	require.EqualValues(t, 3, detail["code"])
	require.Contains(t, detail["output"], "about to die")
	a = c.call("die", `{}`)
	require.Equal(t, protocol.WorkerCrashed, a.kind())
	require.Equal(t, "SIGKILL", a.Error.Data.Detail.(map[string]any)["signal"])
	a = c.call("half", `{}`)
	require.Equal(t, protocol.WorkerCrashed, a.kind(), "half an answer is no answer: %s", a.Result)
	require.Nil(t, c.call("echo", `{}`).Error)
}

// 79: status tells the truth after a respawn.
func TestCase79StatusAfterARespawn(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	before := r.state("echo", "ready")
	require.NoError(t, syscall.Kill(before.Workers[0].PID, syscall.SIGKILL))
	after := r.until("echo", "respawned", func(s protocol.ProviderStatus) bool {
		return s.State == "ready" && s.Workers[0].PID != before.Workers[0].PID
	})
	w := after.Workers[0]
	require.Equal(t, 1, w.Restarts)
	require.NotEqual(t, before.Workers[0].ID, w.ID)
	require.True(t, w.ReadySince.After(*before.Workers[0].ReadySince))
	require.NotNil(t, w.LastExit)
	require.Equal(t, "SIGKILL", *w.LastExit.Signal)
	require.Equal(t, "killed by SIGKILL", w.LastExit.Reason)
	require.Equal(t, w.LastExit, after.LastExit)
}

// 46, 61: whatever a worker forked is gone after a crash, a stop and a restart.
func TestCase46And61NothingOfTheTreeIsLeft(t *testing.T) {
	for _, end := range []string{"crash", "kill", "stop", "restart"} {
		t.Run(end, func(t *testing.T) {
			r := newRig(t)
			r.serve("echo", quick)
			c := r.dial("echo")
			file := filepath.Join(t.TempDir(), "children")
			require.Nil(t, c.call("fork", fmt.Sprintf(`{"file":%q}`, file)).Error)
			eventually(t, func() bool { return len(lines(file)) == 4 }, func() string { return "four children" })
			pid := r.status("echo").Workers[0].PID
			switch end {
			case "crash":
				require.Equal(t, protocol.WorkerCrashed, c.call("crash", `{"code":1}`).kind())
			case "kill":
				require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
			case "stop":
				require.NoError(t, r.sup.Stop(t.Context(), "echo", true))
			case "restart":
				require.NoError(t, r.sup.Restart(t.Context(), "echo", true))
			}
			check := func() bool {
				for _, l := range lines(file) {
					n, _ := strconv.Atoi(l)
					if alive(n) {
						return false
					}
				}
				return !alive(pid)
			}
			if end == "stop" || end == "restart" {
				require.True(t, check(), "gone when the command returns")
			}
			eventually(t, check, func() string { return "the children are gone" })
		})
	}
}

// A worker that kills its process group takes nobody else down.
func TestWorkerKillsItsGroup(t *testing.T) {
	r := newRig(t)
	r.provider("other", quick)
	r.serve("echo", quick)
	other := r.dial("other").call("echo", `{}`).pid(t)
	require.Equal(t, protocol.WorkerCrashed, r.dial("echo").call("suicide", `{}`).kind())
	require.Nil(t, r.dial("echo").call("echo", `{}`).Error)
	require.Equal(t, other, r.dial("other").call("echo", `{}`).pid(t))
}

func TestStopAndStart(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	c := r.dial("echo")
	pid := c.call("echo", `{}`).pid(t)
	require.NoError(t, r.sup.Stop(t.Context(), "echo", true))
	require.False(t, alive(pid))
	require.Equal(t, "stopped", r.status("echo").State)
	require.Equal(t, protocol.ProviderStopped, c.call("echo", `{}`).kind())
	r.load() // an edit of nothing starts nothing
	require.Equal(t, protocol.ProviderStopped, c.call("echo", `{}`).kind())
	require.NoError(t, r.sup.Start(t.Context(), "echo", true))
	require.Equal(t, "ready", r.status("echo").State)
	require.NotEqual(t, pid, c.call("echo", `{}`).pid(t))
}

// 20: one that ignores SIGTERM is gone right after stop_timeout.
func TestCase20IgnoresTerm(t *testing.T) {
	r := newRig(t)
	r.serve("deaf", "[start]\nstop_timeout = \"300ms\"\n", "MODE=ignore-term")
	pid := r.state("deaf", "ready").Workers[0].PID
	require.NoError(t, r.sup.Stop(t.Context(), "deaf", true))
	require.False(t, alive(pid))
	st := r.status("deaf")
	require.Equal(t, "stopped", st.State)
	require.Contains(t, st.LastExit.Reason, "stop_timeout")
}

// 67, 9: a start that always fails in the same way ends in failed, and its output is shown.
func TestCase67FailingStart(t *testing.T) {
	r := newRig(t)
	starts := filepath.Join(t.TempDir(), "starts")
	r.serve("bad", "[start]\nwhen = \"request\"\n[restart]\nbackoff = \"1ms\"\nmax_crashes = 3\n", "MODE=exit-2", "STARTS="+starts)
	c := r.dial("bad")
	a := c.call("echo", `{}`)
	require.Equal(t, protocol.WorkerStartFailed, a.kind())
	require.Contains(t, a.Error.Data.Detail.(map[string]any)["output"], "no weights found")
	require.Equal(t, "failed", r.status("bad").State)
	a = c.call("echo", `{}`)
	require.Equal(t, protocol.ProviderFailed, a.kind())
	require.Contains(t, a.Error.Data.Detail.(map[string]any)["output"], "no weights found")
	require.Len(t, lines(starts), 3)
	err := r.sup.Start(t.Context(), "bad", true)
	require.Equal(t, protocol.WorkerStartFailed, protocol.KindOf(err))
	require.Len(t, lines(starts), 6)
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "bad.toml"), []byte(helperManifest("[start]\nwhen = \"request\"\n")), 0o600))
	r.load()
	require.Nil(t, c.call("echo", `{}`).Error, "an edit clears it")
}

func TestExit127FailsAtOnce(t *testing.T) {
	r := newRig(t)
	starts := filepath.Join(t.TempDir(), "starts")
	r.serve("bad", "[start]\nwhen = \"request\"\n", "MODE=exit-127", "STARTS="+starts)
	require.Equal(t, protocol.WorkerStartFailed, r.dial("bad").call("echo", `{}`).kind())
	require.Len(t, lines(starts), 1)
}

// 77: one that never becomes ready is killed at start.timeout and counted.
func TestCase77NeverReady(t *testing.T) {
	for _, mode := range []string{"never-bind", "never-ready"} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t)
			r.serve("bad", "[start]\ntimeout = \"200ms\"\n[restart]\nbackoff = \"1ms\"\nmax_crashes = 2\n", "MODE="+mode)
			st := r.state("bad", "failed")
			require.Contains(t, st.LastExit.Reason, "start.timeout")
		})
	}
}

func TestProtocolMismatch(t *testing.T) {
	r := newRig(t)
	r.serve("old", quick, "MODE=mismatch")
	st := r.state("old", "failed")
	require.Contains(t, st.Reason, "version 99")
	require.Contains(t, st.Reason, "1")
}

// An edited idle_timeout counts from the edit on: the timer of the one before is not waited for.
func TestIdleTimeoutEdited(t *testing.T) {
	r := newRig(t)
	r.serve("echo", "[start]\nidle_timeout = \"1h\"\n")
	r.state("echo", "ready")
	r.serve("echo", "[start]\nidle_timeout = \"50ms\"\n")
	r.state("echo", "stopped")
}

func TestIdleStop(t *testing.T) {
	r := newRig(t)
	r.serve("idle", "[start]\nidle_timeout = \"3s\"\n", "LOAD=3500ms") // a load that takes longer is no idleness
	worker := r.state("idle", "ready").Workers[0]
	pid := worker.PID
	r.state("idle", "stopped")
	require.Greater(t, time.Since(*worker.ReadySince), 2900*time.Millisecond)
	require.False(t, alive(pid))
	require.NotEqual(t, pid, r.dial("idle").call("echo", `{}`).pid(t))
}

// 18, 63: workers that a killed workerd left behind are ended by the next one of the instance; another instance's are not.
func TestCase18Leftovers(t *testing.T) {
	r := newRig(t)
	start := func(instance string) *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), helperVar+"=child", execenv.MarkerVar+"="+execenv.Marker(instance, "gone", 7))
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	mine, other := start(r.sup.cfg.Instance), start("00000000")
	tmp, err := r.sup.cfg.Planner.NewTmp(7)
	require.NoError(t, err)
	r.sup.FindLeftovers()
	require.NoDirExists(t, tmp)
	eventually(t, func() bool { return !alive(mine.Process.Pid) }, func() string { return "the leftover is gone" })
	require.True(t, alive(other.Process.Pid))
}

// signalled is a body that only notes what signals it gets.
type signalled struct {
	body
	got []syscall.Signal
}

func (s *signalled) signal(sig syscall.Signal) { s.got = append(s.got, sig) }

// A worker that has ended gets no signal: a timer, or the end of its last request, may ask for one before its end has been heard of.
func TestNoSignalAfterTheEnd(t *testing.T) {
	b := &signalled{}
	f := &life{body: b, exited: make(chan struct{})}
	f.signal(syscall.SIGTERM)
	close(f.exited)
	f.signal(syscall.SIGKILL)
	require.Equal(t, []syscall.Signal{syscall.SIGTERM}, b.got)
}
