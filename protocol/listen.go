package protocol

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// MaxSocketPath is how many bytes of a unix socket's path the kernel takes (sun_path less its closing zero).
const MaxSocketPath = 107

// ErrSocketInUse is what Listen wraps where somebody listens on the path already.
var ErrSocketInUse = errors.New("another process listens there")

// PathTooLongError is a socket path beyond MaxSocketPath.
type PathTooLongError struct{ Path string }

// Error names the path, its length and the limit.
func (e *PathTooLongError) Error() string {
	return fmt.Sprintf("socket path %s has %d bytes and the kernel takes %d: use a shorter directory", e.Path, len(e.Path), MaxSocketPath)
}

// CheckSocketPath refuses a path that the kernel would not take whole.
func CheckSocketPath(path string) error {
	if len(path) > MaxSocketPath {
		return &PathTooLongError{Path: path}
	}
	return nil
}

// Listen is ListenPerm for the caller alone (0600).
func Listen(path string) (*net.UnixListener, error) { return ListenPerm(path, 0o600) }

// ListenPerm is ListenReady for those whom perm lets.
func ListenPerm(path string, perm fs.FileMode) (*net.UnixListener, error) {
	return ListenReady(path, perm, nil)
}

// ListenReady makes a stream listener at path, whose directory must exist, belong to the caller and be writable by nobody
// else.
//
// The path accepts from the moment it exists: the socket is bound under another name of the same length, listened on,
// then renamed over what a dead process left. A live listener, or anything that is not a socket, is refused and left
// as it is. The permissions are set on the descriptor before the bind, so that there is neither a moment with others nor
// a change of the process-wide umask, which a child started at the same time would inherit. What more is to be done to the
// socket before it has its name is done by ready, under the other name.
//
// Closing the listener leaves the path: whoever listens also removes it.
func ListenReady(path string, perm fs.FileMode, ready func(temp string) error) (*net.UnixListener, error) {
	if err := CheckSocketPath(path); err != nil {
		return nil, err
	}
	dir, base := filepath.Split(filepath.Clean(path))
	d, err := openPrivate(dir)
	if err != nil {
		return nil, err
	}
	defer d.Close()
	// Two that start at once would both find the path free. The lock goes with the descriptor; where the file system
	// has none, only the check below remains.
	_ = unix.Flock(int(d.Fd()), unix.LOCK_EX)

	if err := checkFree(path); err != nil {
		return nil, err
	}
	temp := filepath.Join(dir, tempName(base))
	if err := removeSocket(temp); err != nil {
		return nil, err
	}
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var chmod error
		err := c.Control(func(fd uintptr) { chmod = unix.Fchmod(int(fd), uint32(perm.Perm())) })
		return errors.Join(err, chmod)
	}}
	l, err := lc.Listen(context.Background(), "unix", temp)
	if err != nil {
		return nil, explainBind(dir, err)
	}
	ul := l.(*net.UnixListener)
	ul.SetUnlinkOnClose(false) // it would unlink the temporary name
	if ready != nil {
		err = ready(temp)
	}
	if err == nil {
		err = os.Rename(temp, path)
	}
	if err != nil {
		ul.Close()
		os.Remove(temp)
		return nil, err
	}
	return ul, nil
}

// openPrivate opens a directory in which nobody but the caller (and root) can put or replace names.
func openPrivate(dir string) (*os.File, error) {
	d, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("socket directory: %w", err)
	}
	if err := checkPrivate(d); err != nil {
		d.Close()
		return nil, err
	}
	return d, nil
}

func checkPrivate(d *os.File) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(d.Fd()), &st); err != nil {
		return fmt.Errorf("socket directory %s: %w", d.Name(), err)
	}
	if uid := os.Geteuid(); int(st.Uid) != uid {
		return fmt.Errorf("socket directory %s belongs to uid %d, not to uid %d: whoever owns it could replace the socket", d.Name(), st.Uid, uid)
	}
	if st.Mode&0o022 != 0 {
		return fmt.Errorf("socket directory %s has mode %04o: others could replace the socket; chmod go-w it", d.Name(), st.Mode&0o7777)
	}
	return nil
}

// checkFree says whether path may be taken: absent, or a socket that nobody listens on.
func checkFree(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is in the way: not a socket (%s), so it is not removed", path, fi.Mode())
	}
	c, err := net.DialTimeout("unix", path, time.Second)
	switch {
	case err == nil:
		c.Close()
		return fmt.Errorf("%s: %w", path, ErrSocketInUse)
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist):
		return nil
	default: // a full backlog, or a socket that we may not connect to, is no proof of death
		return fmt.Errorf("%s: %w: %w", path, ErrSocketInUse, err)
	}
}

// tempName is another name of the same length, always the same one, so that a crash in between leaves nothing that adds up.
func tempName(base string) string {
	first := "," // not ".": with what follows that could be the directory itself
	if base[0] == ',' {
		first = ";"
	}
	return first + base[1:]
}

func removeSocket(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && fi.Mode().Type() != fs.ModeSocket {
		return fmt.Errorf("%s is in the way: not a socket (%s), so it is not removed", path, fi.Mode())
	}
	if err != nil {
		return err
	}
	return os.Remove(path)
}

// explainBind names the file system where a bind failed for its sake: network and FUSE file systems often refuse sockets.
func explainBind(dir string, err error) error {
	if errors.Is(err, syscall.EOPNOTSUPP) || errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.EINVAL) {
		name, _ := FileSystem(dir)
		return fmt.Errorf("%w (the file system of %s is %s; sockets need a local one)", err, dir, name)
	}
	return err
}

// fileSystems names the magic numbers of statfs(2); network is true where a socket is visible on machines that cannot
// connect to it, or cannot be made at all.
var fileSystems = map[int64]struct {
	name    string
	network bool
}{
	unix.EXT4_SUPER_MAGIC:      {"ext4", false},
	unix.XFS_SUPER_MAGIC:       {"xfs", false},
	unix.BTRFS_SUPER_MAGIC:     {"btrfs", false},
	unix.TMPFS_MAGIC:           {"tmpfs", false},
	unix.OVERLAYFS_SUPER_MAGIC: {"overlayfs", false},
	0x2fc12fc1:                 {"zfs", false},
	unix.NFS_SUPER_MAGIC:       {"nfs", true},
	unix.FUSE_SUPER_MAGIC:      {"fuse", true},
	unix.V9FS_MAGIC:            {"9p", true},
	unix.CEPH_SUPER_MAGIC:      {"ceph", true},
	unix.SMB2_SUPER_MAGIC:      {"smb2", true},
	0xff534d42:                 {"cifs", true},
	unix.AFS_SUPER_MAGIC:       {"afs", true},
	0x0bd00bd0:                 {"lustre", true},
	0x47504653:                 {"gpfs", true},
	0x19830326:                 {"beegfs", true},
}

// FileSystem names the file system that path is on, and says whether it is one of those (network, FUSE) on which sockets
// and locks cannot be relied on.
func FileSystem(path string) (name string, network bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(path, &st); err != nil {
		return "unknown", false
	}
	if f, ok := fileSystems[int64(st.Type)]; ok {
		return f.name, f.network
	}
	return fmt.Sprintf("%#x", st.Type), false
}
