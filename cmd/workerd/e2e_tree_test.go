package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// forks has the worker leave children of every sort, and returns its own pid and id when they are there.
func (e *e2e) forks(w *wire) (pid int, id string) {
	e.t.Helper()
	p := e.state("x", "ready")
	pid, id = p.Workers[0].PID, p.Workers[0].ID
	m, err := w.try("fork", "{}")
	require.NoError(e.t, err)
	require.Nil(e.t, m.Error)
	var least int
	require.NoError(e.t, json.Unmarshal(m.Result, &least))
	e.until("its children are there", func() bool { return len(e.marked(id+"\x00")) > least })
	return pid, id
}

func TestE2EWhatAWorkerForkedGoesWithIt(t *testing.T) {
	e := newE2E(t)
	predecessors := filepath.Join(e.dir, "predecessors")
	file := e.provider("x", undaunted+fmt.Sprintf("[env.variables]\nPREDECESSORS = %q\n", predecessors))
	e.start()
	w := e.dial("x")

	for _, name := range []string{"SIGKILL", "SIGSEGV"} {
		pid, id := e.forks(w)
		begin := time.Now()
		m, err := w.try("die", fmt.Sprintf(`{"name":%q}`, name))
		require.NoError(t, err)
		took := time.Since(begin)
		require.Equal(t, protocol.WorkerCrashed, m.kind(), "%s", m.Result)
		require.Less(t, took, soon(time.Second), "its children hold stdout open, which delays nothing")
		gone := within(t, soon(2*time.Second), "its tree is gone", func() bool { return len(e.marked(id+"\x00")) == 0 })
		t.Logf("%s: answered after %s, its tree gone %s later", name, took.Round(time.Millisecond), gone.Round(time.Millisecond))
		require.False(t, alive(pid))
		require.NotEqual(t, pid, e.call(w, "echo", "{}").PID)
	}
	left, err := os.ReadFile(predecessors)
	require.NoError(t, err)
	require.Empty(t, string(left), "when a worker loads nothing of an earlier one lives")

	for _, verb := range []string{"restart", "stop"} {
		_, id := e.forks(w)
		begin := time.Now()
		e.ok(verb, "x")
		t.Logf("%s: %s", verb, time.Since(begin).Round(time.Millisecond))
		require.Empty(t, e.marked(id+"\x00"), "%s returns when the tree is gone", verb)
	}
	e.ok("start", "x")
	_, id := e.forks(w)
	require.NoError(t, os.Remove(file))
	e.until("its tree is gone", func() bool { return len(e.marked(id+"\x00")) == 0 })
	e.until("its front socket is gone", func() bool { _, err := os.Lstat(e.front("x")); return os.IsNotExist(err) })
}

func TestE2EWhatAWorkerForkedGoesWithWorkerd(t *testing.T) {
	e := newE2E(t)
	e.provider("x", "")
	e.start()
	e.forks(e.dial("x"))
	e.stop()
}

func TestE2EAWorkerThatKillsItsGroupHurtsNobodyElse(t *testing.T) {
	e := newE2E(t)
	e.provider("x", undaunted)
	e.bare("y", "")
	e.start()
	neighbour := e.ready("y")
	e.forks(e.dial("x"))
	m, err := e.dial("x").try("die", `{"name":"all"}`)
	require.NoError(t, err)
	require.Equal(t, protocol.WorkerCrashed, m.kind())
	e.call(e.dial("x"), "echo", "{}")
	require.Equal(t, neighbour, e.call(e.dial("y"), "echo", "{}").PID)
	require.True(t, alive(e.pid()))
}

// A shell that runs the real worker in the background, also in a session of its own: no descendant outlives a stop.
func TestE2ECase61NoDescendantOutlivesAStop(t *testing.T) {
	for name, script := range map[string]string{
		"child":   `"$0" -S -E bare.py & wait`,
		"session": `setsid "$0" -S -E bare.py & wait`,
		"orphan":  `(setsid "$0" -S -E bare.py &) ; while sleep 600; do :; done`,
	} {
		t.Run(name, func(t *testing.T) {
			e := newE2E(t)
			e.write("x", "bare.py", e.manifest(fmt.Sprintf("command = [\"/bin/sh\", \"-c\", %q, %q]", script, interpreter(t)), "", undaunted))
			e.start()
			w := e.dial("x")
			descendant := e.call(w, "echo", "{}").PID
			require.NotEqual(t, e.ready("x"), descendant)
			require.NoError(t, syscall.Kill(e.ready("x"), syscall.SIGKILL))
			e.until("it went with its parent", func() bool { return !alive(descendant) })
			descendant = e.call(w, "echo", "{}").PID
			e.ok("stop", "x")
			require.False(t, alive(descendant))
			require.Empty(t, e.marked("x/"))
		})
	}
}
