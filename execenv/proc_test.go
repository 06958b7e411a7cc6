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

func TestHasMarker(t *testing.T) {
	for _, name := range []string{"WORKERD_WORKER", "APPTAINERENV_WORKERD_WORKER", "SINGULARITYENV_WORKERD_WORKER"} {
		cmd := start(t, &exec.Cmd{Path: "/bin/sleep", Args: []string{"sleep", tag(t)}, Env: []string{"A=1", "LONG=" + strings.Repeat("x", 100_000), name + "=i/ocr/7"}})
		eventually(t, func() bool { _, blank := HasMarker(cmd.Process.Pid, "none"); return !blank }, "it is executed")
		for marker, want := range map[string]bool{"i/ocr/7": true, "i/ocr/77": false, "i/ocr/": false, "1": false} {
			has, blank := HasMarker(cmd.Process.Pid, marker)
			assert.Equal(t, want, has, marker)
			assert.False(t, blank)
		}
		marker, _ := MarkerOf(cmd.Process.Pid)
		assert.Equal(t, "i/ocr/7", marker)
	}
	has, blank := HasMarker(1<<30, "i/ocr/7")
	assert.False(t, has || blank)
	none := start(t, &exec.Cmd{Path: "/bin/sleep", Args: []string{"sleep", tag(t)}, Env: []string{}})
	has, blank = HasMarker(none.Process.Pid, "i/ocr/7")
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
