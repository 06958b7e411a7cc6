package main

import (
	"context"
	"encoding/json"
	"errors"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

func ptr[T any](v T) *T { return &v }

// twoProviders is one that is well and one that is not.
func twoProviders() []protocol.ProviderStatus {
	since := time.Now().Add(-90 * time.Minute)
	exit := &protocol.Exit{Signal: ptr("SIGKILL"), Reason: "killed by SIGKILL", Output: "line one\nline two", Time: since}
	return []protocol.ProviderStatus{
		{
			Slug: "echo", Title: "Echo", Kind: "venv", State: "ready", Manifest: "/m/echo.toml", FrontSocket: "/run/front/echo/sock",
			Queue: protocol.QueueStatus{Waiting: 2, Limit: 64}, InFlight: 1,
			Methods: []protocol.MethodInfo{{Name: "echo"}, {Name: "sleep"}},
			Workers: []protocol.WorkerStatus{{ID: "echo/7", State: "ready", PID: 4711, Since: since, ReadySince: &since, Restarts: 3, LastExit: exit, RSSBytes: 300 << 20}},
		},
		{
			Slug: "ocr", Kind: "venv", State: "invalid", Reason: "the manifest is invalid", Manifest: "/m/ocr.toml", Workers: []protocol.WorkerStatus{},
			ManifestError: []protocol.ManifestError{{File: "/m/ocr.toml", Line: 3, Column: 1, Key: "wroker", Message: "unknown key; did you mean worker?"}},
		},
	}
}

func TestStatusTable(t *testing.T) {
	r := newRig(t)
	r.serve(&fakeBackend{providers: twoProviders()})
	require.Equal(t, strings.TrimLeft(`
SLUG  STATE    KIND  WORKERS  FOR    RUNNING  WAITING  RESTARTS  PID
echo  ready    venv  1/1      1h30m  1        2/64     3         4711
ocr   invalid  venv  0/0      -      0        0/0      0         -

ocr: the manifest is invalid
ocr: /m/ocr.toml:3:1: wroker: unknown key; did you mean worker?
`, "\n"), r.ok("status"))
}

func TestStatusOfOneProvider(t *testing.T) {
	r := newRig(t)
	r.serve(&fakeBackend{providers: twoProviders()})
	out := r.ok("status", "echo")
	for _, part := range []string{
		"echo (Echo): ready\n", "/m/echo.toml", "/run/front/echo/sock", "echo, sleep", "1 running, 2 waiting (at most 64)",
		"worker echo/7: ready for 1h30m, pid 4711, 300 MiB, 3 restarts\n", "last exit 1h30m ago: killed by SIGKILL\n      line one\n      line two\n",
	} {
		require.Contains(t, out, part)
	}
	require.NotContains(t, out, "ocr")
	require.Contains(t, r.ok("status", "ocr"), "manifest error: /m/ocr.toml:3:1: wroker")
}

func TestStatusJSONIsTheContract(t *testing.T) {
	r := newRig(t)
	r.serve(&fakeBackend{providers: twoProviders()})
	var got map[string][]map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.ok("status", "--json")), &got))
	require.Len(t, got["providers"], 2)
	echo := got["providers"][0]
	for _, key := range []string{"slug", "title", "kind", "state", "reason", "manifest", "manifest_error", "front_socket", "last_exit", "queue", "in_flight", "workers"} {
		require.Contains(t, echo, key)
	}
	require.Nil(t, echo["manifest_error"])
	worker := echo["workers"].([]any)[0].(map[string]any)
	for _, key := range []string{"id", "state", "pid", "container", "since", "ready_since", "restarts", "last_exit", "gpus", "rss_bytes"} {
		require.Contains(t, worker, key)
	}
	require.NoError(t, json.Unmarshal([]byte(r.ok("status", "ocr", "--json")), &got))
	require.Len(t, got["providers"], 1)
}

func TestStatusWithoutProvidersSaysWhereManifestsAre(t *testing.T) {
	r := newRig(t)
	r.serve(&fakeBackend{})
	out := r.ok("status")
	require.Contains(t, out, filepath.Join(r.dir, ".config/workerd/providers"))
	require.Contains(t, out, "workerd init")
}

func TestUnknownSlugNamesTheNearest(t *testing.T) {
	r := newRig(t)
	r.serve(&fakeBackend{providers: twoProviders()})
	for _, args := range [][]string{{"status", "ehco"}, {"start", "ehco"}, {"logs", "ehco"}, {"call", "ehco", "m"}, {"smoke", "ehco"}} {
		require.Equal(t, exitFailed, r.run(args...), args)
		require.Contains(t, r.err.String(), `did you mean "echo"`, args)
	}
}

func TestOrders(t *testing.T) {
	r := newRig(t)
	f := &fakeBackend{providers: twoProviders(), fail: map[string]error{}}
	r.serve(f)
	require.Regexp(t, `^echo: ready \(\d+\.\d s\)\n$`, r.ok("start", "echo"))
	require.Regexp(t, `^echo: stopped `, r.ok("stop", "echo"))
	require.Equal(t, "echo: restart ordered\n", r.ok("restart", "--no-wait", "echo"))
	require.Equal(t, []string{"start echo true", "stop echo true", "restart echo false"}, f.orders)

	f.fail["ocr"] = protocol.Errorf(protocol.WorkerStartFailed, "exited with code 3")
	require.Equal(t, exitFailed, r.run("start", "echo", "ocr"))
	require.Contains(t, r.out.String(), "echo: ready")
	require.Contains(t, r.err.String(), "ocr: error: worker_start_failed: exited with code 3")

	require.Equal(t, exitFailed, r.run("start", "echo", "ocr", "--json"))
	var results []map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.out.String()), &results))
	require.Equal(t, true, results[0]["ok"])
	require.Equal(t, false, results[1]["ok"])
	require.Equal(t, "exited with code 3", results[1]["error"])
	require.Empty(t, r.err.String())
}

