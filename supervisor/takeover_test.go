package supervisor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

const hot, preloaded = "[serve]\nstandby = \"hot\"\n", "[serve]\nstandby = \"warm\"\n"

// stands waits until a provider serves with n workers and has a standby that can take over.
func (r *rig) stands(slug string, n int) (s protocol.ProviderStatus, standby protocol.WorkerStatus) {
	r.t.Helper()
	s = r.until(slug, "a standby", func(s protocol.ProviderStatus) bool {
		return s.State == "ready" && len(s.Workers) == n+1 && ready(s) == n && standbyOf(s).ReadySince != nil
	})
	return s, standbyOf(s)
}

// ready counts the workers that serve.
func ready(s protocol.ProviderStatus) (n int) {
	for _, w := range s.Workers {
		if w.Role == "" && w.State == "ready" {
			n++
		}
	}
	return n
}

func TestHotStandbyTakesOver(t *testing.T) {
	r := newRig(t)
	starts := filepath.Join(t.TempDir(), "starts")
	r.serve("echo", quick+hot, "STARTS="+starts, "LOAD=300ms")
	s, standby := r.stands("echo", 1)
	require.Equal(t, "ready", standby.State)
	require.Equal(t, "", s.Workers[0].Role, "who serves comes first")
	c := r.dial("echo")
	for range 20 {
		require.Equal(t, s.Workers[0].PID, c.call("echo", `{}`).pid(t), "a standby gets no requests")
	}
	require.NoError(t, syscall.Kill(s.Workers[0].PID, syscall.SIGKILL))
	require.Equal(t, standby.PID, c.call("echo", `{}`).pid(t))
	after, fresh := r.stands("echo", 1)
	require.Equal(t, *standby.ReadySince, *after.Workers[0].ReadySince, "nothing was loaded")
	require.Equal(t, standby.PID, after.Workers[0].PID)
	require.Equal(t, 1, after.Workers[0].Restarts)
	require.Contains(t, after.Workers[0].LastExit.Reason, "SIGKILL")
	require.Contains(t, after.LastExit.Reason, "SIGKILL")
	require.NotEqual(t, standby.PID, fresh.PID)
	require.Zero(t, fresh.Restarts)
	require.Nil(t, fresh.LastExit)
	require.Len(t, lines(starts), 3)
}

func TestWarmStandbyLoadsWhenItTakesOver(t *testing.T) {
	r := newRig(t)
	starts := filepath.Join(t.TempDir(), "starts")
	r.serve("echo", quick+preloaded, "STARTS="+starts, "LOAD=200ms")
	s, standby := r.stands("echo", 1)
	require.Equal(t, "loading", standby.State)
	require.Contains(t, standby.Progress.Message, "waits")
	begin := time.Now()
	require.NoError(t, syscall.Kill(s.Workers[0].PID, syscall.SIGKILL))
	require.Equal(t, standby.PID, r.dial("echo").call("echo", `{}`).pid(t))
	require.Greater(t, time.Since(begin), 190*time.Millisecond, "it had not loaded")
	_, fresh := r.stands("echo", 1)
	require.NotEqual(t, standby.PID, fresh.PID)
	require.Len(t, lines(starts), 3)
}

// A standby that has not loaded yet when its worker dies is still ahead of a new process.
func TestStandbyThatLoadsTakesOver(t *testing.T) {
	r := newRig(t)
	starts := filepath.Join(t.TempDir(), "starts")
	events := r.sup.Events(t.Context())
	r.serve("echo", quick+hot, "STARTS="+starts, "LOAD=2s")
	s := r.until("echo", "a standby that loads", func(s protocol.ProviderStatus) bool { return standbyOf(s).State == "loading" })
	standby := standbyOf(s)
	require.NoError(t, syscall.Kill(s.Workers[0].PID, syscall.SIGKILL))
	require.Equal(t, standby.PID, r.dial("echo").call("echo", `{}`).pid(t))
	started := 0
	for e := range events { // the next standby is raised when this one serves
		if e.Type == "state" && e.State == "starting" {
			started++
		}
		if e.Type == "state" && e.Worker == standby.ID && e.State == "ready" {
			break
		}
	}
	require.Equal(t, 2, started, "no other process was started meanwhile")
	r.stands("echo", 1)
}

