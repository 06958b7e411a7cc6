package main

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestE2EFromInitToSmoke(t *testing.T) {
	e := newE2E(t)
	folder := strings.TrimSpace(e.ok("init", "words"))
	require.Equal(t, filepath.Join(e.manifests(), "words"), folder)
	e.ok("validate")
	require.Contains(t, e.ok("explain", "words"), "worker.py")
	e.ok("smoke", "words") // no workerd runs: by a private one
	e.start()
	require.Contains(t, e.ok("smoke", "words"), "words: passed")
	require.Contains(t, e.ok("smoke"), "words: passed")
	require.Equal(t, "{\"words\":2,\"longest\":[\"hello\",\"world\"]}\n", e.ok("call", "words", "count", "text=hello world"))
	require.Contains(t, e.fails(exitFailed, "init", "words"), "exists already")

	// A second one appears in the running workerd by itself.
	e.ok("init", "more")
	e.until("it is served", func() bool { _, err := os.Stat(e.front("more")); return err == nil })
	require.Contains(t, e.ok("smoke", "more"), "more: passed")
	require.Contains(t, e.ok("doctor"), "runs and answers")
}

func TestE2ECallTypesItsPairs(t *testing.T) {
	e := newE2E(t)
	e.provider("x", "[start]\nwhen = \"request\"\n")
	e.start()
	// Cold: nobody knows the schema yet.
	require.Equal(t, `{"pdb":"1E10","count":3,"scale":1e3,"tags":["a","1E10"]}`,
		plain(t, e.ok("call", "x", "typed", "pdb=1E10", "count=3", "scale=1e3", `tags=["a","1E10"]`)))
	require.Equal(t, `{"pdb":"42","count":0,"scale":1,"tags":[]}`, plain(t, e.ok("call", "x", "typed", "pdb=42")))
	require.Equal(t, `{"pdb":"true","count":0,"scale":1,"tags":[]}`, plain(t, e.ok("call", "x", "typed", "pdb=true")))
	require.Contains(t, e.fails(exitUsage, "call", "x", "typed", "pdb=x", "count=few"), "integer")
	require.Contains(t, e.fails(exitFailed, "call", "x", "typed", "count=3"), "pdb", "the missing one is named")
	require.Contains(t, e.fails(exitFailed, "call", "x", "typed", "pdb=x", "color=red"), "color", "the unknown one is named")
	// Where the method says nothing of a parameter: JSON if it parses, else a string.
	got := e.ok("call", "x", "echo", "a=1E10", "b=hello world", "c={\"d\":null}", "e=", "f=x=y")
	require.Contains(t, plain(t, got), `"params":{"a":1E10,"b":"hello world","c":{"d":null},"e":"","f":"x=y"}`)
	file := filepath.Join(e.dir, "params.json")
	require.NoError(t, os.WriteFile(file, []byte(`{"pdb": "2E20"}`), 0o600))
	require.Contains(t, e.ok("call", "x", "typed", "@"+file), `"2E20"`)
	require.Contains(t, e.ok("call", "x", "typed", `{"pdb": "3E30"}`), `"3E30"`)
}

// plain checks that a result is JSON, and takes Python's spelling of floats out.
func plain(t *testing.T, text string) string {
	t.Helper()
	require.True(t, json.Valid([]byte(text)), text)
	return strings.TrimSpace(strings.NewReplacer("10000000000.0", "1E10", "1000.0", "1e3", "1.0", "1").Replace(text))
}

func TestE2EExitCodes(t *testing.T) {
	e := newE2E(t)
	e.provider("x", "[restart]\nmax_crashes = 2\nbackoff = \"10ms\"\n")
	for _, args := range [][]string{{"status"}, {"call", "x", "echo"}, {"start", "x"}, {"stop", "x"}, {"restart", "x"}, {"logs", "x"}, {"reload"}, {"smoke"}} {
		require.Contains(t, e.fails(exitNotRunning, args...), "workerd serve", args)
	}
	e.start()
	e.ready("x")
	require.Equal(t, exitOK, e.cli("call", "x", "echo").code)
	for _, args := range [][]string{
		{"call", "x", "nothing"}, {"call", "ghost", "echo"}, {"start", "ghost"}, {"status", "ghost"}, {"logs", "ghost"}, {"restart", "ghost"},
		{"explain", "ghost"}, {"validate", "/nothing/there"}, {"call", "x", "sleep", "seconds=60", "--timeout", "200ms"},
	} {
		require.Equal(t, exitFailed, e.cli(args...).code, args)
	}
	for _, args := range [][]string{
		{"call", "x"}, {"call", "x", "echo", "[1]"}, {"call", "x", "echo", "a=1", "b"}, {"call", "x", "echo", "@/nothing/there"}, {"start"},
		{"frobnicate"}, {"status", "--frobnicate"}, {"logs"}, {"serve", "surplus"}, {"call", "x", "echo", "--timeout", "soon"},
	} {
		require.Equal(t, exitUsage, e.cli(args...).code, args)
	}
	for range 2 {
		require.Contains(t, e.fails(exitFailed, "call", "x", "die", "name=SIGKILL"), "worker_crashed")
	}
	e.state("x", "failed")
	said := e.fails(exitFailed, "call", "x", "echo")
	require.Contains(t, said, "provider_failed")
	require.Contains(t, said, "about to die", "the last output")
	require.Contains(t, said, "workerd logs x", "what to do next")
	e.ok("restart", "x")
	e.ok("call", "x", "echo")
}

