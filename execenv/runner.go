package execenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"
)

// Probe is one command that is run to find something out. It is never a worker.
type Probe struct {
	Argv []string // argv[0] is an absolute path
	Env  []string
	Dir  string // "/" where empty
	// Stdin is what the command may read; it may hold secrets.
	Stdin []byte
	// Stdout and Stderr take what the command prints, as it comes and whole; where nil, the result keeps the end of it. The
	// same writer for both gets the two in order.
	Stdout, Stderr io.Writer
}

// ProbeResult is what a finished Probe said. Each stream is cut at a bound: Stdout and Stderr keep their last bytes, which
// is where the errors are, and FD3, what the command wrote to descriptor 3, its first.
type ProbeResult struct {
	Code   int // 128 + the signal's number where a signal ended it, as a shell says it
	Stdout []byte
	Stderr []byte
	FD3    []byte
	// FD3Cut says that there was more on descriptor 3.
	FD3Cut bool
}

// Runner runs probes. An error says that there is no result: not started, or ended by ctx, which is then its cause.
type Runner interface {
	Run(ctx context.Context, p Probe) (ProbeResult, error)
}

// OSRunner runs probes as processes of a session of their own. When ctx ends, that and all that descends from them is killed;
// when they end by themselves, what is left of their group.
type OSRunner struct{ Children *Children }

var _ Runner = OSRunner{}

const (
	streamLimit = 64 << 10
	fd3Limit    = 4 << 20
	// pipeDelay bounds the wait for a pipe that a process outside the group holds open, and drainDelay that for a writer that
	// takes what the command has left in its pipe.
	pipeDelay  = 2 * time.Second
	drainDelay = 10 * time.Second
)

// Run implements Runner.
func (r OSRunner) Run(ctx context.Context, p Probe) (ProbeResult, error) {
	if err := context.Cause(ctx); err != nil {
		return ProbeResult{}, err
	}
	side, sideW, err := os.Pipe()
	if err != nil {
		return ProbeResult{}, err
	}
	defer side.Close()
	stdout, stderr := &tail{limit: streamLimit}, &tail{limit: streamLimit}
	cmd := &exec.Cmd{
		Path: p.Argv[0], Args: p.Argv, Env: p.Env, Dir: p.Dir,
		Stdout: stdout, Stderr: stderr, ExtraFiles: []*os.File{sideW},
		SysProcAttr: &syscall.SysProcAttr{Setsid: true},
		WaitDelay:   pipeDelay,
	}
	if cmd.Dir == "" {
		cmd.Dir = "/"
	}
	if p.Stdin != nil {
		cmd.Stdin = bytes.NewReader(p.Stdin)
	}
	if p.Stdout != nil {
		cmd.Stdout, cmd.WaitDelay = p.Stdout, drainDelay
	}
	if p.Stderr != nil {
		cmd.Stderr, cmd.WaitDelay = p.Stderr, drainDelay
	}
	pid, err := r.Children.Start(func() (int, error) {
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
	sideW.Close()
	if err != nil {
		return ProbeResult{}, err
	}
	fd3 := make(chan []byte, 1)
	go func() {
		data, _ := io.ReadAll(io.LimitReader(side, fd3Limit+1))
		if len(data) > fd3Limit {
			_, _ = io.Copy(io.Discard, side) // so that the writer never blocks on a full pipe
		}
		fd3 <- data
	}()
	r.wait(ctx, cmd, pid)
	_ = side.SetReadDeadline(time.Now().Add(pipeDelay))
	res := ProbeResult{Code: exitCode(cmd.ProcessState), Stdout: stdout.bytes(), Stderr: stderr.bytes(), FD3: <-fd3}
	if len(res.FD3) > fd3Limit {
		res.FD3, res.FD3Cut = res.FD3[:fd3Limit], true
	}
	if err := context.Cause(ctx); err != nil {
		return res, err
	}
	return res, nil
}

// wait waits for the probe and reaps it. The group is signalled only while the leader is not reaped: until then its number
// cannot be anybody else's.
func (r OSRunner) wait(ctx context.Context, cmd *exec.Cmd, pid int) {
	var mu sync.Mutex
	reaped := false
	killGroup := func() {
		mu.Lock()
		defer mu.Unlock()
		if !reaped {
			_ = syscall.Kill(-pid, syscall.SIGKILL)
		}
	}
	stop := context.AfterFunc(ctx, func() {
		mu.Lock()
		if !reaped {
			r.Children.KillTree(Tree{Session: pid, Root: pid}, Fast)
		}
		mu.Unlock()
		killGroup()
	})
	waitExit(pid)
	killGroup()
	stop()
	mu.Lock()
	reaped = true
	mu.Unlock()
	// The error repeats what ProcessState says, or is ErrWaitDelay: then somebody outside the group holds a pipe, whose
	// output is not ours to wait for.
	r.Children.Done(pid, func() { _ = cmd.Wait() })
}

func exitCode(ps *os.ProcessState) int {
	if ps == nil {
		return -1
	}
	if ws, ok := ps.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		return 128 + int(ws.Signal())
	}
	return ps.ExitCode()
}

// tail is a writer that keeps the last bytes. os/exec writes to it from one goroutine; with a wait that was cut short it may
// still do so while it is read.
type tail struct {
	limit int

	mu  sync.Mutex
	buf []byte
}

func (t *tail) Write(b []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.buf = append(t.buf, b...)
	if over := len(t.buf) - t.limit; over > 0 {
		t.buf = append(t.buf[:0], t.buf[over:]...)
	}
	return len(b), nil
}

func (t *tail) bytes() []byte {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]byte(nil), t.buf...)
}

// runProbe runs p with a deadline and names the probe in its error.
func runProbe(ctx context.Context, run Runner, timeout time.Duration, what string, p Probe) (ProbeResult, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, timeout, errProbeDeadline)
	defer cancel()
	res, err := run.Run(ctx, p)
	switch {
	case errors.Is(err, errProbeDeadline):
		return res, &Error{Kind: Transient, Msg: fmt.Sprintf("%s did not finish within %s and was killed%s", what, timeout, lastLines(res.Stderr))}
	case err != nil:
		return res, &Error{Kind: Transient, Msg: what, Err: err}
	}
	return res, nil
}

var errProbeDeadline = errors.New("the probe's deadline has passed")
