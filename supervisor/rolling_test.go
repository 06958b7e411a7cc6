package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
	"workerd/protocol"
)

// A change of version with a standby: no request fails, there is never more than the standby and one process more beyond the
// replicas, and in the end the standby is of the new version.
func TestRollingWithStandby(t *testing.T) {
	for _, mode := range []string{"hot", "warm"} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t)
			body := quick + "[serve]\nreplicas = 2\nstandby = \"" + mode + "\"\n"
			r.serve("echo", body, "V=0")
			_, standby := r.stands("echo", 2)
			watch, most := watchWorkers(r, "echo")
			stop := traffic(t, r, "echo", 4)
			for i := 1; i < 4; i++ {
				r.serve("echo", body, fmt.Sprintf("V=%d", i))
				next := r.until("echo", "replaced", func(s protocol.ProviderStatus) bool {
					w := standbyOf(s)
					return ready(s) == 2 && len(s.Workers) == 3 && w.ReadySince != nil && w.PID != standby.PID
				})
				standby = standbyOf(next)
			}
			require.Positive(t, stop())
			require.NoError(t, syscall.Kill(r.status("echo").Workers[0].PID, syscall.SIGKILL))
			r.until("echo", "taken over", func(s protocol.ProviderStatus) bool { return s.Workers[0].PID == standby.PID && ready(s) == 2 })
			for range 8 {
				require.Equal(t, `"3"`, string(r.dial("echo").call("env", `{"text":"V"}`).Result))
			}
			close(watch)
			require.LessOrEqual(t, <-most, 4)
		})
	}
}

// A version that does not become ready touches neither the old one nor its standby, which takes over while it is tried and afterwards.
func TestRollingFailureWithStandby(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+hot)
	s, standby := r.stands("echo", 1)
	stop := traffic(t, r, "echo", 2)
	r.serve("echo", quick+hot, "MODE=exit-4")
	r.until("echo", "rolled back", func(s protocol.ProviderStatus) bool { return len(s.ManifestError) > 0 })
	back, still := r.stands("echo", 1)
	require.Positive(t, stop())
	require.Equal(t, s.Workers[0].PID, back.Workers[0].PID)
	require.Equal(t, standby.PID, still.PID)
	require.Contains(t, back.Reason, "did not become ready")

	r.serve("echo", quick+hot, "MODE=never-ready")
	r.until("echo", "under way", func(s protocol.ProviderStatus) bool {
		return len(s.Workers) == 3 && s.Workers[2].Role == protocol.RoleCandidate && s.Workers[2].State == "loading"
	})
	require.NoError(t, syscall.Kill(back.Workers[0].PID, syscall.SIGKILL))
	require.Equal(t, standby.PID, r.dial("echo").call("echo", `{}`).pid(t))

	// The seat that the standby took is the one that is then replaced.
	r.serve("echo", quick+hot, "LOAD=3s")
	r.until("echo", "under way", func(s protocol.ProviderStatus) bool {
		return len(s.Workers) == 3 && s.Workers[2].Role == protocol.RoleCandidate
	})
	r.until("echo", "replaced", func(s protocol.ProviderStatus) bool {
		return ready(s) == 1 && s.Workers[0].PID != standby.PID && len(s.Workers) == 2 && standbyOf(s).ReadySince != nil
	})
	require.False(t, alive(standby.PID))
	require.Equal(t, `"3s"`, string(r.dial("echo").call("env", `{"text":"LOAD"}`).Result))
}

// A worker that dies while a version is tried leaves its seat to the standby, which is then the one that the new version replaces.
func TestTakeoverDuringARoll(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+hot)
	s, standby := r.stands("echo", 1)
	r.serve("echo", quick+hot, "LOAD=3s")
	r.until("echo", "under way", func(s protocol.ProviderStatus) bool { return len(s.Workers) == 3 })
	require.NoError(t, syscall.Kill(s.Workers[0].PID, syscall.SIGKILL))
	require.Equal(t, standby.PID, r.dial("echo").call("echo", `{}`).pid(t))
	next, fresh := r.stands("echo", 1)
	require.False(t, alive(standby.PID))
	require.NotEqual(t, standby.PID, next.Workers[0].PID)
	require.Equal(t, 1, next.Workers[0].Restarts)
	require.NoError(t, syscall.Kill(next.Workers[0].PID, syscall.SIGKILL))
	require.Equal(t, fresh.PID, r.dial("echo").call("echo", `{}`).pid(t))
	require.Equal(t, `"3s"`, string(r.dial("echo").call("env", `{"text":"LOAD"}`).Result))
}

