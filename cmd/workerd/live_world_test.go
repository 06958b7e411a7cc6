package main

import (
	"bufio"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
	"workerd/protocol"
)

// No network is the default and means none; host is the host's.
func TestLiveNetworks(t *testing.T) {
	eachKind(t, containers, func(t *testing.T, l *live) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { _ = listener.Close() }()
		port := listener.Addr().(*net.TCPAddr).Port
		l.add("none", "")
		l.add("host", "[env]\nnetwork = \"host\"\n")
		l.add("bridge", "[env]\nnetwork = \"bridge\"\n")
		l.start()
		type sees struct {
			Devices []string
			Connect string
			Offline string
		}
		look := func(slug string) sees {
			return run[sees](l, slug, `
import os, socket
def connect():
    try:
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        return "connected"
    except OSError as e:
        return type(e).__name__
answer = {"Devices": [line.split(":")[0].strip() for line in open("/proc/net/dev").read().split("\n")[2:-1]],
          "Connect": connect(), "Offline": os.environ.get("HF_HUB_OFFLINE", "")}
`, map[string]any{"port": port})
		}
		outside, err := net.Listen("tcp4", "0.0.0.0:0")
		require.NoError(t, err)
		defer func() { _ = outside.Close() }()
		reach := func(slug string) string {
			return run[string](l, slug, `
import socket
try:
    socket.create_connection((address, port), timeout=5).close()
    answer = "connected"
except OSError as e:
    answer = repr(e)
`, map[string]any{"address": ownAddress(t), "port": outside.Addr().(*net.TCPAddr).Port})
		}
		none, host := look("none"), look("host")
		for _, d := range none.Devices { // tunnels are there in every network of a kernel that has them, and are down
			require.Regexp(t, "^(lo|tunl0|gre0|gretap0|erspan0|ip_vti0|ip6_vti0|sit0|ip6tnl0|ip6gre0)$", d)
		}
		require.Equal(t, "ConnectionRefusedError", strings.Replace(none.Connect, "OSError", "ConnectionRefusedError", 1))
		require.Equal(t, "1", none.Offline)
		require.Equal(t, "connected", host.Connect)
		require.Empty(t, host.Offline)
		// A bridge needs what this machine may not have; then that is said.
		var p protocol.ProviderStatus
		l.until("bridge works or is refused", func() bool {
			p = l.status("bridge")
			return p.State == "ready" || p.State == "failed" || p.LastExit != nil
		})
		if p.State == "ready" {
			bridge := look("bridge")
			require.NotEqual(t, "connected", bridge.Connect, "its loopback is its own")
			require.Empty(t, bridge.Offline)
			require.Equal(t, "connected", reach("bridge"), "it has a way out")
			require.NotEqual(t, "connected", reach("none"))
			return
		}
		t.Logf("bridge: %s", p.Reason)
		require.NotEmpty(t, p.Reason)
		require.Empty(t, l.marked("bridge/"))
	})
}

// Cases 21 and 23: an image with an entrypoint of its own, output that is no protocol, and room in /dev/shm.
func TestLiveCase21ImagesOfTheField(t *testing.T) {
	eachKind(t, engines, func(t *testing.T, l *live) {
		l.has("odd")
		odd := func(slug, toml string) { l.write(slug, "live.py", l.text(`worker = "live.py"`, "odd", toml)) }
		odd("replaced", "[limits]\nshm_size = \"300MiB\"\n")
		odd("kept", "[env]\nentrypoint = \"image\"\n[restart]\nmax_crashes = 2\nbackoff = \"10ms\"\n")
		l.add("usual", "")
		unreadable := strings.Replace(l.text(`worker = "live.py"`, "odd", "[restart]\nmax_crashes = 3\nbackoff = \"10ms\"\n"), `worker = "live.py"`,
			`command = ["python3", "/app/w.py"]`, 1)
		l.write("unreadable", "live.py", unreadable)
		l.start()
		size := "import os; s = os.statvfs('/dev/shm'); answer = s.f_frsize * s.f_blocks"
		require.Equal(t, 300<<20, run[int](l, "replaced", size, nil))
		require.Greater(t, run[int](l, "usual", size, nil), 64<<20)
		run[any](l, "usual", "f = open('/dev/shm/x', 'wb'); f.write(b'x' * (100 << 20)); f.close()", nil)
		env := l.environmentOf("replaced")
		require.NotContains(t, env, "http_proxy")
		require.True(t, strings.HasSuffix(env["PYTHONPATH"], ":/image/python"), env["PYTHONPATH"])
		require.Equal(t, filepath.Join(l.manifests(), "replaced"), run[string](l, "replaced", "import os; answer = os.getcwd()", nil), "not the image's WORKDIR")
		// Case 8, since the image's is root's alone. Case 9: an image made under a strict umask is given up with python's own words.
		p := l.state("unreadable", "failed")
		require.Contains(t, p.LastExit.Output, "/app/w.py")
		require.Contains(t, p.LastExit.Output, "Permission denied")
		require.NotNil(t, p.LastExit.Code, p.Reason)
		require.Equal(t, 2, *p.LastExit.Code)
		p = l.state("kept", "failed")
		require.Contains(t, p.LastExit.Output, "the entrypoint of the image python3")
		run[any](l, "usual", "import os; os.write(1, b'a banner {\"jsonrpc\":\"2.0\"}\\n'); os.system('echo from a child')", nil)
		l.until("it is in the log", func() bool { return strings.Contains(l.ok("logs", "usual"), "from a child") })
		require.Contains(t, l.ok("logs", "usual"), "a banner")
		require.Equal(t, 1, l.calls("usual"))
	})
}

