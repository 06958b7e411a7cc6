package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"workerd/protocol"
	"workerd/protocol/control"
)

// rig is a command line with an environment of its own.
type rig struct {
	t        *testing.T
	dir      string // short: sockets are below it
	env      map[string]string
	in       string
	out, err lockedBuffer
}

// lockedBuffer may be read while a command writes.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lockedBuffer) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func (l *lockedBuffer) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Reset()
}

func newRig(t *testing.T) *rig {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "wr")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	return &rig{t: t, dir: dir, env: map[string]string{
		"HOME": dir, "PATH": os.Getenv("PATH"), "WORKERD_RUNTIME_DIR": filepath.Join(dir, "run"),
	}}
}

func (r *rig) app() *app {
	environ := []string{}
	for _, name := range slices.Sorted(maps.Keys(r.env)) {
		environ = append(environ, name+"="+r.env[name])
	}
	env := maps.Clone(r.env)
	return &app{
		in: strings.NewReader(r.in), out: &r.out, err: &r.err,
		lookup:  func(name string) (string, bool) { v, ok := env[name]; return v, ok },
		environ: environ, uid: os.Geteuid(), tmp: r.dir, flags: flagValues{},
	}
}

// run runs a command line and returns its exit code; out and err hold what this one wrote.
func (r *rig) run(args ...string) int {
	r.out.Reset()
	r.err.Reset()
	return r.app().runContext(r.t.Context(), args)
}

// ok runs a command that must succeed and returns its stdout.
func (r *rig) ok(args ...string) string {
	r.t.Helper()
	require.Equal(r.t, exitOK, r.run(args...), "%v\nstdout: %s\nstderr: %s", args, r.out.String(), r.err.String())
	return r.out.String()
}

// fails runs a command that must exit with code and returns its stderr.
func (r *rig) fails(code int, args ...string) string {
	r.t.Helper()
	require.Equal(r.t, code, r.run(args...), "%v\nstdout: %s\nstderr: %s", args, r.out.String(), r.err.String())
	return r.err.String()
}

