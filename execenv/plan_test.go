package execenv

import (
	"context"
	"encoding/json"
	"flag"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/execenv/gpu"
	"workerd/execenv/gpu/gputest"
	"workerd/identity"
	"workerd/manifest"
)

var update = flag.Bool("update", false, "write the golden files")

// fixedHost, fixedManifest and fixedFacts are values alone: the plan made of them is the same everywhere.
func fixedHost() Host {
	return Host{
		ID: identity.Identity{UID: 1001, GID: 100, Groups: []int{4321}, Name: "alice", Home: "/home/alice"}, Instance: "0a1b2c3d",
		RuntimeDir: "/run/user/1001/workerd", StateDir: "/home/alice/.local/state/workerd", CacheDir: "/home/alice/.cache/workerd",
		HFHome: "/lab/hf", SDKDir: "/home/alice/.cache/workerd/sdk/1",
		Environ: []string{"PATH=/usr/bin:/bin", "HOME=/home/alice", "LANG=C.UTF-8", "TMPDIR=/scratch/alice", "HF_TOKEN=hidden", "LAB=x", "PYTHONPATH=/leak"},
	}
}

func fixedManifest() *manifest.Manifest {
	m := &manifest.Manifest{
		File: "/etc/workerd/providers/ocr/provider.toml", Dir: "/etc/workerd/providers/ocr", Slug: "ocr",
		Worker: "/etc/workerd/providers/ocr/ocr_worker.py", Args: []string{"--lang", "eng"}, Smoke: "/lab/smoke/ocr.json",
	}
	m.Env.Kind, m.Env.Python = manifest.Venv, "/home/alice/venvs/ocr/bin/python"
	m.Env.PassEnv = []string{"LAB*"}
	m.Env.Variables = map[string]string{"OMP_NUM_THREADS": "4"}
	m.Env.Secrets = map[string]manifest.Secret{"HF_TOKEN": {Env: "HF_TOKEN"}}
	m.Weights.Root = "/lab/tessdata"
	m.Paths.WorkRoot, m.Paths.Cwd = "/data/ocr", m.Dir
	m.Paths.Binds = []manifest.Bind{{Path: "/refdata", Mode: ro}, {Path: "/refdata/cache", Mode: rw}, {Path: "/scratch/x", Mode: rw, Create: true}}
	m.GPU.Policy, m.GPU.Count = "auto", 1
	m.Limits.Pids, m.Limits.ShmSize = manifest.DefaultPids, manifest.DefaultShmSize
	m.Start.StopTimeout = manifest.Duration(90 * time.Second)
	return m
}

func fixedFacts(h Host, m *manifest.Manifest) *facts {
	f := &facts{
		promises: promises(h, m), gpu: GPU{Policy: "none", Devices: []string{}},
		secrets: map[string]string{"HF_TOKEN": "5ec"}, content: map[string]string{m.Worker: "c0ffee"},
		program: m.Env.Python, interp: interpreter{Path: m.Env.Python, Stamp: "1 2 "},
		setup: change{Set: map[string]string{"PATH": "/opt/cuda/bin:/usr/bin:/bin", "CUDA_HOME": "/opt/cuda"}, Unset: []string{"LANG"}},
	}
	f.binds = makeBinds(f.promises, func(p string) string { return strings.Replace(p, "/lab/", "/mnt/lab/", 1) })
	return f
}

