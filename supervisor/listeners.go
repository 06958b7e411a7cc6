package supervisor

import (
	"net"

	"workerd/protocol"
)

// Listeners makes the listeners of the front sockets, each under a name, and knows what becomes of them when this process ends.
type Listeners interface {
	// Listen makes the listener of a path, or returns the one that the workerd before left open. What more is to be done to its
	// socket is done by ready, which is given the name that the socket has then; it may be nil.
	Listen(name, path string, ready func(path string) error) (*net.UnixListener, error)
	// Forget is told that a listener is closed for good and its path is gone.
	Forget(name string)
	// Stay says, when workerd stops, whether the listeners stay open for one that comes at once. Their paths then stay too: who
	// connects meanwhile waits.
	Stay() bool
}

// ownListeners end with this process.
type ownListeners struct{}

func (ownListeners) Listen(_, path string, ready func(string) error) (*net.UnixListener, error) {
	return protocol.ListenReady(path, 0o600, ready)
}
func (ownListeners) Forget(string) {}
func (ownListeners) Stay() bool    { return false }
