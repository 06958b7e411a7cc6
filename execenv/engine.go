package execenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"workerd/manifest"
)

// Engine is docker or podman by its command line. Each verb is one command with a deadline; its error is an *EngineError.
// Methods may be called from any goroutine.
type Engine struct {
	kind    string // as the manifest says: the name of the program
	bin     string
	env     environ // of the client
	uid     int
	run     Runner
	timeout time.Duration

	flavour *flight[string]
	info    *flight[EngineInfo]
	images  flights[Image]
}

// Engine returns the engine of a kind: docker or podman. It looks for the program on the PATH of workerd's environment, and runs nothing.
func (p *Planner) Engine(kind string) (*Engine, error) {
	bin, err := findEngine(p.host, kind)
	if err != nil {
		return nil, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if e := p.engines[kind]; e != nil && e.bin == bin {
		return e, nil
	}
	e := &Engine{
		kind: kind, bin: bin, env: clientEnv(p.host, kind), uid: p.host.ID.UID, run: p.run, timeout: p.host.EngineTimeout,
		flavour: newFlight[string](), info: newFlight[EngineInfo](),
	}
	if p.engines == nil {
		p.engines = map[string]*Engine{}
	}
	p.engines[kind] = e
	return e, nil
}

// EngineOf returns the engine of a plan; nil where its worker is a process of ours.
func (p *Planner) EngineOf(pl *Plan) (*Engine, error) {
	if pl.Engine == "" {
		return nil, nil
	}
	return p.Engine(pl.Kind)
}

// Kind is the kind that the engine was asked for by.
func (e *Engine) Kind() string { return e.kind }

// Bin is the absolute path of the program.
func (e *Engine) Bin() string { return e.bin }

var engineInstall = map[string]string{
	manifest.Docker:    "install docker (Debian: docker.io), or choose another env.kind",
	manifest.Podman:    "install podman, or choose another env.kind",
	manifest.Apptainer: "install Apptainer or SingularityCE, load its module before workerd starts, or choose another env.kind",
}

// findEngine looks for the first of some programs on PATH.
func findEngine(h Host, kind string, names ...string) (string, error) {
	if len(names) == 0 {
		names = []string{kind}
	}
	path, ok := parseEnviron(h.Environ)["PATH"]
	if !ok {
		path = defaultPath
	}
	for _, name := range names {
		for _, dir := range filepath.SplitList(path) {
			if !filepath.IsAbs(dir) {
				continue
			}
			if bin, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
				return bin, nil
			}
		}
	}
	return "", &EngineError{
		Kind: EngineNotInstalled, Engine: kind, Verb: "version",
		Msg: "there is no " + strings.Join(names, " or ") + " on PATH (" + path + ")", Hint: engineInstall[kind],
	}
}

const defaultPath = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

// command runs one command of the engine with the engine's deadline and returns what it printed.
func (e *Engine) command(ctx context.Context, verb string, args ...string) (stdout []byte, err error) {
	var out limited
	_, err = e.exec(ctx, verb, e.timeout, Probe{Argv: append([]string{e.bin}, args...), Env: e.env.list(), Stdout: &out})
	return out.Bytes(), err
}

// exec runs one command of the engine.
func (e *Engine) exec(ctx context.Context, verb string, timeout time.Duration, p Probe) (ProbeResult, error) {
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeoutCause(ctx, timeout, errProbeDeadline)
		defer cancel()
	}
	res, err := e.run.Run(ctx, p)
	switch {
	case errors.Is(err, errProbeDeadline):
		return res, &EngineError{
			Kind: EngineTimeout, Engine: e.kind, Verb: verb, Hint: hintTimeout,
			Msg: fmt.Sprintf("no end within %s", timeout) + lastLines(res.Stderr),
		}
	case err != nil && ctx.Err() != nil:
		return res, err
	case err != nil:
		return res, notStarted(e.kind, verb, p, err)
	case res.Code != 0:
		return res, engineError(e.kind, verb, res.Code, res.Stderr)
	}
	return res, nil
}

