package main

import (
	"bufio"
	"encoding/json"
	"log/slog"
	"net"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"workerd/protocol"
	"workerd/supervisor"
)

// asWorkerd is set where this binary is to be workerd itself, so that tests can run the real process.
const asWorkerd = "WORKERD_TEST_AS_WORKERD"

// binary makes a command that runs workerd as a process of its own, with the rig's environment.
func (r *rig) binary(args ...string) *exec.Cmd {
	r.t.Helper()
	exe, err := os.Executable()
	require.NoError(r.t, err)
	cmd := exec.Command(exe, args...)
	for name, value := range r.env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	cmd.Env = append(cmd.Env, asWorkerd+"=1")
	return cmd
}

// service is a `workerd serve` in a process of its own.
type service struct {
	*exec.Cmd
	log  lockedBuffer
	done chan error
}

func (r *rig) startDaemon(args ...string) *service {
	r.t.Helper()
	d := &service{Cmd: r.binary(append([]string{"serve"}, args...)...), done: make(chan error, 1)}
	d.Stderr = &d.log
	require.NoError(r.t, d.Start())
	ended := make(chan struct{})
	go func() { d.done <- d.Wait(); close(ended) }()
	r.t.Cleanup(func() {
		_ = d.Process.Signal(syscall.SIGTERM) // in order: a workerd that is killed leaves its workers to the next one
		select {
		case <-ended:
		case <-time.After(30 * time.Second):
			_ = d.Process.Kill()
		}
		if r.t.Failed() {
			r.t.Log(d.log.String())
		}
	})
	eventually(r.t, "workerd is ready", func() bool {
		return strings.Contains(d.log.String(), "msg=ready") || strings.Contains(d.log.String(), `"msg":"ready"`)
	})
	return d
}

// stop sends a signal and returns how the process ended.
func (d *service) stop(t *testing.T, sig os.Signal) error {
	t.Helper()
	require.NoError(t, d.Process.Signal(sig))
	select {
	case err := <-d.done:
		return err
	case <-time.After(30 * time.Second):
		t.Fatal("workerd does not end")
		return nil
	}
}

// words makes a provider as `init` writes it and returns its manifest.
func (r *rig) words() string {
	r.t.Helper()
	folder := strings.TrimSpace(r.ok("init", "words"))
	return filepath.Join(folder, "provider.toml")
}

// started starts a provider and waits until it is ready. Just after workerd came up its environment may still be probed.
func (r *rig) started(slug string) {
	r.t.Helper()
	eventually(r.t, slug+" is ready", func() bool { return r.run("start", slug) == exitOK })
	require.Contains(r.t, r.out.String(), slug+": ready")
}

// workers are the ids of the workers that status shows.
func (r *rig) workers() []string {
	r.t.Helper()
	var s protocol.Status
	require.NoError(r.t, json.Unmarshal([]byte(r.ok("status", "--json")), &s))
	var ids []string
	for _, p := range s.Providers {
		for _, w := range p.Workers {
			ids = append(ids, w.ID)
		}
	}
	return ids
}

