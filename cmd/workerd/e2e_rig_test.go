package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/execenv"
	"workerd/protocol"
	"workerd/protocol/control"
	"workerd/protocol/prototest"
)

// The tests in the e2e files run the real binary as a process of its own, with real Python workers, and look at it from
// outside: over its sockets, by its commands, and in /proc.

// patience bounds what must come true but has no time of its own.
const patience = 60 * time.Second

// soon is a time limit that is part of a promise. The race detector makes everything slower.
func soon(d time.Duration) time.Duration {
	if raceDetector {
		return 5 * d
	}
	return d
}

// long skips a test that takes many seconds where -short asks for that.
func long(t *testing.T) {
	t.Helper()
	if testing.Short() {
		prototest.Needs(t, "long", "it takes many seconds")
	}
}

var built struct {
	once    sync.Once
	dir     string
	janitor io.Closer // its pipe: held open for as long as this process lives
	err     error
}

// realBinary builds workerd once for all tests, with the race detector where they run with it. WORKERD_TEST_BINARY names one
// that is there already, for a user who has no Go.
func realBinary(t *testing.T) string {
	t.Helper()
	if binary := os.Getenv("WORKERD_TEST_BINARY"); binary != "" {
		return binary
	}
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "workerd-e2e-"); built.err != nil {
			return
		}
		if built.janitor, built.err = removeAfterwards(built.dir); built.err != nil {
			return
		}
		args := []string{"build", "-buildvcs=false", "-o", built.dir}
		if raceDetector {
			args = append(args, "-race")
		}
		if out, err := exec.Command("go", append(args, ".")...).CombinedOutput(); err != nil {
			built.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	require.NoError(t, built.err)
	return filepath.Join(built.dir, "workerd")
}

// removeAfterwards has a directory removed when this process has ended: a shell waits for the end of the pipe.
func removeAfterwards(dir string) (io.Closer, error) {
	janitor := exec.Command("sh", "-c", `cat; rm -rf -- "$0"`, dir)
	pipe, err := janitor.StdinPipe()
	if err != nil {
		return nil, err
	}
	return pipe, janitor.Start()
}

// pythonPath is the interpreter behind python3 in PATH, which may be a wrapper that takes its time.
var pythonPath = sync.OnceValues(func() (string, error) {
	out, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	return strings.TrimSpace(string(out)), err
})

func interpreter(t *testing.T) string {
	t.Helper()
	path, err := pythonPath()
	require.NoError(t, err)
	return path
}

// e2e is one workerd with directories of its own.
type e2e struct {
	t   *testing.T
	dir string // short: sockets are below it
	env map[string]string
	// attr and stdin are what workerd itself is executed with, prefix a command that executes it, and joins are files which take its pid.
	attr   *syscall.SysProcAttr
	stdin  *os.File
	prefix []string
	joins  []string

	cmd  *exec.Cmd // nil while it does not run
	log  *lockedBuffer
	exit chan error
}

// newE2E makes the directories. What the test starts is stopped at its end, and nothing of it may be left.
func newE2E(t *testing.T) *e2e {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "we")
	require.NoError(t, err)
	e := &e2e{t: t, dir: dir, log: new(lockedBuffer), env: map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": filepath.Join(dir, "home"), "GORACE": "atexit_sleep_ms=0",
		"XDG_RUNTIME_DIR": filepath.Join(dir, "run"), "XDG_CONFIG_HOME": filepath.Join(dir, "config"),
		"XDG_STATE_HOME": filepath.Join(dir, "state"), "XDG_CACHE_HOME": filepath.Join(dir, "cache"),
	}}
	for _, name := range []string{"home", "run", "config/workerd/providers"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o700))
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	t.Cleanup(func() {
		if t.Failed() {
			text := e.log.String()
			from := max(0, len(text)-20_000)
			if dump := strings.Index(text, "SIGQUIT: quit"); dump >= 0 { // its goroutines, all of them
				from = min(from, dump)
			}
			t.Logf("workerd said:\n%s", text[from:])
		}
	})
	t.Cleanup(e.end)
	return e
}

