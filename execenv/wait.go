package execenv

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// waitPID calls waitid for one child and says whether it had something to report. si_pid is read at its place in the
// kernel's siginfo: after three ints, and on 64-bit machines four bytes of padding.
func waitPID(pid, options int) (bool, error) {
	var info unix.Siginfo
	err := unix.Waitid(unix.P_PID, pid, &info, options, nil)
	if err != nil {
		return false, err
	}
	const word = unsafe.Sizeof(uintptr(0))
	siPID := *(*int32)(unsafe.Add(unsafe.Pointer(&info), max(12, 2*word)))
	return siPID != 0, nil
}

// waitExit blocks until a child has ended, and leaves it to be reaped: until then its pid is nobody else's.
func waitExit(pid int) {
	for {
		if _, err := waitPID(pid, unix.WEXITED|unix.WNOWAIT); err != unix.EINTR {
			return
		}
	}
}