func TestServeCallEditAndStop(t *testing.T) {
	r := newRig(t)
	file := r.words()
	d := r.startDaemon()

	r.started("words")
	require.JSONEq(t, `{"words":2,"longest":["hello","12"]}`, r.ok("call", "words", "count", "text=hello 12"))
	require.Empty(t, r.err.String())
	require.JSONEq(t, `{"words":1,"longest":["1E10"]}`, r.ok("call", "words", "count", "text=1E10", "longest=1"), "the schema says string")
	require.Contains(t, r.fails(exitFailed, "call", "words", "count"), "invalid_params")
	require.Contains(t, r.fails(exitFailed, "call", "words", "cuont", "{}"), "method_not_found")
	require.Contains(t, r.fails(exitUsage, "call", "words", "count", "text=x", "longest=few"), "want integer")
	require.Contains(t, r.ok("call", "words", "count", `{"text":"a"}`, "--progress"), `{"words":1`)
	require.Contains(t, r.err.String(), "1 words")
	require.Contains(t, r.ok("smoke"), "words: passed")
	require.Contains(t, r.ok("status"), "ready")
	require.Contains(t, r.ok("doctor"), "runs and answers")

	// A second workerd says who is there, and harms nobody.
	second := r.binary("serve")
	out, err := second.CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "another workerd (pid ")
	require.Equal(t, exitFailed, second.ProcessState.ExitCode())

	data, err := os.ReadFile(file)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(file, append(data, "nonsense = 1\n"...), 0o644))
	r.ok("reload")
	require.Contains(t, r.ok("status"), "nonsense")
	before := r.workers()
	require.Len(t, before, 1)
	require.NoError(t, os.WriteFile(file, append(data, "\n[env.variables]\nA = \"b\"\n"...), 0o644))
	require.NoError(t, d.Process.Signal(syscall.SIGHUP))
	eventually(t, "the edit is in force", func() bool {
		now := r.workers()
		return len(now) == 1 && now[0] != before[0] && !strings.Contains(r.ok("status"), "nonsense")
	})
	r.ok("call", "words", "count", "text=x")

	require.Contains(t, r.ok("stop", "words"), "words: stopped")
	require.Contains(t, r.fails(exitFailed, "call", "words", "count", "{}"), "workerd start words")
	require.NoError(t, d.stop(t, syscall.SIGTERM), "exit code 0")
	require.Equal(t, exitNotRunning, r.run("status"))
	require.NoFileExists(t, filepath.Join(r.dir, "run/workerd.sock"))
	require.NoFileExists(t, filepath.Join(r.dir, "run/words.sock"))
}

func TestServeTellsSystemd(t *testing.T) {
	r := newRig(t)
	path := filepath.Join(r.dir, "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer l.Close()
	r.env["NOTIFY_SOCKET"] = path
	heard := func() string {
		buf := make([]byte, 4096)
		require.NoError(t, l.SetReadDeadline(time.Now().Add(20*time.Second)))
		for {
			n, err := l.Read(buf)
			require.NoError(t, err)
			if !strings.HasPrefix(string(buf[:n]), "FDSTORE") {
				return string(buf[:n])
			}
		}
	}
	d := r.startDaemon("--log-format", "json", "--log-level", "debug")
	require.Equal(t, "READY=1", heard())
	require.NoError(t, d.Process.Signal(syscall.SIGHUP))
	require.Regexp(t, `^RELOADING=1\nMONOTONIC_USEC=\d+$`, heard())
	require.Equal(t, "READY=1", heard())
	require.NoError(t, d.stop(t, syscall.SIGINT))
	require.Equal(t, "STOPPING=1\nEXTEND_TIMEOUT_USEC=60000000", heard(), "no provider: the margin alone")
	for line := range strings.Lines(d.log.String()) {
		require.True(t, json.Valid([]byte(line)), line)
	}
}

func TestServeFeedsTheWatchdog(t *testing.T) {
	r := newRig(t)
	path := filepath.Join(r.dir, "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	require.NoError(t, err)
	defer l.Close()
	r.env["NOTIFY_SOCKET"], r.env["WATCHDOG_USEC"] = path, "600000"
	count := func(word string, within time.Duration) (n int) {
		require.NoError(t, l.SetReadDeadline(time.Now().Add(within)))
		buf := make([]byte, 4096)
		for {
			m, err := l.Read(buf)
			if err != nil {
				return n
			}
			if string(buf[:m]) == word {
				n++
			}
		}
	}
	d := r.startDaemon()
	require.GreaterOrEqual(t, count("WATCHDOG=1", 2*time.Second), 3)
	// A control socket that another one has replaced does not answer for this workerd.
	socket := filepath.Join(r.dir, "run/workerd.sock")
	require.NoError(t, os.Mkdir(socket+".away", 0o700))
	swap := func() { // at once: a socket that is missing is made again
		require.NoError(t, unix.Renameat2(unix.AT_FDCWD, socket, unix.AT_FDCWD, socket+".away", unix.RENAME_EXCHANGE))
	}
	swap()
	noticed := func() int { return strings.Count(d.log.String(), "the watchdog is not fed") }
	before := noticed()
	eventually(t, "it is noticed", func() bool { return noticed() > before })
	count("", 100*time.Millisecond) // what was on its way
	require.Zero(t, count("WATCHDOG=1", time.Second))
	swap()
	require.Positive(t, count("WATCHDOG=1", 2*time.Second))
}

func TestServeComesBackToADeletedRuntimeDir(t *testing.T) {
	r := newRig(t)
	r.words()
	r.startDaemon()
	r.started("words")
	eventually(t, "it is removed", func() bool { return os.RemoveAll(filepath.Join(r.dir, "run")) == nil }) // while it may be made again
	eventually(t, "the control socket is back", func() bool { return r.run("status") == exitOK })
	eventually(t, "the front socket is back", func() bool { return r.run("call", "words", "count", "text=x") == exitOK })
	out, err := r.binary("serve").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "another workerd", "the lock is back too")
}

// stubborn is a worker that loads, says its pid, and ignores SIGTERM.
const stubborn = `
import os, signal, time
from workerd import Worker
worker = Worker()
@worker.load
def load(ctx):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
@worker.method
def hang(model, ctx):
    ctx.progress(0, "hanging")
    while True:
        time.sleep(1)
@worker.method
def pid(model, ctx):
    return os.getpid()
worker.run()
`

func TestSecondSignalStopsAtOnce(t *testing.T) {
	r := newRig(t)
	file := r.words()
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(file), "worker.py"), []byte(stubborn), 0o644))
	d := r.startDaemon()
	var pid int
	require.NoError(t, json.Unmarshal([]byte(r.ok("call", "words", "pid", "{}")), &pid))
	conn, err := net.Dial("unix", filepath.Join(r.dir, "run/words.sock"))
	require.NoError(t, err)
	defer conn.Close()
	_, err = conn.Write([]byte(`{"jsonrpc":"2.0","id":1,"method":"hang","params":{}}` + "\n"))
	require.NoError(t, err)
	eventually(t, "the request runs", func() bool { return strings.Contains(r.ok("status", "words"), "1 running") })
	begin := time.Now()
	require.NoError(t, d.Process.Signal(syscall.SIGTERM))
	eventually(t, "it stops in order", func() bool { return strings.Contains(d.log.String(), "msg=stopping") })
	eventually(t, "the operator API answers while it stops", func() bool { return strings.Contains(r.ok("status", "words"), "draining") })
	require.NoError(t, d.stop(t, syscall.SIGTERM))
	require.Less(t, time.Since(begin), 20*time.Second, "stop_timeout is 30 s")
	require.ErrorIs(t, syscall.Kill(pid, 0), syscall.ESRCH)
	answer, err := bufio.NewReader(conn).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, answer, `"error"`)
}

