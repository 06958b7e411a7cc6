package main

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"workerd/protocol"
)

// controlName is the control socket's name in the descriptor store. No provider can have it.
const controlName = "workerd"

// fdStore makes listeners and has the service manager keep them open while workerd restarts, in its descriptor store. A descriptor
// is stored as <name>@<id of its socket's file>. It implements supervisor.Listeners.
type fdStore struct {
	log    *slog.Logger
	notify string               // the socket of the service manager
	stay   func() (bool, error) // asks whether workerd is being restarted

	mu     sync.Mutex          // guards what follows
	left   map[string]*os.File // what the workerd before stored and nobody has taken yet, by name
	stored map[string]string   // what is stored under which descriptor name, by name

	once    sync.Once
	staying bool
}

// newFDStore makes the store of a service; files are the descriptors that it was started with. Without a service manager it is
// one that keeps nothing.
func newFDStore(notify string, files []*os.File, log *slog.Logger) *fdStore {
	s := &fdStore{log: log, notify: notify, stay: beingRestarted, left: map[string]*os.File{}, stored: map[string]string{}}
	for _, f := range files {
		name, _, found := strings.Cut(f.Name(), "@")
		if !found || s.left[name] != nil {
			s.log.Warn("a descriptor from the service manager is of no use here", "name", f.Name())
			_ = f.Close()
			continue
		}
		s.left[name] = f
	}
	return s
}

// Listen returns the listener that was left for a path, or makes one and stores it.
func (s *fdStore) Listen(name, path string, ready func(path string) error) (*net.UnixListener, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f := s.left[name]; f != nil {
		delete(s.left, name)
		_, id, _ := strings.Cut(f.Name(), "@")
		l, err := protocol.Inherit(f, path, id)
		_ = f.Close()
		if err == nil && ready != nil {
			if err = ready(path); err != nil {
				_ = l.Close()
			}
		}
		if err == nil {
			s.stored[name] = f.Name()
			return l, nil
		}
		s.log.Warn("a listener of the workerd before is not used", "err", err)
		s.send("FDSTOREREMOVE=1\nFDNAME="+f.Name(), nil)
	}
	l, err := protocol.ListenReady(path, 0o600, ready)
	if err != nil || s.notify == "" {
		return l, err
	}
	s.forget(name) // that of a path which was deleted
	id, err := protocol.SocketID(path)
	if err != nil { // deleted this instant: it will be made again
		return l, nil
	}
	s.stored[name] = name + "@" + id
	s.send("FDSTORE=1\nFDNAME="+s.stored[name], l)
	return l, nil
}

// has says whether a listener of that name was left and nobody has taken it yet.
func (s *fdStore) has(name string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.left[name] != nil
}

// Forget takes a listener out of the store.
func (s *fdStore) Forget(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.forget(name)
}

func (s *fdStore) forget(name string) {
	if stored := s.stored[name]; stored != "" {
		delete(s.stored, name)
		s.send("FDSTOREREMOVE=1\nFDNAME="+stored, nil)
	}
}

// forgetRest takes out of the store what nobody wants any more.
func (s *fdStore) forgetRest() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for name, f := range s.left {
		delete(s.left, name)
		_ = f.Close()
		s.send("FDSTOREREMOVE=1\nFDNAME="+f.Name(), nil)
	}
}

// Stay says whether the listeners outlive this process, as it is being restarted and they are in the store. It asks once.
func (s *fdStore) Stay() bool {
	s.once.Do(func() {
		if s.notify == "" {
			return
		}
		var err error
		if s.staying, err = s.stay(); err != nil {
			s.log.Warn("the service manager does not say whether this is a restart: sockets go", "err", err)
		}
	})
	return s.staying
}

// send tells the service manager something, with the descriptor of a listener or none. s.mu is held, so that messages about one
// name stay in order.
func (s *fdStore) send(message string, l *net.UnixListener) {
	if err := sendNotification(s.notify, message, l); err != nil {
		s.log.Warn("descriptor store: connects may be refused while workerd restarts", "err", err)
	}
}

// sendNotification sends a message to the service manager, which may carry the descriptor of a listener. net's sockets cannot: a
// connected datagram socket of theirs takes no descriptors.
func sendNotification(socket, message string, l *net.UnixListener) error {
	fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	patience := unix.Timeval{Sec: 5} // a service manager that reads nothing must not stop this
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &patience); err != nil {
		return os.NewSyscallError("setsockopt", err)
	}
	send := func(rights []byte) error {
		return os.NewSyscallError("sendmsg", unix.Sendmsg(fd, []byte(message), rights, &unix.SockaddrUnix{Name: socket}, unix.MSG_NOSIGNAL))
	}
	if l == nil {
		return send(nil)
	}
	raw, err := l.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := raw.Control(func(listener uintptr) { sent = send(unix.UnixRights(int(listener))) }); err != nil {
		return err
	}
	return sent
}

// beingRestarted asks the service manager whether it is restarting the service that this process is, and holds its listeners.
func beingRestarted() (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second) // the service's own context is what has ended
	defer cancel()
	unit, sd, err := ownService()
	if err != nil || unit == "" {
		return false, err
	}
	if job, err := sd.job(ctx, unit); err != nil || job != "restart" {
		return false, err
	}
	text, err := sd.property(ctx, unit, "NFileDescriptorStore")
	if err != nil {
		return false, err
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		return false, fmt.Errorf("NFileDescriptorStore: %w", err)
	}
	return n > 0, nil
}
