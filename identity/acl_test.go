package identity

import (
	"encoding/hex"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"workerd/protocol/prototest"
)

func TestEncodeACL(t *testing.T) {
	const owner, other, mask = "01000700ffffffff", "20000000ffffffff", "10000500ffffffff"
	for _, c := range []struct {
		name       string
		uids, gids []int
		own        uint32
		want       string
	}{
		{"nobody", nil, nil, 0, owner + "04000000ffffffff" + other},
		{"the file's group", nil, nil, 5, owner + "04000500ffffffff" + other},
		{"sorted, each once", []int{300, 2, 300}, []int{7}, 0,
			owner + "0200050002000000" + "020005002c010000" + "04000000ffffffff" + "0800050007000000" + mask + other},
	} {
		assert.Equal(t, "02000000"+c.want, hex.EncodeToString(encodeACL(c.uids, c.gids, 7, c.own, 5)), c.name)
	}
}

// reads says whether a user can read a file; the kernel decides, by a process of that user.
func reads(t *testing.T, path string, uid uint32, groups ...uint32) bool {
	t.Helper()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	require.NoError(t, err)
	defer null.Close()
	p, err := os.StartProcess("/bin/cat", []string{"cat", path}, &os.ProcAttr{
		Files: []*os.File{null, null, null},
		Sys:   &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: 64000, Groups: groups}},
	})
	require.NoError(t, err)
	state, err := p.Wait()
	require.NoError(t, err)
	return state.Success()
}

func TestGrant(t *testing.T) {
	if os.Geteuid() != 0 {
		prototest.Needs(t, "root", "to be other users")
	}
	dir := t.TempDir()
	for _, d := range []string{dir, filepath.Dir(dir)} {
		require.NoError(t, os.Chmod(d, 0o711))
	}
	check := func(path string, acl bool) {
		require.NoError(t, os.WriteFile(path, []byte("x"), 0o644))
		for _, c := range []struct {
			name       string
			uids, gids []int
			user       bool // 64001
			member     bool // 64002, in 64010
		}{
			{"users and groups", []int{64001}, []int{64010, 64011}, true, true},
			{"one group", nil, []int{64010}, false, true},
			{"nobody", nil, nil, false, false},
			{"a user", []int{64001}, nil, true, false},
			{"nobody again", nil, nil, false, false},
		} {
			err := Grant(path, c.uids, c.gids, 6, 4)
			if !acl && len(c.uids) > 0 {
				require.ErrorIs(t, err, ErrNoACL, c.name)
				c.user, c.member = false, false
			} else {
				require.NoError(t, err, c.name)
			}
			assert.Equal(t, c.user, reads(t, path, 64001), c.name)
			assert.Equal(t, c.member, reads(t, path, 64002, 64010), c.name)
			assert.False(t, reads(t, path, 64003, 64012), c.name)
		}
		info, err := os.Stat(path)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	}
	check(filepath.Join(dir, "f"), true)

	t.Run("without lists", func(t *testing.T) {
		mnt := filepath.Join(dir, "ramfs")
		require.NoError(t, os.Mkdir(mnt, 0o755))
		if err := unix.Mount("none", mnt, "ramfs", 0, "mode=0755"); err != nil {
			prototest.Needs(t, "ramfs", "it keeps no lists: "+err.Error())
		}
		defer func() { require.NoError(t, unix.Unmount(mnt, 0)) }()
		check(filepath.Join(mnt, "f"), false)
	})
}