func (e *e2e) runtimeDir() string { return filepath.Join(e.dir, "run/workerd") }
func (e *e2e) front(slug string) string {
	return filepath.Join(e.runtimeDir(), "front", slug, "sock")
}
func (e *e2e) manifests() string { return filepath.Join(e.dir, "config/workerd/providers") }

func (e *e2e) command(args ...string) *exec.Cmd {
	cmd := exec.Command(realBinary(e.t), args...)
	for name, value := range e.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	return cmd
}

// launch starts `workerd serve` without waiting for anything.
func (e *e2e) launch(args ...string) {
	e.t.Helper()
	cmd, exit := e.command(append([]string{"serve"}, args...)...), make(chan error, 1)
	cmd.Stderr, cmd.SysProcAttr = e.log, e.attr
	if e.stdin != nil {
		cmd.Stdin = e.stdin
	}
	if file := os.Getenv("WORKERD_TEST_LOG"); file != "" {
		f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		require.NoError(e.t, err)
		cmd.Stderr = io.MultiWriter(e.log, f) // which stays open for as long as workerd may write
	}
	if e.prefix != nil {
		cmd.Args = slices.Concat(e.prefix, []string{cmd.Path}, cmd.Args[1:])
		cmd.Path = e.prefix[0]
	}
	require.NoError(e.t, cmd.Start())
	for _, file := range e.joins {
		require.NoError(e.t, os.WriteFile(file, []byte(strconv.Itoa(cmd.Process.Pid)), 0))
	}
	go func() { exit <- cmd.Wait() }()
	e.cmd, e.exit = cmd, exit
}

// start starts `workerd serve` and returns when it answers and has taken in the manifests.
func (e *e2e) start(args ...string) {
	e.t.Helper()
	before := strings.Count(e.log.String(), "msg=ready")
	e.launch(args...)
	e.until("workerd is ready", func() bool { return strings.Count(e.log.String(), "msg=ready") > before })
}

func (e *e2e) pid() int { return e.cmd.Process.Pid }

// signalled sends a signal to workerd and returns after how long it ended, and how.
func (e *e2e) signalled(sig os.Signal) (time.Duration, error) {
	e.t.Helper()
	begin := time.Now()
	require.NoError(e.t, e.cmd.Process.Signal(sig))
	err := e.ended()
	return time.Since(begin), err
}

// ended waits for the end of workerd.
func (e *e2e) ended() error {
	e.t.Helper()
	select {
	case err := <-e.exit:
		e.cmd = nil
		return err
	case <-time.After(patience):
		_ = e.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines are in the log then
		<-e.exit
		e.cmd = nil
		e.t.Fatal("workerd does not end")
		return nil
	}
}

// stop ends workerd in order and checks that nothing is left of it.
func (e *e2e) stop() {
	e.t.Helper()
	e.until("no zombie is left", func() bool { return len(zombies(e.pid())) == 0 })
	_, err := e.signalled(syscall.SIGTERM)
	require.NoError(e.t, err, "workerd exits with 0")
	e.leftNothing()
}

// end is stop for the end of a test, where a failure must not hide the first one.
func (e *e2e) end() {
	if e.cmd == nil {
		return
	}
	if !e.t.Failed() {
		e.stop()
		return
	}
	_ = e.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-e.exit:
	case <-time.After(patience):
		_ = e.cmd.Process.Signal(syscall.SIGQUIT) // its goroutines are in the log then
		<-e.exit
	}
	e.cmd = nil
	for _, pid := range e.marked("") {
		_ = syscall.Kill(pid, syscall.SIGKILL)
	}
}

// leftNothing checks what must be gone when workerd is: processes, sockets, the workers' folders; and that it was well.
func (e *e2e) leftNothing() {
	e.t.Helper()
	require.Empty(e.t, e.marked(""), "no process is left")
	_ = filepath.WalkDir(e.runtimeDir(), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&(fs.ModeSocket|fs.ModeSymlink) != 0 {
			e.t.Errorf("left behind: %s", path)
		}
		return nil
	})
	left, err := filepath.Glob(filepath.Join(e.dir, "cache/workerd/tmp/*"))
	require.NoError(e.t, err)
	require.Empty(e.t, left)
	for _, word := range []string{"DATA RACE", "panic:", "illegal transition"} {
		require.NotContains(e.t, e.log.String(), word)
	}
}

