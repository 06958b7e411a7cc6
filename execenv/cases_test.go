package execenv

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// printEnv is a worker that prints what it is given as JSON; bytes that are not UTF-8 come as lone surrogates.
const printEnv = `
import json, os, sys
print(json.dumps({"env": dict(os.environ), "argv": sys.argv, "cwd": os.getcwd(), "prefix": sys.prefix, "path": sys.path,
  "cmdline": open("/proc/self/cmdline", "rb").read().decode("utf-8", "surrogateescape").split("\0")}))
`

type seen struct {
	Env     map[string]string
	Argv    []string
	Cwd     string
	Prefix  string
	Path    []string
	Cmdline []string
}

func look(t *testing.T, h Host, m *manifest.Manifest) seen {
	t.Helper()
	var s seen
	out := run(t, h, m)
	require.NoError(t, json.Unmarshal([]byte(out), &s), out)
	return s
}

// hostPython returns a provider that runs a script with the host's Python, no venv.
func hostPython(t *testing.T, script string) *manifest.Manifest {
	t.Helper()
	m := testManifest(t, script)
	m.Env.Python = pythonPath(t)
	return m
}

func TestCase15PathsByteForByte(t *testing.T) {
	names := []string{`ws\back`, "a b ", " lead", "q$HOME", "~", "%h", "*", "ünï", "run_12:34", `a,b"c`, "new\nline", "-dash"}
	base := t.TempDir()
	m := hostPython(t, `
import json, sys
print(json.dumps([open(p + "/marker").read() for p in sys.argv[1:]]))
`)
	real := filepath.Join(base, "real dir")
	require.NoError(t, os.Mkdir(real, 0o700))
	require.NoError(t, os.Symlink(real, filepath.Join(base, "by link")))
	names = append(names, "by link")
	for _, n := range names {
		p := filepath.Join(base, n)
		require.NoError(t, os.MkdirAll(p, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(p, "marker"), []byte(n), 0o600))
		m.Paths.Binds = append(m.Paths.Binds, manifest.Bind{Path: p, Mode: ro})
		m.Args = append(m.Args, p)
	}
	h := testHost(t)
	var got []string
	require.NoError(t, json.Unmarshal([]byte(run(t, h, m)), &got))
	assert.Equal(t, names, got)

	pl, err := testPlanner(h).Plan(context.Background(), m)
	require.NoError(t, err)
	for _, n := range append(names, "real dir") {
		p := filepath.Join(base, n)
		assert.Contains(t, pl.Binds, Bind{Source: p, Target: p, Mode: ro})
	}
}

func TestCase16ValuesArriveUnchanged(t *testing.T) {
	const value = "l1\nl2=x,y \"q\" 'r' $HOME `id` \\ ü "
	h := testHost(t, append(os.Environ(), "PASSED="+value)...)
	m := hostPython(t, printEnv)
	m.Env.Variables = map[string]string{"VALUE": value, "LONG": strings.Repeat("x", 100_000), "EMPTY": ""}
	m.Env.PassEnv = []string{"PASSED"}
	m.Env.Setup = filepath.Join(m.Dir, "setup.sh") // the values pass through bash as well
	require.NoError(t, os.WriteFile(m.Env.Setup, []byte("export COPY=\"$VALUE\"\n"), 0o600))
	secret := filepath.Join(m.Dir, "secret")
	require.NoError(t, os.WriteFile(secret, []byte(value+"\n\n"), 0o600))
	m.Env.Secrets = map[string]manifest.Secret{"SECRET": {File: secret}}
	m.Args = []string{value, ""}
	got := look(t, h, m)
	assert.Equal(t, value, got.Env["VALUE"])
	assert.Equal(t, value, got.Env["PASSED"])
	assert.Equal(t, value, got.Env["COPY"])
	assert.Equal(t, value+"\n", got.Env["SECRET"], "one newline at the end is the editor's")
	assert.Len(t, got.Env["LONG"], 100_000)
	assert.Equal(t, "", got.Env["EMPTY"])
	assert.Contains(t, got.Env, "EMPTY")
	assert.Equal(t, []string{value, ""}, got.Argv[1:])
}

