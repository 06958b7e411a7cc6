package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
	"workerd/protocol"
)

// Who is to go where fewer seats are wanted.
func TestSurplus(t *testing.T) {
	for _, c := range []struct {
		seats []State
		n     int
		gone  []int
	}{
		{[]State{Ready, Ready, Ready}, 1, []int{1, 2}},
		{[]State{Ready}, 2, nil},
		{[]State{Failed, Ready}, 1, []int{0}},
		{[]State{Stopped, Ready}, 1, []int{0}},
		{[]State{Failed, Stopped}, 1, []int{0}},
		{[]State{Stopped, Failed}, 1, []int{1}},
		{[]State{Backoff, Loading, Ready, Starting}, 2, []int{3, 0}},
	} {
		var seats, want []*worker
		for _, s := range c.seats {
			seats = append(seats, &worker{state: s})
		}
		for _, i := range c.gone {
			want = append(want, seats[i])
		}
		got := surplus(seats, c.n)
		require.Len(t, got, len(want), "%v", c.seats)
		for i := range want {
			require.Same(t, want[i], got[i], "%v", c.seats)
		}
	}
}

const few = "[restart]\nbackoff = \"1ms\"\nmax_crashes = 2\n"

// withFailedSeat serves two replicas of which the first has failed; the file that makes it fail is gone.
func withFailedSeat(t *testing.T) (r *rig, well int, env string) {
	r = newRig(t)
	fail := filepath.Join(t.TempDir(), "fail")
	env = "FAIL_IF=" + fail
	r.serve("echo", few+"[serve]\nreplicas = 2\n", env)
	s := r.until("echo", "both", func(s protocol.ProviderStatus) bool { return ready(s) == 2 })
	require.NoError(t, os.WriteFile(fail, nil, 0o600))
	require.NoError(t, syscall.Kill(s.Workers[0].PID, syscall.SIGKILL))
	r.until("echo", "failed", func(s protocol.ProviderStatus) bool { return s.Workers[0].State == "failed" && ready(s) == 1 })
	require.NoError(t, os.Remove(fail))
	return r, s.Workers[1].PID, env
}

// A seat that has failed beside one that serves has another chance with any edit, and with a restart.
func TestFailedSeatIsRevived(t *testing.T) {
	for name, revive := range map[string]func(r *rig, env string){
		"live key": func(r *rig, env string) { r.serve("echo", few+"[serve]\nreplicas = 2\nqueue = 7\n", env) },
		"version":  func(r *rig, env string) { r.serve("echo", few+"[serve]\nreplicas = 2\n", env, "V=2") },
		"restart": func(r *rig, _ string) {
			ctx, cancel := context.WithTimeout(r.t.Context(), time.Minute)
			defer cancel()
			require.NoError(r.t, r.sup.Restart(ctx, "echo", true))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, well, env := withFailedSeat(t)
			revive(r, env)
			s := r.until("echo", "both", func(s protocol.ProviderStatus) bool {
				return ready(s) == 2 && len(s.Workers) == 2 && (name == "live key" || s.Workers[0].PID != well && s.Workers[1].PID != well)
			})
			require.Equal(t, "ready", s.State)
		})
	}
}

// Of a failed seat and one that serves the failed one is given up.
func TestFewerReplicasKeepWhatServes(t *testing.T) {
	r, well, env := withFailedSeat(t)
	r.serve("echo", few, env)
	r.until("echo", "one", func(s protocol.ProviderStatus) bool { return len(s.Workers) == 1 })
	require.Equal(t, well, r.dial("echo").call("echo", `{}`).pid(t))
}

// A restart is for every replica, also for those that no request has needed yet.
func TestRestartStartsEverySeat(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+"when = \"request\"\n[serve]\nreplicas = 2\n")
	require.Nil(t, r.dial("echo").call("echo", `{}`).Error)
	require.Equal(t, 1, ready(r.status("echo")))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.NoError(t, r.sup.Restart(ctx, "echo", true))
	require.Equal(t, 2, ready(r.status("echo")))
}

// An edit of the version and of the number of replicas boots those that come with it.
func TestEditOfVersionAndReplicas(t *testing.T) {
	r := newRig(t)
	r.serve("echo", few)
	r.state("echo", "ready")
	r.serve("echo", few+"[serve]\nreplicas = 3\n", "V=2")
	r.until("echo", "all three", func(s protocol.ProviderStatus) bool { return ready(s) == 3 })
	require.Equal(t, `"2"`, string(r.dial("echo").call("env", `{"text":"V"}`).Result))
}

// Where the version that runs fails while the next one is tried, and that one fails too, requests hear so.
func TestBothVersionsFail(t *testing.T) {
	r := newRig(t)
	fail := filepath.Join(t.TempDir(), "fail")
	r.serve("echo", few, "FAIL_IF="+fail)
	pid := r.state("echo", "ready").Workers[0].PID
	r.serve("echo", few+"[start]\ntimeout = \"8s\"\n", "FAIL_IF="+fail, "MODE=never-ready")
	r.until("echo", "the next one is tried", func(s protocol.ProviderStatus) bool {
		return len(s.ManifestError) > 0 || len(s.Workers) == 2 && s.Workers[1].State == "loading"
	})
	require.NoError(t, os.WriteFile(fail, nil, 0o600))
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	r.state("echo", "failed")
	c := r.dial("echo")
	require.NotEmpty(t, c.call("echo", `{}`).kind(), "it may have waited for the next version")
	require.Equal(t, protocol.ProviderFailed, c.call("echo", `{}`).kind())
}

// An operator's start ends where a worker that has come is stopped for being idle before another is ready.
func TestArrivedWithoutAll(t *testing.T) {
	m := &manifest.Manifest{}
	m.Serve.Replicas = 2
	p := &provider{manifest: m, workers: []*worker{{state: Ready, life: &life{n: 1}}, {state: Loading, life: &life{n: 2}}}}
	_, over := p.arrived(0, 0)
	require.False(t, over)
	p.workers[0].state, p.workers[0].life = Stopped, nil
	_, over = p.arrived(0, 0)
	require.False(t, over)
	p.workers[1].state = Ready
	err, over := p.arrived(0, 0)
	require.True(t, over)
	require.EqualError(t, err, "1 of 2 workers were stopped meanwhile")
}