// until waits for a condition.
func (e *e2e) until(what string, holds func() bool) {
	e.t.Helper()
	within(e.t, patience, what, holds)
}

// within polls a condition that must hold before d is over. The pause is no synchronisation, only patience.
func within(t *testing.T, d time.Duration, what string, holds func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	for !holds() {
		if time.Since(begin) > d {
			t.Fatalf("not within %s: %s", d, what)
		}
		time.Sleep(2 * time.Millisecond)
	}
	return time.Since(begin)
}

// outcome of a command line.
type ran struct {
	out, err string
	code     int
}

// cli runs a command of the real binary.
func (e *e2e) cli(args ...string) ran {
	e.t.Helper()
	cmd := e.command(args...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	err := cmd.Run()
	if exit, ok := errors.AsType[*exec.ExitError](err); err != nil && (!ok || exit.ExitCode() < 0) {
		e.t.Fatalf("workerd %v: %v\n%s", args, err, stderr.String())
	}
	return ran{stdout.String(), stderr.String(), cmd.ProcessState.ExitCode()}
}

// ok runs a command that must succeed and returns what it printed.
func (e *e2e) ok(args ...string) string {
	e.t.Helper()
	r := e.cli(args...)
	require.Equal(e.t, exitOK, r.code, "workerd %v\nstdout: %s\nstderr: %s", args, r.out, r.err)
	return r.out
}

// fails runs a command that must exit with code and returns what it said.
func (e *e2e) fails(code int, args ...string) string {
	e.t.Helper()
	r := e.cli(args...)
	require.Equal(e.t, code, r.code, "workerd %v\nstdout: %s\nstderr: %s", args, r.out, r.err)
	require.Empty(e.t, r.out, "errors go to stderr")
	return r.err
}

// control is the operator API.
func (e *e2e) control() *control.Client {
	return control.NewClient(filepath.Join(e.runtimeDir(), "workerd.sock"))
}

// status is a provider's, with state "" where there is none.
func (e *e2e) status(slug string) protocol.ProviderStatus {
	p, err := e.control().Provider(context.Background(), slug)
	if err != nil {
		return protocol.ProviderStatus{}
	}
	return p
}

// state waits until a provider is in a state.
func (e *e2e) state(slug, state string) protocol.ProviderStatus {
	e.t.Helper()
	var p protocol.ProviderStatus
	e.until(slug+" is "+state, func() bool { p = e.status(slug); return p.State == state })
	return p
}

// ready waits until a provider is ready and returns its worker's pid.
func (e *e2e) ready(slug string) int {
	e.t.Helper()
	return e.state(slug, "ready").Workers[0].PID
}

// marked lists the living processes of this workerd's workers: of all for "", of a provider for "slug/", of one worker for
// "slug/n\x00".
func (e *e2e) marked(of string) []int {
	e.t.Helper()
	host, err := os.Hostname()
	require.NoError(e.t, err)
	marker := []byte("\x00WORKERD_WORKER=" + execenv.InstanceID(os.Geteuid(), host, realPath(e.runtimeDir())) + "/" + of)
	var pids []int
	dirs, err := filepath.Glob("/proc/[0-9]*")
	require.NoError(e.t, err)
	for _, dir := range dirs {
		data, err := os.ReadFile(filepath.Join(dir, "environ"))
		if err == nil && bytes.Contains(append([]byte{0}, data...), marker) {
			pid, _ := strconv.Atoi(filepath.Base(dir))
			pids = append(pids, pid)
		}
	}
	return pids
}

// procStat returns the fields of /proc/PID/stat from the state on: state, ppid, ...; nil for no such process.
func procStat(pid int) []string {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return nil
	}
	return strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
}

// alive says whether a process runs and is no zombie.
func alive(pid int) bool {
	stat := procStat(pid)
	return stat != nil && stat[0] != "Z" && stat[0] != "X"
}

// zombies lists the dead children of a process that it has not reaped.
func zombies(parent int) []int {
	var pids []int
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		pid, _ := strconv.Atoi(filepath.Base(dir))
		if stat := procStat(pid); stat != nil && stat[0] == "Z" && stat[1] == strconv.Itoa(parent) {
			pids = append(pids, pid)
		}
	}
	return pids
}
