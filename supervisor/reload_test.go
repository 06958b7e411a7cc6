package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
	"workerd/protocol"
)

// 71: only what changed restarts.
func TestCase71TouchAndCommentsRestartNothing(t *testing.T) {
	r := newRig(t)
	r.provider("a", quick)
	r.provider("b", quick)
	r.provider("c", quick)
	r.load()
	pid := func(slug string) int { return r.dial(slug).call("echo", `{}`).pid(t) }
	a, b, c := pid("a"), pid("b"), pid("c")
	r.provider("a", quick, "NEW=1")
	now := time.Now().Add(time.Hour)
	require.NoError(t, os.Chtimes(filepath.Join(r.dir, "b.toml"), now, now))
	r.provider("c", "# a comment\n\n"+quick+"\n\n# another\n")
	r.load()
	r.until("a", "replaced", func(s protocol.ProviderStatus) bool {
		return s.State == "ready" && len(s.Workers) == 1 && s.Workers[0].PID != a
	})
	require.Equal(t, b, pid("b"))
	require.Equal(t, c, pid("c"))
	require.Equal(t, `"1"`, string(r.dial("a").call("env", `{"text":"NEW"}`).Result))
}

// What a running worker does not see applies to it live.
func TestLiveKeysRestartNothing(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	pid := r.dial("echo").call("echo", `{}`).pid(t)
	r.serve("echo", quick+"[serve]\nqueue = 7\nrequest_timeout = \"1s\"\n")
	require.Equal(t, 7, r.status("echo").Queue.Limit)
	require.Equal(t, protocol.DeadlineExceeded, r.dial("echo").call("sleep", `{"sec":60}`).kind())
	require.Equal(t, pid, r.dial("echo").call("echo", `{}`).pid(t))
}

// A broken edit keeps the last good version and shows its errors; mending it clears them.
func TestBrokenEditKeepsTheLastGood(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	pid := r.dial("echo").call("echo", `{}`).pid(t)
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "echo.toml"), []byte("command = [\"/bin/true\"]\ntypo = 1\n[env]\nkind = \"vanv\"\n"), 0o600))
	r.load()
	st := r.until("echo", "errors", func(s protocol.ProviderStatus) bool { return len(s.ManifestError) == 2 })
	require.Equal(t, "ready", st.State)
	require.Positive(t, st.ManifestError[0].Line)
	require.Equal(t, pid, r.dial("echo").call("echo", `{}`).pid(t))
	r.serve("echo", quick)
	r.until("echo", "no errors", func(s protocol.ProviderStatus) bool { return s.ManifestError == nil })
	require.Equal(t, pid, r.dial("echo").call("echo", `{}`).pid(t))
}

func TestInvalidFromTheStart(t *testing.T) {
	r := newRig(t)
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "bad.toml"), []byte("nonsense"), 0o600))
	r.provider("good", quick)
	r.load()
	st := r.status("bad")
	require.Equal(t, "invalid", st.State)
	require.NotEmpty(t, st.ManifestError)
	require.Nil(t, r.dial("good").call("echo", `{}`).Error)
	require.ErrorIs(t, r.sup.Start(t.Context(), "bad", true), protocol.ErrInvalidManifest)
	r.serve("bad", quick)
	require.Nil(t, r.dial("bad").call("echo", `{}`).Error)
}

// traffic calls without pause until stop; every answer must be a result.
func traffic(t *testing.T, r *rig, slug string, clients int) (stop func() int) {
	end := make(chan struct{})
	var wg sync.WaitGroup
	var mu sync.Mutex
	total := 0
	for range clients {
		c := r.dial(slug)
		wg.Go(func() {
			for {
				select {
				case <-end:
					return
				default:
				}
				a, err := c.try("echo", `{}`)
				if err != nil || a.Error != nil {
					t.Errorf("%v %+v", err, a.Error)
					return
				}
				mu.Lock()
				total++
				mu.Unlock()
			}
		})
	}
	return func() int { close(end); wg.Wait(); return total }
}