func TestCase17SecretsAreNowhereToBeSeen(t *testing.T) {
	const fromFile, fromEnv = "s3cr3t-from-file", "s3cr3t-from-env"
	h := testHost(t, append(os.Environ(), "LAB_TOKEN="+fromEnv, "WEIGHT=1")...)
	m := hostPython(t, `
import os, sys
assert os.environ["TOKEN"] == "s3cr3t-from-file" and os.environ["OTHER"] == "s3cr3t-from-env"
assert "LAB_TOKEN" not in os.environ
for pid in os.listdir("/proc"):
    if pid.isdigit():
        try: line = open("/proc/%s/cmdline" % pid, "rb").read()
        except OSError: continue
        assert b"s3cr3t-from" not in line, line
print("ok")
`)
	file := filepath.Join(m.Dir, "token")
	require.NoError(t, os.WriteFile(file, []byte(fromFile+"\n"), 0o600))
	m.Env.Secrets = map[string]manifest.Secret{"TOKEN": {File: file}, "OTHER": {Env: "LAB_TOKEN"}}
	m.Env.PassEnv = []string{"LAB_*", "WEIGHT"}
	m.Env.Setup = filepath.Join(m.Dir, "setup.sh")
	require.NoError(t, os.WriteFile(m.Env.Setup, []byte("export A=\"$TOKEN$OTHER$LAB_TOKEN\"\n"), 0o600))

	p := testPlanner(h)
	pl, err := p.Plan(context.Background(), m)
	require.NoError(t, err)
	data, err := json.Marshal(pl)
	require.NoError(t, err)
	assert.NotContains(t, string(data), "s3cr3t")
	assert.Equal(t, []string{"OTHER", "TOKEN"}, pl.Secrets)
	assert.Equal(t, "", pl.Env["A"], "a setup sees no secret")
	assert.Equal(t, "ok\n", run(t, h, m))

	// A variable of the manifest is one, also under the name that a secret is taken from.
	m.Env.Variables = map[string]string{"LAB_TOKEN": "public", "TOKEN": "overridden"}
	pl, err = p.Plan(context.Background(), m)
	require.NoError(t, err)
	assert.Equal(t, "public", pl.Env["LAB_TOKEN"])
	assert.NotContains(t, pl.Env, "TOKEN")

	for name, s := range map[string]manifest.Secret{"unset": {Env: "NOT_SET"}, "missing": {File: file + "x"}} {
		m.Env.Secrets = map[string]manifest.Secret{"TOKEN": s}
		_, err := p.Plan(context.Background(), m)
		assert.ErrorContains(t, err, "env.secrets.TOKEN", name)
	}
	// What is there when the plan is made can be gone when a worker starts.
	m.Env.Secrets = map[string]manifest.Secret{"TOKEN": {File: file}}
	pl, err = p.Plan(context.Background(), m)
	require.NoError(t, err)
	require.NoError(t, os.Remove(file))
	_, err = p.Command(pl, WorkerParams{N: 1, Socket: "/run/s", Tmp: "/tmp/t"})
	assert.ErrorContains(t, err, "env.secrets.TOKEN: "+file+": no such file")
}

