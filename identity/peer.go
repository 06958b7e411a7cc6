package identity

import (
	"net"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Cred is who is at the other end of a unix socket. PID is 0 where the peer lives in a pid namespace that is not ours.
type Cred struct {
	PID int
	UID int
	GID int
}

// PeerCred returns the credentials that the peer had when it connected (or, for a client, when the server listened).
func PeerCred(c *net.UnixConn) (Cred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Cred{}, err
	}
	var ucred *unix.Ucred
	var soErr error
	err = raw.Control(func(fd uintptr) {
		ucred, soErr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	})
	if err != nil {
		return Cred{}, err
	}
	if soErr != nil {
		return Cred{}, os.NewSyscallError("getsockopt SO_PEERCRED", soErr)
	}
	return Cred{PID: int(ucred.Pid), UID: int(ucred.Uid), GID: int(ucred.Gid)}, nil
}

// PeerGroups returns the supplementary groups that the peer had when it connected.
func PeerGroups(c *net.UnixConn) ([]int, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	gids := make([]uint32, 64)
	var errno unix.Errno
	err = raw.Control(func(fd uintptr) {
		for {
			size := uint32(4 * len(gids))
			_, _, errno = unix.Syscall6(unix.SYS_GETSOCKOPT, fd, unix.SOL_SOCKET, unix.SO_PEERGROUPS,
				uintptr(unsafe.Pointer(&gids[0])), uintptr(unsafe.Pointer(&size)), 0)
			n := int(size) / 4
			if errno != unix.ERANGE || n <= len(gids) {
				gids = gids[:min(n, len(gids))]
				return
			}
			gids = make([]uint32, n) // the kernel has said how many there are
		}
	})
	if err != nil {
		return nil, err
	}
	if errno != 0 {
		return nil, os.NewSyscallError("getsockopt SO_PEERGROUPS", errno)
	}
	out := make([]int, len(gids))
	for i, g := range gids {
		out[i] = int(g)
	}
	return out, nil
}
