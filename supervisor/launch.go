package supervisor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"workerd/execenv"
)

// launch executes a command in a session of its own with its output appended to log, and returns at once after the exec.
// The caller's signals reach no worker, and a worker's kill(0) reaches nobody else. With a cgroup it is born in that: there is no
// moment in which something that it forks could be elsewhere.
func launch(cmd execenv.Command, log *os.File, group *execenv.Cgroup, children *execenv.Children) (*process, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer func() { _ = null.Close() }()
	pidfd := -1
	attr := &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd}
	if group != nil {
		dir, err := group.Open()
		if err != nil {
			return nil, err
		}
		defer func() { _ = dir.Close() }()
		attr.UseCgroupFD, attr.CgroupFD = true, int(dir.Fd())
	}
	pid, err := children.Start(func() (int, error) {
		return syscall.ForkExec(cmd.Path, cmd.Argv, &syscall.ProcAttr{
			Dir:   cmd.Dir,
			Env:   cmd.Env,
			Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
			Sys:   attr,
		})
	})
	if err != nil {
		return nil, err
	}
	offerToOOM(pid)
	return newProcess(pid, pidfd, children), nil
}

// oomBehind is how far a worker stands before workerd where the machine's memory ends, in thousandths of that memory.
const oomBehind = 100

// offerToOOM makes the kernel kill a worker, which is started again, rather than workerd. What the worker forks inherits it. Where it
// may not be set (a setuid runner) all stays as it is.
func offerToOOM(pid int) {
	own, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(own)))
	if err != nil {
		return
	}
	file := "/proc/" + strconv.Itoa(pid) + "/oom_score_adj"
	_ = os.WriteFile(file, []byte(strconv.Itoa(min(n+oomBehind, 1000))), 0)
}

// paths are the places of one worker.
type paths struct {
	socket string // <runtime>/w/<slug>/<n>.sock
	tmp    string // its TMPDIR
	log    string // <state>/logs/<slug>/<n>.log
}

// open makes the folder of the socket and opens the log.
func (p paths) open() (*os.File, error) {
	for _, dir := range []string{filepath.Dir(p.socket), filepath.Dir(p.log)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	_ = os.Remove(p.socket) // numbers are not used twice, so this is never a living worker's
	return os.OpenFile(p.log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
}