func TestCallIsCancelledByTheFirstInterrupt(t *testing.T) {
	r := newRig(t)
	file := r.words()
	require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(file), "worker.py"), []byte(stubborn), 0o644))
	r.startDaemon()
	r.started("words")
	call := r.binary("call", "words", "hang", "--progress")
	var stderr lockedBuffer
	call.Stderr = &stderr
	require.NoError(t, call.Start())
	eventually(t, "the worker is at it", func() bool { return strings.Contains(stderr.String(), "hanging") })
	require.NoError(t, call.Process.Signal(syscall.SIGINT))
	require.Error(t, call.Wait())
	require.Equal(t, exitFailed, call.ProcessState.ExitCode())
	require.Contains(t, stderr.String(), "cancelled")

	text := r.fails(exitFailed, "call", "words", "pid", "{}", "--timeout", "200ms")
	require.Contains(t, text, "deadline_exceeded", "the slot is still busy")
}

func TestSmokeRunsAPathByItself(t *testing.T) {
	r := newRig(t)
	folder := filepath.Dir(r.words())
	require.Regexp(t, `^words: passed \(count, `, r.ok("smoke", folder))
	require.Regexp(t, `^words: passed \(count, `, r.ok("smoke", filepath.Join(folder, "provider.toml")))
	require.Regexp(t, `^words: passed \(count, `, r.ok("smoke", "words"), "a slug too, where no workerd runs")
	require.NoError(t, os.WriteFile(filepath.Join(folder, "worker.py"), []byte("import nothing_of_that_name\n"), 0o644))
	require.Equal(t, exitFailed, r.run("smoke", folder))
	require.Contains(t, r.err.String(), "nothing_of_that_name", "the last output is shown")
	left, err := filepath.Glob(filepath.Join(r.dir, "workerd-*"))
	require.NoError(t, err)
	require.Empty(t, left, "the temporary directory is gone")
}

