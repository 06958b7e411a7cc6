package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

func TestE2ECase75AStoppedWorkerIsReplaced(t *testing.T) {
	long(t)
	e := newE2E(t)
	e.provider("x", undaunted+"[health]\ninterval = \"200ms\"\ntimeout = \"3s\"\n[serve]\ncancel_grace = \"500ms\"\n[start]\nstop_timeout = \"1s\"\n")
	e.start()
	pid := e.ready("x")
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP)) // idle: it does not answer ping
	took := within(t, soon(7*time.Second), "it is killed", func() bool { return !alive(pid) })
	t.Logf("an idle one is killed after %s", took.Round(time.Millisecond))
	w := e.dial("x")
	next := e.call(w, "echo", "{}").PID
	require.NotEqual(t, pid, next)
	require.Contains(t, e.status("x").Workers[0].LastExit.Reason, "ping")

	begin := time.Now()
	_, err := w.request("sleep", `{"seconds":60,"_meta":{"timeoutMs":5000}}`) // busy: its caller's deadline counts
	require.NoError(t, err)
	e.until("it runs", func() bool { return e.status("x").InFlight == 1 })
	require.NoError(t, syscall.Kill(next, syscall.SIGSTOP))
	m, err := w.answer(nil)
	require.NoError(t, err)
	took = time.Since(begin)
	require.Equal(t, protocol.DeadlineExceeded, m.kind())
	require.Greater(t, took, 4900*time.Millisecond)
	require.Less(t, took, 5*time.Second+soon(500*time.Millisecond))
	require.NotEqual(t, next, e.call(w, "echo", "{}").PID, "the next request has a new worker")
	require.False(t, alive(next))

	// A stop does not depend on the worker's good will either.
	last := e.ready("x")
	require.NoError(t, syscall.Kill(last, syscall.SIGSTOP))
	begin = time.Now()
	e.ok("restart", "x")
	t.Logf("restart of a stopped one: %s", time.Since(begin).Round(time.Millisecond))
	require.False(t, alive(last))
}

// queueFive has a worker sleep for a request and five wait, and returns the connections.
func (e *e2e) queueFive(params string) (running, waiting *wire) {
	e.t.Helper()
	running, waiting = e.dial("x"), e.dial("x")
	_, err := running.request("sleep", strings.Replace(params, "{", `{"_meta":{"progressToken":1},`, 1))
	require.NoError(e.t, err)
	for m := (message{}); m.Params.Message != "sleeping"; {
		m, err = running.read()
		require.NoError(e.t, err)
	}
	for range 5 {
		_, err = waiting.request("echo", "{}")
		require.NoError(e.t, err)
	}
	e.until("five wait", func() bool { return e.status("x").Queue.Waiting == 5 })
	return running, waiting
}

func TestE2ECase93StopAnswersEverybody(t *testing.T) {
	e := newE2E(t)
	e.provider("x", "")
	e.start()
	pid := e.ready("x")
	running, waiting := e.queueFive(`{"seconds":6}`)
	ended := make(chan error, 1)
	require.NoError(t, e.cmd.Process.Signal(syscall.SIGTERM))
	go func() { ended <- e.ended() }()
	for range 5 {
		m, err := waiting.answer(nil)
		require.NoError(t, err)
		require.Equal(t, protocol.ShuttingDown, m.kind())
		require.True(t, m.Error.Data.Retryable)
	}
	late, err := waiting.try("echo", "{}")
	require.NoError(t, err)
	require.Equal(t, protocol.ShuttingDown, late.kind(), "a new one too")
	m, err := running.answer(nil)
	require.NoError(t, err)
	require.Equal(t, pid, m.said().PID, "what ran is finished")
	require.NoError(t, <-ended)
	e.leftNothing()
}

