package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A parent-death signal is tied to the thread that forked; a supervisor that uses one kills its workers by chance.
func TestE2ECase63NoWorkerDiesUnasked(t *testing.T) {
	long(t)
	e := newE2E(t)
	e.env["GOMAXPROCS"] = "2"
	e.bare("x", "[start]\nwhen = \"request\"\n")
	e.bare("steady", "")
	e.start()
	steady := e.ready("steady")
	begin := time.Now()
	for n := range 100 {
		require.NoError(t, e.control().Start(t.Context(), "x", true))
		pid := e.status("x").Workers[0].PID
		gather(t, 20, func(int, func(string)) error { // threads come and go
			w, err := connect(e.front("x"))
			if err != nil {
				return err
			}
			m, err := w.try("echo", "{}")
			if err == nil && m.said().PID != pid {
				err = fmt.Errorf("cycle %d: not answered by %d: %s, %v", n, pid, m.Result, m.Error)
			}
			_ = w.conn.Close()
			return err
		})
		require.NoError(t, e.control().Stop(t.Context(), "x", true))
		require.False(t, alive(pid))
	}
	t.Logf("100 cycles, %s each", (time.Since(begin) / 100).Round(time.Millisecond))
	require.Equal(t, steady, e.ready("steady"))
	require.NotContains(t, e.log.String(), "worker died")
	require.Less(t, threads(t, e.pid()), 40)
}

// kills ends workerd as a lack of memory would.
func (e *e2e) kills() {
	e.t.Helper()
	_, err := e.signalled(syscall.SIGKILL)
	require.Error(e.t, err)
}

// killsRecorded is kills as soon as every worker can be adopted.
func (e *e2e) killsRecorded() {
	e.t.Helper()
	e.recorded()
	e.kills()
}

// recorded waits until all workers that are ready can be adopted: their records are written beside their start, and a disk may
// take its time.
func (e *e2e) recorded() {
	e.t.Helper()
	e.until("all are recorded", func() bool {
		s, err := e.control().Status(e.t.Context())
		if err != nil {
			return false
		}
		for _, p := range s.Providers {
			for _, w := range p.Workers {
				if w.PID == 0 || w.ReadySince == nil {
					continue
				}
				data, err := os.ReadFile(filepath.Join(e.runtimeDir(), "w", w.ID+".json"))
				if err != nil || w.Role == "" && bytes.Contains(data, []byte(`"standby"`)) {
					return false
				}
			}
		}
		return true
	})
}

func TestE2EKilledWorkerdIsFollowedByOneThatServes(t *testing.T) {
	e := newE2E(t)
	stranger := exec.Command("sleep", "600") // marked as a worker of another workerd
	stranger.Env = []string{"WORKERD_WORKER=ffffffff/same/1"}
	require.NoError(t, stranger.Start())
	defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()

	starts := filepath.Join(e.dir, "starts")
	e.provider("same", fmt.Sprintf("[env.variables]\nSTARTS = %q\n", starts))
	edited := e.editable("edited", "")
	removed := e.bare("removed", "")
	e.bare("killed", undaunted)
	e.start()
	pids := map[string]int{}
	for _, slug := range []string{"same", "edited", "removed", "killed"} {
		pids[slug] = e.ready(slug)
	}
	w := e.dial("same")
	_, err := w.try("chatter", "{}")
	require.NoError(t, err)
	_, err = w.try("fork", "{}")
	require.NoError(t, err)

	e.killsRecorded()
	replace(t, edited.file, edited.text(2))
	require.NoError(t, os.Remove(removed))
	require.NoError(t, syscall.Kill(pids["killed"], syscall.SIGKILL))
	require.True(t, alive(pids["same"]), "it prints, and does not mind that nobody listens")

	begin := time.Now()
	e.start()
	require.Equal(t, pids["same"], e.call(e.dial("same"), "echo", "{}").PID, "adopted")
	t.Logf("answered %s after the start", time.Since(begin).Round(time.Millisecond))
	require.Equal(t, 1, strings.Count(string(mustRead(t, starts)), "\n"), "the model was not loaded again")
	edited.runs(2)
	require.NotEqual(t, pids["killed"], e.call(e.dial("killed"), "echo", "{}").PID)
	for _, slug := range []string{"edited", "removed", "killed"} {
		e.until(slug+" is gone", func() bool { return !alive(pids[slug]) })
	}
	require.NoFileExists(t, e.front("removed"))
	before := e.ok("logs", "-n", "1", "same")
	e.until("its output goes on", func() bool { return e.ok("logs", "-n", "1", "same") != before })
	used := cpuTime(t, pids["same"])
	e.call(e.dial("same"), "sleep", `{"seconds":1}`)
	require.Less(t, cpuTime(t, pids["same"])-used, 500*time.Millisecond, "it does not spin")
	require.True(t, alive(stranger.Process.Pid))

	// Killed and started again and again: nothing piles up.
	for range 3 {
		e.killsRecorded()
		e.start()
		require.Equal(t, pids["same"], e.call(e.dial("same"), "echo", "{}").PID)
	}
	require.NoError(t, syscall.Kill(pids["same"], syscall.SIGKILL))
	next := e.call(e.dial("same"), "echo", "{}").PID
	require.NotEqual(t, pids["same"], next, "its death is seen like any other's")
	within(t, soon(2*time.Second), "what it forked is gone", func() bool { return len(e.marked("same/")) == 1 })
	require.True(t, alive(stranger.Process.Pid))
}

// A workerd that dies with requests under way: the next one is not confused by what its workers were at.
func TestE2EKilledInTheMiddleOfRequests(t *testing.T) {
	e := newE2E(t)
	e.provider("x", "[serve]\nconcurrency = 2\n")
	e.start()
	pid := e.ready("x")
	w := e.dial("x")
	for range 2 {
		_, err := w.request("sleep", `{"seconds":4,"deaf":true}`)
		require.NoError(t, err)
	}
	e.until("both run", func() bool { return e.status("x").InFlight == 2 })
	e.killsRecorded()
	_, err := w.read()
	require.Error(t, err)
	e.start()
	// The old requests end unheard; these are answered, each with its own answer.
	counts := gather(t, 8, func(i int, count func(string)) error {
		w, err := connect(e.front("x"))
		if err != nil {
			return err
		}
		defer func() { _ = w.conn.Close() }()
		m, err := w.try("echo", fmt.Sprintf(`{"n":%d}`, i))
		if err == nil && string(m.said().Params) != fmt.Sprintf(`{"n":%d}`, i) {
			err = fmt.Errorf("%d was answered %s, %v", i, m.Result, m.Error)
		}
		count(fmt.Sprint(m.said().PID))
		return err
	})
	require.Equal(t, 8, counts[fmt.Sprint(pid)], "adopted: %v", counts)
}