// start.timeout bounds what a warm standby does, not how long it waits.
func TestWarmStandbyAndTheStartTimeout(t *testing.T) {
	r := newRig(t)
	r.serve("echo", "[restart]\nbackoff = \"1ms\"\n[start]\ntimeout = \"3s\"\n"+preloaded)
	s, standby := r.stands("echo", 1)
	<-time.After(3500 * time.Millisecond) // what is tested
	_, still := r.stands("echo", 1)
	require.Equal(t, standby.PID, still.PID)
	require.NoError(t, syscall.Kill(s.Workers[0].PID, syscall.SIGKILL))
	require.Equal(t, standby.PID, r.dial("echo").call("echo", `{}`).pid(t))
	<-time.After(3500 * time.Millisecond)
	require.Equal(t, standby.PID, r.dial("echo").call("echo", `{}`).pid(t), "the clock of its start has stopped")
}

// Each request of many callers gets exactly one answer while workers are killed over and over and standbys take over, with several
// workers and several connections to each.
func TestStandbyUnderTraffic(t *testing.T) {
	for _, mode := range []string{"hot", "warm"} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t)
			r.serve("echo", quick+"[serve]\nreplicas = 2\nconcurrency = 2\nretry_on_crash = true\nstandby = \""+mode+"\"\n", "LOAD=20ms")
			r.stands("echo", 2)
			watch, most := watchWorkers(r, "echo")
			stop, moved := pacedTraffic(t, r, "echo", 6)
			for i := range 12 {
				moved(2) // a request survives one kill, and may have met the last one
				s, standby := r.stands("echo", 2)
				require.NoError(t, syscall.Kill(s.Workers[i%2].PID, syscall.SIGKILL))
				r.until("echo", "the standby serves", func(s protocol.ProviderStatus) bool {
					return ready(s) == 2 && (s.Workers[0].PID == standby.PID || s.Workers[1].PID == standby.PID)
				})
			}
			require.Positive(t, stop())
			close(watch)
			require.LessOrEqual(t, <-most, 3)
		})
	}
}

// The standby and its worker die at once: the next ones are started as without standby.
func TestStandbyDiesWithItsWorker(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+hot)
	for range 5 {
		s, standby := r.stands("echo", 1)
		require.NoError(t, syscall.Kill(standby.PID, syscall.SIGKILL))
		require.NoError(t, syscall.Kill(s.Workers[0].PID, syscall.SIGKILL))
		pid := r.dial("echo").call("echo", `{}`).pid(t)
		require.NotEqual(t, s.Workers[0].PID, pid)
		require.NotEqual(t, standby.PID, pid)
	}
	r.stands("echo", 1)
}

// A standby that cannot live, since two models do not fit for instance, takes nothing down: it is given up, which status says, until
// an operator or an edit has it tried again.
func TestStandbyThatCannotLive(t *testing.T) {
	r := newRig(t)
	fail := filepath.Join(t.TempDir(), "fail")
	body := "[restart]\nbackoff = \"1ms\"\nmax_backoff = \"2ms\"\nmax_crashes = 3\n"
	r.serve("echo", body, "FAIL_IF="+fail)
	pid := r.dial("echo").call("echo", `{}`).pid(t)
	require.NoError(t, os.WriteFile(fail, nil, 0o600))
	r.serve("echo", body+hot, "FAIL_IF="+fail)
	gaveUp := func() protocol.ProviderStatus {
		return r.until("echo", "given up", func(s protocol.ProviderStatus) bool { return standbyOf(s).State == "failed" })
	}
	s := gaveUp()
	require.Equal(t, "ready", s.State)
	require.Contains(t, s.Reason, "without a standby")
	require.Contains(t, s.Reason, "code 3")
	require.Contains(t, standbyOf(s).LastExit.Output, "second model")
	require.Nil(t, s.LastExit, "nothing of the provider's own has ended")
	require.Equal(t, pid, r.dial("echo").call("echo", `{}`).pid(t))

	require.NoError(t, r.sup.Start(t.Context(), "echo", true)) // tried again, in vain
	gaveUp()
	require.NoError(t, os.Remove(fail))
	r.serve("echo", body+"# mended\n"+hot+"queue = 7\n", "FAIL_IF="+fail)
	r.stands("echo", 1)
	require.Equal(t, pid, r.dial("echo").call("echo", `{}`).pid(t))

	// And what had gone wrong counts nothing for the worker that serves.
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	require.Nil(t, r.dial("echo").call("echo", `{}`).Error)
	r.stands("echo", 1)
}

