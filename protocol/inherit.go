package protocol

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// ErrNotInherited is what Inherit wraps where the path does not lead to the listener that was handed on.
var ErrNotInherited = errors.New("is not the listener of this path")

// SocketID tells the socket at a path from any other that may come to lie there: by device and inode.
func SocketID(path string) (string, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return "", &os.PathError{Op: "lstat", Path: path, Err: err}
	}
	if st.Mode&unix.S_IFMT != unix.S_IFSOCK {
		return "", fmt.Errorf("%s is no socket", path)
	}
	return fmt.Sprintf("%x.%x", st.Dev, st.Ino), nil
}

// Inherit returns the listener that an earlier process made at path and handed on as f: those who connected meanwhile wait in
// its backlog. id is what SocketID said when it was made, since the descriptor itself does not know whether its path still leads
// to it. As with ListenPerm nobody but the caller may be able to replace the path, and closing leaves it. f is left open.
func Inherit(f *os.File, path, id string) (*net.UnixListener, error) {
	d, err := openPrivate(filepath.Dir(path))
	if err != nil {
		return nil, err
	}
	defer d.Close()
	now, err := SocketID(path)
	if errors.Is(err, fs.ErrNotExist) || err == nil && now != id {
		return nil, fmt.Errorf("descriptor %s: %w %s", f.Name(), ErrNotInherited, path)
	}
	if err != nil {
		return nil, err
	}
	l, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("descriptor %s: %w", f.Name(), err)
	}
	ul, ok := l.(*net.UnixListener)
	if !ok {
		_ = l.Close()
		return nil, fmt.Errorf("descriptor %s: %w %s but one of %s", f.Name(), ErrNotInherited, path, l.Addr().Network())
	}
	if listens, err := listening(ul); err != nil || !listens {
		_ = ul.Close()
		return nil, errors.Join(fmt.Errorf("descriptor %s: %w %s: it does not listen", f.Name(), ErrNotInherited, path), err)
	}
	ul.SetUnlinkOnClose(false)
	return ul, nil
}

func listening(l *net.UnixListener) (bool, error) {
	c, err := l.SyscallConn()
	if err != nil {
		return false, err
	}
	var on int
	var get error
	err = c.Control(func(fd uintptr) { on, get = unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_ACCEPTCONN) })
	return on == 1, errors.Join(err, get)
}
