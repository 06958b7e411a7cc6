package supervisor

import (
	"errors"
	"os"
	"syscall"

	"golang.org/x/sys/unix"

	"workerd/execenv"
)

// ended is how a process ended.
type ended struct {
	code   int            // -1 for a signal
	signal syscall.Signal // 0 for a code
	known  bool           // false: somebody else reaped it
}

// process is one child that workerd executed. Its identity is the pidfd: no signal can reach a stranger with its pid.
type process struct {
	pid      int
	pidfd    *os.File // nil where the kernel has no pidfd: then a thread waits
	children *execenv.Children
}

// await blocks until the process has ended, and leaves the zombie: until reap its pid and its session number are nobody
// else's. It holds no thread: the pidfd is waited on through the runtime's poller.
func (p *process) await() {
	if p.pidfd != nil {
		if raw, err := p.pidfd.SyscallConn(); err == nil {
			_ = raw.Read(readable)
		}
	}
	for { // returns at once, but where there is no pidfd: then it blocks a thread
		err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// reap takes the exit status of a process that has ended.
func (p *process) reap() ended {
	e := ended{code: -1}
	p.children.Done(p.pid, func() {
		var ws unix.WaitStatus
		if _, err := unix.Wait4(p.pid, &ws, unix.WNOHANG, nil); err != nil {
			return
		}
		e.known = true
		if ws.Signaled() {
			e.signal = ws.Signal()
		} else {
			e.code = ws.ExitStatus()
		}
	})
	return e
}

// readable is polled once each time the poller wakes: the process behind a pidfd has ended when it is readable.
func readable(fd uintptr) bool {
	fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(fds, 0)
	return err == nil && n > 0 || err != nil && !errors.Is(err, unix.EINTR)
}

// signal sends sig to the process itself, never to a group. A process that is gone is no error.
func (p *process) signal(sig syscall.Signal) {
	if p.pidfd == nil {
		_ = unix.Kill(p.pid, sig) // not reaped yet, so the pid is still its own
		return
	}
	if raw, err := p.pidfd.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), sig, nil, 0) })
	}
}

// release closes the pidfd. Only after reap.
func (p *process) release() {
	if p.pidfd != nil {
		_ = p.pidfd.Close()
	}
}

// newProcess wraps a freshly forked pid and the descriptor that clone gave for it (-1 where the kernel gave none).
func newProcess(pid, pidfd int, children *execenv.Children) *process {
	p := &process{pid: pid, children: children}
	if pidfd < 0 {
		return p
	}
	// Only a non-blocking descriptor is taken into the runtime's poller.
	if err := unix.SetNonblock(pidfd, true); err != nil {
		_ = unix.Close(pidfd)
		return p
	}
	p.pidfd = os.NewFile(uintptr(pidfd), "pidfd")
	return p
}