// A provider that crashes too often fails with a standby too: the last one that there is serves until it dies.
func TestStandbyAndTheCrashLimit(t *testing.T) {
	r := newRig(t)
	r.serve("echo", "[restart]\nbackoff = \"1ms\"\nmax_backoff = \"2ms\"\nmax_crashes = 3\n"+hot)
	for range 2 {
		s, _ := r.stands("echo", 1)
		require.NoError(t, syscall.Kill(s.Workers[0].PID, syscall.SIGKILL))
		r.until("echo", "taken over", func(n protocol.ProviderStatus) bool { return n.Workers[0].PID != s.Workers[0].PID })
	}
	s, standby := r.stands("echo", 1)
	require.NoError(t, syscall.Kill(s.Workers[0].PID, syscall.SIGKILL))
	s = r.until("echo", "the last standby serves", func(s protocol.ProviderStatus) bool { return standbyOf(s).State == "failed" })
	require.Equal(t, standby.PID, s.Workers[0].PID)
	require.Nil(t, r.dial("echo").call("echo", `{}`).Error)
	require.NoError(t, syscall.Kill(standby.PID, syscall.SIGKILL))
	r.state("echo", "failed")
	require.Equal(t, protocol.ProviderFailed, r.dial("echo").call("echo", `{}`).kind())
	require.NoError(t, r.sup.Restart(t.Context(), "echo", true))
	require.Nil(t, r.dial("echo").call("echo", `{}`).Error)
	r.stands("echo", 1)
}

// restart.policy = "never": the standby takes over, and nothing is executed until a request needs it.
func TestStandbyWithPolicyNever(t *testing.T) {
	r := newRig(t)
	starts := filepath.Join(t.TempDir(), "starts")
	r.serve("echo", "[restart]\npolicy = \"never\"\n"+hot, "STARTS="+starts)
	s, standby := r.stands("echo", 1)
	require.NoError(t, syscall.Kill(s.Workers[0].PID, syscall.SIGKILL))
	c := r.dial("echo")
	require.Equal(t, standby.PID, c.call("echo", `{}`).pid(t))
	r.until("echo", "no standby", func(s protocol.ProviderStatus) bool { return standbyOf(s).State == "stopped" })
	require.NoError(t, syscall.Kill(standby.PID, syscall.SIGKILL))
	r.state("echo", "stopped")
	require.Len(t, lines(starts), 2)
	require.Nil(t, c.call("echo", `{}`).Error)
	r.stands("echo", 1)
	require.Len(t, lines(starts), 4)
}

func TestStandbyStopsAndStartsWithItsProvider(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+hot)
	s, standby := r.stands("echo", 1)
	require.NoError(t, r.sup.Stop(t.Context(), "echo", true))
	require.False(t, alive(s.Workers[0].PID))
	require.False(t, alive(standby.PID), "stop returns when all is gone")
	require.Equal(t, "stopped", r.status("echo").State)
	require.NoError(t, r.sup.Start(t.Context(), "echo", true))
	s, standby = r.stands("echo", 1)
	require.NoError(t, r.sup.Restart(t.Context(), "echo", true))
	require.False(t, alive(s.Workers[0].PID))
	require.False(t, alive(standby.PID), "restart replaces it too")
	r.stands("echo", 1)
}

func TestStandbyOfAProviderOnRequest(t *testing.T) {
	r := newRig(t)
	starts := filepath.Join(t.TempDir(), "starts")
	r.serve("echo", quick+"idle_timeout = \"4s\"\nwhen = \"request\"\n"+hot, "STARTS="+starts) // quick ends in [start]
	require.Equal(t, "stopped", r.status("echo").State)
	require.Empty(t, lines(starts))
	require.Nil(t, r.dial("echo").call("echo", `{}`).Error)
	s, standby := r.stands("echo", 1)
	r.until("echo", "idle", func(s protocol.ProviderStatus) bool { return s.State == "stopped" && standbyOf(s).State == "stopped" })
	eventually(t, func() bool { return !alive(s.Workers[0].PID) && !alive(standby.PID) }, func() string { return "both end" })
	require.Len(t, lines(starts), 2)
	require.Nil(t, r.dial("echo").call("echo", `{}`).Error)
	r.stands("echo", 1)
}