func TestE2ECase93ASecondSignalShortens(t *testing.T) {
	e := newE2E(t)
	e.provider("x", "")
	e.start()
	pid := e.ready("x")
	running, waiting := e.queueFive(`{"seconds":60,"deaf":true}`)
	require.NoError(t, e.cmd.Process.Signal(syscall.SIGTERM))
	for range 5 {
		m, err := waiting.answer(nil)
		require.NoError(t, err)
		require.Equal(t, protocol.ShuttingDown, m.kind())
	}
	require.True(t, alive(pid), "stop_timeout is 30 s")
	took, err := e.signalled(syscall.SIGTERM)
	require.NoError(t, err)
	t.Logf("%s after the second signal", took.Round(time.Millisecond))
	require.Less(t, took, soon(2*time.Second))
	m, err := running.answer(nil)
	require.NoError(t, err)
	require.Equal(t, protocol.WorkerCrashed, m.kind())
	e.leftNothing()
}

func TestE2ECase20AWorkerThatIgnoresSigtermIsKilledAtTheTimeout(t *testing.T) {
	e := newE2E(t)
	script := `trap "" TERM; "$0" -S -E bare.py & while :; do wait; done`
	e.write("x", "bare.py", e.manifest(fmt.Sprintf("command = [\"/bin/sh\", \"-c\", %q, %q]", script, interpreter(t)), "", "[start]\nstop_timeout = \"1s\"\n"))
	e.start()
	e.ready("x")
	begin := time.Now()
	e.ok("stop", "x")
	took := time.Since(begin)
	t.Logf("stopped after %s", took.Round(time.Millisecond))
	require.GreaterOrEqual(t, took, time.Second)
	require.Less(t, took, time.Second+soon(time.Second))
	require.Empty(t, e.marked(""))
}

func TestE2ECase94NoCallFailsWhileIdleWorkersStop(t *testing.T) {
	long(t)
	e := newE2E(t)
	e.bare("x", "[start]\nwhen = \"request\"\nidle_timeout = \"1s\"\n")
	e.start()
	ctx, cancel := context.WithTimeout(t.Context(), 15*time.Second)
	defer cancel()
	// All callers pause together, so that the worker is idle for about as long as it may be.
	seed := rand.Uint64()
	workers := make(chan int, 1000)
	gather(t, 4, func(i int, _ func(string)) error {
		pause := rand.New(rand.NewPCG(seed, 0))
		w, err := connect(e.front("x"))
		if err != nil {
			return err
		}
		defer func() { _ = w.conn.Close() }()
		next := time.Now()
		for ctx.Err() == nil {
			m, err := w.try("echo", "{}")
			switch {
			case err != nil:
				return err
			case m.Error != nil:
				return m.Error
			}
			workers <- m.said().PID
			next = next.Add(900*time.Millisecond + time.Duration(pause.Int64N(int64(200*time.Millisecond))))
			select {
			case <-time.After(time.Until(next)):
			case <-ctx.Done():
			}
		}
		return w.silent()
	})
	close(workers)
	calls, seen := 0, map[int]bool{}
	for pid := range workers {
		calls++
		seen[pid] = true
	}
	t.Logf("%d calls, %d workers (seed %d)", calls, len(seen), seed)
	require.Greater(t, calls, 30)
	e.state("x", "stopped")
	require.Empty(t, e.marked(""))
	require.NotContains(t, e.log.String(), "worker died")
}

// Case 20: who has no handler is gone at once, and that is no crash.
func TestE2ECase20StopIsNoCrash(t *testing.T) {
	e := newE2E(t)
	e.bare("x", "")
	e.start()
	pid := e.ready("x")
	begin := time.Now()
	e.ok("stop", "x")
	require.Less(t, time.Since(begin), soon(2*time.Second))
	require.False(t, alive(pid))
	p := e.status("x")
	require.Equal(t, "stopped", p.State)
	require.Contains(t, p.Reason, "operator")
	require.NotContains(t, e.log.String(), "worker died")

	// What an operator stopped stays stopped when workerd is started again, until start.
	e.stop()
	e.start()
	m, err := e.dial("x").try("echo", "{}")
	require.NoError(t, err)
	require.Equal(t, protocol.ProviderStopped, m.kind())
	require.Empty(t, e.marked(""))
	e.ok("start", "x")
	e.call(e.dial("x"), "echo", "{}")
	_, err = os.Lstat(e.front("x"))
	require.NoError(t, err)
}
