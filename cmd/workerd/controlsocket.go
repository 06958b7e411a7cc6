package main

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
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
		if _, err := os.Lstat(i.socket()); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		again, err := i.restore()
		if err != nil {
			i.log.Error("the control socket was deleted", "err", err)
			continue
		}
		i.log.Warn("the control socket was deleted and is back", "path", i.socket())
		listener.replace(again)
	}
}

func (i *instance) restore() (*net.UnixListener, error) {
	if err := makePrivate(i.dirs.runtime, i.app.uid, i.dirs.fallback); err != nil {
		return nil, err
	}
	if _, err := os.Lstat(filepath.Join(i.dirs.runtime, "lock")); errors.Is(err, fs.ErrNotExist) {
		lock, err := lockRuntimeDir(i.dirs.runtime)
		if err != nil {
			return nil, err
		}
		i.lock.Close()
		i.lock = lock
	}
	return i.listeners.Listen(controlName, i.socket(), nil)
}
