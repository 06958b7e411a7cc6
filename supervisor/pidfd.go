package supervisor

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"workerd/execenv"
)

// ended is how a process ended.
type ended struct {
	code   int            // -1 for a signal
	signal syscall.Signal // 0 for a code
	known  bool           // false: somebody else reaped it
	oom    bool           // it, or what it had started, was killed for memory
	note   string         // what the engine says beyond that
	mute   bool           // the engine does not answer
}

// outOfMemory says that the worker itself was killed for memory. An engine says only that something in the container was.
func (e ended) outOfMemory() bool { return e.oom && e.signal == unix.SIGKILL }

// process is one child that workerd executed, or one of an earlier workerd that was adopted. Its identity is the pidfd: no
// signal can reach a stranger with its pid.
type process struct {
	pid      int
	start    uint64   // its start time, in clock ticks after boot
	pidfd    *os.File // nil where the kernel has no pidfd: then a thread waits
	children *execenv.Children
	adopted  bool // no child of ours: it is not reaped, and its exit code may be unknown
}

// await blocks until the process has ended, and leaves the zombie: until reap its pid and its session number are nobody
// else's. It holds no thread: the pidfd is waited on through the runtime's poller.
func (p *process) await() {
	if p.pidfd != nil {
		if raw, err := p.pidfd.SyscallConn(); err == nil {
			_ = raw.Read(readable)
		}
	}
	for !p.adopted { // returns at once, but where there is no pidfd: then it blocks a thread
		err := unix.Waitid(unix.P_PID, p.pid, nil, unix.WEXITED|unix.WNOWAIT, nil)
		if !errors.Is(err, unix.EINTR) {
			return
		}
	}
}

// reap takes the exit status of a process that has ended.
func (p *process) reap() ended {
	if p.adopted {
		return p.askKernel()
	}
	e := ended{code: -1}
	p.children.Done(p.pid, func() {
		var ws unix.WaitStatus
		if _, err := unix.Wait4(p.pid, &ws, unix.WNOHANG, nil); err == nil {
			e = endedBy(ws)
		}
	})
	return e
}

// askKernel finds out how a process ended that is no child of ours: as long as its parent has not reaped it /proc tells, from
// Linux 6.15 on the pidfd afterwards. Else nobody can know it.
func (p *process) askKernel() ended {
	if ws, ok := zombieStatus(p.pid, p.start); ok {
		return endedBy(ws)
	}
	e := ended{code: -1}
	raw, err := p.pidfd.SyscallConn()
	if err != nil {
		return e
	}
	_ = raw.Control(func(fd uintptr) {
		info := unix.PidfdInfo{Mask: unix.PIDFD_INFO_EXIT}
		if unix.IoctlPidfdInfo(int(fd), &info) == nil && info.Mask&unix.PIDFD_INFO_EXIT != 0 {
			e = endedBy(unix.WaitStatus(info.Exit_code))
		}
	})
	return e
}

// zombieStatus reads the exit status of a zombie: the last field of its stat, see proc_pid_stat(5).
func zombieStatus(pid int, start uint64) (unix.WaitStatus, bool) {
	st, err := execenv.ReadStat(pid)
	if err != nil || !st.Dead() || st.Start != start {
		return 0, false
	}
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return 0, false
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	const exitCode = 52 - 3 // counted from the state, which is field 3
	if len(fields) <= exitCode {
		return 0, false
	}
	n, err := strconv.ParseUint(fields[exitCode], 10, 32)
	return unix.WaitStatus(n), err == nil
}

func endedBy(ws unix.WaitStatus) ended {
	if ws.Signaled() {
		return ended{code: -1, signal: ws.Signal(), known: true}
	}
	return ended{code: ws.ExitStatus(), known: true}
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
	if st, err := execenv.ReadStat(pid); err == nil {
		p.start = st.Start
	}
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

// adoptProcess takes over a process that an earlier workerd executed, if pid is still the one that started then.
func adoptProcess(pid int, start uint64, children *execenv.Children) (*process, error) {
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	// Only now: the pidfd holds whoever bears the pid, so what is read next is about the same process.
	st, err := execenv.ReadStat(pid)
	if err != nil || st.Start != start || st.Dead() {
		_ = unix.Close(fd)
		return nil, execenv.ErrNoProcess
	}
	return &process{pid: pid, start: start, pidfd: os.NewFile(uintptr(fd), "pidfd"), children: children, adopted: true}, nil
}