func TestPlanGolden(t *testing.T) {
	h, m := fixedHost(), fixedManifest()
	got, err := json.MarshalIndent(venv{}.Plan(h, m, fixedFacts(h, m)), "", "  ")
	require.NoError(t, err)
	got = append(got, '\n')
	golden := filepath.Join("testdata", "plan.golden.json")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(golden, got, 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	assert.Equal(t, string(want), string(got))
}

// The shape is a promise to those who read explain --json: every key is there, also where there is nothing to say.
func TestPlanJSONHasEveryKey(t *testing.T) {
	m := hostPython(t, "")
	pl, err := testPlanner(testHost(t)).Plan(context.Background(), m)
	require.NoError(t, err)
	data, err := json.Marshal(pl)
	require.NoError(t, err)
	var got map[string]any
	require.NoError(t, json.Unmarshal(data, &got))
	for _, key := range []string{"slug", "kind", "argv", "env", "secrets", "cwd", "binds", "user", "gpu", "fingerprint"} {
		assert.Contains(t, got, key)
		assert.NotNil(t, got[key], key)
	}
	assert.NotNil(t, got["user"].(map[string]any)["groups"])
	assert.NotNil(t, got["gpu"].(map[string]any)["devices"])
	assert.Equal(t, "none", pl.GPU.Policy, "auto is none where there is no device")
}

func TestFingerprint(t *testing.T) {
	type world struct {
		h Host
		m *manifest.Manifest
		f func(*facts)
	}
	same := func() world { return world{fixedHost(), fixedManifest(), func(*facts) {}} }
	sum := func(change func(*world)) string {
		w := same()
		change(&w)
		f := fixedFacts(w.h, w.m)
		w.f(f)
		return venv{}.Plan(w.h, w.m, f).Fingerprint
	}
	base := sum(func(*world) {})
	assert.Len(t, base, 64)

	// What a worker sees.
	for name, change := range map[string]func(*world){
		"argument":            func(w *world) { w.m.Args = []string{"--lang", "deu"} },
		"argument boundaries": func(w *world) { w.m.Args = []string{"--langeng"} },
		"cwd":                 func(w *world) { w.m.Paths.Cwd = "/data/ocr" },
		"bind":                func(w *world) { w.m.Paths.Binds[0].Path = "/refdata2" },
		"bind mode":           func(w *world) { w.m.Paths.Binds[0].Mode = rw },
		"weights":             func(w *world) { w.m.Weights.Root = "/lab/tessdata2" },
		"variable":            func(w *world) { w.m.Env.Variables["OMP_NUM_THREADS"] = "8" },
		"passed value":        func(w *world) { w.h.Environ = append(w.h.Environ, "LAB=y") },
		"secret":              func(w *world) { w.f = func(f *facts) { f.secrets["HF_TOKEN"] = "other" } },
		"worker script":       func(w *world) { w.f = func(f *facts) { f.content[fixedManifest().Worker] = "beef" } },
		"interpreter":         func(w *world) { w.f = func(f *facts) { f.interp.Stamp = "1 3 " } },
		"setup":               func(w *world) { w.f = func(f *facts) { f.setup.Set["CUDA_HOME"] = "/opt/cuda2" } },
		"setup unset":         func(w *world) { w.f = func(f *facts) { f.setup.Unset = nil } },
		"number of GPUs":      func(w *world) { w.m.GPU.Count = 2 },
		"policy for GPUs":     func(w *world) { w.m.GPU.Policy = "shared" },
	} {
		assert.NotEqual(t, base, sum(change), name)
	}
	// What it does not see, or what may not reload a model.
	for name, change := range map[string]func(*world){
		"GPUs that are there":   func(w *world) { w.f = func(f *facts) { f.gpu = GPU{Policy: "auto", Count: 1} } },
		"inherited environment": func(w *world) { w.h.Environ = append(w.h.Environ, "LANG=de_DE", "NEW=1", "SSH_TTY=/dev/pts/1") },
		"PATH that a setup extended": func(w *world) {
			w.h.Environ = append(w.h.Environ, "PATH=/elsewhere:/bin")
			w.f = func(f *facts) { f.setup.Set["PATH"] = "/opt/cuda/bin:/elsewhere:/bin" }
		},
		"version of the SDK": func(w *world) { w.h.SDKDir = "/home/alice/.cache/workerd/sdk/2" },
		"runtime directory":  func(w *world) { w.h.RuntimeDir, w.h.Instance = "/tmp/workerd-1001", "ffffffff" },
		"TMPDIR":             func(w *world) { w.h.ScratchDir = "/scratch2" },
		"supervision": func(w *world) {
			w.m.Serve.Queue, w.m.Start.StopTimeout, w.m.Restart.Policy, w.m.Title, w.m.Limits.Memory = 3, 0, "never", "x", 1
		},
	} {
		assert.Equal(t, base, sum(change), name)
	}
}

func TestFingerprintFollowsTheFiles(t *testing.T) {
	h := testHost(t)
	p := testPlanner(h)
	m := testManifest(t, "print(1)\n")
	python := makeVenv(t, filepath.Join(m.Dir, "v"))
	m.Env.Python = python
	secret := filepath.Join(m.Dir, "secret")
	require.NoError(t, os.WriteFile(secret, []byte("one"), 0o600))
	m.Env.Secrets = map[string]manifest.Secret{"S": {File: secret}}
	print := func() string {
		pl, err := p.Plan(context.Background(), m)
		require.NoError(t, err)
		for _, f := range []string{m.Worker, python, secret} {
			assert.Contains(t, pl.Watch, f)
		}
		require.NoError(t, p.Prepare(pl))
		return pl.Fingerprint
	}
	first := print()
	assert.Equal(t, first, print(), "Prepare changes nothing that a plan is made of")
	later := time.Now().Add(time.Hour)
	require.NoError(t, os.Chtimes(m.Worker, later, later))
	assert.Equal(t, first, print(), "a touch of the script is no change")
	require.NoError(t, os.WriteFile(m.Worker, []byte("print(2)\n"), 0o600))
	second := print()
	assert.NotEqual(t, first, second)
	require.NoError(t, os.WriteFile(secret, []byte("two"), 0o600))
	third := print()
	assert.NotEqual(t, second, third)
	// The venv made again: the same link, younger.
	require.NoError(t, os.Remove(python))
	makeVenv(t, filepath.Join(m.Dir, "v"))
	assert.NotEqual(t, third, print())
}

func TestInstanceID(t *testing.T) {
	id := InstanceID(1001, "node1", "/run/user/1001/workerd")
	assert.Equal(t, "d0e9e40a", id, "running workers are found again by it: it may never change")
	for _, other := range []string{
		InstanceID(1002, "node1", "/run/user/1001/workerd"), InstanceID(1001, "node2", "/run/user/1001/workerd"),
		InstanceID(1001, "node1", "/run/user/1001/workerd-7"), InstanceID(1001, "node1/run", "/user/1001/workerd"),
	} {
		assert.NotEqual(t, id, other)
		assert.Len(t, other, 8)
	}
}

func TestUnsupported(t *testing.T) {
	all := fixedManifest()
	all.Serve.Protocol = "http"
	want := []string{"serve.protocol"}
	values := []string{"http"}
	var keys []string
	for i, p := range CheckSupported(all) {
		keys = append(keys, p.Key)
		assert.Contains(t, p.Message, values[i])
		assert.Contains(t, p.Message, "this version of workerd")
	}
	assert.Equal(t, want, keys)
	assert.Empty(t, CheckSupported(fixedManifest()))

	_, err := testPlanner(testHost(t)).Plan(context.Background(), all)
	var e *Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, Unsupported, e.Kind)
	for _, k := range want {
		assert.Contains(t, e.Error(), k)
	}
}

