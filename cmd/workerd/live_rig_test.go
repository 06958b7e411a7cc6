package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/execenv"
	"workerd/manifest"
	"workerd/protocol"
	"workerd/protocol/prototest"
)

// The tests with Live in their name have the real binary run workers in each kind of environment, on real engines and as a
// user. .ci/test-engines runs them. Where WORKERD_TEST_IMAGES does not name the test images they are skipped; so is a kind
// whose engine or image is missing, unless WORKERD_TEST_REQUIRE names it.

// live is a workerd whose providers run in one kind of environment. The engine's client has the user's own home, where its
// images are.
type live struct {
	*e2e
	kind   string
	mounts []int // what others had left of Apptainer's before
}

var (
	allKinds   = []string{manifest.Venv, manifest.Docker, manifest.Podman, manifest.Apptainer}
	containers = allKinds[1:]
	engines    = allKinds[1:3] // whose containers are not processes of ours
)

// eachKind runs a test as a subtest for each kind.
func eachKind(t *testing.T, kinds []string, test func(t *testing.T, l *live)) {
	t.Helper()
	for _, kind := range kinds {
		t.Run(strings.ToUpper(kind[:1])+kind[1:], func(t *testing.T) { test(t, newLive(t, kind)) })
	}
}

// needs fails or skips a test that lacks what it needs.
func needs(t *testing.T, what string, err error) {
	t.Helper()
	if err == nil {
		return
	}
	prototest.Needs(t, what, err.Error())
}

func newLive(t *testing.T, kind string) *live {
	t.Helper()
	long(t)
	if os.Getenv("WORKERD_TEST_IMAGES") == "" {
		prototest.Needs(t, "images", "WORKERD_TEST_IMAGES names no images: make engines")
	}
	l := &live{kind: kind, mounts: orphanMounts()}
	t.Cleanup(func() { l.leftNoContainer() }) // after workerd has been stopped
	l.e2e = newE2E(t)
	for _, name := range []string{"XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"} {
		delete(l.env, name)
	}
	maps.Copy(l.env, session)
	for name, v := range map[string]string{
		"HOME": os.Getenv("HOME"), "WORKERD_RUNTIME_DIR": l.runtimeDir(), "WORKERD_PROVIDERS": l.manifests(),
		"WORKERD_STATE_DIR": filepath.Join(l.dir, "state/workerd"), "WORKERD_CACHE_DIR": filepath.Join(l.dir, "cache/workerd"),
	} {
		l.env[name] = v
	}
	l.has("small")
	return l
}

// image names a test image as a manifest has it.
func (l *live) image(name string) string {
	if l.kind == manifest.Apptainer {
		return filepath.Join(os.Getenv("WORKERD_TEST_SIFS"), name+".sif")
	}
	return os.Getenv("WORKERD_TEST_IMAGES") + ":" + name
}

// has skips or fails the test where an image is missing, or its engine.
func (l *live) has(name string) {
	l.t.Helper()
	var err error
	switch l.kind {
	case manifest.Venv:
	case manifest.Apptainer:
		if _, err = exec.LookPath("apptainer"); err == nil {
			_, err = os.Stat(l.image(name))
		}
	default:
		var out []byte
		if out, err = l.client("image", "inspect", l.image(name)).CombinedOutput(); err != nil {
			err = fmt.Errorf("%w: %s", err, out)
		}
	}
	needs(l.t, l.kind, err)
}

// envKeys are the lines of [env] that choose the kind with a test image.
func (l *live) envKeys(image string) string {
	switch l.kind {
	case manifest.Venv:
		return fmt.Sprintf("kind = \"venv\"\npython = %q\n", interpreter(l.t))
	case manifest.Apptainer:
		return fmt.Sprintf("kind = \"apptainer\"\nsif = %q\n", l.image(image))
	default:
		return fmt.Sprintf("kind = %q\nimage = %q\npull = \"never\"\n", l.kind, l.image(image))
	}
}

// text joins what a test says in a manifest, as for manifest, with the keys of the kind.
func (l *live) text(what, image, toml string) string {
	venv := "[env]\nkind = \"venv\"\n\n"
	text := l.manifest(what, "", toml)
	if !strings.Contains(text, venv) {
		l.t.Fatalf("no [env] in %s", text)
	}
	return strings.Replace(text, venv, "[env]\n"+l.envKeys(image), 1)
}

// add writes a provider with the worker that does as it is told, in the small image.
func (l *live) add(slug, toml string) (file string) {
	l.t.Helper()
	return l.write(slug, "live.py", l.text(`worker = "live.py"`, "small", toml))
}

// bare writes a provider with the worker that does without the SDK and without handlers of signals.
func (l *live) bare(slug, toml string) (file string) {
	l.t.Helper()
	python := "python3"
	if l.kind == manifest.Venv {
		python = interpreter(l.t)
	}
	return l.write(slug, "bare.py", l.text(fmt.Sprintf(`command = [%q, "-S", "-E", "bare.py"]`, python), "small", toml))
}

// edit replaces the manifest of a provider that add wrote.
func (l *live) edit(slug, toml string) {
	l.t.Helper()
	replace(l.t, filepath.Join(l.manifests(), slug, "provider.toml"), l.text(`worker = "live.py"`, "small", toml))
}