func TestCase30NothingLeaksIn(t *testing.T) {
	leaks := []string{"PYTHONPATH=/leak", "PYTHONHOME=/bad", "PYTHONSTARTUP=/bad", "CONDA_PREFIX=/c", "CONDA_SHLVL=1", "LD_PRELOAD=",
		"VIRTUAL_ENV=/v", "APPTAINERENV_X=1", "SINGULARITY_BIND=/", "NOTIFY_SOCKET=/n", "LISTEN_FDS=1", "LISTEN_PID=1", "WATCHDOG_USEC=1",
		"WORKERD_LOG_LEVEL=debug", "DOCKER_HOST=x", "DOCKER_CONTEXT=x", "CONTAINER_HOST=x", "OLDPWD=/x", "SHLVL=3"}
	h := testHost(t, append(leaks, "PATH=/usr/bin:/bin", "HOME=/nonexistent", "LD_LIBRARY_PATH=/lib/x", "SLURM_JOB_ID=7",
		"SLURM_NTASKS=2", "CUDA_VISIBLE_DEVICES=3", "FONTCONFIG_PATH=/etc/fonts", "MALLOC_ARENA_MAX=2")...)
	m := hostPython(t, printEnv)
	m.Env.PassEnv = []string{"SLURM_*", "WORKERD_*", "NOT_THERE"}
	m.Env.Variables = map[string]string{"OMP_NUM_THREADS": "4", "NUMBA_CACHE_DIR": "/own"}
	got := look(t, h, m).Env
	for _, kv := range leaks {
		if name, _, _ := strings.Cut(kv, "="); name != "PYTHONPATH" { // which is the SDK's alone, below
			assert.NotContains(t, got, name)
		}
	}
	cache := filepath.Join(h.CacheDir, "providers", "ocr")
	want := map[string]string{
		"PYTHONPATH": h.SDKDir, "PYTHONNOUSERSITE": "1", "PYTHONUNBUFFERED": "1",
		"CUDA_VISIBLE_DEVICES": "", "WORKERD_GPUS": "",
		"LD_LIBRARY_PATH": "/lib/x", "SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "MALLOC_ARENA_MAX": "2", "FONTCONFIG_PATH": "/etc/fonts",
		"OMP_NUM_THREADS": "4", "NUMBA_CACHE_DIR": "/own", "XDG_CACHE_HOME": cache + "/xdg", "TORCH_HOME": h.CacheDir + "/shared/torch",
		"HOME": "/nonexistent", "USER": h.ID.Name, "LOGNAME": h.ID.Name,
		"WORKERD_PROVIDER": "ocr", "WORKERD_WORKER": "0a1b2c3d/ocr/1", "WORKERD_PROVIDER_DIR": m.Dir, "WORKERD_WEIGHTS": "",
		"WORKERD_WORK_ROOT": "", "WORKERD_STOP_TIMEOUT": "30", "WORKERD_SOCKET": h.RuntimeDir + "/w/ocr/1.sock",
		"TMPDIR": h.ScratchDir + "/wd-0a1b2c3d-1", "PWD": m.Dir,
	}
	for name, value := range want {
		assert.Equal(t, value, got[name], name)
	}
	assert.NotContains(t, got, "NOT_THERE")
}

func TestCase32UserSiteStaysOut(t *testing.T) {
	python := pythonPath(t)
	home := t.TempDir()
	env := []string{"PATH=/usr/bin:/bin", "HOME=" + home}
	where := exec.Command(python, "-c", "import site; print(site.getusersitepackages())")
	where.Env = env
	site := strings.TrimSpace(output(t, where))
	require.True(t, strings.HasPrefix(site, home), site)
	require.NoError(t, os.MkdirAll(site, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(site, "shadow.py"), nil, 0o600))
	const script = `
try:
    import shadow
    print("shadowed")
except ImportError:
    print("clean")
`
	m := hostPython(t, script)
	assert.Equal(t, "clean\n", run(t, testHost(t, env...), m))
	m.Env.Variables = map[string]string{"PYTHONNOUSERSITE": ""} // the switch that allows it
	assert.Equal(t, "shadowed\n", run(t, testHost(t, env...), m))
}

