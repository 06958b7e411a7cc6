package execenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

func TestNewTmp(t *testing.T) {
	h := testHost(t)
	p := testPlanner(h)
	tmp, err := p.NewTmp(7)
	require.NoError(t, err)
	assert.Equal(t, h.ScratchDir+"/wd-0a1b2c3d-7", tmp)
	fi, err := os.Stat(tmp)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o700), fi.Mode().Perm())
	// A name that is taken is not used: it may be anybody's.
	other, err := p.NewTmp(7)
	require.NoError(t, err)
	assert.Equal(t, tmp+".1", other)
	assert.LessOrEqual(t, len(other), TmpLimit)
}

func TestSweepTmp(t *testing.T) {
	h := testHost(t)
	h.ID.UID = os.Geteuid()
	p := testPlanner(h)
	var tmp [3]string
	for i := range tmp {
		var err error
		tmp[i], err = p.NewTmp(int64(i))
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(filepath.Join(tmp[i], "sub"), 0o700))
		require.NoError(t, os.Chmod(filepath.Join(tmp[i], "sub"), 0o500))
	}
	other := filepath.Join(h.ScratchDir, "wd-ffffffff-1") // another instance's
	file := filepath.Join(h.ScratchDir, "wd-0a1b2c3d-9")
	require.NoError(t, os.Mkdir(other, 0o700))
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	p.SweepTmp([]string{tmp[1]})
	assert.NoDirExists(t, tmp[0])
	assert.DirExists(t, tmp[1])
	assert.NoDirExists(t, tmp[2])
	assert.DirExists(t, other)
	assert.FileExists(t, file)
	h.ID.UID++
	testPlanner(h).SweepTmp(nil)
	assert.DirExists(t, tmp[1], "somebody else's")
}

func TestScratchCandidates(t *testing.T) {
	long := "/" + strings.Repeat("x", 60)
	tests := []struct {
		name    string
		scratch string
		environ []string
		want    []string
	}{
		{"setting alone", "/s", []string{"TMPDIR=/t"}, []string{"/s"}},
		{"slurm first", "", []string{"TMPDIR=/t", "SLURM_TMPDIR=/j"}, []string{"/j", "/t", "/c/tmp", "/tmp"}},
		{"relative is none", "", []string{"TMPDIR=t"}, []string{"/c/tmp", "/tmp"}},
		{"long stays a candidate", "", []string{"TMPDIR=" + long}, []string{long, "/c/tmp", "/tmp"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := Host{CacheDir: "/c", ScratchDir: tt.scratch, Environ: tt.environ, Instance: "0a1b2c3d"}
			assert.Equal(t, tt.want, scratchDirs(h))
		})
	}
	assert.Equal(t, "/c/tmp", scratch(Host{CacheDir: "/c", Environ: []string{"TMPDIR=" + long}, Instance: "0a1b2c3d"}), "the plan shows the one that is used")
}

func TestNewTmpFallsBack(t *testing.T) {
	h := testHost(t, "TMPDIR=/"+strings.Repeat("x", 60), "SLURM_TMPDIR=/proc/nowhere")
	scratch := h.ScratchDir
	h.ScratchDir = ""
	tmp, err := testPlanner(h).NewTmp(1)
	require.NoError(t, err)
	assert.Equal(t, filepath.Join(h.CacheDir, "tmp", "wd-0a1b2c3d-1"), tmp)

	h.ScratchDir = scratch + strings.Repeat("y", 60)
	_, err = testPlanner(h).NewTmp(1)
	assert.ErrorContains(t, err, "setting scratch_dir")
	assert.ErrorContains(t, err, h.ScratchDir+" would have more than 70 bytes")
}

// What a worker leaves in its TMPDIR goes, also what it took its own write bit from, and nothing that a symlink leads to.
func TestRemoveTmp(t *testing.T) {
	base := t.TempDir()
	outside := filepath.Join(base, "outside")
	require.NoError(t, os.Mkdir(outside, 0o500))
	tmp := filepath.Join(base, "tmp")
	closed := filepath.Join(tmp, "a", "closed")
	require.NoError(t, os.MkdirAll(closed, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(closed, "f"), nil, 0o400))
	require.NoError(t, os.Symlink(outside, filepath.Join(tmp, "link")))
	require.NoError(t, os.Chmod(closed, 0o500))
	require.NoError(t, os.Chmod(filepath.Join(tmp, "a"), 0o100))
	require.NoError(t, removeAsUser(t, tmp))
	_, err := os.Lstat(tmp)
	require.ErrorIs(t, err, os.ErrNotExist)
	fi, err := os.Stat(outside)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o500), fi.Mode().Perm())
	assert.NoError(t, RemoveTmp(tmp), "gone already")
}

