package execenv

import (
	"fmt"
	"path/filepath"
	"strconv"
)

// SocketLimit is how many bytes the path of a unix socket may have: sun_path has 108, one of them the NUL at the end.
const SocketLimit = 107

// WorkerSocket returns the path of a worker's socket, or why it cannot be bound.
func WorkerSocket(runtimeDir, slug string, n int64) (string, error) {
	p := filepath.Join(runtimeDir, "w", slug, strconv.FormatInt(n, 10)+".sock")
	return p, CheckSocket(p)
}

// FrontSocket returns the path of a provider's front socket, or why it cannot be bound.
func FrontSocket(runtimeDir, slug string) (string, error) {
	p := filepath.Join(runtimeDir, "front", slug, "sock")
	return p, CheckSocket(p)
}

// CheckSocket refuses a path that the kernel would refuse to bind, or, worse, some library would cut short.
func CheckSocket(path string) error {
	if len(path) <= SocketLimit {
		return nil
	}
	return &Error{Msg: fmt.Sprintf("socket path %s has %d bytes, the kernel's limit is %d: choose a shorter runtime_dir",
		path, len(path), SocketLimit)}
}

// checkSockets checks the sockets of a provider before anything starts; workers are numbered on and on, so there must be
// room for a long number.
func checkSockets(runtimeDir, slug string) error {
	if _, err := FrontSocket(runtimeDir, slug); err != nil {
		return err
	}
	_, err := WorkerSocket(runtimeDir, slug, 9_999_999)
	return err
}
