package execenv

import (
	"bytes"
	"context"
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
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"workerd/identity"
	"workerd/manifest"
)

// kids registers every process that the tests of this package fork: as workerd itself, the test binary is a child subreaper
// and reaps what is not registered.
var kids Children

// helperRemove makes the test binary remove a TMPDIR, and nothing else.
const helperRemove = "WORKERD_TEST_REMOVE"

func TestMain(m *testing.M) {
	if tmp := os.Getenv(helperRemove); tmp != "" {
		if err := RemoveTmp(tmp); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		return
	}
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		panic(err)
	}
	goleak.VerifyTestMain(m)
}

// start starts a process in a session of its own and sees to its end.
func start(t *testing.T, cmd *exec.Cmd) *exec.Cmd {
	t.Helper()
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	_, err := kids.Start(func() (int, error) {
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		if cmd.ProcessState == nil {
			kids.Done(cmd.Process.Pid, func() { _ = cmd.Wait() })
		}
	})
	return cmd
}

// output runs a command to its end and returns what it printed.
func output(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	start(t, cmd)
	var err error
	kids.Done(cmd.Process.Pid, func() { err = cmd.Wait() })
	require.NoError(t, err, "%v: %s", cmd.Args, errs.String())
	return out.String()
}

// pythonPath returns an interpreter that is no shim: a shim is a script that finds another by the environment.
func pythonPath(t *testing.T) string {
	t.Helper()
	pythonOnce.Do(func() {
		found, err := exec.LookPath("python3")
		require.NoError(t, err, "the tests need python3 on PATH")
		python = strings.TrimSpace(output(t, exec.Command(found, "-c", "import sys; print(sys.executable)")))
	})
	require.NotEmpty(t, python)
	return python
}

var (
	pythonOnce sync.Once
	python     string
)

// makeVenv makes a venv without pip at dir and returns its interpreter.
func makeVenv(t *testing.T, dir string) string {
	t.Helper()
	output(t, exec.Command(pythonPath(t), "-m", "venv", "--without-pip", dir))
	return filepath.Join(dir, "bin", "python")
}

// testHost returns a host whose directories are below a short temporary folder.
func testHost(t *testing.T, environ ...string) Host {
	t.Helper()
	root, err := os.MkdirTemp("/tmp", "wdt")
	require.NoError(t, err)
	t.Cleanup(func() { _ = RemoveTmp(root) })
	id, err := identity.Current()
	require.NoError(t, err)
	sdk := filepath.Join(root, "sdk")
	require.NoError(t, os.Mkdir(sdk, 0o700))
	if environ == nil {
		environ = os.Environ()
	}
	return Host{
		ID: id, Instance: "0a1b2c3d", RuntimeDir: filepath.Join(root, "run"), StateDir: filepath.Join(root, "state"),
		CacheDir: filepath.Join(root, "cache"), ScratchDir: filepath.Join(root, "t"), SDKDir: sdk,
		Environ: environ, EngineTimeout: 20 * time.Second, kfd: filepath.Join(root, "kfd"),
	}
}

// testManifest returns a provider whose worker prints what it is given, below a folder of its own.
func testManifest(t *testing.T, script string) *manifest.Manifest {
	t.Helper()
	dir := t.TempDir()
	m := &manifest.Manifest{File: filepath.Join(dir, "provider.toml"), Dir: dir, Slug: "ocr"}
	m.Worker = filepath.Join(dir, "worker.py")
	require.NoError(t, os.WriteFile(m.Worker, []byte(script), 0o600))
	m.Env.Kind = manifest.Venv
	m.Paths.Cwd = dir
	m.GPU.Policy, m.GPU.Count = "auto", 1
	m.Limits.Pids, m.Limits.ShmSize = manifest.DefaultPids, manifest.DefaultShmSize
	m.Start.StopTimeout = manifest.Duration(manifest.DefaultStopTimeout)
	return m
}

func testPlanner(h Host) *Planner { return NewPlanner(h, OSRunner{&kids}) }

// run plans, prepares and executes one worker of m, and returns what it printed.
func run(t *testing.T, h Host, m *manifest.Manifest) string {
	t.Helper()
	p := testPlanner(h)
	pl, err := p.Plan(context.Background(), m)
	require.NoError(t, err)
	require.NoError(t, p.Prepare(pl))
	return output(t, toExec(command(t, p, pl)))
}

func command(t *testing.T, p *Planner, pl *Plan) Command {
	t.Helper()
	tmp, err := p.NewTmp(1)
	require.NoError(t, err)
	t.Cleanup(func() { _ = RemoveTmp(tmp) })
	sock, err := WorkerSocket(p.Host().RuntimeDir, pl.Slug, 1)
	require.NoError(t, err)
	c, err := p.Command(pl, WorkerParams{N: 1, Socket: sock, Tmp: tmp})
	require.NoError(t, err)
	return c
}

func toExec(c Command) *exec.Cmd {
	return &exec.Cmd{Path: c.Path, Args: c.Argv, Env: c.Env, Dir: c.Dir}
}

// eventually polls a condition.
func eventually(t *testing.T, cond func() bool, format string, args ...any) {
	t.Helper()
	require.Eventually(t, cond, 20*time.Second, 5*time.Millisecond, append([]any{format}, args...)...)
}

// living lists the processes, zombies apart, that match a command line: arguments each ended by a NUL.
func living(match func(cmdline string) bool) []int {
	var out []int
	for _, pid := range allPIDs() {
		data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if err != nil || !match(string(data)) {
			continue
		}
		if st, err := ReadStat(pid); err == nil && !st.Dead() {
			out = append(out, pid)
		}
	}
	return out
}