// notStarted says why the program of an engine could not be executed.
func notStarted(engine, verb string, p Probe, err error) *EngineError {
	e := &EngineError{Kind: EngineUnreachable, Engine: engine, Verb: verb, Err: Diagnose(Command{Path: p.Argv[0], Argv: p.Argv, Env: p.Env, Dir: "/"}, err)}
	switch {
	case errors.Is(err, unix.E2BIG):
		e.Kind = EngineRefused // the same the next time
	case errors.Is(err, os.ErrNotExist), errors.Is(err, os.ErrPermission):
		e.Kind, e.Hint = EngineNotInstalled, engineInstall[engine]
	}
	return e
}

// limited is a buffer that refuses to grow without bound. It embeds none: io.Copy would use a ReadFrom, and pass Write by.
type limited struct{ buf bytes.Buffer }

const answerLimit = 32 << 20

func (l *limited) Write(p []byte) (int, error) {
	if l.buf.Len()+len(p) > answerLimit {
		return 0, errors.New("the engine's answer is too large")
	}
	return l.buf.Write(p)
}

// Bytes is what was written so far.
func (l *limited) Bytes() []byte { return l.buf.Bytes() }

// String is that as a string.
func (l *limited) String() string { return l.buf.String() }

// Run starts a worker's container and returns its id. Where it fails, or ctx ends, a container of the Command's name may
// exist all the same, created and never started: find it by Inspect, and remove it where its labels are the Command's.
func (e *Engine) Run(ctx context.Context, c Command) (id string, err error) {
	var out limited
	_, err = e.exec(ctx, "run", e.timeout, Probe{Argv: c.Argv, Env: c.Env, Dir: c.Dir, Stdin: c.Stdin, Stdout: &out})
	var ee *EngineError
	if errors.As(err, &ee) && ee.Kind == EngineStorage {
		if info, err := e.Info(ctx); err == nil && info.Storage != "" {
			ee.Msg += " (images are stored in " + info.Storage + ")"
		}
	}
	if err != nil {
		return "", err
	}
	// Warnings of some versions come first.
	lines := strings.Fields(out.String())
	if len(lines) == 0 {
		return "", &EngineError{Engine: e.kind, Verb: "run", Msg: "it printed no container id"}
	}
	return lines[len(lines)-1], nil
}

// Stop sends a container's worker SIGTERM and, after a grace that is rounded up to a second, SIGKILL; it returns when the
// container has ended. One that is not there or not running is no error.
func (e *Engine) Stop(ctx context.Context, id string, grace time.Duration) error {
	seconds := int64((grace + time.Second - 1) / time.Second)
	args := []string{e.bin, "stop", "-t", strconv.FormatInt(seconds, 10), id}
	_, err := e.exec(ctx, "stop", time.Duration(seconds)*time.Second+e.timeout, Probe{Argv: args, Env: e.env.list()})
	return unlessGone(err)
}

// Kill sends a signal, such as "TERM", to a container's worker. One that is not there or not running is no error.
func (e *Engine) Kill(ctx context.Context, id, signal string) error {
	_, err := e.command(ctx, "kill", "kill", "--signal", signal, id)
	return unlessGone(err)
}

// Remove kills a container where it runs, and removes it with its anonymous volumes. One that is not there is no error.
func (e *Engine) Remove(ctx context.Context, id string) error {
	args := []string{"rm", "--force", "--volumes", id}
	if flavour, err := e.Flavour(ctx); err == nil && flavour == manifest.Podman {
		// It would give the worker 10 s more. podman 3 has no such flag, and kills at once.
		if info, err := e.Info(ctx); err == nil && !info.Unread && info.AtLeast(4, 0) {
			args = []string{"rm", "--force", "--time", "0", "--volumes", id}
		}
	}
	_, err := e.command(ctx, "rm", args...)
	if err = unlessGone(err); err != nil && strings.Contains(err.Error(), "already in progress") {
		return nil
	}
	return err
}

var notRunning = []string{"is not running", "can only kill running containers", "can only stop created or running containers", "container state improper"}