// Under rolling no request fails because of an edit, and at no instant are there more than one worker beyond the replicas.
func TestRollingUnderTraffic(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+"[serve]\nreplicas = 2\n")
	r.until("echo", "both ready", func(s protocol.ProviderStatus) bool { return len(s.Workers) == 2 && s.Workers[1].State == "ready" })
	watch, most := watchWorkers(r, "echo")
	stop := traffic(t, r, "echo", 4)
	for i := range 5 {
		version := fmt.Sprint(i)
		r.provider("echo", quick+"[serve]\nreplicas = 2\n", "V="+version)
		r.load()
		r.until("echo", "rolled", func(s protocol.ProviderStatus) bool {
			if len(s.Workers) != 2 || s.Workers[0].State != "ready" || s.Workers[1].State != "ready" {
				return false
			}
			for range 4 {
				if string(r.dial("echo").call("env", `{"text":"V"}`).Result) != `"`+version+`"` {
					return false
				}
			}
			return true
		})
	}
	require.Positive(t, stop())
	close(watch)
	require.LessOrEqual(t, <-most, 3)
}

// watchWorkers samples how many workers of a provider have a process, until the channel is closed.
func watchWorkers(r *rig, slug string) (chan struct{}, chan int) {
	stop, most := make(chan struct{}), make(chan int, 1)
	go func() {
		n := 0
		for {
			live := 0
			for _, p := range r.sup.Status([]string{slug}).Providers {
				for _, w := range p.Workers {
					if w.PID != 0 && alive(w.PID) {
						live++
					}
				}
			}
			n = max(n, live)
			select {
			case <-stop:
				most <- n
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	return stop, most
}

// A new version that does not become ready is given up, with its error shown until the next good edit; the old one serves.
func TestRollingFailureKeepsTheOld(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	pid := r.dial("echo").call("echo", `{}`).pid(t)
	stop := traffic(t, r, "echo", 2)
	r.serve("echo", quick, "MODE=exit-4")
	st := r.until("echo", "rolled back", func(s protocol.ProviderStatus) bool { return len(s.ManifestError) > 0 })
	require.Contains(t, st.ManifestError[0].Message, "code 4")
	require.Contains(t, st.Reason, "did not become ready")
	require.Equal(t, pid, r.dial("echo").call("echo", `{}`).pid(t))
	r.load() // the same content again is not tried again
	r.load()
	require.NotEmpty(t, r.status("echo").ManifestError)
	require.Positive(t, stop())
	r.serve("echo", quick, "V=2")
	r.until("echo", "good edit", func(s protocol.ProviderStatus) bool {
		return s.ManifestError == nil && s.State == "ready" && s.Workers[0].PID != pid
	})
}

// Under stop-first there are never two live workers of a one-replica provider; requests wait meanwhile.
func TestStopFirst(t *testing.T) {
	r := newRig(t)
	body := "[restart]\nbackoff = \"1ms\"\nmax_crashes = 1000\non_change = \"stop-first\"\n"
	r.serve("echo", body)
	r.state("echo", "ready")
	watch, most := watchWorkers(r, "echo")
	stop := traffic(t, r, "echo", 4)
	for i := range 5 {
		before := r.state("echo", "ready").Workers[0].PID
		r.serve("echo", body, fmt.Sprintf("V=%d", i))
		r.until("echo", "replaced", func(s protocol.ProviderStatus) bool {
			return s.State == "ready" && s.Workers[0].PID != before
		})
	}
	require.NoError(t, r.sup.Restart(t.Context(), "echo", true))
	require.Positive(t, stop())
	close(watch)
	require.Equal(t, 1, <-most)
}

// What a plan is made of may change without the manifest and the files beside it: a restart takes it.
func TestRestartPlansAnew(t *testing.T) {
	r := newRig(t)
	vars, setup := filepath.Join(r.dir, "vars"), filepath.Join(r.dir, "setup.sh")
	write := func(file, text string) { require.NoError(t, os.WriteFile(file, []byte(text), 0o600)) }
	write(vars, "export EDITION=1\n")
	write(setup, ". "+vars+"\n")
	r.provider("m", "")
	file := filepath.Join(r.dir, "m.toml")
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	write(file, strings.Replace(string(data), "kind = \"venv\"", "kind = \"venv\"\nsetup = \"setup.sh\"", 1))
	r.load()
	r.state("m", "ready")
	cl := r.dial("m")
	assert.Equal(t, `"1"`, string(cl.call("env", `{"text":"EDITION"}`).Result))
	write(vars, "export EDITION=2\n")
	first := cl.call("echo", `{}`).pid(t)
	r.load()
	assert.Equal(t, first, cl.call("echo", `{}`).pid(t), "nobody looks there by himself")
	require.NoError(t, r.sup.Restart(t.Context(), "m", true))
	assert.Equal(t, `"2"`, string(cl.call("env", `{"text":"EDITION"}`).Result))
}

func TestRestartRolls(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+"[serve]\nreplicas = 2\n")
	r.until("echo", "both ready", func(s protocol.ProviderStatus) bool { return len(s.Workers) == 2 && s.Workers[1].State == "ready" })
	old := map[int]bool{}
	for _, w := range r.status("echo").Workers {
		old[w.PID] = true
	}
	stop := traffic(t, r, "echo", 2)
	require.NoError(t, r.sup.Restart(t.Context(), "echo", true))
	require.Positive(t, stop())
	for _, w := range r.status("echo").Workers {
		require.Equal(t, "ready", w.State)
		require.False(t, old[w.PID])
	}
	for pid := range old {
		require.False(t, alive(pid))
	}
}

// 93: a removed manifest answers everybody; the connections end and the socket goes. It may come back at once.
func TestCase93Removal(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	c := r.dial("echo")
	require.Nil(t, c.call("echo", `{}`).Error)
	c.send(`{"jsonrpc":"2.0","id":"runs","method":"sleep","params":{"sec":0.3}}`)
	r.until("echo", "running", func(s protocol.ProviderStatus) bool { return s.InFlight == 1 })
	for i := range 4 {
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":"w%d","method":"echo","params":{}}`, i))
	}
	r.until("echo", "waiting", func(s protocol.ProviderStatus) bool { return s.Queue.Waiting == 4 })
	file := filepath.Join(r.dir, "echo.toml")
	require.NoError(t, os.Remove(file))
	r.set = manifest.LoadDirs([]string{r.dir}, r.set, r.opt)
	r.sup.Apply(r.set)
	got := map[string]protocol.Kind{}
	for range 5 {
		a := c.next()
		got[string(a.ID)] = a.kind()
	}
	require.Equal(t, map[string]protocol.Kind{`"runs"`: "", `"w0"`: protocol.ProviderStopped, `"w1"`: protocol.ProviderStopped,
		`"w2"`: protocol.ProviderStopped, `"w3"`: protocol.ProviderStopped}, got)
	_, err := c.read()
	require.Error(t, err, "the connection ends")
	socket := filepath.Join(r.run, "front", "echo", "sock")
	eventually(t, func() bool { _, err := os.Lstat(socket); return os.IsNotExist(err) }, func() string { return "the socket goes" })
	eventually(t, func() bool { return len(r.sup.Status([]string{"echo"}).Providers) == 0 }, func() string { return "the provider goes" })
	r.serve("echo", quick)
	require.Nil(t, r.dial("echo").call("echo", `{}`).Error)
}

// A manifest that goes and returns while the worker still drains is served again.
func TestRemovedAndBackWhileDraining(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	c := r.dial("echo")
	c.send(`{"jsonrpc":"2.0","id":1,"method":"sleep","params":{"sec":0.3}}`)
	r.until("echo", "running", func(s protocol.ProviderStatus) bool { return s.InFlight == 1 })
	require.NoError(t, os.Remove(filepath.Join(r.dir, "echo.toml")))
	r.set = manifest.LoadDirs([]string{r.dir}, r.set, r.opt)
	r.sup.Apply(r.set)
	r.provider("echo", quick)
	r.set = manifest.LoadDirs([]string{r.dir}, r.set, r.opt)
	r.sup.Apply(r.set)
	require.Nil(t, c.next().Error)
	r.state("echo", "ready")
	require.Nil(t, r.dial("echo").call("echo", `{}`).Error)
}

func TestReplicasChangeLive(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	pid := r.state("echo", "ready").Workers[0].PID
	ready := func(n int) {
		r.until("echo", fmt.Sprintf("%d ready", n), func(s protocol.ProviderStatus) bool {
			k := 0
			for _, w := range s.Workers {
				if w.State == "ready" {
					k++
				}
			}
			return k == n && len(s.Workers) == n
		})
	}
	r.serve("echo", quick+"[serve]\nreplicas = 3\n")
	ready(3)
	r.serve("echo", quick)
	ready(1)
	require.Equal(t, pid, r.status("echo").Workers[0].PID)
}

// An operator's stop outlives workerd.
func TestStopOutlivesWorkerd(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	r.state("echo", "ready")
	require.NoError(t, r.sup.Stop(t.Context(), "echo", true))
	r.stop()
	r.open(filepath.Dir(r.dir))
	r.set = nil
	r.load()
	require.Equal(t, "stopped", r.status("echo").State)
	require.Equal(t, protocol.ProviderStopped, r.dial("echo").call("echo", `{}`).kind())
	require.NoError(t, r.sup.Start(t.Context(), "echo", true))
	require.Nil(t, r.dial("echo").call("echo", `{}`).Error)
}

// Orderly shutdown: what is on a worker finishes, what waits and what comes gets shutting_down.
func TestShutdown(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	c := r.dial("echo")
	c.send(`{"jsonrpc":"2.0","id":"runs","method":"sleep","params":{"sec":0.3}}`)
	r.until("echo", "running", func(s protocol.ProviderStatus) bool { return s.InFlight == 1 })
	c.send(`{"jsonrpc":"2.0","id":"waits","method":"echo","params":{}}`)
	r.until("echo", "waiting", func(s protocol.ProviderStatus) bool { return s.Queue.Waiting == 1 })
	go r.stop()
	a := c.next()
	require.Equal(t, `"waits"`, string(a.ID))
	require.Equal(t, protocol.ShuttingDown, a.kind())
	require.Equal(t, `"runs"`, string(c.next().ID))
	_, err := c.read()
	require.Error(t, err)
	r.stop()
}

// 57: a front socket that was deleted under us comes back.
func TestCase57SocketComesBack(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	require.NoError(t, os.RemoveAll(filepath.Join(r.run, "front")))
	p := r.sup.lookup("echo")
	require.NoError(t, p.front.restore())
	require.Nil(t, r.dial("echo").call("echo", `{}`).Error)
}

// 78: two hundred providers on request are there in no time, and nothing is started.
func TestCase78ManyManifests(t *testing.T) {
	r := newRig(t)
	starts := filepath.Join(t.TempDir(), "starts")
	for i := range 200 {
		r.provider(fmt.Sprintf("p%03d", i), "[start]\nwhen = \"request\"\n", "STARTS="+starts)
	}
	begin := time.Now()
	r.load()
	took := time.Since(begin)
	t.Log("200 manifests in", took)
	require.Len(t, r.sup.Status(nil).Providers, 200)
	require.Nil(t, r.dial("p077").call("workerd.ping", `{}`).Error)
	require.Empty(t, lines(starts))
	require.Nil(t, r.dial("p123").call("echo", `{}`).Error)
	require.Len(t, lines(starts), 1)
}
