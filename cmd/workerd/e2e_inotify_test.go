package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"workerd/protocol/prototest"
)

// exhaust has workerd run in a user namespace of its own, as the same user, in which a limit of the kernel on inotify is n. Other
// processes of the user notice nothing.
func (e *e2e) exhaust(limit string, n int) {
	e.t.Helper()
	e.attr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: os.Geteuid(), HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: os.Getegid(), HostID: os.Getegid(), Size: 1}},
		AmbientCaps: []uintptr{unix.CAP_SYS_RESOURCE}, // the shell is to set the limit, whoever it runs as
	}
	e.prefix = []string{"/bin/sh", "-c", fmt.Sprintf(`echo %d >/proc/sys/user/max_inotify_%s && exec "$0" "$@"`, n, limit)}
	e.launch("--help")
	if err := e.ended(); err != nil {
		prototest.Needs(e.t, "userns", fmt.Sprint("no user namespace with limits of its own: ", err))
	}
}

// Case 70: without inotify workerd says so once, and edits are seen all the same; so are a worker's output and a deleted socket.
func TestE2ECase70InotifyIsExhausted(t *testing.T) {
	long(t)
	for limit, n := range map[string]int{"instances": 0, "watches": 1} {
		t.Run(limit, func(t *testing.T) {
			t.Parallel()
			e := newE2E(t)
			e.exhaust(limit, n)
			p := e.editable("x", "")
			e.provider("talks", "")
			e.start()
			p.runs(1)
			e.call(e.dial("talks"), "chatter", "{}")
			const said = "file events unavailable"
			require.Equal(t, 1, strings.Count(e.log.String(), said))

			var out lockedBuffer
			follow := e.command("logs", "-f", "-n", "0", "talks")
			follow.Stdout = &out
			require.NoError(t, follow.Start())
			defer func() { _ = follow.Process.Kill(); _ = follow.Wait() }()
			e.until("its output is followed", func() bool { return strings.Count(out.String(), "\n") > 15 })

			for version, write := range []func(*testing.T, string, string){replace, overwrite} {
				begin := time.Now()
				write(t, p.file, p.text(2+version))
				p.runs(2 + version)
				took := time.Since(begin)
				t.Logf("an edit took effect after %s", took.Round(time.Millisecond))
				require.Less(t, took, soon(15*time.Second))
			}
			e.bare("y", "") // a folder that could not be watched either
			e.until("a new provider is seen", func() bool { return e.status("y").State == "ready" })
			require.NoError(t, os.Remove(e.front("x")))
			e.until("its front socket is back", func() bool { _, err := os.Stat(e.front("x")); return err == nil })
			require.Equal(t, 1, strings.Count(e.log.String(), said), "once")
		})
	}
}