// unlessGone takes it for success that a container is not there, or does not run, any more.
func unlessGone(err error) error {
	var ee *EngineError
	if !errors.As(err, &ee) {
		return err
	}
	if ee.Kind == EngineNoContainer {
		return nil
	}
	for _, text := range notRunning {
		if strings.Contains(ee.Msg, text) {
			return nil
		}
	}
	return err
}

// LogOptions choose what Logs writes.
type LogOptions struct {
	Tail   int       // that many of the last lines; 0: all
	Since  time.Time // nothing earlier; zero: from the beginning
	Until  time.Time // nothing later; zero: to the end
	Follow bool      // go on until the container or ctx ends, without a deadline
}

// Logs writes what a container printed, both streams in order.
func (e *Engine) Logs(ctx context.Context, id string, opt LogOptions, w io.Writer) error {
	args := []string{e.bin, "logs"}
	if opt.Tail > 0 {
		args = append(args, "--tail", strconv.Itoa(opt.Tail))
	}
	timeout := e.timeout
	if opt.Follow {
		args, timeout = append(args, "--follow"), 0
	}
	if !opt.Since.IsZero() {
		args = append(args, "--since", opt.Since.UTC().Format(time.RFC3339Nano))
	}
	if !opt.Until.IsZero() {
		args = append(args, "--until", opt.Until.UTC().Format(time.RFC3339Nano))
	}
	out := &teeTail{w: w, tail: tail{limit: streamLimit}}
	_, err := e.exec(ctx, "logs", timeout, Probe{Argv: append(args, id), Env: e.env.list(), Stdout: out, Stderr: out})
	var ee *EngineError
	if errors.As(err, &ee) && ee.Code != 0 {
		return engineError(e.kind, "logs", ee.Code, out.bytes())
	}
	return err
}

// teeTail writes on, and keeps the end for an error's message.
type teeTail struct {
	w io.Writer
	tail
}

func (t *teeTail) Write(b []byte) (int, error) {
	_, _ = t.tail.Write(b)
	return t.w.Write(b)
}

// Pull fetches an image. It has a timeout of its own, 0 for none, and hands every line that the engine prints to progress, which may be
// nil.
func (e *Engine) Pull(ctx context.Context, image string, timeout time.Duration, progress func(line string)) error {
	if progress == nil {
		progress = func(string) {}
	}
	lines := &lineWriter{take: progress, tail: tail{limit: streamLimit}}
	_, err := e.exec(ctx, "pull", timeout, Probe{Argv: []string{e.bin, "pull", image}, Env: e.env.list(), Stdout: lines, Stderr: lines})
	lines.flush()
	e.images.of(image).forget(ctx)
	var ee *EngineError
	switch {
	case !errors.As(err, &ee):
		return err
	case ee.Kind == EngineTimeout:
		ee.Kind, ee.Hint = EnginePullFailed, "raise env.pull_timeout where the registry is only slow"
	case ee.Code != 0:
		return engineError(e.kind, "pull", ee.Code, lines.bytes())
	}
	return err
}

// lineWriter hands on whole lines; a carriage return ends one too, as progress bars have it.
type lineWriter struct {
	take func(string)
	part []byte
	tail
}

const longestLine = 4096

func (l *lineWriter) Write(b []byte) (int, error) {
	_, _ = l.tail.Write(b)
	l.part = append(l.part, b...)
	for {
		i := bytes.IndexAny(l.part, "\r\n")
		if i < 0 {
			break
		}
		l.emit(l.part[:i])
		l.part = l.part[i+1:]
	}
	if len(l.part) > longestLine {
		l.flush()
	}
	return len(b), nil
}

func (l *lineWriter) flush() {
	l.emit(l.part)
	l.part = nil
}

func (l *lineWriter) emit(line []byte) {
	if s := strings.TrimSpace(ansiColour.ReplaceAllString(strings.ToValidUTF8(string(line), "?"), "")); s != "" {
		l.take(s)
	}
}
