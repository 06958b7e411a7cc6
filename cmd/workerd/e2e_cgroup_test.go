package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"workerd/protocol/prototest"
)

// service makes a cgroup as systemd does for a service with Delegate=yes, in which workerd is started from now on. It skips the
// test where none can be made.
func (e *e2e) service() string {
	e.t.Helper()
	dir, err := e.delegated()
	if err != nil {
		prototest.Needs(e.t, "cgroup2", fmt.Sprint("none can be made here: ", err))
	}
	return dir
}

// delegated is service without the skip.
func (e *e2e) delegated() (string, error) {
	e.t.Helper()
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(e.t, err)
	mount := ""
	for line := range strings.Lines(string(mounts)) {
		if before, after, _ := strings.Cut(line, " - "); strings.HasPrefix(after, "cgroup2 ") {
			mount = strings.Fields(before)[4]
		}
	}
	if mount == "" {
		return "", errors.New("no cgroup2 is mounted")
	}
	dir, err := os.MkdirTemp(mount, "wdtest-")
	if err != nil {
		return "", err
	}
	folder, err := os.Open(dir)
	require.NoError(e.t, err)
	require.NoError(e.t, unix.Setxattr(dir, "user.delegate", []byte("1"), 0))
	e.attr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: int(folder.Fd())}
	e.t.Cleanup(func() {
		e.end()
		_ = folder.Close()
		if e.t.Failed() { // what it left is not to stay
			_ = os.WriteFile(filepath.Join(dir, "cgroup.kill"), []byte("1"), 0)
		}
		left, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
		require.Equal(e.t, []string{filepath.Join(dir, "workerd/cgroup.procs")}, left, "the workers' cgroups are gone")
		require.NoError(e.t, os.Remove(filepath.Join(dir, "workerd")))
		require.NoError(e.t, os.Remove(dir))
	})
	return dir, nil
}

// members lists the pids in the cgroups below a service's that belong to a provider's workers, a cgroup a line.
func members(dir, slug string) (all []string) {
	files, _ := filepath.Glob(filepath.Join(dir, "workerd-*-"+slug+"-*", "cgroup.procs"))
	for _, f := range files {
		data, _ := os.ReadFile(f)
		all = append(all, strings.Join(strings.Fields(string(data)), " "))
	}
	return all
}

// A workerd that has a delegated cgroup moves into a leaf of it and gives each worker one of its own. The next workerd finds them
// again: it adopts the worker with its cgroup, and ends what is in those that are of no use.
func TestE2ECgroups(t *testing.T) {
	e := newE2E(t)
	dir := e.service()
	e.editable("kept", "[limits]\npids = 500\n")
	gone := e.editable("gone", "")
	e.start()
	pid, other := e.ready("kept"), e.ready("gone")
	require.Equal(t, []string{fmt.Sprint(pid)}, members(dir, "kept"))
	require.Equal(t, []string{fmt.Sprint(other)}, members(dir, "gone"))
	own, err := os.ReadFile(filepath.Join(dir, "workerd/cgroup.procs"))
	require.NoError(t, err)
	require.Contains(t, strings.Fields(string(own)), fmt.Sprint(e.pid()))
	procs, err := os.ReadFile(filepath.Join(dir, "cgroup.procs"))
	require.NoError(t, err)
	require.Empty(t, procs, "a cgroup whose children have controllers may hold no process")

	e.killsRecorded()
	require.True(t, alive(pid) && alive(other))
	require.NoError(t, os.Remove(gone.file))
	e.start()
	require.Equal(t, pid, e.ready("kept"), "adopted")
	require.Equal(t, []string{fmt.Sprint(pid)}, members(dir, "kept"))
	e.until("what no manifest wants is gone", func() bool { return !alive(other) && len(members(dir, "gone")) == 0 })

	// Its cgroup is found by the record: what hides in it dies with the adopted worker.
	hidden := hide(t, filepath.Dir(mustGlob(t, filepath.Join(dir, "workerd-*-kept-*", "cgroup.procs"))))
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	e.until("the adopted worker's cgroup is emptied and removed", func() bool {
		m := members(dir, "kept")
		return !alive(hidden) && len(m) == 1 && m[0] != "" && m[0] != fmt.Sprint(pid)
	})

	// A cgroup that was left with something in it and has no record is emptied at the start.
	e.until("the next worker is ready and recorded", func() bool {
		st := e.status("kept")
		found, _ := filepath.Glob(filepath.Join(e.runtimeDir(), "w/kept/*.json"))
		return st.State == "ready" && st.Workers[0].PID != pid && len(found) == 1
	})
	_, err = e.signalled(syscall.SIGKILL)
	require.Error(t, err)
	record := mustGlob(t, filepath.Join(e.runtimeDir(), "w/kept/*.json"))
	require.NoError(t, os.Remove(record))
	last := members(dir, "kept")
	hidden = hide(t, filepath.Dir(mustGlob(t, filepath.Join(dir, "workerd-*-kept-*", "cgroup.procs"))))
	e.start()
	e.ready("kept")
	require.False(t, alive(hidden))
	require.NotEqual(t, last, members(dir, "kept"))

	warned := e.status("kept").Warnings
	text, err := json.Marshal(warned)
	require.NoError(t, err)
	if has, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers")); strings.Contains(string(has), "pids") {
		require.Empty(t, warned)
	} else {
		require.Contains(t, string(text), "limits.pids cannot be enforced where this runs, since ")
	}
	e.stop()
	require.Empty(t, members(dir, "kept"))
}

func mustGlob(t *testing.T, pattern string) string {
	t.Helper()
	found, err := filepath.Glob(pattern)
	require.NoError(t, err)
	require.Len(t, found, 1, pattern)
	return found[0]
}

// hide starts a process in a cgroup that nothing else connects with workerd.
func hide(t *testing.T, cgroup string) int {
	t.Helper()
	folder, err := os.Open(cgroup)
	require.NoError(t, err)
	defer folder.Close()
	p, err := os.StartProcess("/bin/sleep", []string{"sleep", "600"}, &os.ProcAttr{
		Env: []string{}, Sys: &syscall.SysProcAttr{Setsid: true, UseCgroupFD: true, CgroupFD: int(folder.Fd())},
	})
	require.NoError(t, err)
	t.Cleanup(func() { _ = p.Kill(); _, _ = p.Wait() })
	return p.Pid
}
