package identity

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"workerd/protocol/prototest"
)

// printIdentity makes the test binary print who it runs as, and nothing else.
const printIdentity = "WORKERD_TEST_PRINT_IDENTITY"

// connectTo makes the test binary connect to a socket, and wait for the end of the connection.
const connectTo = "WORKERD_TEST_CONNECT"

func TestMain(m *testing.M) {
	if path := os.Getenv(connectTo); path != "" {
		c, err := net.Dial("unix", path)
		if err != nil {
			panic(err)
		}
		_, _ = c.Read(make([]byte, 1))
		return
	}
	if os.Getenv(printIdentity) != "" {
		id, err := Current()
		if err != nil {
			panic(err)
		}
		fmt.Printf("%d %d %v %s %s", id.UID, id.GID, id.Groups, id.Name, id.Home)
		return
	}
	goleak.VerifyTestMain(m)
}

// Runs as a user whom the machine does not know, where the tests may change the uid; as the caller where they may not, whose
// entry then answers.
func TestCurrentOfAProcess(t *testing.T) {
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{printIdentity + "=1", "USER=root", "HOME=/nowhere"}
	want := fmt.Sprintf("%d %d ", os.Geteuid(), os.Getegid())
	if os.Geteuid() == 0 {
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 64242, Gid: 64243, Groups: []uint32{64244, 64243}}}
		want = "64242 64243 [64244] uid64242 /nowhere"
	}
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	assert.True(t, strings.HasPrefix(string(out), want), string(out))
}

// fakeDB is a user database of one user and some groups.
type fakeDB struct {
	uid        int
	name, home string
	groups     map[int]string
}

func (d fakeDB) byID(uid int) (string, string, bool) {
	if uid != d.uid || d.name == "" {
		return "", "", false
	}
	return d.name, d.home, true
}

func (d fakeDB) byName(name string) (int, bool) { return d.uid, name == d.name && name != "" }

func (d fakeDB) group(gid int) (string, bool) { n, ok := d.groups[gid]; return n, ok }

func env(kv map[string]string) func(string) string {
	return func(k string) string { return kv[k] }
}

func TestCurrent(t *testing.T) {
	id, err := Current()
	require.NoError(t, err)
	assert.Equal(t, os.Geteuid(), id.UID)
	assert.Equal(t, os.Getegid(), id.GID)
	assert.NotContains(t, id.Groups, id.GID)
	assert.NotEmpty(t, id.Name)
}

func TestResolve(t *testing.T) {
	lab := fakeDB{uid: 1001, name: "alice", home: "/home/alice", groups: map[int]string{1001: "alice", 4321: "lab"}}
	nobody := fakeDB{uid: 5, name: "root"}
	tests := []struct {
		name   string
		uid    int
		groups []int
		db     fakeDB
		env    map[string]string
		want   Identity
	}{
		{"known", 1001, []int{4321, 1001, 27, 4321}, lab, map[string]string{"USER": "bob", "HOME": "/elsewhere"},
			Identity{UID: 1001, GID: 1001, Groups: []int{27, 4321}, Name: "alice", Home: "/home/alice",
				GroupNames: map[int]string{1001: "alice", 4321: "lab"}}},
		{"no passwd entry", 4242, nil, lab, map[string]string{"USER": "carol", "HOME": "/home/carol"},
			Identity{UID: 4242, GID: 1001, Name: "carol", Home: "/home/carol", GroupNames: map[int]string{1001: "alice"}}},
		{"logname", 4242, nil, fakeDB{}, map[string]string{"LOGNAME": "carol"},
			Identity{UID: 4242, GID: 1001, Name: "carol", GroupNames: map[int]string{}}},
		{"USER of somebody else", 4242, nil, nobody, map[string]string{"USER": "root", "HOME": "relative"},
			Identity{UID: 4242, GID: 1001, Name: "uid4242", GroupNames: map[int]string{}}},
		{"USER that is no name", 4242, nil, fakeDB{}, map[string]string{"USER": "a:b"},
			Identity{UID: 4242, GID: 1001, Name: "uid4242", GroupNames: map[int]string{}}},
		{"relative home", 1001, nil, fakeDB{uid: 1001, name: "x", home: "home"}, map[string]string{"HOME": "/h"},
			Identity{UID: 1001, GID: 1001, Name: "x", Home: "/h", GroupNames: map[int]string{}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			assert.Equal(t, tt.want, resolve(tt.uid, 1001, tt.groups, tt.db, env(tt.env)))
		})
	}
}

