package identity

import (
	"net"
	"os"

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