// logs, logs -f and status show a worker in a container as any other, alive and dead.
func TestLiveLogsAndStatus(t *testing.T) {
	eachKind(t, allKinds, func(t *testing.T, l *live) {
		l.add("x", undaunted)
		l.start()
		w := l.worker("x")
		l.until("the engine has it", func() bool { return strings.Contains(l.ok("logs", "x"), "loaded version 1") })
		run[any](l, "x", "for n in range(10): print('line', n)", nil)
		l.until("what it printed is shown", func() bool { return strings.Contains(l.ok("logs", "-n", "2", "x"), "line 9") })
		require.NotContains(t, l.ok("logs", "-n", "2", "x"), "line 7")

		awaits := l.followLogs("-n", "1", "x")
		awaits("line 9")
		begin := time.Now()
		run[any](l, "x", "print('live line')", nil)
		awaits("live line")
		t.Logf("followed after %s", time.Since(begin).Round(time.Millisecond))
		run[any](l, "x", "print('words before the end')", nil)
		l.later("x", "import os; os._exit(7)")
		awaits("words before the end")
		l.until("it is restarted", func() bool { p := l.status("x"); return p.State == "ready" && p.Workers[0].ID != w.ID })
		run[any](l, "x", "print('line of the next')", nil)
		awaits("line of the next")

		require.Contains(t, l.ok("logs", "x"), "words before the end", "kept beyond the container")
		number := w.ID[strings.Index(w.ID, "/")+1:]
		require.Contains(t, string(mustRead(t, filepath.Join(l.env["WORKERD_STATE_DIR"], hostName(t), "logs/x", number+".log"))), "words before the end")
		p := l.status("x")
		now := p.Workers[0]
		require.Equal(t, l.kind, p.Kind)
		require.Equal(t, 1, now.Restarts)
		require.Equal(t, 7, *now.LastExit.Code)
		require.Contains(t, now.LastExit.Output, "words before the end")
		require.Positive(t, now.RSSBytes)
		require.True(t, alive(now.PID))
		require.Contains(t, string(mustRead(t, fmt.Sprintf("/proc/%d/cmdline", now.PID))), "live.py")
		require.Equal(t, l.kind == manifest.Docker || l.kind == manifest.Podman, now.Container != "")
		require.Contains(t, l.ok("status", "x"), l.kind)
	})
}

// followLogs runs logs -f until the test ends. What it returns waits for a line, and returns those before it.
func (l *live) followLogs(args ...string) (awaits func(want string) []string) {
	l.t.Helper()
	follow := l.command(append([]string{"logs", "-f"}, args...)...)
	out, err := follow.StdoutPipe()
	require.NoError(l.t, err)
	require.NoError(l.t, follow.Start())
	lines := make(chan string, 100)
	gone := make(chan struct{})
	go func() {
		defer close(lines)
		for s := bufio.NewScanner(out); s.Scan(); {
			select {
			case lines <- s.Text():
			case <-gone:
				return
			}
		}
	}()
	l.t.Cleanup(func() {
		close(gone)
		_ = follow.Process.Kill()
		_ = follow.Wait()
	})
	return func(want string) (before []string) {
		l.t.Helper()
		deadline := time.After(patience)
		for {
			select {
			case line, open := <-lines:
				require.True(l.t, open, "logs -f ended before %q", want)
				if strings.Contains(line, want) {
					return before
				}
				before = append(before, line)
			case <-deadline:
				l.t.Fatalf("logs -f does not show %q, only %d lines", want, len(before))
			}
		}
	}
}

