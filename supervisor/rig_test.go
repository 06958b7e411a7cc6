package supervisor

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"workerd/execenv"
	"workerd/execenv/gpu"
	"workerd/identity"
	"workerd/manifest"
	"workerd/protocol"
)

var subreaper = sync.OnceValue(func() error { return unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) })

// rig is a supervisor over a directory of manifests, without the watcher: load applies what lies there.
type rig struct {
	t    testing.TB
	dir  string // manifests
	run  string
	sup  *Supervisor
	set  *manifest.Set
	stop func()

	cgroups   *execenv.Cgroups
	opt       manifest.Options
	listeners Listeners // nil: their end is the supervisor's
	gpus      gpu.Inventory
}

// newRig starts a supervisor in folders of its own. Its end is awaited, and nothing of it may be left.
func newRig(t testing.TB) *rig {
	t.Helper()
	return newRigBelow(t, nil)
}

// newRigBelow is newRig with a delegated cgroup.
func newRigBelow(t testing.TB, cgroups *execenv.Cgroups) *rig {
	t.Helper()
	return newRigOf(t, &rig{cgroups: cgroups})
}

// newRigOf is newRig with what r has besides.
func newRigOf(t testing.TB, r *rig) *rig {
	t.Helper()
	require.NoError(t, subreaper())
	base, err := os.MkdirTemp("", "wd") // short: a socket's path may have 107 bytes
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(base) })
	r.t, r.dir, r.run = t, filepath.Join(base, "p"), filepath.Join(base, "r")
	for _, d := range []string{r.dir, r.run} {
		require.NoError(t, os.Mkdir(d, 0o700))
	}
	r.open(base)
	return r
}

func (r *rig) open(base string) {
	id, err := identity.Current()
	require.NoError(r.t, err)
	host, _ := os.Hostname()
	children := &execenv.Children{}
	instance := execenv.InstanceID(id.UID, host, r.run)
	planner := execenv.NewPlanner(execenv.Host{
		ID: id, Instance: instance, RuntimeDir: r.run, StateDir: filepath.Join(base, "s"), CacheDir: filepath.Join(base, "c"),
		Environ: os.Environ(), GPUs: r.gpus,
	}, execenv.OSRunner{Children: children})
	var out io.Writer = io.Discard
	if os.Getenv("WORKERD_TEST_LOG") != "" {
		out = os.Stderr
	}
	r.opt = manifest.Options{LookupEnv: os.LookupEnv, UID: id.UID, Home: id.Home}
	r.sup, err = New(Config{
		RuntimeDir: r.run, StateDir: filepath.Join(base, "s"), Instance: instance, Planner: planner, Children: children, Cgroups: r.cgroups,
		Log: slog.New(slog.NewTextHandler(out, nil)), Listeners: r.listeners, GPUs: r.gpus, CheckSockets: time.Hour,
	})
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = r.sup.Run(ctx) }()
	var once sync.Once
	r.stop = func() {
		once.Do(func() {
			cancel()
			select {
			case <-done:
			case <-time.After(60 * time.Second):
				buf := make([]byte, 1<<20)
				r.t.Errorf("the supervisor does not end\n%s", buf[:runtime.Stack(buf, true)])
			}
			children.ReapOrphans()
			r.noneLeft(instance)
		})
	}
	r.t.Cleanup(r.stop)
}

// noneLeft fails where a process carries the marker of a worker of this instance.
func (r *rig) noneLeft(instance string) {
	dirs, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, d := range dirs {
		data, err := os.ReadFile(d)
		if err == nil && strings.Contains(string(data), execenv.MarkerVar+"="+instance+"/") {
			r.t.Errorf("left behind: %s", d)
		}
	}
}

// provider writes a manifest that runs the helper worker. body is TOML: top-level keys first, then tables; env goes to the
// helper.
func (r *rig) provider(slug, body string, env ...string) {
	r.t.Helper()
	require.NoError(r.t, os.WriteFile(filepath.Join(r.dir, slug+".toml"), []byte(helperManifest(body, env...)), 0o600))
}

func helperManifest(body string, env ...string) string {
	exe, _ := os.Executable()
	var b strings.Builder
	fmt.Fprintf(&b, "command = [%q]\n%s\n[env]\nkind = \"venv\"\n[env.variables]\n%s = \"worker\"\nGORACE = \"atexit_sleep_ms=0\"\n", exe, body, helperVar)
	for _, kv := range env {
		k, v, _ := strings.Cut(kv, "=")
		fmt.Fprintf(&b, "%s = %q\n", k, v)
	}
	return b.String()
}

