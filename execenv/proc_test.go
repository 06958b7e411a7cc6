package execenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestReadStat(t *testing.T) {
	self, err := ReadStat(os.Getpid())
	require.NoError(t, err)
	assert.Equal(t, os.Getppid(), self.PPID)
	sid, err := unix.Getsid(0)
	require.NoError(t, err)
	assert.Equal(t, sid, self.Session)
	assert.Equal(t, unix.Getpgrp(), self.PGRP)
	assert.Positive(t, self.Start)
	assert.False(t, self.Kernel)
	assert.False(t, self.NoEnv)
	_, err = ReadStat(1 << 30)
	assert.ErrorIs(t, err, ErrNoProcess)
}

// A program's name is what its file is called, and may hold what looks like the rest of the line.
func TestReadStatOfAnOddName(t *testing.T) {
	sleep, err := exec.LookPath("sleep")
	require.NoError(t, err)
	data, err := os.ReadFile(sleep)
	require.NoError(t, err)
	for _, name := range []string{"a b) S 1 2", "))((", "x\ny) Z 1"} {
		prog := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(prog, data, 0o700))
		cmd := start(t, &exec.Cmd{Path: prog, Args: []string{"sleep", tag(t)}, Env: []string{}})
		var st Stat
		eventually(t, func() bool { // Start returns in the middle of exec
			var err error
			st, err = ReadStat(cmd.Process.Pid)
			return err == nil && st.Comm == name && st.NoEnv
		}, "%q is executed", name)
		assert.Equal(t, os.Getpid(), st.PPID)
		assert.Equal(t, cmd.Process.Pid, st.PID)
		assert.Equal(t, cmd.Process.Pid, st.Session)
		die(t, cmd)
		st, err = ReadStat(cmd.Process.Pid)
		require.NoError(t, err)
		assert.True(t, st.Dead())
	}
}

func TestParseStatRefuses(t *testing.T) {
	good, err := os.ReadFile("/proc/self/stat")
	require.NoError(t, err)
	_, err = parseStat(good)
	require.NoError(t, err)
	for _, bad := range []string{"", "1", "1 (x", "1 (x) S", "(x) S 1", "1 (x) S" + strings.Repeat(" y", 60), ") 1 ("} {
		_, err := parseStat([]byte(bad))
		assert.Error(t, err, bad)
	}
}

func TestChildPIDs(t *testing.T) {
	tg := tag(t)
	cmd, _ := worker(t, instance+"/ocr/9", `sleep $1 & sleep $1 & wait`, tg)
	count(t, tg, 2)
	assert.ElementsMatch(t, sleeps(tg), ChildPIDs(cmd.Process.Pid))
	assert.ElementsMatch(t, sleeps(tg), childrenByScan(cmd.Process.Pid), "kernels without the children files")
	assert.Empty(t, ChildPIDs(1<<30))
}

func TestHasEnv(t *testing.T) {
	cmd := start(t, &exec.Cmd{Path: "/bin/sleep", Args: []string{"sleep", tag(t)}, Env: []string{"A=1", "LONG=" + strings.Repeat("x", 100_000), "B=2=3"}})
	eventually(t, func() bool { _, blank := HasEnv(cmd.Process.Pid, ""); return !blank }, "it is executed")
	for entry, want := range map[string]bool{"A=1": true, "B=2=3": true, "A=": false, "A=12": false, "=1": false, "B=2": false, "": false} {
		has, blank := HasEnv(cmd.Process.Pid, entry)
		assert.Equal(t, want, has, entry)
		assert.False(t, blank)
	}
	has, blank := HasEnv(1<<30, "A=1")
	assert.False(t, has || blank)
	none := start(t, &exec.Cmd{Path: "/bin/sleep", Args: []string{"sleep", tag(t)}, Env: []string{}})
	has, blank = HasEnv(none.Process.Pid, "A=1")
	assert.False(t, has)
	assert.True(t, blank)
}

func TestBootID(t *testing.T) {
	a, err := BootID()
	require.NoError(t, err)
	b, err := BootID()
	require.NoError(t, err)
	assert.Equal(t, a, b)
	assert.Len(t, a, 36)
}

func TestParseEnviron(t *testing.T) {
	assert.Equal(t, environ{"A": "2", "B": "", "=C": "x", "D": "=y="},
		parseEnviron([]string{"A=1", "A=2", "B=", "=C=x", "D==y=", "NOTHING", "", "="}))
	assert.Equal(t, []string{"A=1", "B=x=y"}, environ{"B": "x=y", "A": "1"}.list())
}