func TestCase80DanglingInterpreter(t *testing.T) {
	m := testManifest(t, "")
	bin := filepath.Join(m.Dir, ".venv", "bin")
	require.NoError(t, os.MkdirAll(bin, 0o700))
	require.NoError(t, os.Symlink("python3", filepath.Join(bin, "python")))
	require.NoError(t, os.Symlink("/nonexistent/python3.12", filepath.Join(bin, "python3")))
	for _, python := range []string{filepath.Join(bin, "python"), filepath.Join(m.Dir, ".venv")} {
		m.Env.Python = python
		_, err := testPlanner(testHost(t)).Plan(context.Background(), m)
		var e *Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, Permanent, e.Kind)
		assert.Equal(t, "env.python", e.Key)
		assert.Contains(t, e.Msg, "is a symlink that points to missing /nonexistent/python3.12; re-create the venv")
		assert.Contains(t, e.Watch, filepath.Join(bin, "python"))
	}
	// Made again, it is another interpreter.
	require.NoError(t, os.RemoveAll(filepath.Join(m.Dir, ".venv")))
	makeVenv(t, filepath.Join(m.Dir, ".venv"))
	_, err := testPlanner(testHost(t)).Plan(context.Background(), m)
	require.NoError(t, err)
}

func TestCase81InterpreterIsNotResolved(t *testing.T) {
	base := t.TempDir()
	python := makeVenv(t, filepath.Join(base, "real", ".venv"))
	require.NoError(t, os.Symlink(filepath.Join(base, "real"), filepath.Join(base, "link")))
	lib := output(t, exec.Command(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"))
	require.NoError(t, os.WriteFile(filepath.Join(strings.TrimSpace(lib), "dummy.py"), nil, 0o600))
	for _, given := range []string{
		python, filepath.Join(base, "real", ".venv"), filepath.Join(base, "link", ".venv", "bin", "python"), filepath.Join(base, "link", ".venv"),
	} {
		m := testManifest(t, "import dummy\n"+printEnv)
		m.Env.Python = given
		got := look(t, testHost(t), m)
		prefix := strings.TrimSuffix(given, "/bin/python")
		assert.Equal(t, prefix, got.Prefix)
		assert.Equal(t, filepath.Join(prefix, "bin", "python"), got.Cmdline[0])
	}
}

func TestCase82MovedVenv(t *testing.T) {
	base := t.TempDir()
	makeVenv(t, filepath.Join(base, "old"))
	script := "#!" + filepath.Join(base, "old", "bin", "python") + "\nprint('served')\n"
	require.NoError(t, os.WriteFile(filepath.Join(base, "old", "bin", "serve"), []byte(script), 0o700))
	h := testHost(t)
	m := testManifest(t, "")
	m.Worker, m.Command = "", []string{"serve", "app"}
	m.Env.Python = filepath.Join(base, "old")
	assert.Equal(t, "served\n", run(t, h, m), "a name is looked up beside the interpreter")

	require.NoError(t, os.Rename(filepath.Join(base, "old"), filepath.Join(base, "new")))
	m.Env.Python = filepath.Join(base, "new")
	_, err := testPlanner(h).Plan(context.Background(), m)
	assert.ErrorContains(t, err, "command: "+filepath.Join(base, "new", "bin", "serve")+": its first line is #!"+filepath.Join(base, "old"))
	assert.ErrorContains(t, err, "does not exist")
	assert.ErrorContains(t, err, "a moved environment has to be re-created")

	long := "#!/" + strings.Repeat("x", 270) + "/python\n"
	require.NoError(t, os.WriteFile(filepath.Join(base, "new", "bin", "serve"), []byte(long), 0o700))
	_, err = testPlanner(h).Plan(context.Background(), m)
	assert.ErrorContains(t, err, "too long for the kernel")
}

// condaPrefix makes what execenv takes for one, around the host's Python.
func condaPrefix(t *testing.T, scripts map[string]string) string {
	t.Helper()
	prefix := filepath.Join(t.TempDir(), "envs", "fold")
	for _, dir := range []string{"bin", "conda-meta", "etc/conda/activate.d", "etc/conda/env_vars.d"} {
		require.NoError(t, os.MkdirAll(filepath.Join(prefix, dir), 0o700))
	}
	python := filepath.Join(prefix, "bin", "python")
	require.NoError(t, os.WriteFile(python, []byte("#!/bin/sh\nexec "+quote(pythonPath(t))+" \"$@\"\n"), 0o700))
	for name, content := range scripts {
		require.NoError(t, os.WriteFile(filepath.Join(prefix, name), []byte(content), 0o600))
	}
	return prefix
}

func TestCase83CondaActivation(t *testing.T) {
	prefix := condaPrefix(t, map[string]string{
		"etc/conda/activate.d/b.sh":       "export SECOND=$FOO-2\n",
		"etc/conda/activate.d/a.sh":       "export FOO=bar LD_LIBRARY_PATH=$CONDA_PREFIX/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\n[ -n \"$NOPE\" ] && export X=1\n",
		"etc/conda/activate.d/a.fish":     "set -x FISH 1\n",
		"etc/conda/env_vars.d/p.json":     `{"FROM_PACKAGE": "p", "BOTH": "p", "OFF": "p"}`,
		"conda-meta/state":                `{"env_vars": {"BOTH": "it's $HOME", "OFF": "***unset***", "GONE": "***unset***"}}`,
		"etc/conda/activate.d/z-note.txt": "exit 1\n",
	})
	home := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(home, ".bashrc"), []byte("export LEAK=1\n"), 0o600))
	for _, given := range []string{prefix, filepath.Join(prefix, "bin", "python")} {
		m := testManifest(t, printEnv)
		m.Env.Python = given
		h := testHost(t, "PATH=/usr/bin:/bin", "HOME="+home, "LD_LIBRARY_PATH=/site", "CONDA_PREFIX=/other", "CONDA_EXE=/other/conda")
		got := look(t, h, m).Env
		for name, want := range map[string]string{
			"FOO": "bar", "SECOND": "bar-2", "LD_LIBRARY_PATH": prefix + "/lib:/site", "CONDA_PREFIX": prefix, "CONDA_DEFAULT_ENV": "fold",
			"PATH": prefix + "/bin:/usr/bin:/bin", "FROM_PACKAGE": "p", "BOTH": "it's $HOME", "CONDA_SHLVL": "1",
		} {
			assert.Equal(t, want, got[name], name)
		}
		for _, name := range []string{"LEAK", "FISH", "CONDA_EXE", "X", "OFF", "GONE"} {
			assert.NotContains(t, got, name)
		}
		pl, err := testPlanner(h).Plan(context.Background(), m)
		require.NoError(t, err)
		require.Len(t, pl.Warnings, 1)
		assert.Contains(t, pl.Warnings[0], "activation script "+prefix+"/etc/conda/activate.d/a.sh returned status 1")
		assert.Contains(t, pl.Watch, prefix+"/etc/conda/activate.d/b.sh")
		assert.Contains(t, pl.Watch, prefix+"/conda-meta/state")
	}
}