// What is asked of the GPUs is in the plan; which ones a worker gets is decided at its start. The fingerprint says what was asked for:
// a card that comes or goes reloads no model.
func TestPlanAsksForGPUs(t *testing.T) {
	card := gpu.Device{UUID: "GPU-a", Vendor: gpu.NVIDIA}
	var inv gputest.Fake
	h := testHost(t)
	h.GPUs = &inv
	base := hostPython(t, "")
	plan := func(policy string, devices ...string) *Plan {
		t.Helper()
		copied := *base
		m := &copied
		m.GPU = manifest.GPU{Policy: policy, Count: 1, Memory: 1 << 30, Devices: devices}
		pl, err := testPlanner(h).Plan(t.Context(), m)
		require.NoError(t, err)
		return pl
	}
	inv.Set(gpu.Snapshot{})
	without := plan("auto")
	assert.Equal(t, "none", without.GPU.Policy, "it is certain: nothing is asked at a start")
	assert.Empty(t, without.Env["CUDA_VISIBLE_DEVICES"])
	assert.Contains(t, strings.Join(plan("shared").Warnings, "\n"), `no GPU is found here, so with "shared" requests are answered with no_gpu`)

	inv.Set(gpu.Snapshot{Problem: "NVML: mismatch"})
	assert.Equal(t, "auto", plan("auto").GPU.Policy, "nobody knows yet")

	inv.Set(gpu.Snapshot{Devices: []gpu.Device{card}})
	with := plan("auto")
	assert.Equal(t, GPU{Policy: "auto", Count: 1, Memory: 1 << 30, Devices: []string{}}, with.GPU)
	assert.Equal(t, without.Fingerprint, with.Fingerprint)
	assert.Equal(t, "PCI_BUS_ID", with.Env["CUDA_DEVICE_ORDER"])
	assert.NotContains(t, with.Env, "ROCR_VISIBLE_DEVICES")
	assert.NotEqual(t, with.Fingerprint, plan("auto", "0").Fingerprint)
	assert.Contains(t, strings.Join(plan("shared", "0", "7").Warnings, "\n"), "gpu.devices[1]: 7: no such GPU")

	c := workerCommand(t, h, with, WorkerParams{GPUs: []string{"GPU-a"}})
	assert.Contains(t, c.Env, "CUDA_VISIBLE_DEVICES=GPU-a")
	assert.Contains(t, c.Env, "WORKERD_GPUS=GPU-a")

	inv.Set(gpu.Snapshot{Devices: []gpu.Device{{UUID: "GPU-b", Vendor: gpu.AMD, Render: "/dev/dri/renderD128"}}})
	c = workerCommand(t, h, plan("auto"), WorkerParams{GPUs: []string{"GPU-b"}, Nodes: []string{"/dev/dri/renderD128"}})
	assert.Contains(t, c.Env, "ROCR_VISIBLE_DEVICES=GPU-b")
	assert.Contains(t, c.Env, "CUDA_VISIBLE_DEVICES=")
}