// load applies the directory.
func (r *rig) load() {
	r.t.Helper()
	r.set = manifest.LoadDirs([]string{r.dir}, r.set, r.opt)
	r.sup.Apply(r.set)
	require.NoError(r.t, r.sup.Planned(r.t.Context()))
}

// serve writes one provider, applies it and returns when its front socket is there.
func (r *rig) serve(slug, body string, env ...string) {
	r.t.Helper()
	r.provider(slug, body, env...)
	r.load()
	st := r.status(slug)
	require.NotEqual(r.t, "invalid", st.State, "%+v", st.ManifestError)
}

func (r *rig) status(slug string) protocol.ProviderStatus {
	r.t.Helper()
	list := r.sup.Status([]string{slug}).Providers
	require.NotEmpty(r.t, list, slug)
	return list[0]
}

// until waits for a condition on a provider's status.
func (r *rig) until(slug string, what string, ok func(protocol.ProviderStatus) bool) protocol.ProviderStatus {
	r.t.Helper()
	var st protocol.ProviderStatus
	eventually(r.t, func() bool {
		list := r.sup.Status([]string{slug}).Providers
		if len(list) == 0 {
			return false
		}
		st = list[0]
		return ok(st)
	}, func() string { return fmt.Sprintf("%s: %s; last seen %+v", slug, what, st) })
	return st
}

func (r *rig) state(slug, state string) protocol.ProviderStatus {
	r.t.Helper()
	return r.until(slug, "state "+state, func(s protocol.ProviderStatus) bool { return s.State == state })
}

// eventually polls a condition; the wait between two looks is no synchronisation, only patience.
func eventually(t testing.TB, ok func() bool, what func() string) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("in vain: " + what())
		}
		time.Sleep(2 * time.Millisecond)
	}
}

func lines(file string) []string {
	data, _ := os.ReadFile(file)
	return strings.Fields(strings.ReplaceAll(string(data), " ", "_"))
}

func alive(pid int) bool {
	st, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return false
	}
	i := strings.LastIndexByte(string(st), ')')
	return i > 0 && st[i+2] != 'Z' && st[i+2] != 'X'
}

// caller is a raw client: it sees what stands on the wire.
type caller struct {
	t  testing.TB
	c  *net.UnixConn
	r  *bufio.Reader
	id int
}

func (r *rig) dial(slug string) *caller {
	r.t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: filepath.Join(r.run, "front", slug, "sock"), Net: "unix"})
	require.NoError(r.t, err)
	r.t.Cleanup(func() { _ = c.Close() })
	return &caller{t: r.t, c: c, r: bufio.NewReader(c)}
}

type reply struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Result json.RawMessage `json:"result"`
	Error  *protocol.Error `json:"error"`
	Params struct {
		Token    json.RawMessage `json:"progressToken"`
		Progress float64         `json:"progress"`
		Message  string          `json:"message"`
	} `json:"params"`
}

func (c *caller) send(line string) {
	c.t.Helper()
	_, err := c.c.Write([]byte(line + "\n"))
	require.NoError(c.t, err)
}

func (c *caller) read() (reply, error) {
	_ = c.c.SetReadDeadline(time.Now().Add(60 * time.Second))
	line, err := c.r.ReadBytes('\n')
	var a reply
	if err != nil {
		return a, err
	}
	return a, json.Unmarshal(line, &a)
}

func (c *caller) next() reply {
	c.t.Helper()
	a, err := c.read()
	require.NoError(c.t, err)
	return a
}

// try sends one request and waits for its answer, skipping progress. It may be called from any goroutine.
func (c *caller) try(method, params string) (reply, error) {
	c.id++
	if _, err := fmt.Fprintf(c.c, `{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`+"\n", c.id, method, params); err != nil {
		return reply{}, err
	}
	for {
		a, err := c.read()
		if err != nil {
			return a, err
		}
		if a.Method != "" {
			continue
		}
		if string(a.ID) != strconv.Itoa(c.id) {
			return a, fmt.Errorf("answer to %s, asked %d: %+v", a.ID, c.id, a)
		}
		return a, nil
	}
}

func (c *caller) call(method, params string) reply {
	c.t.Helper()
	a, err := c.try(method, params)
	require.NoError(c.t, err)
	return a
}

func (a reply) kind() protocol.Kind {
	if a.Error == nil {
		return ""
	}
	return a.Error.Data.Kind
}

func (a reply) pid(t testing.TB) int {
	t.Helper()
	var v struct{ PID int }
	require.Nil(t, a.Error, "%+v", a.Error)
	require.NoError(t, json.Unmarshal(a.Result, &v))
	return v.PID
}