// write writes a file below the rig's directory.
func (r *rig) write(name, text string) string {
	r.t.Helper()
	path := filepath.Join(r.dir, name)
	require.NoError(r.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(r.t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, holds func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !holds() {
		if time.Now().After(deadline) {
			t.Fatalf("never came true: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// fakeBackend answers the operator API with what a test sets.
type fakeBackend struct {
	providers []protocol.ProviderStatus
	fail      map[string]error // by slug
	smoke     map[string]string
	events    chan protocol.Event
	gpus      protocol.GPUs

	mu     sync.Mutex
	orders []string
}

func (f *fakeBackend) Status(slugs []string) protocol.Status {
	s := protocol.Status{Providers: []protocol.ProviderStatus{}}
	for _, p := range f.providers {
		if len(slugs) == 0 || slices.Contains(slugs, p.Slug) {
			s.Providers = append(s.Providers, p)
		}
	}
	return s
}

func (f *fakeBackend) order(verb, slug string, wait bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.orders = append(f.orders, fmt.Sprintf("%s %s %v", verb, slug, wait))
	return f.fail[slug]
}

func (f *fakeBackend) Start(_ context.Context, slug string, wait bool) error {
	return f.order("start", slug, wait)
}

func (f *fakeBackend) Stop(_ context.Context, slug string, wait bool) error {
	return f.order("stop", slug, wait)
}

func (f *fakeBackend) Restart(_ context.Context, slug string, wait bool) error {
	return f.order("restart", slug, wait)
}

func (f *fakeBackend) Call(_ context.Context, slug, _ string, params json.RawMessage, _ func(protocol.Progress)) (json.RawMessage, error) {
	return params, f.fail[slug]
}

func (f *fakeBackend) SmokeFile(slug string) (string, error) {
	if file := f.smoke[slug]; file != "" {
		return file, nil
	}
	return "", fmt.Errorf("%w: %s", protocol.ErrNoSmoke, slug)
}

func (f *fakeBackend) Logs(ctx context.Context, slug string, lines int, follow bool, w io.Writer) error {
	fmt.Fprintf(w, "%s: the last %d lines\n", slug, lines)
	if follow {
		<-ctx.Done()
	}
	return nil
}

func (f *fakeBackend) Events(ctx context.Context) <-chan protocol.Event {
	out := make(chan protocol.Event)
	go func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-f.events:
				select {
				case out <- e:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

func (f *fakeBackend) GPUs(context.Context) protocol.GPUs { return f.gpus }

func (f *fakeBackend) Reload(context.Context) error { return f.order("reload", "", true) }

// serve serves the operator API of a fake where the rig's commands look for it.
func (r *rig) serve(f *fakeBackend) {
	r.t.Helper()
	run := filepath.Join(r.dir, "run")
	require.NoError(r.t, os.Mkdir(run, 0o700))
	l, err := protocol.Listen(filepath.Join(run, "workerd.sock"))
	require.NoError(r.t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	s := &control.Server{Backend: f, Log: slog.New(slog.DiscardHandler)}
	go func() { done <- s.Serve(ctx, l) }()
	r.t.Cleanup(func() {
		cancel()
		require.NoError(r.t, <-done)
	})
}

func commands(t *testing.T) []*cobra.Command {
	root := newRig(t).app().rootCommand()
	return append([]*cobra.Command{root}, root.Commands()...)
}

func TestEveryCommandIsDocumented(t *testing.T) {
	var names []string
	for _, c := range commands(t) {
		names = append(names, c.Name())
		require.NotEmpty(t, c.Short, c.Name())
		require.Greater(t, len(c.Long), len(c.Short), c.Name())
		require.NotContains(t, c.Short, "\n", c.Name())
		require.Contains(t, c.Long, "Exit status:", c.Name())
		for line := range strings.Lines(c.Long) {
			require.LessOrEqual(t, len(line), 121, "%s: %q", c.Name(), line)
		}
		require.True(t, c.RunE != nil, c.Name())
	}
	slices.Sort(names)
	require.Equal(t, []string{
		"call", "completion", "demo", "doctor", "explain", "gpus", "init", "install", "leave-cgroup", "logs", "reload", "restart", "schema", "sdk", "serve",
		"smoke", "start", "status", "stop", "sweep", "validate", "version", "workerd",
	}, names)
}

func TestHelpSaysWhatTheExitStatusMeans(t *testing.T) {
	r := newRig(t)
	for _, c := range commands(t) {
		if !c.HasParent() {
			continue
		}
		out := r.ok(c.Name(), "--help")
		require.Contains(t, out, "3  workerd is not running", c.Name())
		require.Contains(t, out, "Usage:", c.Name())
	}
}

func TestExitCodes(t *testing.T) {
	r := newRig(t)
	for _, tc := range []struct {
		code int
		args []string
		says string
	}{
		{exitOK, []string{}, ""},
		{exitOK, []string{"version"}, ""},
		{exitUsage, []string{"statsu"}, `did you mean "status"`},
		{exitUsage, []string{"status", "--nope"}, "unknown flag"},
		{exitUsage, []string{"logs"}, "accepts 1 arg"},
		{exitUsage, []string{"start"}, "at least 1 arg"},
		{exitUsage, []string{"call", "x"}, "at least 2 arg"},
		{exitUsage, []string{"version", "now"}, "unknown command"},
		{exitUsage, []string{"completion", "csh"}, "csh"},
		{exitUsage, []string{"status", "--config", "/nonexistent.toml"}, "no such file"},
		{exitUsage, []string{"serve", "--log-level", "loud"}, "debug, info, warn, error"},
		{exitUsage, []string{"init", "Not A Slug"}, "a-z"},
		{exitUsage, []string{"init", "workerd"}, "workerd"},
		{exitUsage, []string{"init", "x", "--kind", "jail"}, "unknown kind"},
		{exitUsage, []string{"init", "x", "--kind", "docker"}, "--image IMAGE"},
		{exitUsage, []string{"init", "x", "--kind", "podman", "--sif", "x.sif", "--image", "x"}, "--sif is for kind apptainer"},
		{exitUsage, []string{"init", "x", "--kind", "apptainer"}, "--sif FILE"},
		{exitUsage, []string{"init", "x", "--image", "y"}, "--image is for kinds docker and podman"},
		{exitFailed, []string{"init", "x", "--kind", "apptainer", "--sif", "/nonexistent.sif"}, "/nonexistent.sif"},
		{exitFailed, []string{"validate", "/nonexistent"}, "no such file"},
		{exitFailed, []string{"explain", "ghost"}, "workerd init ghost"},
		{exitNotRunning, []string{"status"}, "workerd serve"},
		{exitNotRunning, []string{"call", "a", "b"}, "workerd serve"},
		{exitNotRunning, []string{"logs", "a"}, "workerd serve"},
		{exitNotRunning, []string{"start", "a"}, "workerd serve"},
		{exitNotRunning, []string{"stop", "a"}, "workerd serve"},
		{exitNotRunning, []string{"restart", "a"}, "workerd serve"},
		{exitNotRunning, []string{"stop", "a", "b"}, "workerd serve"},
		{exitNotRunning, []string{"reload"}, "workerd serve"},
		{exitNotRunning, []string{"smoke"}, "workerd serve"},
	} {
		t.Run(strings.Join(tc.args, " "), func(t *testing.T) {
			require.Equal(t, tc.code, r.run(tc.args...), r.err.String())
			require.Contains(t, r.err.String(), tc.says)
			if tc.code == exitUsage {
				require.Contains(t, r.err.String(), "--help` for usage")
			}
			if tc.code != exitOK {
				require.Empty(t, r.out.String(), "errors go to stderr")
			}
		})
	}
}

func TestOrdersExitWithNotRunning(t *testing.T) {
	r := newRig(t)
	for _, slugs := range [][]string{{"a"}, {"a", "b"}} {
		require.Equal(t, exitNotRunning, r.run(append([]string{"stop", "--json"}, slugs...)...), r.err.String())
		var got []outcome
		require.NoError(t, json.Unmarshal([]byte(r.out.String()), &got))
		require.Len(t, got, len(slugs))
		for i, o := range got {
			require.Equal(t, slugs[i], o.Slug)
			require.Contains(t, *o.Error, "not running")
		}
		require.Empty(t, r.err.String())
	}
	require.Equal(t, exitNotRunning, r.run("stop", "a", "b"))
	require.Equal(t, 1, strings.Count(r.err.String(), "not running"), r.err.String())

	// It went away between two orders: what became of each is shown.
	a := r.app()
	gone := fmt.Errorf("%w (nobody listens)", control.ErrNotRunning)
	for _, results := range [][]outcome{
		{{Slug: "done", OK: true}, {Slug: "late", err: gone}},
		{{Slug: "done", OK: true}, {Slug: "bad", err: errors.New("broken")}, {Slug: "late", err: gone}},
		{{Slug: "done", OK: true}, {Slug: "late", err: gone}, {Slug: "bad", err: errors.New("broken")}},
	} {
		r.out.Reset()
		require.ErrorIs(t, a.reportOrders(orderStop, results, true), errReportedDown)
		require.Contains(t, r.out.String(), "done: stopped")
	}
	require.NotErrorIs(t, a.reportOrders(orderStop, []outcome{{Slug: "x", OK: true}, {Slug: "bad", err: errors.New("broken")}}, true), errReportedDown)
}

func TestErrorsAreJSONWithJSON(t *testing.T) {
	r := newRig(t)
	detail := map[string]any{"output": "boom"}
	r.serve(&fakeBackend{
		providers: []protocol.ProviderStatus{{Slug: "bad"}},
		fail:      map[string]error{"bad": protocol.Errorf(protocol.ProviderFailed, "given up").WithDetail(detail)},
	})
	text := r.fails(exitFailed, "status", "ghost", "--json")
	var got struct{ Error control.Problem }
	require.NoError(t, json.Unmarshal([]byte(text), &got))
	require.Equal(t, "no_provider", got.Error.Kind)
	require.Equal(t, 404, got.Error.Status)

	out := r.fails(exitFailed, "start", "bad")
	require.Contains(t, out, "provider_failed: given up")
	require.Contains(t, out, "  boom\n")
	require.Contains(t, out, "hint: see `workerd logs bad`")
}

// session is what TestMain takes out of the environment that engines have to know of who runs the tests.
var session = map[string]string{}

func TestMain(m *testing.M) {
	if os.Getenv(asWorkerd) != "" {
		os.Exit(newApp().run(os.Args[1:]))
	}
	// The commands must not see the settings and directories of who runs the tests.
	for _, kv := range os.Environ() {
		name, value, _ := strings.Cut(kv, "=")
		if strings.HasPrefix(name, "XDG_") {
			session[name] = value
		}
		if strings.HasPrefix(name, "WORKERD_") && !strings.HasPrefix(name, "WORKERD_TEST_") || strings.HasPrefix(name, "XDG_") {
			if err := os.Unsetenv(name); err != nil {
				panic(errors.Join(errors.New(name), err))
			}
		}
	}
	os.Exit(m.Run())
}