func workerCommand(t *testing.T, h Host, pl *Plan, w WorkerParams) Command {
	t.Helper()
	w.N, w.Socket, w.Tmp = 1, filepath.Join(h.RuntimeDir, "1.sock"), t.TempDir()
	if len(w.Tmp) > TmpLimit {
		w.Tmp = "/tmp"
	}
	c, err := testPlanner(h).Command(pl, w)
	require.NoError(t, err)
	return c
}

func TestPlanRefuses(t *testing.T) {
	tests := []struct {
		name   string
		change func(m *manifest.Manifest)
		want   string
	}{
		{"NUL in a variable", func(m *manifest.Manifest) { m.Env.Variables = map[string]string{"A": "x\x00y"} }, "env.variables.A: holds a NUL byte"},
		{"NUL in an argument", func(m *manifest.Manifest) { m.Args = []string{"ok", "\x00"} }, "args[1]: holds a NUL byte"},
		{"DOS line break for Apptainer", func(m *manifest.Manifest) {
			m.Env.Kind, m.Env.Variables = manifest.Apptainer, map[string]string{"A": "x\r\ny"}
		}, "env.variables.A: Apptainer takes the carriage return out"},
		{"name with =", func(m *manifest.Manifest) { m.Env.Variables = map[string]string{"A=B": "x"} }, "cannot be the name of a variable"},
		{"workerd's own variable", func(m *manifest.Manifest) { m.Env.Variables = map[string]string{MarkerVar: "x"} }, "workerd sets this variable itself"},
		{"workerd's own as secret", func(m *manifest.Manifest) {
			m.Env.Secrets = map[string]manifest.Secret{"WORKERD_SOCKET": {Env: "HOME"}}
		}, "workerd sets this variable itself"},
		{"missing bind", func(m *manifest.Manifest) { m.Paths.Binds = []manifest.Bind{{Path: m.Dir + "/nope", Mode: ro}} }, "/nope: no such file"},
		{"missing weights", func(m *manifest.Manifest) { m.Weights.Root = m.Dir + "/nope" }, "weights.root: "},
		{"missing cwd", func(m *manifest.Manifest) { m.Paths.Cwd = m.Dir + "/nope" }, "paths.cwd: "},
		{"cwd that is a file", func(m *manifest.Manifest) { m.Paths.Cwd = m.Worker }, "is no folder"},
		{"missing worker", func(m *manifest.Manifest) { m.Worker += "x" }, "worker: "},
		{"missing interpreter", func(m *manifest.Manifest) { m.Env.Python = m.Dir + "/v/bin/python" }, "env.python: interpreter "},
		{"folder without python", func(m *manifest.Manifest) { m.Env.Python = m.Dir }, "is a folder without bin/python"},
		{"missing command", func(m *manifest.Manifest) { m.Command = []string{"no-such-program"} }, "command: there is no program no-such-program"},
		{"missing setup", func(m *manifest.Manifest) { m.Env.Setup = m.Dir + "/nope" }, "env.setup: "},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			m := hostPython(t, "")
			tt.change(m)
			_, err := testPlanner(testHost(t)).Plan(context.Background(), m)
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.ErrorContains(t, err, tt.want)
			_, statErr := os.Stat(m.Dir + "/nope")
			assert.ErrorIs(t, statErr, os.ErrNotExist)
		})
	}
}

