package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"workerd/manifest"
	"workerd/protocol"
)

// closeWithin bounds how long a connection whose provider is gone is kept for an answer that its client does not read.
const closeWithin = 5 * time.Second

// front is a provider's front socket and its connections. The socket is there before the first worker and stays through
// whatever happens to workers: it goes only with the manifest.
type front struct {
	p    *provider
	path string // <runtime>/front/<slug>/sock
	link string // <runtime>/<slug>.sock, for people
	log  *slog.Logger

	binding  sync.Mutex // held while the socket is made, and while it is taken away; before mu
	mu       sync.Mutex // guards what follows
	listener *net.UnixListener
	clients  map[*client]*net.UnixConn
	guests   manifest.Guests // serve.allow
	closed   bool

	wg sync.WaitGroup // accept loops and clients
}

// listenFront makes the front socket. It accepts from the moment its path exists.
func listenFront(p *provider, guests manifest.Guests) (*front, error) {
	f := &front{
		p: p, log: p.log, clients: map[*client]*net.UnixConn{}, guests: guests,
		path: filepath.Join(p.sup.cfg.RuntimeDir, "front", p.slug, "sock"),
		link: filepath.Join(p.sup.cfg.RuntimeDir, p.slug+".sock"),
	}
	return f, f.bind()
}

// bind makes the listener and the symlink, and accepts; not where the front has been closed meanwhile.
func (f *front) bind() error {
	f.binding.Lock()
	defer f.binding.Unlock()
	f.mu.Lock()
	guests, closed := f.guests, f.closed
	f.mu.Unlock()
	if closed {
		return nil
	}
	if err := os.MkdirAll(filepath.Dir(f.path), 0o700); err != nil {
		return fmt.Errorf("front socket: %w", err)
	}
	l, err := f.p.sup.cfg.Listeners.Listen(f.p.slug, f.path, func(path string) error { return f.open(path, guests) })
	if err != nil {
		return fmt.Errorf("front socket: %w", err)
	}
	f.openFolder(guests)
	if err := replaceSymlink(filepath.Join("front", f.p.slug, "sock"), f.link); err != nil {
		f.log.Warn("no symlink to the front socket", keySocket, f.link, keyError, err)
	}
	f.mu.Lock()
	old := f.listener
	f.listener = l
	f.mu.Unlock()
	if old != nil {
		// Its path is gone, so nobody new comes; those in its backlog are still taken.
		_ = old.SetDeadline(time.Now().Add(time.Second))
	}
	f.wg.Go(func() { f.accept(l) })
	return nil
}

// restore binds the socket again where its path was deleted or replaced under us.
func (f *front) restore() error {
	f.mu.Lock()
	closed := f.closed
	f.mu.Unlock()
	if closed {
		return nil
	}
	if st, err := os.Lstat(f.path); err == nil && st.Mode()&os.ModeSocket != 0 {
		return nil
	} else if err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	f.log.Warn("the front socket was deleted; it is made again", keySocket, f.path)
	return f.bind()
}

func replaceSymlink(target, link string) error {
	if have, err := os.Readlink(link); err == nil && have == target {
		return nil
	}
	tmp := link + ".new"
	_ = os.Remove(tmp)
	if err := os.Symlink(target, tmp); err != nil {
		return err
	}
	return os.Rename(tmp, link)
}

// accept takes connections until the listener is closed. Running out of descriptors is waited out: those who connect stay in
// the backlog meanwhile.
func (f *front) accept(l *net.UnixListener) {
	wait := time.Millisecond
	for {
		uc, err := l.AcceptUnix()
		switch {
		case err == nil:
			wait = time.Millisecond
			f.take(uc)
		case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrDeadlineExceeded):
			_ = l.Close()
			return
		default:
			f.log.Warn("accept", keyError, err)
			time.Sleep(wait)
			wait = min(2*wait, time.Second)
		}
	}
}

// take serves one connection, if its peer may connect.
func (f *front) take(uc *net.UnixConn) {
	c := newClient(f.p, protocol.NewConn(uc, int(f.p.pool.maxMessage.Load())))
	f.mu.Lock()
	err := f.refuses(uc)
	if f.closed || err != nil {
		f.mu.Unlock()
		if err != nil {
			f.log.Warn("connection refused", keyError, err)
		}
		_ = uc.Close()
		return
	}
	f.clients[c] = uc
	f.mu.Unlock()
	f.wg.Go(func() {
		c.serve()
		f.mu.Lock()
		delete(f.clients, c)
		f.mu.Unlock()
	})
}

// pause takes no more connections: they wait for the next workerd.
func (f *front) pause() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.listener != nil {
		_ = f.listener.SetDeadline(time.Unix(1, 0))
	}
}

// close ends the front: nobody connects any more, connections close when their answers are out. The path goes, with its folder
// where remove says so; or stays where another workerd follows at once.
func (f *front) close(remove bool) {
	f.mu.Lock()
	f.closed = true
	f.mu.Unlock()
	f.binding.Lock() // one that is being made is there, and goes with what follows
	f.mu.Lock()
	l := f.listener
	clients := make([]*client, 0, len(f.clients))
	for c := range f.clients {
		clients = append(clients, c)
	}
	f.mu.Unlock()
	if remove || !f.p.sup.stays() {
		// The path goes first: who cannot find it any more is not refused by it.
		_ = os.Remove(f.link)
		_ = os.Remove(f.path)
		f.p.sup.passage.let(f.p.slug, false)
		f.p.sup.cfg.Listeners.Forget(f.p.slug)
	}
	if remove {
		_ = os.Remove(filepath.Dir(f.path))
	}
	if l != nil {
		_ = l.Close()
	}
	f.binding.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), closeWithin) // workerd's own context may be over already
	defer cancel()
	for _, c := range clients {
		f.wg.Go(func() { c.closeAnswered(ctx) })
	}
	f.wg.Wait()
}
