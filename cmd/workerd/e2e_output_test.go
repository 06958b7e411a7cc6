package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Cases 65, 73 and 90: whatever a worker prints, and however much, goes to its log and delays nothing.
func TestE2ECase73AWorkerMayPrint(t *testing.T) {
	e := newE2E(t)
	e.provider("x", "[env.variables]\nLOAD_NOISE = \"50000000\"\n")
	begin := time.Now()
	e.start("--log-max-size", "1GiB") // what is looked at is not to be rotated away
	e.ready("x")
	t.Logf("ready after %s", time.Since(begin).Round(time.Millisecond))
	begin = time.Now()
	r := e.cli("call", "x", "noise", "size=50000000")
	require.Equal(t, exitOK, r.code, r.err)
	t.Logf("50 MB in a request: %s", time.Since(begin).Round(time.Millisecond))
	require.Equal(t, "{\"printed\":50000000}\n", r.out, "the result alone")
	require.Empty(t, r.err)

	begin = time.Now()
	tail := e.ok("logs", "-n", "3", "x")
	require.Equal(t, strings.Repeat(strings.Repeat("x", 99)+"\n", 3), tail)
	all := e.ok("logs", "-n", "500500", "x")
	t.Logf("logs: %s", time.Since(begin).Round(time.Millisecond))
	require.Equal(t, 1, strings.Count(all, strings.Repeat("y", 10_000_000)+"\n"), "a line of 10 MB is whole")
	require.Contains(t, all, "not UTF-8")
	info, err := filepath.Glob(filepath.Join(e.dir, "state/workerd/*/logs/x/*.log"))
	require.NoError(t, err)
	require.Len(t, info, 1)
	st, err := os.Stat(info[0])
	require.NoError(t, err)
	require.EqualValues(t, 0o600, st.Mode().Perm())
	require.EqualValues(t, 0, e.status("x").Workers[0].Restarts)

	// Case 92 with much output: the last lines only, and still JSON.
	failed := e.cli("call", "x", "die", "name=SIGKILL", "--json")
	require.Equal(t, exitFailed, failed.code)
	require.Empty(t, failed.out)
	require.True(t, json.Valid([]byte(failed.err)), "%.500s", failed.err)
	require.Less(t, len(failed.err), 20_000)
	require.Contains(t, failed.err, "about to die")
}

func TestE2ELogsFollow(t *testing.T) {
	e := newE2E(t)
	e.provider("x", undaunted)
	e.start()
	e.ready("x")
	follow := e.command("logs", "-f", "-n", "0", "x")
	var out lockedBuffer
	follow.Stdout = &out
	require.NoError(t, follow.Start())
	w := e.dial("x")
	for _, words := range []string{"first words", "words of the next worker"} {
		e.until(words, func() bool { // the command may still be on its way
			m, err := w.try("die", `{"name":"SIGKILL","words":"`+words+`"}`)
			require.NoError(t, err)
			require.NotNil(t, m.Error)
			return strings.Contains(out.String(), words+"\n")
		})
	}
	require.NoError(t, follow.Process.Signal(os.Interrupt))
	require.NoError(t, follow.Wait(), "interrupting is how one stops following")
}

// Whoever reads workerd's log goes away: workerd goes on.
func TestE2ENobodyReadsTheLog(t *testing.T) {
	e := newE2E(t)
	e.bare("x", undaunted)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	cmd := e.command("serve")
	cmd.Stderr = w
	require.NoError(t, cmd.Start())
	require.NoError(t, w.Close())
	e.cmd, e.exit = cmd, make(chan error, 1)
	go func() { e.exit <- cmd.Wait() }()
	pid := e.ready("x")
	require.NoError(t, r.Close())
	for range 3 {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		e.until("the next worker is ready", func() bool {
			p := e.status("x")
			return p.State == "ready" && p.Workers[0].PID != pid
		})
		pid = e.ready("x")
	}
}
