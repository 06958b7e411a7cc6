package main

import (
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

const counted = `{"calls": %d, "version": "1"}`

func TestBootedInstall(t *testing.T) {
	b := newBooted(t)
	b.counter("count", "")
	said := b.ok("install", "--now", "--log-level", "debug")
	require.Contains(t, said, "workerd is enabled and runs")
	require.NotContains(t, said, "Linger", "this user lingers")
	require.JSONEq(t, fmt.Sprintf(counted, 1), b.count("count"), "install returns when workerd is ready")
	require.Equal(t, "enabled", b.is("UnitFileState"))

	unit := filepath.Join(b.home, ".config/systemd/user/workerd.service")
	out, err := exec.Command("systemd-analyze", "verify", "--user", unit).CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Empty(t, string(out), "no key is unknown, no program missing")

	require.Contains(t, b.ok("install", "--now", "--log-level", "debug"), "is as it should be")
	require.Equal(t, "0", b.is("NRestarts"))
	b.said("workerd[")
	b.said("msg=ready")
	require.NotContains(t, b.journal(), "time=", "the journal has it")
	doctor := b.cli("doctor").out
	require.Contains(t, doctor, "workerd.service is installed")
	require.Contains(t, doctor, "Linger=yes")

	w := b.ready("count")
	environ := string(mustRead(t, fmt.Sprintf("/proc/%d/environ", w)))
	for _, name := range []string{"NOTIFY_SOCKET=", "LISTEN_", "WATCHDOG_", "JOURNAL_STREAM=", "INVOCATION_ID=", "SYSTEMD_EXEC_PID="} {
		require.NotContains(t, environ, "\x00"+name)
	}
	b.stopped()
	require.NoFileExists(t, b.front("count"))
	require.Equal(t, "success", b.is("Result"))
	b.does("start", "workerd")
	require.JSONEq(t, fmt.Sprintf(counted, 1), b.count("count"))
	b.stopped()
}

// Words with a meaning of their own in a unit arrive as they were given.
func TestBootedInstallQuotes(t *testing.T) {
	b := newBooted(t)
	odd := filepath.Join(b.dir, `o d"d %h $HOME ${X} \n;'`)
	require.NoError(t, os.Mkdir(odd, 0o700))
	config := filepath.Join(odd, "w.toml")
	require.NoError(t, os.WriteFile(config, []byte("log_level = \"debug\"\nproviders = [\"p\"]\n"), 0o600))
	b.env["DOCKER_CONFIG"] = odd
	b.ok("install", "--now", "--config", config, "--hf-home", odd)
	environ := string(mustRead(t, fmt.Sprintf("/proc/%d/environ", b.main())))
	require.Contains(t, environ, "DOCKER_CONFIG="+odd+"\x00")
	args := string(mustRead(t, fmt.Sprintf("/proc/%d/cmdline", b.main())))
	require.Equal(t, strings.Join([]string{realBinary(t), "--config=" + config, "serve", "--hf-home=" + odd, ""}, "\x00"), args)
	b.does("reload", "workerd")
	b.stopped()
}

func TestBootedReload(t *testing.T) {
	b := newBooted(t)
	b.counter("count", "")
	b.ok("install", "--now")
	worker := b.ready("count")
	b.counter("more", "")
	b.does("reload", "workerd")
	require.JSONEq(t, fmt.Sprintf(counted, 1), b.count("more"), "reload returns when the manifests have been read")
	require.Equal(t, worker, b.ready("count"))
	require.Equal(t, "active", b.is("ActiveState"))
	b.stopped()
}

func TestBootedCrashIsFollowedByAdoption(t *testing.T) {
	b := newBooted(t)
	b.counter("count", "")
	b.ok("install", "--now")
	require.JSONEq(t, fmt.Sprintf(counted, 1), b.count("count"))
	worker, calls := b.ready("count"), 1
	for n := 1; n <= 2; n++ {
		require.NoError(t, syscall.Kill(b.main(), syscall.SIGKILL))
		b.restarted(n)
		calls++
		require.JSONEq(t, fmt.Sprintf(counted, calls), b.count("count"), "the model is still in memory")
		require.Equal(t, worker, b.ready("count"))
	}
	b.stopped()
	require.False(t, alive(worker))
}

func TestBootedHangIsNoticed(t *testing.T) {
	b := newBooted(t)
	b.counter("count", "")
	b.ok("install")
	b.override("WatchdogSec=8s\nTimeoutAbortSec=1s\n")
	b.ok("install", "--now")
	require.JSONEq(t, fmt.Sprintf(counted, 1), b.count("count"))
	worker, main := b.ready("count"), b.main()
	// It lives for as long as it answers.
	require.Never(t, func() bool { return b.is("NRestarts") != "0" }, 12*time.Second, time.Second)
	require.NoError(t, syscall.Kill(main, syscall.SIGSTOP))
	begin := time.Now()
	b.restarted(1)
	t.Logf("noticed and started again within %s", time.Since(begin).Round(time.Millisecond))
	require.False(t, alive(main))
	require.JSONEq(t, fmt.Sprintf(counted, 2), b.count("count"))
	require.Equal(t, worker, b.ready("count"))
	b.said("Watchdog timeout")
	b.stopped()
}

// The unit's own limit of a stop cannot know what manifests say: workerd has it extended.
func TestBootedStopWaitsAsManifestsSay(t *testing.T) {
	b := newBooted(t)
	b.counter("count", "[start]\nstop_timeout = \"40s\"\n")
	b.ok("install")
	b.override("TimeoutStopSec=3s\n") // the command that is run after the stop has as long
	b.ok("install", "--now")
	b.ready("count")
	w := b.dial("count")
	started := filepath.Join(b.dir, "started")
	_, err := w.request("run", fmt.Sprintf(`{"code": "import time; open('%s', 'w').close(); time.sleep(8); answer = 'done'"}`, started))
	require.NoError(t, err)
	b.until("the request runs", func() bool { _, err := os.Stat(started); return err == nil })
	begin := time.Now()
	b.stopped()
	require.Greater(t, time.Since(begin), 4*time.Second)
	m, err := w.answer(nil)
	require.NoError(t, err)
	require.JSONEq(t, `"done"`, string(m.Result))
	require.Equal(t, "success", b.is("Result"))
}

// Here a workerd hangs that does not hear the signal to stop. A stop that has to kill it leaves no worker all the same; one for a restart leaves them to the next workerd.
func TestBootedStopOfOneThatHangs(t *testing.T) {
	b := newBooted(t)
	b.counter("count", "")
	b.ok("install")
	b.override("TimeoutStopSec=3s\nKillSignal=SIGWINCH\n")
	b.ok("install", "--now")
	require.JSONEq(t, fmt.Sprintf(counted, 1), b.count("count"))
	worker := b.ready("count")
	b.does("restart", "workerd")
	b.said("State 'stop-sigterm' timed out. Killing.")
	require.JSONEq(t, fmt.Sprintf(counted, 2), b.count("count"))
	require.Equal(t, worker, b.ready("count"))

	b.stopped()
	require.Equal(t, "timeout", b.is("Result"))
	require.False(t, alive(worker))
}