// Under stop-first there is never more than the seats and the standby.
func TestStopFirstWithStandby(t *testing.T) {
	r := newRig(t)
	body := "[restart]\nbackoff = \"1ms\"\nmax_crashes = 1000\non_change = \"stop-first\"\n" + hot
	r.serve("echo", body)
	_, standby := r.stands("echo", 1)
	watch, most := watchWorkers(r, "echo")
	stop := traffic(t, r, "echo", 2)
	for i := range 3 {
		r.serve("echo", body, fmt.Sprintf("V=%d", i))
		next := r.until("echo", "replaced", func(s protocol.ProviderStatus) bool {
			return ready(s) == 1 && standbyOf(s).ReadySince != nil && standbyOf(s).PID != standby.PID
		})
		standby = standbyOf(next)
	}
	require.Positive(t, stop())
	close(watch)
	require.LessOrEqual(t, <-most, 2)
}

// A request that runs longer than stop_timeout is not lost to an edit: its worker leaves when it has answered. Status counts a
// worker that leaves apart.
func TestEditWaitsForLongRequests(t *testing.T) {
	r := newRig(t)
	body := "[start]\nstop_timeout = \"100ms\"\n"
	r.serve("echo", body)
	old := r.state("echo", "ready").Workers[0].PID
	c := r.dial("echo")
	c.send(`{"jsonrpc":"2.0","id":1,"method":"sleep","params":{"sec":6,"deaf":true}}`)
	r.until("echo", "it runs", func(s protocol.ProviderStatus) bool { return s.InFlight == 1 })
	r.serve("echo", body, "V=2")
	s := r.until("echo", "replaced", func(s protocol.ProviderStatus) bool {
		return ready(s) == 1 && s.Workers[0].PID != old && len(s.Workers) == 2
	})
	require.Equal(t, protocol.RoleLeaving, s.Workers[1].Role)
	require.Equal(t, old, s.Workers[1].PID)
	require.Equal(t, `"2"`, string(r.dial("echo").call("env", `{"text":"V"}`).Result), "the new version serves meanwhile")

	// Another edit waits, which is said: two versions at a time are all there may be.
	r.serve("echo", body, "V=3")
	r.until("echo", "it waits", func(s protocol.ProviderStatus) bool { return strings.Contains(s.Reason, "has ended") })
	require.Equal(t, old, c.next().pid(t))
	r.until("echo", "the third version", func(s protocol.ProviderStatus) bool {
		return len(s.Workers) == 1 && string(r.dial("echo").call("env", `{"text":"V"}`).Result) == `"3"`
	})
}

