package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// checkInterval is how often the lock and the control socket are looked at: what somebody deleted comes back.
const checkInterval = 5 * time.Second

// controlListener is the listener of the control socket, whichever it is at the moment.
type controlListener struct {
	mu  sync.Mutex
	now *net.UnixListener
}

func (c *controlListener) current() *net.UnixListener {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

// replace closes the listener of a path that is gone. Connections that it has taken live on.
func (c *controlListener) replace(l *net.UnixListener) {
	c.mu.Lock()
	old := c.now
	c.now = l
	c.mu.Unlock()
	_ = old.Close()
}

// Accept takes the next connection.
func (c *controlListener) Accept() (net.Conn, error) {
	for {
		l := c.current()
		conn, err := l.Accept()
		if err == nil || c.current() == l {
			return conn, err
		}
	}
}

// Close ends Accept.
func (c *controlListener) Close() error { return c.current().Close() }

// Addr is where it listens.
func (c *controlListener) Addr() net.Addr { return c.current().Addr() }

// serveControl serves the operator API until late ends. Until ctx ends the socket, and the lock, are put back where somebody
// deleted them.
func (i *instance) serveControl(late, ctx context.Context, l *net.UnixListener) error {
	listener := &controlListener{now: l}
	var server errgroup.Group
	server.Go(func() error { return i.server.Serve(late, listener) })
	tick := time.NewTicker(checkInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return server.Wait()
		case <-tick.C:
		}
		if err := i.putBack(listener); err != nil {
			i.log.Error("the lock and the control socket cannot be kept", "err", err)
		}
	}
}

// putBack puts the lock and the control socket back, each where it is missing. A cleaner of /tmp may take the one, a file, and
// leave the other: whoever starts then would take this one's workers for left behind.
func (i *instance) putBack(listener *controlListener) error {
	_, err := os.Lstat(i.socket())
	gone := errors.Is(err, fs.ErrNotExist)
	if gone { // perhaps with its directory
		if err := makePrivate(i.dirs.runtime, i.app.uid, i.dirs.fallback); err != nil {
			return err
		}
	}
	if err := i.keepLock(); err != nil {
		return err
	}
	if !gone {
		return nil
	}
	again, err := i.listeners.Listen(controlName, i.socket(), nil)
	if err != nil {
		return err
	}
	i.log.Warn("the control socket was deleted and is back", "path", i.socket())
	listener.replace(again)
	return nil
}

// keepLock takes the lock again where its file is no longer the one that is held.
func (i *instance) keepLock() error {
	held, err := i.lock.Stat()
	if err != nil {
		return err
	}
	there, err := os.Lstat(filepath.Join(i.dirs.runtime, "lock"))
	if err == nil && os.SameFile(held, there) {
		return nil
	}
	lock, err := lockRuntimeDir(i.dirs.runtime)
	if err != nil {
		return err
	}
	i.lock.Close()
	i.lock = lock
	i.log.Warn("the lock was deleted and is back", "path", lock.Name())
	return nil
}

// checkAlone refuses where somebody listens on the control socket although the lock was free, since its file was deleted: the
// workers that are found are that one's. One that was killed may need a moment to be gone, as with the lock.
func (i *instance) checkAlone() error {
	if i.listeners.has(controlName) { // who would accept there is this one
		return nil
	}
	deadline := time.Now().Add(lockPatience)
	for {
		c, err := net.DialTimeout("unix", i.socket(), time.Second)
		if err == nil {
			_ = c.Close()
		} else if !errors.Is(err, unix.EAGAIN) { // a full backlog is somebody's
			return nil
		}
		if time.Now().After(deadline) {
			return &withHint{fmt.Errorf("something listens on %s although its lock is free: another workerd whose lock was deleted, or its service, which is about to start it again", i.socket()),
				"stop it first, or name another directory with --runtime-dir"}
		}
		time.Sleep(20 * time.Millisecond)
	}
}