// While an order is waited for on a terminal, one line follows what happens.
func TestOrderShowsLoadingOnATerminal(t *testing.T) {
	r := newRig(t)
	f := &fakeBackend{providers: twoProviders(), events: make(chan protocol.Event)}
	r.serve(f)
	a := r.app()
	a.errTTY = true
	c, err := a.client()
	require.NoError(t, err)
	line := a.liveLine()
	stop, err := a.watchProgress(t.Context(), c, []string{"echo"}, line)
	require.NoError(t, err)
	f.events <- protocol.Event{Provider: "ocr", State: "starting"}
	f.events <- protocol.Event{Provider: "echo", State: "loading", Progress: &protocol.Progress{Progress: 2, Total: ptr(4.0), Message: "shard 2\nof 4"}}
	eventually(t, "progress shows", func() bool { return strings.Contains(r.err.String(), "echo: loading 50% shard 2 of 4") })
	stop()
	require.True(t, strings.HasSuffix(r.err.String(), "\r\x1b[K"), "the line is taken away: %q", r.err.String())
	require.NotContains(t, r.err.String(), "ocr")
}

func TestReload(t *testing.T) {
	r := newRig(t)
	f := &fakeBackend{providers: twoProviders()}
	r.serve(f)
	require.Contains(t, r.ok("reload"), "2 providers, 1 with errors in the manifest\n")
	require.Equal(t, []string{"reload  true"}, f.orders)
}

func TestLogs(t *testing.T) {
	r := newRig(t)
	r.serve(&fakeBackend{providers: twoProviders()})
	require.Equal(t, "echo: the last 100 lines\n", r.ok("logs", "echo"))
	require.Equal(t, "echo: the last 5 lines\n", r.ok("logs", "-n", "5", "echo"))
	require.Contains(t, r.fails(exitFailed, "logs", "-n", "-1", "echo"), "lines")

	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan int, 1)
	r.out.Reset()
	go func() { done <- r.app().runContext(ctx, []string{"logs", "-f", "echo"}) }()
	eventually(t, "the log shows", func() bool { return strings.Contains(r.out.String(), "the last 100") })
	cancel()
	require.Equal(t, exitOK, <-done, "interrupting is how one stops following")
}

func TestSmokeThroughARunningWorkerd(t *testing.T) {
	r := newRig(t)
	f := &fakeBackend{
		providers: twoProviders(),
		fail:      map[string]error{},
		smoke:     map[string]string{"echo": r.write("s.json", `{"method":"echo","params":{"a":1},"expect":{"a":1}}`)},
	}
	r.serve(f)
	out := r.ok("smoke")
	require.Regexp(t, `echo: passed \(echo, \d+\.\d\d s\)`, out)
	require.Contains(t, out, "ocr: skipped (no smoke test)")
	require.Contains(t, r.fails(exitFailed, "smoke", "ocr"), "no smoke test", "asked for by name it must have one")

	r.write("s.json", `{"method":"echo","params":{"a":{"b":[1]}},"expect":{"a":{"b":[2]}}}`)
	require.Equal(t, exitFailed, r.run("smoke", "echo"))
	require.Contains(t, r.out.String(), "echo: failed")
	require.Contains(t, r.out.String(), "  a.b[0]: want 2, got 1\n")

	f.fail["echo"] = protocol.Errorf(protocol.WorkerCrashed, "killed by SIGKILL")
	require.Contains(t, r.fails(exitFailed, "smoke", "echo"), "worker_crashed: killed by SIGKILL")

	require.Equal(t, exitFailed, r.run("smoke", "--json"))
	var results []map[string]any
	require.NoError(t, json.Unmarshal([]byte(r.out.String()), &results))
	require.Equal(t, false, results[0]["passed"])
	require.Equal(t, true, results[1]["skipped"])
}

func TestCompletionOffersSlugs(t *testing.T) {
	r := newRig(t)
	require.Contains(t, r.ok("completion", "bash"), "__start_workerd")
	require.Contains(t, r.ok("completion", "zsh"), "#compdef workerd")
	require.Contains(t, r.ok("completion", "fish"), "complete -c workerd")
	require.NotContains(t, r.ok("__complete", "start", ""), "echo", "nothing where workerd does not run")
	r.serve(&fakeBackend{providers: twoProviders()})
	offered := strings.Split(r.ok("__complete", "start", "echo", ""), "\n")
	require.True(t, slices.Contains(offered, "ocr"))
	require.False(t, slices.Contains(offered, "echo"), "it is there already")
	require.Contains(t, r.ok("__complete", "call", "echo", ""), "sleep")
}

func TestHintFor(t *testing.T) {
	require.Contains(t, hintFor(protocol.Errorf(protocol.ProviderStopped, "x").From("ocr", "")), "workerd start ocr")
	require.Empty(t, hintFor(errors.New("anything")))
}
