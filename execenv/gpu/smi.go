package gpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// How long nvidia-smi is left alone after it failed, and after it hung. It is a process at each try, on a machine in trouble.
const (
	smiRest     = 2 * time.Second
	smiLongRest = 10 * time.Second
)

// smi asks nvidia-smi. One look uses it at a time.
type smi struct {
	program string // as exec.LookPath takes it
	health  bool
	fork    forkFunc
	lane    lane
	least   bool // it knows only the fields of old versions

	rest    time.Time // it is not asked before
	lastErr error     // why
}

// errNoSMI is the error where there is no such program.
var errNoSMI = errors.New("there is no nvidia-smi")

// forkFunc is Options.Fork.
type forkFunc = func(cmd *exec.Cmd) (wait func() error, err error)

func plainFork(cmd *exec.Cmd) (wait func() error, err error) { return cmd.Wait, cmd.Start() }

func newSMI(program string, health bool, fork forkFunc) *smi {
	if fork == nil {
		fork = plainFork
	}
	return &smi{program: orElse(program, "nvidia-smi"), health: health, fork: fork, lane: lane{name: "nvidia-smi"}}
}

// look returns the cards, with MIG devices, and the driver's version.
func (s *smi) look(ctx context.Context) (devices []Device, driver string, err error) {
	path, err := exec.LookPath(s.program)
	if err != nil {
		return nil, "", errNoSMI
	}
	if time.Now().Before(s.rest) {
		return nil, "", s.lastErr
	}
	defer func() {
		if err == nil {
			return
		}
		pause := smiRest
		if h := (*hangs)(nil); errors.As(err, &h) {
			pause = smiLongRest
		}
		s.rest, s.lastErr = time.Now().Add(pause), err
	}()
	out, err := s.cards(ctx, path)
	if err != nil {
		return nil, "", err
	}
	if devices, driver, err = parseCards(out, !s.least, s.health); err != nil {
		return nil, "", fmt.Errorf("nvidia-smi: %w", err)
	}
	if len(devices) == 0 {
		return nil, driver, nil
	}
	return s.details(ctx, path, devices, driver)
}

// cards asks for all fields, or, where the program does not know them all, for the least.
func (s *smi) cards(ctx context.Context, path string) (string, error) {
	out, err := s.run(ctx, path, smiQuery(!s.least)...)
	if err != nil && !s.least && strings.Contains(err.Error(), "is not a valid field") {
		s.least = true
		out, err = s.run(ctx, path, smiQuery(false)...)
	}
	if strings.TrimSpace(out) == "No devices were found" {
		return "", nil
	}
	return out, err
}

// details adds processes and MIG devices. Cards of which these cannot be told stay without.
func (s *smi) details(ctx context.Context, path string, devices []Device, driver string) ([]Device, string, error) {
	if out, err := s.run(ctx, path, smiApps...); err == nil {
		err = parseApps(out, devices)
		if err != nil {
			return nil, "", fmt.Errorf("nvidia-smi: processes: %w", err)
		}
	} else if h := (*hangs)(nil); errors.As(err, &h) {
		return nil, "", err
	}
	split := false
	for _, d := range devices {
		split = split || d.Split
	}
	if !split {
		return devices, driver, nil
	}
	out, err := s.run(ctx, path, "-L")
	if err != nil {
		return nil, "", err
	}
	parts, err := parseList(out, devices)
	if err != nil {
		return nil, "", fmt.Errorf("nvidia-smi -L: %w", err)
	}
	return append(devices, parts...), driver, nil
}

// run runs the program, in a process group of its own, which ends with it: one that hangs, or a child of it that holds the pipe,
// holds up nobody. One that cannot even be killed, as it sits in the driver, keeps the lane.
func (s *smi) run(ctx context.Context, path string, args ...string) (out string, err error) {
	// The deadline is that of the program, which then has a moment to die.
	left := smiLongRest
	if deadline, ok := ctx.Deadline(); ok {
		left = time.Until(deadline)
	}
	wait, cancel := context.WithTimeout(context.WithoutCancel(ctx), left+killGrace)
	defer cancel()
	var said string
	var failed error
	if err := s.lane.run(wait, func() { said, failed = s.runProgram(ctx, path, args...) }); err != nil {
		return "", err
	}
	return said, failed
}

const (
	killGrace = 500 * time.Millisecond
	mostSaid  = 1 << 20 // bytes
	smiWarned = 14      // how nvidia-smi exits when it said all, and a warning: the infoROM of a card is corrupted
)

// runProgram returns what a program printed. Where it failed, that is in the error: nvidia-smi prints errors to stdout.
func (s *smi) runProgram(ctx context.Context, path string, args ...string) (string, error) {
	started := time.Now()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = killGrace / 2
	var stdout, stderr limited
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	wait, err := s.fork(cmd)
	if err == nil {
		err = wait()
	}
	if errors.Is(err, exec.ErrWaitDelay) {
		// Its child holds the pipe. The group is still the one it was made: the child is in it.
		_ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		err = nil
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) && exit.ExitCode() == smiWarned {
		err = nil
	}
	switch {
	case err == nil:
		return stdout.String(), nil
	case ctx.Err() != nil:
		return "", &hangs{"nvidia-smi", started}
	}
	text := strings.Join(strings.Fields(stdout.String()+" "+stderr.String()), " ")
	if text == "" {
		return stdout.String(), fmt.Errorf("nvidia-smi: %w", err)
	}
	return stdout.String(), fmt.Errorf("nvidia-smi: %w: %s", err, clip(text))
}

// limited keeps the first mostSaid bytes.
type limited struct{ bytes.Buffer }

var _ io.Writer = (*limited)(nil)

func (l *limited) Write(p []byte) (int, error) {
	if room := mostSaid - l.Len(); room > 0 {
		l.Buffer.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

// ReadFrom hides that of the buffer, which knows no limit.
func (l *limited) ReadFrom(r io.Reader) (int64, error) { return io.Copy(writer{l}, r) }

type writer struct{ io.Writer }
