package main

import (
	"bufio"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/protocol/prototest"
)

// guestScript is a client of another user: it says what became of its connect, and of a request for each line that it reads.
const guestScript = `
import socket, sys
s = socket.socket(socket.AF_UNIX)
try:
    s.connect(sys.argv[1])
except OSError as e:
    print(type(e).__name__, flush=True); sys.exit()
print("connected", flush=True)
for _ in sys.stdin:
    try:
        s.sendall(b'{"jsonrpc":"2.0","id":1,"method":"workerd.ping"}\n')
        answer = s.recv(4096)
    except OSError:
        answer = b""
    print("answered" if b'"result"' in answer else "closed", flush=True)
`

// guest is a client process of another user.
type guest struct {
	t   *testing.T
	in  io.WriteCloser
	out *bufio.Reader
}

// guest starts a client with a uid and groups that connects to a provider; it returns what became of that.
func (e *e2e) guest(slug string, uid uint32, groups ...uint32) (*guest, string) {
	e.t.Helper()
	cmd := exec.Command("/usr/bin/python3", "-c", guestScript, e.front(slug))
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 64999, Groups: groups}}
	cmd.Stderr = os.Stderr
	g := &guest{t: e.t}
	var err error
	g.in, err = cmd.StdinPipe()
	require.NoError(e.t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(e.t, err)
	g.out = bufio.NewReader(out)
	require.NoError(e.t, cmd.Start())
	e.t.Cleanup(func() { _ = g.in.Close(); _ = cmd.Wait() })
	return g, g.says()
}

func (g *guest) says() string {
	g.t.Helper()
	line, err := g.out.ReadString('\n')
	require.NoError(g.t, err)
	return strings.TrimSpace(line)
}

func (g *guest) asks() string {
	g.t.Helper()
	_, err := io.WriteString(g.in, "\n")
	require.NoError(g.t, err)
	return g.says()
}

func mode(t *testing.T, path string) string {
	t.Helper()
	info, err := os.Lstat(path)
	require.NoError(t, err)
	return info.Mode().Perm().String()[1:]
}

// serve.allow lets the users and groups in that it names, and nobody else; an edit of it is in force at once, for those who
// are connected too, and restarts nothing.
func TestE2EAllow(t *testing.T) {
	if os.Geteuid() != 0 {
		prototest.Needs(t, "root", "to be other users")
	}
	e := newE2E(t)
	for _, dir := range []string{e.dir, filepath.Join(e.dir, "run")} {
		require.NoError(t, os.Chmod(dir, 0o711)) // the operator's part: others can pass
	}
	const user, member, other = 64001, 64002, 64003
	const lab = 64010
	open := e.editable("open", "[serve]\nallow = { users = [\"64001\"], groups = [\"64010\"] }\n")
	e.bare("own", "")
	e.start()
	pid := e.ready("open")
	e.ready("own")

	reach := func(slug string, uid uint32, groups ...uint32) string {
		t.Helper()
		g, became := e.guest(slug, uid, groups...)
		if became == "connected" {
			return g.asks()
		}
		return became
	}
	require.Equal(t, "answered", reach("open", user))
	require.Equal(t, "answered", reach("open", member, 5, lab))
	require.Equal(t, "answered", reach("open", other, lab, 7))
	require.Equal(t, "PermissionError", reach("open", other, 7))
	require.Equal(t, "PermissionError", reach("own", user, lab))
	require.Equal(t, "answered", reach("own", 0))
	require.Equal(t, "rwx--x--x", mode(t, e.runtimeDir()))
	require.Equal(t, "rwx------", mode(t, filepath.Dir(e.front("own"))))
	require.Equal(t, "rw-------", mode(t, e.front("own")))
	require.Equal(t, "rw-------", mode(t, filepath.Join(e.runtimeDir(), "workerd.sock")))
	require.Equal(t, "rwx------", mode(t, filepath.Join(e.runtimeDir(), "w")))

	// A socket that everybody can get at, as where there are no access control lists, is still not everybody's.
	require.NoError(t, os.Chmod(filepath.Dir(e.front("own")), 0o711))
	require.NoError(t, os.Chmod(e.front("own"), 0o666))
	g, became := e.guest("own", user, lab)
	require.Equal(t, "connected", became)
	require.Equal(t, "closed", g.asks())

	// Who was connected and is not allowed any more is cut off; who still is goes on.
	gone, _ := e.guest("open", user)
	stays, _ := e.guest("open", member, lab)
	require.Equal(t, "answered", gone.asks())
	open.toml = "[serve]\nallow = { groups = [\"64010\"] }\n"
	replace(t, open.file, open.text(1))
	e.until("the edit is in force", func() bool { return reach("open", user) == "PermissionError" })
	require.Equal(t, "closed", gone.asks())
	require.Equal(t, "answered", stays.asks())
	require.Equal(t, "answered", reach("open", other, lab))
	e.until("the folder has the group", func() bool { return mode(t, filepath.Dir(e.front("open"))) == "rwxr-x---" })

	// A socket that is made again is as open as the one before.
	require.NoError(t, os.Remove(e.front("open")))
	e.until("the socket is back", func() bool { return reach("open", member, lab) == "answered" })

	open.toml = ""
	replace(t, open.file, open.text(1))
	e.until("nobody is allowed", func() bool { return reach("open", other, lab) == "PermissionError" })
	require.Equal(t, "closed", stays.asks())
	require.Equal(t, "rw-------", mode(t, e.front("open")))
	for _, folder := range []string{filepath.Dir(e.front("open")), e.runtimeDir()} {
		e.until("nobody else needs to pass "+folder, func() bool { return mode(t, folder) == "rwx------" })
	}
	require.Equal(t, pid, e.ready("open"), "nothing was restarted")
}
