package main

import (
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/execenv"
	"workerd/manifest"
)

// Cases 20 and 36: who has no handler is gone at once, and that is no crash; who ignores SIGTERM is gone right after
// stop_timeout; and nothing is left of either, whatever it forked.
func TestLiveCase20Stop(t *testing.T) {
	eachKind(t, allKinds, func(t *testing.T, l *live) {
		l.bare("plain", "")
		l.add("deaf", "[start]\nstop_timeout = \"3s\"\n")
		l.start()
		pid := l.worker("plain").PID
		deaf := l.worker("deaf").PID
		begin := time.Now()
		l.ok("stop", "plain")
		took := time.Since(begin)
		t.Logf("no handler: %s", took.Round(time.Millisecond))
		require.Less(t, took, soon(2*time.Second))
		require.False(t, alive(pid))
		require.Equal(t, "stopped", l.status("plain").State)
		require.Equal(t, 0, len(l.marked("plain/")))

		run[any](l, "deaf", `
import os, signal, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for n in range(50):
    if os.fork() == 0:
        os.setsid()
        if os.fork():
            os._exit(0)
        if n % 10 == 0:
            os.execvp("sleep", ["sleep", "600"])
        os._exit(0)
while True:
    try:
        os.waitpid(-1, os.WNOHANG) != (0, 0) or __import__("time").sleep(0.01)
    except ChildProcessError:
        break
`, nil)
		l.until("no zombie is left of what it forked", func() bool { return len(zombiesBelow(l.marked("deaf/"))) == 0 })
		begin = time.Now()
		l.ok("stop", "deaf")
		took = time.Since(begin)
		t.Logf("ignores SIGTERM, stop_timeout 3s: %s", took.Round(time.Millisecond))
		require.GreaterOrEqual(t, took, 3*time.Second)
		require.Less(t, took, 3*time.Second+soon(2*time.Second))
		require.False(t, alive(deaf))
		require.Empty(t, l.marked(""), "no process is left")
		require.Empty(t, l.owned(), "no container is left")
		require.NotContains(t, l.log.String(), "worker died")

		// Case 36: a worker that dies leaves no grandchild either.
		l.ok("start", "deaf")
		run[any](l, "deaf", "import os\nif os.fork() == 0:\n os.setsid()\n if os.fork() == 0: os.execvp('sleep', ['sleep', '600'])\n os._exit(0)", nil)
		w := l.worker("deaf")
		l.later("deaf", "import os; os._exit(0)")
		l.until("it is gone", func() bool { return !alive(w.PID) })
		within(t, soon(2*time.Second), "its grandchildren are gone", func() bool {
			return len(l.marked(w.ID+"\x00")) == 0
		})
	})
}

// zombiesBelow lists the dead children of some processes.
func zombiesBelow(pids []int) (dead []int) {
	for _, pid := range pids {
		dead = append(dead, zombies(pid)...)
	}
	return dead
}

// A start that is given up leaves nothing, however far the engine has come with it: be that for an operator, or for the end of workerd
// itself. What it would leave may come up only afterwards.
func TestLiveStartsThatAreGivenUp(t *testing.T) {
	eachKind(t, containers, func(t *testing.T, l *live) {
		l.bare("x", "[start]\nwhen = \"request\"\n")
		l.start()
		stays := func(when string) {
			for end := time.Now().Add(2 * time.Second); time.Now().Before(end); {
				require.Empty(t, l.owned(), when)
				require.Empty(t, l.marked("x/"), when)
				<-time.After(100 * time.Millisecond)
			}
		}
		for wait := time.Duration(0); wait < 720*time.Millisecond; wait += 80 * time.Millisecond {
			l.ok("start", "x", "--no-wait")
			<-time.After(wait)
			l.ok("stop", "x")
			require.Empty(t, l.owned(), "stopped after %s", wait)
		}
		stays("after the stops")
		for wait := time.Duration(0); wait < 400*time.Millisecond; wait += 150 * time.Millisecond {
			l.ok("start", "x", "--no-wait")
			<-time.After(wait)
			_, err := l.signalled(syscall.SIGTERM)
			require.NoError(t, err)
			require.Empty(t, l.owned(), "ended after %s", wait)
			stays("after the end of workerd")
			l.start()
		}
	})
}

// Case 19: restarts in quick succession meet no name of their predecessors.
func TestLiveCase19RapidRestarts(t *testing.T) {
	eachKind(t, containers, func(t *testing.T, l *live) {
		l.bare("x", "")
		l.start()
		l.worker("x")
		begin := time.Now()
		for range 20 {
			l.ok("restart", "x")
		}
		t.Logf("%s a restart", (time.Since(begin) / 20).Round(time.Millisecond))
		l.call(l.dial("x"), "echo", "{}")
		require.NotContains(t, l.log.String(), "worker died")
		l.until("one container is left", func() bool { return l.kind == manifest.Apptainer || len(l.owned()) == 1 })
	})
}

// Case 19: a container with the name that a worker is to have.
func TestLiveCase19NameIsTaken(t *testing.T) {
	eachKind(t, engines, func(t *testing.T, l *live) {
		foreign := l.stranger(execenv.ContainerName(l.instance(), "x", 1))
		own := execenv.ContainerName(l.instance(), "y", 3)
		flags := []string{"create", "--network", "none", "--name", own}
		for name, v := range map[string]string{execenv.LabelInstance: l.instance(), execenv.LabelSlug: "y", execenv.LabelWorker: "3"} {
			flags = append(flags, "--label", name+"="+v)
		}
		l.engine(append(flags, l.image("small"), "sleep", "600")...)
		l.bare("x", "[start]\nwhen = \"request\"\n")
		l.bare("y", "[start]\nwhen = \"request\"\n")
		l.start()
		begin := time.Now()
		l.call(l.dial("x"), "echo", "{}") // number 1 is a stranger's: the next number is taken
		exit := l.status("x").LastExit
		require.NotNil(t, exit)
		t.Logf("served after %s; %s", time.Since(begin).Round(time.Millisecond), exit.Reason)
		require.Contains(t, exit.Reason, "name taken")
		require.True(t, l.running(foreign), "a stranger's container is not touched")
		l.call(l.dial("y"), "echo", "{}") // number 3 is in the way of what is ours
		require.Less(t, time.Since(begin), soon(5*time.Second))
		require.NotContains(t, l.engine("ps", "--all", "--format", "{{.Names}} {{.Status}}"), own+" Created", "what is ours and in the way is removed")
	})
}

// An image with a volume leaves none behind.
func TestLiveAnonymousVolumesGo(t *testing.T) {
	eachKind(t, engines, func(t *testing.T, l *live) {
		l.has("odd")
		l.write("x", "live.py", l.text(`worker = "live.py"`, "odd", undaunted))
		l.start()
		var volumes []string
		for range 3 {
			w := l.worker("x")
			names := strings.Fields(l.engine("container", "inspect", "--format", `{{range .Mounts}}{{if eq .Type "volume"}}{{.Name}} {{end}}{{end}}`, w.Container))
			require.Len(t, names, 1)
			volumes = append(volumes, names...)
			l.later("x", "import os; os._exit(1)")
			l.until("it is restarted", func() bool {
				p := l.status("x")
				return p.State == "ready" && p.Workers[0].Container != w.Container
			})
		}
		l.ok("stop", "x")
		l.until("no container is left", func() bool { return len(l.owned()) == 0 }) // those that died before may still be being removed
		for _, name := range volumes {
			l.until("volume "+name+" goes", func() bool {
				_, failed := l.client("volume", "inspect", name).Run().(*exec.ExitError)
				return failed
			})
		}
	})
}
