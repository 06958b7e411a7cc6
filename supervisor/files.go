package supervisor

import "golang.org/x/sys/unix"

// dupFiles duplicates descriptors for one more receiver. One that cannot be duplicated is left out: the receiver finds
// fewer than the line announces and says so.
func dupFiles(files []int) []int {
	if len(files) == 0 {
		return nil
	}
	out := make([]int, 0, len(files))
	for _, fd := range files {
		if d, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0); err == nil {
			out = append(out, d)
		}
	}
	return out
}

func closeFiles(files []int) {
	for _, fd := range files {
		_ = unix.Close(fd)
	}
}