func TestPlanCreatesNothing(t *testing.T) {
	h := testHost(t)
	p := testPlanner(h)
	m := hostPython(t, "")
	m.Paths.WorkRoot = filepath.Join(m.Dir, "work", "root")
	m.Paths.Cwd = m.Paths.WorkRoot
	made := filepath.Join(m.Dir, "made")
	m.Paths.Binds = []manifest.Bind{{Path: made, Mode: rw, Create: true}}
	pl, err := p.Plan(context.Background(), m)
	require.NoError(t, err)
	for _, dir := range []string{h.CacheDir, h.StateDir, h.RuntimeDir, h.ScratchDir, m.Paths.WorkRoot, made} {
		_, err := os.Stat(dir)
		assert.ErrorIs(t, err, os.ErrNotExist, dir)
	}
	require.NoError(t, p.Prepare(pl))
	require.NoError(t, p.Prepare(pl))
	probe := filepath.Join(m.Dir, "probe")
	require.NoError(t, os.Mkdir(probe, 0o777))
	usual, err := os.Stat(probe)
	require.NoError(t, err)
	for dir, want := range map[string]os.FileMode{
		m.Paths.WorkRoot: usual.Mode().Perm(), made: 0o700, providerHome(h, "ocr"): 0o700, pl.Env["XDG_CACHE_HOME"]: 0o700, pl.Env["HF_HOME"]: 0o700,
	} {
		fi, err := os.Stat(dir)
		require.NoError(t, err)
		assert.Equal(t, want, fi.Mode().Perm(), dir)
	}
	again, err := p.Plan(context.Background(), m)
	require.NoError(t, err)
	assert.Equal(t, pl.Fingerprint, again.Fingerprint)

	// A file where a folder is to be.
	require.NoError(t, os.Remove(made))
	require.NoError(t, os.WriteFile(made, nil, 0o600))
	assert.ErrorContains(t, p.Prepare(pl), "paths.binds: ")
}

func TestCheckWarns(t *testing.T) {
	h := testHost(t, "CUDA_VISIBLE_DEVICES=3", "HOME=/h")
	p := testPlanner(h)
	m := hostPython(t, "")
	assert.Empty(t, p.Check(m))
	m.Limits.Memory = 1 << 30
	m.Env.PassEnv = []string{"CUDA_VISIBLE_DEVICES", "H*"}
	m.Env.Variables = map[string]string{"TMPDIR": "/var/tmp"}
	warnings := strings.Join(p.Check(m), "\n")
	for _, want := range []string{"cannot be enforced where this runs, since no delegated cgroup was looked for", "CUDA_VISIBLE_DEVICES is set by the manifest", "TMPDIR is set by the manifest"} {
		assert.Contains(t, warnings, want)
	}
	pl, err := p.Plan(context.Background(), m)
	require.NoError(t, err)
	c := environ{}
	c.set(parseEnviron(command(t, p, pl).Env))
	assert.Equal(t, "3", c["CUDA_VISIBLE_DEVICES"])
	assert.Equal(t, "/var/tmp", c["TMPDIR"])
	m.Env.PassEnv = []string{"*"} // a glob overrides nothing
	pl, err = p.Plan(context.Background(), m)
	require.NoError(t, err)
	assert.Equal(t, "", pl.Env["CUDA_VISIBLE_DEVICES"])
}

func TestPlanIsIndependentOfItsCommands(t *testing.T) {
	p := testPlanner(testHost(t))
	pl, err := p.Plan(context.Background(), hostPython(t, ""))
	require.NoError(t, err)
	env := maps.Clone(pl.Env)
	c := command(t, p, pl)
	c.Argv[0] = "changed"
	assert.Equal(t, env, pl.Env)
	assert.NotEqual(t, "changed", pl.Argv[0])
}
