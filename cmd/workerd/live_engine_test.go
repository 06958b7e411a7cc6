package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/execenv"
	"workerd/manifest"
	"workerd/protocol"
)

// toggled puts a client of the engine first on PATH that works, hangs (with containers alone in mode containers) or says that
// there is no daemon, as set says.
func (l *live) toggled() (set func(mode string)) {
	l.t.Helper()
	real, err := exec.LookPath(l.kind)
	require.NoError(l.t, err)
	bin, toggle := filepath.Join(l.dir, "bin"), filepath.Join(l.dir, "mode")
	require.NoError(l.t, os.Mkdir(bin, 0o700))
	script := fmt.Sprintf(`#!/bin/sh
case $(cat %q) in
hang) exec sleep 600 ;;
containers) test "$1" != container || exec sleep 600 ;;
down) echo "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?" >&2; exit 1 ;;
denied) echo "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock" >&2; exit 1 ;;
esac
exec %q "$@"
`, toggle, real)
	require.NoError(l.t, os.WriteFile(filepath.Join(bin, l.kind), []byte(script), 0o700))
	l.env["PATH"] = bin + ":" + l.env["PATH"]
	return func(mode string) {
		l.t.Helper()
		require.NoError(l.t, os.WriteFile(toggle+".new", []byte(mode), 0o600))
		require.NoError(l.t, os.Rename(toggle+".new", toggle))
	}
}

// Case 24: an engine that is down or hangs makes its providers unavailable, nothing else, and nobody crashed.
func TestLiveCase24EngineDown(t *testing.T) {
	eachKind(t, engines, func(t *testing.T, l *live) {
		set := l.toggled()
		set("works")
		l.env["WORKERD_ENGINE_TIMEOUT"] = "2s"
		if raceDetector {
			l.env["WORKERD_ENGINE_TIMEOUT"] = "5s"
		}
		l.bare("x", "[restart]\nmax_crashes = 2\nbackoff = \"100ms\"\nmax_backoff = \"1s\"\n")
		other := &live{e2e: l.e2e, kind: manifest.Venv}
		other.bare("venv", "")
		l.start()
		w := l.worker("x")
		l.call(l.dial("x"), "echo", "{}")
		elsewhere := l.dial("venv")
		for mode, more := range map[string]int{"down": 4, "hang": 3} {
			set(mode)
			failures := l.engineErrors()
			l.call(l.dial("x"), "echo", "{}") // a worker that runs needs no engine
			pid := l.worker("x").PID
			restarts := l.worker("x").Restarts
			require.NoError(t, exec.Command("kill", "-9", fmt.Sprint(pid)).Run())
			var m message
			begin := time.Now()
			l.until("requests are told that the engine is not available", func() bool {
				var err error
				m, err = l.dial("x").try("echo", `{"_meta":{"timeoutMs":30000}}`)
				require.NoError(t, err)
				require.Contains(t, []protocol.Kind{protocol.EngineUnavailable, protocol.DeadlineExceeded}, m.kind(), "%v", m.Error)
				return m.kind() == protocol.EngineUnavailable
			})
			t.Logf("%s: told after %s: %s", mode, time.Since(begin).Round(time.Millisecond), m.Error.Message)
			require.True(t, m.Error.Data.Retryable)
			for l.engineErrors() < failures+more { // more often than max_crashes allows
				require.Less(t, l.echoTime(elsewhere), soon(500*time.Millisecond), "another provider is not affected")
				p := l.status("x")
				require.NotEqual(t, "failed", p.State)
				require.LessOrEqual(t, p.Workers[0].Restarts, restarts+1)
			}
			out := l.cli("doctor")
			require.Contains(t, out.out+out.err, l.kind)
			set("works")
			l.call(l.dialWhen("x"), "echo", "{}")
			l.until("exactly one container is there", func() bool { return len(l.owned()) == 1 })
			l.until("the old one is gone", func() bool { return !alive(pid) })
		}
		require.NotEqual(t, w.Container, l.worker("x").Container)

		// A workerd that is killed and started while the engine is down takes the worker over when it is back.
		w = l.worker("x")
		l.kills()
		orphan := execenv.ContainerName(l.instance(), "orphan", 1) // of an earlier life, without a record
		l.stranger(orphan, "--label", execenv.LabelInstance+"="+l.instance(), "--label", execenv.LabelSlug+"=orphan", "--label", execenv.LabelWorker+"=1")
		set("down")
		l.start()
		m, err := l.dial("x").try("echo", `{"_meta":{"timeoutMs":5000}}`)
		require.NoError(t, err)
		require.Equal(t, protocol.EngineUnavailable, m.kind(), "%v", m.Error)
		set("works")
		require.Equal(t, w.Container, l.worker("x").Container, "adopted")
		l.call(l.dialWhen("x"), "echo", "{}")
		l.until("exactly one container is there", func() bool { return len(l.owned()) == 1 })

		// One that hangs when the worker is to be taken over is not needed for that.
		l.kills()
		set("containers")
		l.start()
		begin := time.Now()
		l.call(l.dial("x"), "echo", "{}")
		t.Logf("served %s after the start", time.Since(begin).Round(time.Millisecond))
		require.Equal(t, w.Container, l.worker("x").Container, "adopted")
		set("works")
	})
}

// engineErrors counts the starts that failed for want of the engine.
func (l *live) engineErrors() int { return strings.Count(l.log.String(), "cause=engine") }

// echoTime is how long a request takes.
func (l *live) echoTime(w *wire) time.Duration {
	l.t.Helper()
	begin := time.Now()
	l.call(w, "echo", "{}")
	return time.Since(begin)
}

// dialWhen connects to a provider when it is ready.
func (l *live) dialWhen(slug string) *wire {
	l.t.Helper()
	l.worker(slug)
	return l.dial(slug)
}

// What is missing is said in status and by validate, with what to do.
func TestLiveEngineErrorsAreClear(t *testing.T) {
	eachKind(t, engines, func(t *testing.T, l *live) {
		set := l.toggled()
		set("works")
		l.write("missing", "bare.py", strings.Replace(l.text(`command = ["python3", "bare.py"]`, "small", ""), l.image("small"), "workerd-test:no-such-image", 1))
		l.bare("x", "")
		l.start()
		p := l.state("missing", "failed")
		t.Log(p.Reason)
		require.Contains(t, p.Reason, "no-such-image")
		require.Contains(t, p.Reason, l.kind+" pull")
		m, err := l.dial("missing").try("echo", "{}")
		require.NoError(t, err)
		require.NotNil(t, m.Error)
		require.Contains(t, m.Error.Message, "no-such-image")
		l.worker("x")
		l.stop()

		set("denied")
		l.start()
		l.until("denied is said", func() bool { return strings.Contains(l.status("x").Reason, "permission denied") })
		t.Log(l.status("x").Reason)
		require.Contains(t, l.status("x").Reason, "group docker")
		l.stop()

		l.env["PATH"] = "/nowhere" // not installed
		l.start()
		l.until("missing is said", func() bool { return strings.Contains(l.status("x").Reason, "not installed") })
		t.Log(l.status("x").Reason)
		require.Contains(t, l.status("x").Reason, "install "+l.kind)
		m, err = l.dial("x").try("echo", `{"_meta":{"timeoutMs":10000}}`)
		require.NoError(t, err)
		require.Equal(t, protocol.EngineUnavailable, m.kind(), "%v", m.Error)
	})
}
