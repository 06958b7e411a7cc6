package manifest

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestTrust(t *testing.T) {
	python := writeProgram(t, filepath.Join(t.TempDir(), "python"))
	gid := strconv.Itoa(os.Getgid())
	for _, test := range []struct {
		name  string
		path  string // below the test's folder
		mode  os.FileMode
		key   string // of the problem
		want  string // "" if trusted
		trust []string
	}{
		{name: "as it should be", path: "p", mode: 0o755},
		{name: "private", path: "p", mode: 0o700},
		{name: "world-writable directory", path: "p", mode: 0o777, want: "p is world-writable (mode 0777): chmod o-w"},
		{name: "sticky does not help the directory itself", path: "p", mode: 0o777 | os.ModeSticky, want: "is world-writable"},
		{name: "group-writable directory", path: "p", mode: 0o775, want: "name the group in the setting trusted_groups"},
		{name: "trusted group", path: "p", mode: 0o775, trust: []string{gid}},
		{name: "another trusted group", path: "p", mode: 0o775, trust: []string{"no-such-group", "4294967294"}, want: "is writable for group"},
		{name: "world-writable manifest", path: "p/a.toml", mode: 0o666, want: "a.toml is world-writable"},
		{name: "group-writable manifest", path: "p/a.toml", mode: 0o664, want: "a.toml is writable for group"},
		{name: "world-writable parent", path: ".", mode: 0o777, want: "the parent folder"},
		{name: "sticky parent", path: ".", mode: 0o777 | os.ModeSticky},
		{name: "group-writable parent", path: ".", mode: 0o775},
		{name: "world-writable worker", path: "w/worker.py", mode: 0o666, key: "worker", want: "worker.py is world-writable"},
		{name: "world-writable folder of the worker", path: "w", mode: 0o777, key: "worker", want: "w is world-writable"},
		{name: "group-writable folder of the worker", path: "w", mode: 0o775, key: "worker", want: "trusted_groups"},
		{name: "its group is trusted", path: "w", mode: 0o775, trust: []string{gid}},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "top")
			file := write(t, filepath.Join(dir, "p/a.toml"), "worker = '../w/worker.py'\nenv.python = '"+python+"'\n")
			write(t, filepath.Join(dir, "w/worker.py"), "")
			require.NoError(t, os.Chmod(filepath.Join(dir, test.path), test.mode))
			opt := testOptions()
			opt.TrustedGroups = test.trust
			m, _, err := Load(file, opt)
			if test.want == "" {
				require.NoError(t, err)
				assert.Equal(t, dir+"/p/../w/worker.py", m.Worker)
				return
			}
			require.IsType(t, Problems{}, err)
			only(t, err.(Problems), test.key, test.want)
			assert.Contains(t, err.Error(), "not trusted: ")
		})
	}
}

func TestTrustOfOwners(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "a.toml"), command(""))
	opt := testOptions()
	_, _, err := Load(file, opt)
	require.NoError(t, err)
	opt.UID = os.Getuid() + 1
	_, _, err = Load(file, opt)
	if os.Getuid() == 0 {
		require.NoError(t, err, "root's files are trusted by all")
		require.NoError(t, os.Chown(file, 12345, -1))
		_, _, err = Load(file, opt)
		assert.ErrorContains(t, err, "a.toml belongs to uid 12345")
		opt.UID = 12345
		_, _, err = Load(file, opt)
		require.NoError(t, err)
		return
	}
	assert.ErrorContains(t, err, "it must belong to the caller")
}

func TestTrustLooksThroughSymlinks(t *testing.T) {
	top := t.TempDir()
	write(t, filepath.Join(top, "open/p/a.toml"), command(""))
	require.NoError(t, os.Chmod(filepath.Join(top, "open"), 0o777))
	require.NoError(t, os.Symlink("open/p", filepath.Join(top, "link")))
	_, _, err := Load(filepath.Join(top, "link/a.toml"), testOptions())
	assert.ErrorContains(t, err, "the parent folder "+filepath.Join(top, "open")+" is world-writable without the sticky bit")
}

func TestLoadReadsRegularFilesOnly(t *testing.T) {
	dir := t.TempDir()
	fifo := filepath.Join(dir, "fifo.toml")
	require.NoError(t, syscall.Mkfifo(fifo, 0o644))
	_, _, err := Load(fifo, testOptions())
	assert.ErrorContains(t, err, "is no regular file")
	_, _, err = Load(filepath.Join(dir, "none.toml"), testOptions())
	assert.EqualError(t, err, filepath.Join(dir, "none.toml")+": does not exist")
	huge := write(t, filepath.Join(dir, "huge.toml"), "# "+strings.Repeat("x", maxManifest))
	_, _, err = Load(huge, testOptions())
	assert.ErrorContains(t, err, "is larger than 16MiB")
}