// logs -f shows each line once, of a worker that is started later and prints long before it listens, and of one that runs.
func TestLiveLogsAreFollowedFromTheFirstLine(t *testing.T) {
	eachKind(t, allKinds, func(t *testing.T, l *live) {
		file := l.add("x", "[start]\nwhen = \"request\"\n[env.variables]\nTICKS = \"go\"\n")
		l.start()
		early := l.followLogs("-n", "0", "x")
		l.ok("start", "--no-wait", "x")
		first := early("tick 30.")
		late := l.followLogs("-n", "100000", "x")
		second := append(late("tick 90."), "tick 90.")
		l.ok("logs", "-n", "3", "x") // which those who follow do not notice
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(file), "go"), nil, 0o600))
		l.worker("x")
		run[any](l, "x", "sys = __import__('sys'); sys.stdout.write('the end\\n'); sys.stdout.flush()", nil)
		first = append(append(first, "tick 30."), early("the end")...)
		second = append(second, late("the end")...)
		for n, got := range [][]string{first, second} {
			count := 0
			for _, line := range got {
				if strings.HasPrefix(line, "tick ") {
					require.Equal(t, fmt.Sprintf("tick %d.", count), line, "follower %d", n)
					count++
				}
			}
			require.Greater(t, count, 90)
		}
	})
}

func hostName(t *testing.T) string {
	t.Helper()
	name, err := os.Hostname()
	require.NoError(t, err)
	return name
}

// Out of memory under limits.memory is said, and is told apart from a kill.
func TestLiveOutOfMemory(t *testing.T) {
	eachKind(t, engines, func(t *testing.T, l *live) {
		l.add("x", undaunted+"[limits]\nmemory = \"100MiB\"\n")
		l.start()
		l.worker("x")
		if warned := strings.Join(l.status("x").Warnings, "\n"); strings.Contains(warned, "limits.memory cannot be enforced") {
			t.Logf("said: %s", warned)
			require.Equal(t, manifest.Podman, l.kind)
			return
		}
		l.later("x", "x = []\nwhile True: x.append(bytearray(b'x' * (10 << 20)))")
		l.until("it is restarted", func() bool { p := l.status("x"); return p.LastExit != nil && p.State == "ready" })
		exit := l.status("x").LastExit
		t.Logf("out of memory: %s", exit.Reason)
		require.True(t, exit.OOMKilled)
		require.Contains(t, exit.Reason, "limits.memory")

		before := l.worker("x").Restarts
		l.later("x", "import os; os.kill(os.getpid(), 9)")
		l.until("it is restarted", func() bool { p := l.status("x"); return p.State == "ready" && p.Workers[0].Restarts > before })
		exit = l.status("x").LastExit
		t.Logf("a plain kill: %s", exit.Reason)
		require.False(t, exit.OOMKilled)
		require.Equal(t, "SIGKILL", *exit.Signal)

		// A child that runs out of memory, and a worker that lives on and is killed for another reason.
		before = l.worker("x").Restarts
		code := run[int](l, "x", `
import os
pid = os.fork()
if pid == 0:
    open("/proc/self/oom_score_adj", "w").write("1000")
    x = []
    while True:
        x.append(bytearray(b"x" * (10 << 20)))
answer = os.waitpid(pid, 0)[1]
`, nil)
		require.Equal(t, 9, code)
		l.later("x", "import os; os._exit(3)")
		l.until("it is restarted", func() bool { p := l.status("x"); return p.State == "ready" && p.Workers[0].Restarts > before })
		exit = l.status("x").LastExit
		t.Logf("after a child's: oom_killed %v, %s", exit.OOMKilled, exit.Reason)
		require.Equal(t, 3, *exit.Code)
		require.True(t, exit.OOMKilled)
		require.Contains(t, exit.Reason, "a process that it had started")
	})
}

// ownAddress is an address of this machine by which others reach it.
func ownAddress(t *testing.T) string {
	t.Helper()
	addresses, err := net.InterfaceAddrs()
	require.NoError(t, err)
	for _, a := range addresses {
		if ip, ok := a.(*net.IPNet); ok && ip.IP.To4() != nil && !ip.IP.IsLoopback() {
			return ip.IP.String()
		}
	}
	return "127.0.0.1" // of a machine without a network, whose containers have none either
}