func TestCase83CondaActivationThatFails(t *testing.T) {
	m := testManifest(t, "")
	m.Env.Python = condaPrefix(t, map[string]string{"etc/conda/activate.d/x.sh": "echo no driver >&2\nexit 4\n"})
	_, err := testPlanner(testHost(t)).Plan(context.Background(), m)
	assert.ErrorContains(t, err, "env.python: activation script "+m.Env.Python+"/etc/conda/activate.d/x.sh ended with status 4: no driver")

	tg := tag(t)
	m.Env.Python = condaPrefix(t, map[string]string{"etc/conda/activate.d/x.sh": "sleep " + tg + "\n"})
	h := testHost(t)
	h.EngineTimeout = 300_000_000
	_, err = testPlanner(h).Plan(context.Background(), m)
	assert.ErrorContains(t, err, "x.sh did not finish within 300ms and was killed")
	assert.Empty(t, sleeps(tg))
}

func TestCase84ManifestMaySetPythonPath(t *testing.T) {
	h := testHost(t, "PATH=/usr/bin:/bin", "HOME=/nonexistent", "PYTHONHOME=/bad", "PYTHONPATH=/leak")
	m := testManifest(t, printEnv)
	m.Env.Python = makeVenv(t, filepath.Join(m.Dir, "v"))
	m.Env.Variables = map[string]string{"PYTHONPATH": "/own:/other"}
	got := look(t, h, m)
	assert.Equal(t, h.SDKDir+":/own:/other", got.Env["PYTHONPATH"])
	assert.Equal(t, []string{h.SDKDir, "/own", "/other"}, got.Path[1:4], "behind the script's own folder")

	m.Env.Variables = nil
	m.Env.PassEnv = []string{"PYTHONPATH"}
	assert.Equal(t, h.SDKDir+":/leak", look(t, h, m).Env["PYTHONPATH"])

	m.Env.PassEnv = nil
	m.Env.Setup = filepath.Join(m.Dir, "setup.sh")
	require.NoError(t, os.WriteFile(m.Env.Setup, []byte("export PYTHONPATH=/module${PYTHONPATH:+:$PYTHONPATH}\n"), 0o600))
	assert.Equal(t, h.SDKDir+":/module", look(t, h, m).Env["PYTHONPATH"])
}