// run has a provider's worker run Python code with values as variables, and returns what it left in answer.
func run[T any](l *live, slug, code string, values map[string]any) (answer T) {
	l.t.Helper()
	params := map[string]any{"code": code}
	for name, v := range values {
		params[name] = v
	}
	data, err := json.Marshal(params)
	require.NoError(l.t, err)
	w := l.dial(slug)
	m, err := w.try("run", string(data))
	require.NoError(l.t, err)
	require.Nil(l.t, m.Error, code)
	require.NoError(l.t, json.Unmarshal(m.Result, &answer))
	return answer
}

// calls asks a provider's worker how often it was asked.
func (l *live) calls(slug string) int {
	l.t.Helper()
	m, err := l.dial(slug).try("count", "{}")
	require.NoError(l.t, err)
	require.Nil(l.t, m.Error)
	var c struct{ Calls int }
	require.NoError(l.t, json.Unmarshal(m.Result, &c))
	return c.Calls
}

// worker waits until a provider is ready and returns its worker.
func (l *live) worker(slug string) protocol.WorkerStatus {
	l.t.Helper()
	return l.state(slug, "ready").Workers[0]
}

// instance is the name under which this workerd marks what is its own.
func (l *live) instance() string {
	l.t.Helper()
	host, err := os.Hostname()
	require.NoError(l.t, err)
	return execenv.InstanceID(os.Geteuid(), host, realPath(l.runtimeDir()))
}

// client is a command of this kind's engine, as the user gives it.
func (l *live) client(args ...string) *exec.Cmd {
	cmd := exec.Command(l.kind, args...)
	cmd.Env = os.Environ()
	for name, v := range session {
		cmd.Env = append(cmd.Env, name+"="+v)
	}
	return cmd
}

// engine runs the client of this kind's engine, which must succeed.
func (l *live) engine(args ...string) string {
	l.t.Helper()
	out, err := l.client(args...).CombinedOutput()
	require.NoError(l.t, err, "%s %v: %s", l.kind, args, out)
	return strings.TrimSpace(string(out))
}

// owned lists the containers of this workerd, dead ones included, by name.
func (l *live) owned() []string {
	l.t.Helper()
	if !slices.Contains(engines, l.kind) {
		return nil
	}
	return strings.Fields(l.engine("ps", "--all", "--filter", "label=workerd.instance="+l.instance(), "--format", "{{.Names}}"))
}

// stranger makes a running container that is none of this workerd's, until the end of the test.
func (l *live) stranger(name string, flags ...string) (id string) {
	l.t.Helper()
	args := append([]string{"run", "--detach", "--network", "none", "--name", name}, flags...)
	id = l.engine(append(args, l.image("small"), "sleep", "600")...)
	l.t.Cleanup(func() { _, _ = l.client("rm", "--force", "--volumes", id).CombinedOutput() })
	return id
}

// running says whether a container runs.
func (l *live) running(id string) bool {
	out, err := l.client("container", "inspect", "--format", "{{.State.Running}}", id).Output()
	return err == nil && strings.TrimSpace(string(out)) == "true"
}

// runner returns the process of Apptainer's that runs the container of a worker.
func (l *live) runner(pid int) int {
	l.t.Helper()
	for stat := procStat(pid); stat != nil; stat = procStat(pid) {
		parent, err := strconv.Atoi(stat[1])
		require.NoError(l.t, err)
		if pid = parent; execenv.IsRunner(pid) {
			return pid
		}
	}
	l.t.Fatal("the worker has no runner")
	return 0
}

// orphanMounts lists the processes of this user that mount an image for a runner which is not there any more.
func orphanMounts() (pids []int) {
	comms, _ := filepath.Glob("/proc/[0-9]*/comm")
	for _, file := range comms {
		comm, err := os.ReadFile(file)
		if err != nil || !strings.HasPrefix(string(comm), "squashfuse") {
			continue
		}
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		var st syscall.Stat_t
		stat := procStat(pid)
		if stat == nil || stat[0] == "Z" || syscall.Stat(filepath.Dir(file), &st) != nil || int(st.Uid) != os.Geteuid() {
			continue
		}
		if parent, _ := strconv.Atoi(stat[1]); !execenv.IsRunner(parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// freshMounts are the orphanMounts that were not there before.
func (l *live) freshMounts() []int {
	return slices.DeleteFunc(orphanMounts(), func(pid int) bool { return slices.Contains(l.mounts, pid) })
}

// leftNoContainer checks that nothing of the engine's is left of a workerd that has been stopped, and no mount.
func (l *live) leftNoContainer() {
	if l.e2e == nil {
		return
	}
	left := l.owned()
	for _, name := range left {
		_, _ = l.client("rm", "--force", "--volumes", name).CombinedOutput()
	}
	assert.Empty(l.t, left, "containers are left")
	assert.Empty(l.t, l.marked(""), "processes are left")
	fresh := l.freshMounts() // one of another test may be about to end
	for deadline := time.Now().Add(30 * time.Second); len(fresh) > 0 && time.Now().Before(deadline); fresh = l.freshMounts() {
		<-time.After(20 * time.Millisecond)
	}
	assert.Empty(l.t, fresh, "squashfuse is left")
	mounts, err := os.ReadFile("/proc/self/mounts")
	assert.NoError(l.t, err)
	assert.NotContains(l.t, string(mounts), "squashfuse")
}

// inside returns the pid that a process of this host has in its own namespace.
func inside(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		if pids, ok := strings.CutPrefix(line, "NSpid:"); ok {
			fields := strings.Fields(pids)
			n, err := strconv.Atoi(fields[len(fields)-1])
			require.NoError(t, err)
			return n
		}
	}
	t.Fatalf("no NSpid of %d", pid)
	return 0
}
