package protocol

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// rightsSpace is the control space for MaxFiles descriptors. The kernel cuts what does not fit.
const rightsSpace = unix.SizeofCmsghdr + 4*MaxFiles

// recvmsg receives without blocking. unix.Recvmsg would do but for the peer's address, which it allocates for each message.
func recvmsg(fd uintptr, p, oob []byte, flags int) (n, oobn, recvflags int, err error) {
	iov := unix.Iovec{Base: unsafe.SliceData(p)}
	iov.SetLen(len(p))
	msg := unix.Msghdr{Iov: &iov}
	msg.SetIovlen(1)
	if len(oob) > 0 {
		msg.Control = unsafe.SliceData(oob)
		msg.SetControllen(len(oob))
	}
	for {
		r, _, errno := unix.RawSyscall(unix.SYS_RECVMSG, fd, uintptr(unsafe.Pointer(&msg)), uintptr(flags|unix.MSG_DONTWAIT|unix.MSG_CMSG_CLOEXEC))
		if errno == 0 {
			return int(r), int(msg.Controllen), int(msg.Flags), nil
		}
		if errno != unix.EINTR {
			return 0, 0, 0, errnoErr(errno)
		}
	}
}

// sendmsg sends without blocking and without SIGPIPE.
func sendmsg(fd uintptr, iov []unix.Iovec, oob []byte) (int, error) {
	msg := unix.Msghdr{Iov: unsafe.SliceData(iov)}
	msg.SetIovlen(len(iov))
	if len(oob) > 0 {
		msg.Control = unsafe.SliceData(oob)
		msg.SetControllen(len(oob))
	}
	for {
		r, _, errno := unix.RawSyscall(unix.SYS_SENDMSG, fd, uintptr(unsafe.Pointer(&msg)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL)
		if errno == 0 {
			return int(r), nil
		}
		if errno != unix.EINTR {
			return 0, errnoErr(errno)
		}
	}
}

// errnoErr boxes the errno of an everyday event without allocating.
func errnoErr(e unix.Errno) error {
	if e == unix.EAGAIN {
		return errAgain
	}
	return e
}

var errAgain error = unix.EAGAIN

// setIov points v at p.
func setIov(v *unix.Iovec, p []byte) {
	v.Base = unsafe.SliceData(p)
	v.SetLen(len(p))
}
