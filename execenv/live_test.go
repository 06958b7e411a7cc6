package execenv

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
	"workerd/protocol/prototest"
)

// The tests with Live in their name run plans on real engines. They are skipped where an engine or its test image is
// missing, and fail where WORKERD_TEST_REQUIRE names it. .ci/test-engines runs them as an unprivileged user.

// sight is what a process saw from inside.
type sight struct {
	UID, GID, Umask int
	Groups          []int
	Pwd             []any
	User, Group     string
	Home, Expanded  string
	Cwd             string
	Argv            []string
	Env             map[string]string
	Passwd          []string
	Caps            string
	Interfaces      []string
	Extra           map[string]any
}

// viewScript prints a sight. What a test wants to know besides it puts into extra.
const viewScript = `
import getpass, grp, json, os, pwd, sys
extra = {}
def attempt(f):
    try:
        return f()
    except BaseException as e:
        return repr(e)
%s
os_umask = os.umask(0o22)
os.umask(os_umask)
status = open("/proc/self/status").read()
json.dump({
    "UID": os.getuid(), "GID": os.getgid(), "Umask": os_umask, "Groups": sorted(os.getgroups()),
    "Pwd": list(pwd.getpwuid(os.getuid())), "User": getpass.getuser(), "Group": grp.getgrgid(os.getgid()).gr_name,
    "Home": os.environ["HOME"], "Expanded": os.path.expanduser("~"), "Cwd": os.getcwd(), "Argv": sys.argv,
    "Env": dict(os.environ), "Passwd": open("/etc/passwd").read().split("\n")[:-1],
    "Caps": [l.split()[1] for l in status.split("\n") if l.startswith("CapEff")][0],
    "Interfaces": [l.split(":")[0].strip() for l in open("/proc/net/dev").read().split("\n")[2:-1]],
    "Extra": extra,
}, open(os.environ["WORKERD_WORK_ROOT"] + "/view.json", "w"))
`

// require says that a test needs an engine: it fails or skips where reason is not empty.
func needs(t *testing.T, kind, reason string) {
	t.Helper()
	if reason == "" {
		return
	}
	prototest.Needs(t, kind, reason)
}

// rig is a planner with one provider on a real engine.
type rig struct {
	t    *testing.T
	kind string
	h    Host
	p    *Planner
	m    *manifest.Manifest
	n    int64
}

// eachKind runs a test on every kind of container.
func eachKind(t *testing.T, test func(t *testing.T, r *rig), kinds ...string) {
	if len(kinds) == 0 {
		kinds = []string{manifest.Docker, manifest.Podman, manifest.Apptainer}
	}
	for _, kind := range kinds {
		t.Run(strings.ToUpper(kind[:1])+kind[1:], func(t *testing.T) { test(t, newRig(t, kind, "small")) })
	}
}