// serve.standby applies live: the worker that serves does not notice.
func TestStandbyChangesLive(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	pid := r.dial("echo").call("echo", `{}`).pid(t)
	r.serve("echo", quick+hot)
	_, first := r.stands("echo", 1)
	require.Equal(t, "ready", first.State)
	r.serve("echo", quick+preloaded)
	r.until("echo", "a warm one", func(s protocol.ProviderStatus) bool {
		w := standbyOf(s)
		return w.ReadySince != nil && w.State == "loading" && w.PID != first.PID
	})
	r.serve("echo", quick)
	r.until("echo", "none", func(s protocol.ProviderStatus) bool { return len(s.Workers) == 1 })
	require.Equal(t, pid, r.dial("echo").call("echo", `{}`).pid(t))
	r.serve("echo", quick+"[serve]\nreplicas = 3\nstandby = \"hot\"\n")
	s, _ := r.stands("echo", 3)
	require.Equal(t, protocol.RoleStandby, s.Workers[3].Role)
}

// A standby that hangs is found by its pings as any other idle worker is, and replaced.
func TestStandbyIsPinged(t *testing.T) {
	for _, mode := range []string{hot, preloaded} {
		r := newRig(t)
		r.serve("echo", quick+"[health]\ninterval = \"30ms\"\ntimeout = \"3s\"\n"+mode)
		s, standby := r.stands("echo", 1)
		require.NoError(t, syscall.Kill(standby.PID, syscall.SIGSTOP))
		next := r.until("echo", "replaced", func(s protocol.ProviderStatus) bool {
			w := standbyOf(s)
			return w.ReadySince != nil && w.PID != standby.PID
		})
		require.Equal(t, s.Workers[0].PID, next.Workers[0].PID)
		require.Contains(t, standbyOf(next).LastExit.Reason, "ping")
	}
}

// A shutdown and a removal take the standby along.
func TestStandbyGoesWithItsManifest(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+hot)
	s, standby := r.stands("echo", 1)
	require.NoError(t, os.Remove(filepath.Join(r.dir, "echo.toml")))
	r.load()
	eventually(t, func() bool { return !alive(s.Workers[0].PID) && !alive(standby.PID) }, func() string { return "both end" })
	eventually(t, func() bool { return len(r.sup.Status([]string{"echo"}).Providers) == 0 }, func() string { return "the provider goes" })
	r.serve("echo", quick+preloaded)
	r.stands("echo", 1)
	r.stop() // which looks for what is left
}

// Requests in flight when the worker dies are answered once each: those that were never read by the standby.
func TestCase40UnreadRequestsGoToTheStandby(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+hot+"queue = 200\n")
	for range 10 {
		s, _ := r.stands("echo", 1)
		var wg sync.WaitGroup
		for range 8 {
			c := r.dial("echo")
			wg.Go(func() {
				for range 20 {
					a, err := c.try("echo", `{}`)
					if err != nil || a.Error != nil && a.kind() != protocol.WorkerCrashed {
						t.Errorf("%v %+v", err, a.Error)
					}
				}
			})
		}
		require.NoError(t, syscall.Kill(s.Workers[0].PID, syscall.SIGKILL))
		wg.Wait()
	}
}

// The records in the runtime directory say who stands by.
func TestStandbyInTheRecords(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+hot)
	s, standby := r.stands("echo", 1)
	of := func(w protocol.WorkerStatus) string {
		var data []byte
		eventually(t, func() bool { // a worker may be ready before its record is on the disk
			var err error
			data, err = os.ReadFile(filepath.Join(r.run, "w", fmt.Sprintf("%s.json", w.ID)))
			return err == nil
		}, func() string { return "the record of " + w.ID })
		var rec record
		require.NoError(t, json.Unmarshal(data, &rec))
		require.Equal(t, w.PID, rec.PID)
		return rec.Standby
	}
	require.Equal(t, "", of(s.Workers[0]))
	require.Equal(t, "hot", of(standby))
	require.NoError(t, syscall.Kill(s.Workers[0].PID, syscall.SIGKILL))
	require.Equal(t, standby.PID, r.dial("echo").call("echo", `{}`).pid(t))
	s, fresh := r.stands("echo", 1)
	eventually(t, func() bool { return of(s.Workers[0]) == "" }, func() string { return "the record says that it serves" })
	require.Equal(t, "hot", of(fresh))
}