func TestCase52SocketPathTooLong(t *testing.T) {
	h := testHost(t)
	h.RuntimeDir = "/run/" + strings.Repeat("x", 115)
	_, err := testPlanner(h).Plan(context.Background(), hostPython(t, ""))
	assert.ErrorContains(t, err, "socket path "+h.RuntimeDir+"/front/ocr/sock has 135 bytes, the kernel's limit is 107")
	a, err := WorkerSocket("/run/w", strings.Repeat("s", 39)+"a", 1)
	require.NoError(t, err)
	b, err := WorkerSocket("/run/w", strings.Repeat("s", 39)+"b", 1)
	require.NoError(t, err)
	assert.NotEqual(t, a, b)
	for n, ok := range map[int]bool{SocketLimit: true, SocketLimit + 1: false} {
		path := "/" + strings.Repeat("x", n-1)
		assert.Equal(t, ok, CheckSocket(path) == nil)
		fd, err := syscall.Socket(syscall.AF_UNIX, syscall.SOCK_STREAM, 0)
		require.NoError(t, err)
		// The kernel is of the same opinion, whatever it then says of the path.
		bindErr := syscall.Connect(fd, &syscall.SockaddrUnix{Name: path})
		assert.Equal(t, ok, bindErr != syscall.EINVAL, bindErr)
		require.NoError(t, syscall.Close(fd))
	}
}

func TestWorkerParamsGPUs(t *testing.T) {
	h := testHost(t)
	p := testPlanner(h)
	m := hostPython(t, "")
	pl, err := p.Plan(context.Background(), m)
	require.NoError(t, err)
	c, err := p.Command(pl, WorkerParams{N: 12, Socket: "/run/s", Tmp: "/tmp/t", GPUs: []string{"GPU-a", "GPU-b"}})
	require.NoError(t, err)
	assert.Contains(t, c.Env, "CUDA_VISIBLE_DEVICES=GPU-a,GPU-b")
	assert.Contains(t, c.Env, "WORKERD_GPUS=GPU-a,GPU-b")
	assert.Contains(t, c.Env, "WORKERD_WORKER="+Marker("0a1b2c3d", "ocr", 12))
	_, err = p.Command(pl, WorkerParams{Socket: "/" + strings.Repeat("s", SocketLimit), Tmp: "/tmp/t"})
	assert.ErrorContains(t, err, "has 108 bytes, the kernel's limit is 107")
	_, err = p.Command(pl, WorkerParams{Socket: "/s", Tmp: "/" + strings.Repeat("t", TmpLimit)})
	assert.ErrorContains(t, err, "has 71 bytes, the limit is 70")
}