// newRig returns a provider whose worker runs in a test image; its folders are readable to all, as an image's are.
func newRig(t *testing.T, kind, image string) *rig {
	t.Helper()
	if testing.Short() {
		prototest.Needs(t, "long", "it runs containers")
	}
	h := testHost(t)
	h.Instance = InstanceID(os.Getuid(), "test", tag(t)) // names and labels of its own
	r := &rig{t: t, kind: kind, h: h, m: testManifest(t, "")}
	m := r.m
	m.Env.Kind, m.Env.ContainerPython, m.Env.Network = kind, "python3", "none"
	m.Env.SELinux, m.Env.Entrypoint, m.Env.Pull = manifest.DefaultSELinux, manifest.DefaultEntrypoint, "never"
	m.Paths.WorkRoot = filepath.Join(filepath.Dir(h.RuntimeDir), "work")
	r.replan()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if kind == manifest.Apptainer {
		m.Env.SIF = filepath.Join(os.Getenv("WORKERD_TEST_SIFS"), image+".sif")
		if _, err := os.Stat(m.Env.SIF); os.Getenv("WORKERD_TEST_SIFS") == "" || err != nil {
			needs(t, kind, "no image "+m.Env.SIF+" (WORKERD_TEST_SIFS)")
		}
		_, _, _, err := r.p.RunnerInfo(ctx)
		needs(t, kind, errText(err))
		return r
	}
	m.Env.Image = cmp.Or(os.Getenv("WORKERD_TEST_IMAGES"), "workerd-test") + ":" + image
	e, err := r.p.Engine(kind)
	needs(t, kind, errText(err))
	_, err = e.ImageInspect(ctx, m.Env.Image)
	needs(t, kind, errText(err))
	return r
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// replan makes a new planner, after a change of r.h.
func (r *rig) replan() { r.p = testPlanner(r.h) }

// script makes the worker one that writes a sight, after running code.
func (r *rig) script(code string) {
	r.t.Helper()
	require.NoError(r.t, os.WriteFile(r.m.Worker, fmt.Appendf(nil, viewScript, code), 0o644))
}

func (r *rig) plan() *Plan {
	r.t.Helper()
	pl, err := r.p.Plan(r.t.Context(), r.m)
	require.NoError(r.t, err)
	require.NoError(r.t, r.p.Prepare(pl))
	return pl
}

// facts probes the engine for the manifest.
func (r *rig) facts() *facts {
	r.t.Helper()
	f, err := r.p.commonFacts(r.t.Context(), r.m)
	require.NoError(r.t, err)
	f.planner = r.p
	require.NoError(r.t, runtimes[r.kind].Probe(r.t.Context(), r.p.host, r.m, r.p.run, f))
	return f
}

// params are those of the next worker.
func (r *rig) params() WorkerParams {
	r.t.Helper()
	r.n++
	tmp, err := r.p.NewTmp(r.n)
	require.NoError(r.t, err)
	r.t.Cleanup(func() { assert.NoError(r.t, RemoveTmp(tmp)) })
	socket, err := WorkerSocket(r.h.RuntimeDir, r.m.Slug, r.n)
	require.NoError(r.t, err)
	return WorkerParams{N: r.n, Socket: socket, Tmp: tmp, Attempt: "test"}
}

func (r *rig) engine() *Engine {
	r.t.Helper()
	e, err := r.p.Engine(r.kind)
	require.NoError(r.t, err)
	return e
}

// start starts a worker of a plan in an engine, and removes it in the end.
func (r *rig) start(pl *Plan) (id string, w WorkerParams) {
	r.t.Helper()
	w = r.params()
	c, err := r.p.Command(pl, w)
	require.NoError(r.t, err)
	e := r.engine()
	name := r.p.Container(pl, w).Name
	r.t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.t.Context()), time.Minute)
		defer cancel()
		assert.NoError(r.t, e.Remove(ctx, name))
	})
	id, err = e.Run(r.t.Context(), c)
	require.NoError(r.t, err)
	return id, w
}

// finish waits for the end of a container and returns its code and its output.
func (r *rig) finish(id string) (code int, out string) {
	r.t.Helper()
	e := r.engine()
	var c Container
	eventually(r.t, func() bool {
		var err error
		c, err = e.Inspect(r.t.Context(), id)
		require.NoError(r.t, err)
		return c.State == ContainerExited
	}, "the container ends")
	var log bytes.Buffer
	require.NoError(r.t, e.Logs(r.t.Context(), id, LogOptions{}, &log))
	return *c.ExitCode, log.String()
}

// run runs one worker to its end.
func (r *rig) run() (code int, out string) {
	r.t.Helper()
	pl := r.plan()
	if pl.Engine != "" {
		id, _ := r.start(pl)
		return r.finish(id)
	}
	return r.foreground(pl)
}

// foreground runs a worker that is a child of ours to its end.
func (r *rig) foreground(pl *Plan) (code int, out string) {
	r.t.Helper()
	c, err := r.p.Command(pl, r.params())
	require.NoError(r.t, err)
	var log bytes.Buffer
	cmd := toExec(c)
	cmd.Stdout, cmd.Stderr = &log, &log
	start(r.t, cmd)
	kids.Done(cmd.Process.Pid, func() { _ = cmd.Wait() })
	pid := cmd.Process.Pid // whose number may be somebody else's by now, but not its session's
	kids.KillTree(Tree{Marker: Marker(r.h.Instance, r.m.Slug, r.n), Session: pid}, Full)
	return exitCode(cmd.ProcessState), log.String()
}

// look runs a worker with code and returns what it saw.
func (r *rig) look(code string) sight {
	r.t.Helper()
	r.script(code)
	file := filepath.Join(r.m.Paths.WorkRoot, "view.json")
	_ = os.Remove(file)
	status, out := r.run()
	require.Zero(r.t, status, out)
	data, err := os.ReadFile(file)
	require.NoError(r.t, err, out)
	var v sight
	require.NoError(r.t, json.Unmarshal(data, &v))
	return v
}

// ownedBy lists what below some folders does not belong to this user.
func strangersFiles(t *testing.T, dirs ...string) []string {
	t.Helper()
	out, err := exec.Command("find", append(dirs, "!", "-uid", strconv.Itoa(os.Getuid()))...).Output()
	require.NoError(t, err)
	return strings.Fields(string(out))
}

// syncBuffer is a buffer that is written and read at once.
type syncBuffer struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.buf.String()
}