func TestE2EOrdersReturnWhenTheyAreDone(t *testing.T) {
	e := newE2E(t)
	e.provider("x", "[env.variables]\nLOAD_SECONDS = \"2\"\n[start]\nwhen = \"request\"\n")
	e.bare("y", "[start]\nwhen = \"request\"\n")
	e.start()
	e.ok("start", "x", "y")
	pid := e.status("x").Workers[0].PID
	require.Equal(t, "ready", e.status("x").State)
	require.Equal(t, "ready", e.status("y").State)
	require.Equal(t, pid, e.call(e.dial("x"), "echo", "{}").PID)

	e.ok("restart", "x")
	p := e.status("x")
	require.Len(t, p.Workers, 1)
	require.Equal(t, "ready", p.Workers[0].State)
	require.NotEqual(t, pid, p.Workers[0].PID)
	require.False(t, alive(pid))

	pid = p.Workers[0].PID
	e.ok("stop", "x")
	require.False(t, alive(pid))
	require.Equal(t, "stopped", e.status("x").State)
	e.ok("stop", "x")
	require.Contains(t, e.fails(exitFailed, "call", "x", "echo"), "workerd start x")

	e.ok("start", "--no-wait", "x")
	require.NotEqual(t, "ready", e.status("x").State, "it loads for two seconds")
	e.ok("start", "x")
	require.Equal(t, "ready", e.status("x").State)

	// A start that fails says why.
	replace(t, filepath.Join(e.manifests(), "y/provider.toml"), e.manifest(`worker = "worker.py"`, fmt.Sprintf("python = %q", interpreter(t)),
		"[env.variables]\nLOAD_FAILS = \"no weights found\"\n[start]\nwhen = \"request\"\n[restart]\non_change = \"stop-first\"\nmax_crashes = 2\nbackoff = \"10ms\"\n"))
	require.NoError(t, os.WriteFile(filepath.Join(e.manifests(), "y/worker.py"), mustRead(t, filepath.Join(e.manifests(), "x/worker.py")), 0o600))
	e.ok("reload")
	said := e.fails(exitFailed, "restart", "y")
	require.Contains(t, said, "no weights found")
}

// keys returns the names in a JSON object, sorted.
func keys(t *testing.T, object any) []string {
	t.Helper()
	m, ok := object.(map[string]any)
	require.True(t, ok, "%T", object)
	return slices.Sorted(maps.Keys(m))
}

func TestE2EStatusJSON(t *testing.T) {
	e := newE2E(t)
	e.provider("x", "title = \"The X\"\n"+undaunted)
	e.write("bad", "bare.py", "nonsense = 1\n")
	e.start()
	pid := e.ready("x")
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	e.until("it is back", func() bool { p := e.status("x"); return p.State == "ready" && p.Workers[0].Restarts == 1 })

	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(e.ok("status", "--json")), &got))
	require.Equal(t, []string{"providers"}, keys(t, got))
	providers := got["providers"].([]any)
	require.Len(t, providers, 2)
	bad, x := providers[0].(map[string]any), providers[1].(map[string]any)
	contract := []string{"front_socket", "in_flight", "kind", "last_exit", "manifest", "manifest_error", "queue", "reason", "slug", "state", "title", "workers"}
	for _, key := range contract {
		require.Contains(t, x, key)
		require.Contains(t, bad, key)
	}
	optional := []string{"methods", "warnings", "gpu_faults"}
	for _, key := range append(keys(t, x), keys(t, bad)...) {
		require.Contains(t, append(contract, optional...), key)
	}
	require.Equal(t, []string{"limit", "waiting"}, keys(t, x["queue"]))
	require.Nil(t, x["manifest_error"])
	require.Equal(t, "The X", x["title"])
	require.Equal(t, "venv", x["kind"])
	require.Equal(t, e.front("x"), x["front_socket"])
	require.Equal(t, filepath.Join(e.manifests(), "x/provider.toml"), x["manifest"])

	worker := x["workers"].([]any)[0].(map[string]any)
	require.Equal(t, []string{"container", "gpus", "id", "last_exit", "pid", "ready_since", "restarts", "rss_bytes", "since", "state"}, keys(t, worker))
	exit := worker["last_exit"].(map[string]any)
	for _, key := range []string{"code", "signal", "oom_killed", "reason", "output"} {
		require.Contains(t, exit, key)
	}
	require.Nil(t, exit["code"])
	require.Equal(t, "SIGKILL", exit["signal"])
	require.Equal(t, false, exit["oom_killed"])
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$`, worker["since"])
	require.Regexp(t, `^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$`, worker["ready_since"])
	require.Greater(t, worker["rss_bytes"], 1e6)
	require.True(t, alive(int(worker["pid"].(float64))))

	require.Equal(t, "invalid", bad["state"])
	require.Equal(t, []any{}, bad["workers"])
	byKey := map[any]map[string]any{}
	for _, problem := range bad["manifest_error"].([]any) {
		require.Equal(t, []string{"column", "file", "key", "line", "message"}, keys(t, problem))
		byKey[problem.(map[string]any)["key"]] = problem.(map[string]any)
	}
	require.EqualValues(t, 1, byKey["nonsense"]["line"])
	require.EqualValues(t, 1, byKey["nonsense"]["column"])
}