func TestPasswd(t *testing.T) {
	tests := []struct {
		name string
		id   Identity
		want string
	}{
		{"user", Identity{UID: 1001, GID: 100, Name: "alice", Home: "/home/alice"},
			"root:x:0:0:root:/root:/bin/sh\nalice:x:1001:100:alice:/home/alice:/bin/sh\n"},
		{"root", Identity{UID: 0, GID: 0, Name: "root", Home: "/cache/home"},
			"root:x:0:0:root:/cache/home:/bin/sh\n"},
		{"no home", Identity{UID: 1001, GID: 100, Name: "alice"},
			"root:x:0:0:root:/root:/bin/sh\nalice:x:1001:100:alice:/:/bin/sh\n"},
		{"name that would end the field", Identity{UID: 7, GID: 7, Name: "a:b\nroot:x:0", Home: "/"},
			"root:x:0:0:root:/root:/bin/sh\na_b_root_x_0:x:7:7:a_b_root_x_0:/:/bin/sh\n"},
		{"a second root", Identity{UID: 7, GID: 7, Name: "root", Home: "/"},
			"root:x:0:0:root:/root:/bin/sh\nuid7:x:7:7:uid7:/:/bin/sh\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := tt.id.Passwd()
			require.NoError(t, err)
			assert.Equal(t, tt.want, string(got))
		})
	}
	for _, home := range []string{"/home/a:b", "/home/a\nevil:x:0:0::/:/bin/sh"} {
		_, err := Identity{UID: 1001, Name: "alice", Home: home}.Passwd()
		assert.ErrorContains(t, err, "cannot hold")
	}
}

func TestGroup(t *testing.T) {
	tests := []struct {
		name string
		id   Identity
		want string
	}{
		{"user", Identity{UID: 1001, GID: 100, Groups: []int{27, 4321}, Name: "alice",
			GroupNames: map[int]string{100: "users", 4321: "lab"}},
			"root:x:0:\nusers:x:100:\ngid27:x:27:alice\nlab:x:4321:alice\n"},
		{"root", Identity{Groups: []int{0, 4}, Name: "root", GroupNames: map[int]string{0: "root", 4: "adm"}},
			"root:x:0:\nadm:x:4:root\n"},
		{"names that clash or break", Identity{UID: 5, GID: 5, Groups: []int{6, 8, 9}, Name: "x",
			GroupNames: map[int]string{5: "root", 6: "lab", 8: "lab", 9: "a:b,c"}},
			"root:x:0:\ngid5:x:5:\nlab:x:6:x\ngid8:x:8:x\na_b_c:x:9:x\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { assert.Equal(t, tt.want, string(tt.id.Group())) })
	}
}

func TestPeerCred(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	client, err := net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	require.NoError(t, err)
	defer client.Close()
	server, err := l.AcceptUnix()
	require.NoError(t, err)
	got, err := PeerCred(server)
	require.NoError(t, err)
	assert.Equal(t, Cred{PID: os.Getpid(), UID: os.Geteuid(), GID: os.Getegid()}, got)

	require.NoError(t, server.Close())
	_, err = PeerCred(server)
	assert.Error(t, err)
}

// The groups are those of the peer's process, also where there are more than fit at first.
func TestPeerGroups(t *testing.T) {
	if os.Geteuid() != 0 {
		prototest.Needs(t, "root", "to be in other groups")
	}
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	for _, n := range []int{0, 2, 64, 65, 500} {
		cmd := exec.Command("/proc/self/exe")
		cmd.Env = []string{connectTo + "=" + path}
		cred := &syscall.Credential{}
		want := []int{}
		for i := range n {
			cred.Groups = append(cred.Groups, uint32(70000+i))
			want = append(want, 70000+i)
		}
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: cred}
		require.NoError(t, cmd.Start())
		c, err := l.AcceptUnix()
		require.NoError(t, err)
		got, err := PeerGroups(c)
		require.NoError(t, err)
		assert.Equal(t, want, got)
		require.NoError(t, c.Close())
		require.NoError(t, cmd.Wait())
		_, err = PeerGroups(c)
		assert.Error(t, err)
	}
}
