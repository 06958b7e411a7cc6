package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"workerd/manifest"
)

// askMounted is a tool server that knows a provider by the folder that is mounted in its container.
const askMounted = `
import json, socket
s = socket.socket(socket.AF_UNIX)
s.connect("/provider/sock")
s.sendall(b'{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":"from a container"}}\n')
print(json.loads(s.makefile().readline())["result"]["text"])
`

// Case 54: a tool server in a container that has mounted the folder of a front socket goes on over a new worker, a socket that was
// deleted, and a new workerd.
func TestLiveCase54TheFolderOfASocketIsMounted(t *testing.T) {
	eachKind(t, engines, func(t *testing.T, l *live) {
		l.bare("x", "")
		l.start()
		pid := l.worker("x").PID
		flags := []string{"--volume", filepath.Dir(l.front("x")) + ":/provider", "--user", fmt.Sprintf("%d:%d", os.Geteuid(), os.Getegid())}
		if l.kind == manifest.Podman {
			flags = append(flags, "--userns", "keep-id", "--stop-timeout", "0")
		}
		id := l.stranger("wdtools-"+l.instance(), flags...)
		asks := func(after string) {
			t.Helper()
			require.Equal(t, "from a container", l.engine("exec", id, "python3", "-c", askMounted), after)
		}
		asks("the start")
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		asks("the worker's death")
		require.NoError(t, os.Remove(l.front("x")))
		l.until("the front socket is back", func() bool { _, err := os.Lstat(l.front("x")); return err == nil })
		asks("the socket was deleted")
		l.kills()
		l.start()
		asks("workerd was killed")
		_, err := l.signalled(syscall.SIGTERM)
		require.NoError(t, err)
		l.start()
		asks("workerd was stopped")
	})
}

// terminal makes a pseudoterminal, of which the slave is workerd's and the master is what people type on.
func (e *e2e) terminal() (master *os.File) {
	e.t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(e.t, err)
	n, err := unix.IoctlGetInt(int(master.Fd()), unix.TIOCGPTN)
	require.NoError(e.t, err)
	require.NoError(e.t, unix.IoctlSetPointerInt(int(master.Fd()), unix.TIOCSPTLCK, 0))
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(e.t, err)
	e.t.Cleanup(func() { _ = slave.Close(); _ = master.Close() })
	e.stdin, e.attr = slave, &syscall.SysProcAttr{Setsid: true, Setctty: true, Ctty: 0}
	return master
}

// Case 37: ctrl-C in workerd's terminal is for workerd alone: it answers what runs and stops its workers. Neither they feel it, nor
// what mounts their images.
func TestLiveCase37InterruptedInATerminal(t *testing.T) {
	eachKind(t, allKinds, func(t *testing.T, l *live) {
		keyboard := l.terminal()
		l.add("x", "")
		l.start()
		w := l.dial("x")
		_, err := w.request("run", `{"code":"import time; time.sleep(4); import decimal; answer = str(decimal.Decimal(7))"}`)
		require.NoError(t, err)
		l.until("it runs", func() bool { return l.status("x").InFlight == 1 })
		_, err = keyboard.Write([]byte{3})
		require.NoError(t, err)
		l.until("it is heard", func() bool { return strings.Contains(l.log.String(), "msg=stopping") })
		m, err := w.answer(nil)
		require.NoError(t, err)
		require.Nil(t, m.Error)
		require.Equal(t, `"7"`, string(m.Result), "it was answered, and could still read its image")
		require.NoError(t, l.ended())
		l.leftNothing()
		logs, err := filepath.Glob(filepath.Join(l.dir, "state/workerd/*/logs/x/*.log"))
		require.NoError(t, err)
		require.Len(t, logs, 1)
		said := string(mustRead(t, logs[0]))
		for _, bad := range []string{"SIGBUS", "Bus error", "Transport endpoint", "KeyboardInterrupt", "Traceback"} {
			require.NotContains(t, said, bad)
		}
	})
}