func TestDemoWithoutTheSources(t *testing.T) {
	r := newRig(t)
	t.Chdir(r.dir)
	out := r.ok("demo")
	for _, part := range []string{"1. start workerd", "ready after", `"words":9`, "kill -9", "answered in", "took over from", "all answered", "workerd status", "done."} {
		require.Contains(t, out, part)
	}
	require.Contains(t, r.err.String(), "no ./providers/ocr here")
	left, err := filepath.Glob(filepath.Join(r.dir, "workerd-demo-*"))
	require.NoError(t, err)
	require.Empty(t, left)
}

func TestPeersAreTheSameUserOrRoot(t *testing.T) {
	dir, err := os.MkdirTemp("/tmp", "wp")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	l, err := protocol.Listen(filepath.Join(dir, "s"))
	require.NoError(t, err)
	defer l.Close()
	c, err := net.Dial("unix", filepath.Join(dir, "s"))
	require.NoError(t, err)
	defer c.Close()
	server, err := l.AcceptUnix()
	require.NoError(t, err)
	defer server.Close()
	require.NoError(t, sameUser(os.Geteuid())(server))
	if err := sameUser(os.Geteuid() + 1)(server); os.Geteuid() == 0 {
		require.NoError(t, err, "root may")
	} else {
		require.ErrorContains(t, err, "may not use")
	}
}

func TestLogGoesToTheJournalWithPriorities(t *testing.T) {
	var out lockedBuffer
	r := newRig(t)
	a := r.app()
	require.False(t, a.toJournal(), "stderr is no file")
	log := slog.New(newJournalHandler(&out, slog.LevelInfo)).With("provider", "ocr").WithGroup("g")
	log.Debug("hidden")
	log.Info("hello", "a", 1)
	log.Warn("careful")
	log.Error("broken")
	require.Equal(t, "<6>msg=hello provider=ocr g.a=1\n<4>msg=careful provider=ocr\n<3>msg=broken provider=ocr\n", out.String())
}

func TestMetrics(t *testing.T) {
	text := scrape(t, func([]string) protocol.Status {
		return protocol.Status{Providers: append(twoProviders(), twoProviders()...)} // a slug twice: one of them has lost it
	})
	for _, line := range []string{
		`workerd_provider_state{provider="echo",state="ready"} 1`,
		`workerd_provider_state{provider="ocr",state="invalid"} 1`,
		`workerd_provider_state{provider="ocr",state="ready"} 0`,
		`workerd_workers{provider="echo",state="ready"} 1`,
		`workerd_requests_in_flight{provider="echo"} 1`,
		`workerd_requests_waiting{provider="echo"} 2`,
		`workerd_worker_restarts_total{provider="echo"} 3`,
		`workerd_manifest_errors{provider="ocr"} 1`,
		`workerd_requests_total{outcome="result",provider="echo"} 5`,
		`workerd_requests_total{outcome="worker_error",provider="echo"} 1`,
		`workerd_requests_total{outcome="queue_full",provider="echo"} 2`,
		`workerd_request_duration_seconds_bucket{provider="echo",le="0.001"} 3`,
		`workerd_request_duration_seconds_bucket{provider="echo",le="0.1"} 5`,
		`workerd_request_duration_seconds_bucket{provider="echo",le="1800"} 5`,
		`workerd_request_duration_seconds_bucket{provider="echo",le="+Inf"} 6`,
		`workerd_request_duration_seconds_sum{provider="echo"} 9.5`,
		`workerd_request_duration_seconds_count{provider="echo"} 6`,
	} {
		require.Contains(t, text, line+"\n")
	}
	require.Contains(t, text, "go_goroutines")
}

// scrape returns what /metrics would.
func scrape(t *testing.T, status func([]string) protocol.Status) string {
	t.Helper()
	w := httptest.NewRecorder()
	answers := supervisor.Answers{Results: 5, Errors: 1, Refused: map[protocol.Kind]uint64{protocol.QueueFull: 2}, Seconds: 9.5}
	answers.Within[0], answers.Within[3], answers.Within[len(supervisor.AnswerBounds)] = 3, 2, 1
	metricsHandler(collector{
		status, func() protocol.GPUs { return protocol.GPUs{} }, func() map[string]supervisor.Answers { return map[string]supervisor.Answers{"echo": answers} },
	}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	require.Equal(t, 200, w.Code, w.Body.String())
	return w.Body.String()
}