// removeAsUser runs RemoveTmp as a user whom the mode bits bind: root gives the tree away first and lets a child do it.
func removeAsUser(t *testing.T, tmp string) error {
	t.Helper()
	if os.Geteuid() != 0 {
		return RemoveTmp(tmp)
	}
	const uid = 64242
	for p := filepath.Dir(tmp); p != "/tmp" && p != "/"; p = filepath.Dir(p) {
		require.NoError(t, os.Chmod(p, 0o711))
	}
	require.NoError(t, filepath.WalkDir(filepath.Dir(tmp), func(p string, _ os.DirEntry, _ error) error { return os.Lchown(p, uid, uid) }))
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = []string{helperRemove + "=" + tmp}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uid, Gid: uid}}
	var out strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &out
	var err error
	pid, startErr := kids.Start(func() (int, error) {
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
	require.NoError(t, startErr)
	kids.Done(pid, func() { err = cmd.Wait() })
	if err != nil {
		return fmt.Errorf("%w: %s", err, out.String())
	}
	return nil
}

func TestWriteSDK(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "sdk", "1")
	one := fstest.MapFS{"workerd.py": {Data: []byte("one")}}
	require.NoError(t, WriteSDK(one, dir))
	file := filepath.Join(dir, "workerd.py")
	first, err := os.Stat(file)
	require.NoError(t, err)
	require.NoError(t, WriteSDK(one, dir))
	second, err := os.Stat(file)
	require.NoError(t, err)
	assert.True(t, os.SameFile(first, second), "what is right already is not written again")

	// Readers see one content or the other, never half of one.
	big := [][]byte{[]byte(strings.Repeat("a", 1<<20)), []byte(strings.Repeat("b", 1<<20))}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	wg.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			default:
				assert.NoError(t, WriteSDK(fstest.MapFS{"workerd.py": {Data: big[i%2]}}, dir))
			}
		}
	})
	for range 100 {
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		if string(got) != "one" {
			require.Len(t, got, 1<<20)
			require.Equal(t, got[0], got[len(got)-1])
		}
	}
	close(stop)
	wg.Wait()
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Len(t, names, 1, "nothing is left behind")
}

func TestFingerprintKey(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	var wg sync.WaitGroup
	keys := make([][]byte, 16)
	for i := range keys {
		wg.Go(func() {
			key, err := fingerprintKey(state)
			assert.NoError(t, err)
			keys[i] = key
		})
	}
	wg.Wait()
	for _, k := range keys {
		require.Len(t, k, keySize)
		assert.Equal(t, keys[0], k, "all use the key of the one that was first")
	}
	names, err := os.ReadDir(state)
	require.NoError(t, err)
	require.Len(t, names, 1)
	path := filepath.Join(state, names[0].Name())
	fi, err := os.Stat(path)
	require.NoError(t, err)
	assert.Equal(t, os.FileMode(0o600), fi.Mode().Perm())

	require.NoError(t, os.Chmod(path, 0o644))
	_, err = fingerprintKey(state)
	assert.ErrorContains(t, err, "must be a file of your own with mode 0600 (mode -rw-r--r--")
	require.NoError(t, os.Chmod(path, 0o600))
	require.NoError(t, os.WriteFile(path, []byte("short"), 0o600))
	_, err = fingerprintKey(state)
	assert.ErrorContains(t, err, "is damaged (5 bytes instead of 32)")
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Symlink("/etc/hostname", path))
	_, err = fingerprintKey(state)
	assert.Error(t, err, "no symlink is followed")
}

func TestReadSecret(t *testing.T) {
	file := filepath.Join(t.TempDir(), "s")
	read := func(content string) (string, error) {
		require.NoError(t, os.WriteFile(file, []byte(content), 0o600))
		return readSecret("S", manifest.Secret{File: file}, nil)
	}
	for content, want := range map[string]string{"": "", "\n": "", "a": "a", "a\n": "a", "a\n\n": "a\n", " a \r\n": " a \r", "l1\nl2\n": "l1\nl2"} {
		got, err := read(content)
		require.NoError(t, err)
		assert.Equal(t, want, got, "%q", content)
	}
	_, err := read("a\x00b")
	assert.ErrorContains(t, err, "NUL")
	_, err = read(strings.Repeat("x", secretLimit+10))
	assert.ErrorContains(t, err, "larger than a variable can be")
}
