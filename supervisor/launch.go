package supervisor

import (
	"os"
	"path/filepath"
	"syscall"

	"workerd/execenv"
)

// launch executes a command in a session of its own with its output appended to log, and returns at once after the exec.
// The caller's signals reach no worker, and a worker's kill(0) reaches nobody else.
func launch(cmd execenv.Command, log *os.File, children *execenv.Children) (*process, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer func() { _ = null.Close() }()
	pidfd := -1
	pid, err := children.Start(func() (int, error) {
		return syscall.ForkExec(cmd.Path, cmd.Argv, &syscall.ProcAttr{
			Dir:   cmd.Dir,
			Env:   cmd.Env,
			Files: []uintptr{null.Fd(), log.Fd(), log.Fd()},
			Sys:   &syscall.SysProcAttr{Setsid: true, PidFD: &pidfd},
		})
	})
	if err != nil {
		return nil, err
	}
	return newProcess(pid, pidfd, children), nil
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