// Fewer replicas cost no request either.
func TestFewerReplicasWaitForLongRequests(t *testing.T) {
	r := newRig(t)
	body := "[start]\nstop_timeout = \"100ms\"\n"
	r.serve("echo", body+"[serve]\nreplicas = 2\n")
	r.until("echo", "both", func(s protocol.ProviderStatus) bool { return ready(s) == 2 })
	c := r.dial("echo")
	for i := range 2 {
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"sleep","params":{"sec":6,"deaf":true}}`, i))
	}
	r.until("echo", "they run", func(s protocol.ProviderStatus) bool { return s.InFlight == 2 })
	r.serve("echo", body)
	c.next().pid(t)
	c.next().pid(t)
	r.until("echo", "one", func(s protocol.ProviderStatus) bool { return len(s.Workers) == 1 })
}

// An operator's restart and stop do not wait so long: they are how one gets rid of a request that hangs.
func TestRestartDoesNotWaitForLongRequests(t *testing.T) {
	for name, operate := range map[string]func(*rig) error{
		"restart": func(r *rig) error { return r.sup.Restart(r.t.Context(), "echo", true) },
		"stop":    func(r *rig) error { return r.sup.Stop(r.t.Context(), "echo", true) },
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			body := "[start]\nstop_timeout = \"100ms\"\n"
			r.serve("echo", body)
			r.state("echo", "ready")
			c := r.dial("echo")
			c.send(`{"jsonrpc":"2.0","id":1,"method":"sleep","params":{"sec":600,"deaf":true}}`)
			r.until("echo", "it runs", func(s protocol.ProviderStatus) bool { return s.InFlight == 1 })
			r.serve("echo", body, "V=2") // its worker leaves, with patience
			r.until("echo", "it leaves", func(s protocol.ProviderStatus) bool { return ready(s) == 1 && len(s.Workers) == 2 })
			begin := time.Now()
			require.NoError(t, operate(r))
			require.Less(t, time.Since(begin), 20*time.Second)
			require.Equal(t, protocol.WorkerCrashed, c.next().kind())
		})
	}
}

// While a new version is not ready, and when it has been given up, clients are held to the schemas of the one that serves, and are
// shown its methods.
func TestSchemasAndMethodsOfARejectedVersion(t *testing.T) {
	r := newRig(t)
	tools := func(param string) string {
		return "[[tools]]\nname = \"echo\"\nmethod = \"echo\"\ndescription = \"d\"\n[tools.input_schema]\ntype = \"object\"\nrequired = [\"" + param + "\"]\n"
	}
	write := func(param string, env ...string) {
		text := helperManifest(quick, env...) + tools(param)
		require.NoError(t, os.WriteFile(filepath.Join(r.dir, "echo.toml"), []byte(text), 0o600))
		r.load()
	}
	write("text")
	c := r.dial("echo")
	require.Nil(t, c.call("echo", `{"text":"x"}`).Error)
	require.Equal(t, protocol.InvalidParams, c.call("echo", `{}`).kind())
	write("other", "MODE=never-ready")
	r.until("echo", "under way", func(s protocol.ProviderStatus) bool {
		return len(s.Workers) == 2 && s.Workers[1].Role == protocol.RoleCandidate && s.Workers[1].State == "loading"
	})
	require.Nil(t, c.call("echo", `{"text":"x"}`).Error, "the version that serves takes it")
	write("third", "MODE=exit-4")
	r.until("echo", "rolled back", func(s protocol.ProviderStatus) bool { return len(s.ManifestError) > 0 })
	require.Nil(t, c.call("echo", `{"text":"x"}`).Error)
	write("other")
	r.until("echo", "mended", func(s protocol.ProviderStatus) bool { return s.ManifestError == nil && len(s.Workers) == 1 })
	require.Equal(t, protocol.InvalidParams, c.call("echo", `{"text":"x"}`).kind())
	require.Nil(t, c.call("echo", `{"other":"x"}`).Error)
	require.Equal(t, "echo", r.status("echo").Methods[0].Name)
}

// An edit that is taken back while its version is being started changes nothing.
func TestEditTakenBack(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	pid := r.dial("echo").call("echo", `{}`).pid(t)
	r.serve("echo", quick, "MODE=never-ready")
	r.until("echo", "under way", func(s protocol.ProviderStatus) bool { return len(s.Workers) == 2 })
	r.serve("echo", quick)
	s := r.until("echo", "as before", func(s protocol.ProviderStatus) bool { return len(s.Workers) == 1 })
	require.Equal(t, pid, s.Workers[0].PID)
	require.Nil(t, s.ManifestError)
	require.Equal(t, "ready", s.State)
}

// A worker that dies while its successor loads is restarted, and then replaced: nobody waits for the successor alone.
func TestCrashDuringARoll(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	s := r.state("echo", "ready")
	r.serve("echo", quick, "LOAD=3s")
	r.until("echo", "under way", func(s protocol.ProviderStatus) bool { return len(s.Workers) == 2 })
	require.NoError(t, syscall.Kill(s.Workers[0].PID, syscall.SIGKILL))
	begin := time.Now()
	require.Nil(t, r.dial("echo").call("echo", `{}`).Error)
	t.Log("answered again after", time.Since(begin))
	r.until("echo", "replaced", func(s protocol.ProviderStatus) bool {
		return len(s.Workers) == 1 && string(r.dial("echo").call("env", `{"text":"LOAD"}`).Result) == `"3s"`
	})
	require.Nil(t, r.status("echo").ManifestError)
}

// What came of a roll is shown of a manifest that goes while it is under way: nothing is left.
func TestRemovalDuringARoll(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+hot)
	r.stands("echo", 1)
	r.serve("echo", quick+hot, "MODE=never-ready")
	r.until("echo", "under way", func(s protocol.ProviderStatus) bool {
		return len(s.Workers) == 3 && s.Workers[2].Role == protocol.RoleCandidate
	})
	require.NoError(t, os.Remove(filepath.Join(r.dir, "echo.toml")))
	r.set = manifest.LoadDirs([]string{r.dir}, r.set, r.opt)
	r.sup.Apply(r.set)
	eventually(t, func() bool { return len(r.sup.Status([]string{"echo"}).Providers) == 0 }, func() string { return "the provider goes" })
}
