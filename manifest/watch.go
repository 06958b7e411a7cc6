package manifest

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
)

const (
	defaultRescan = 30 * time.Second
	pollInterval  = 5 * time.Second // where events do not tell of every change
)

// WatchConfig is what a Watcher watches.
type WatchConfig struct {
	Dirs    []string // as for LoadDirs
	Options Options
	Log     *slog.Logger  // slog.Default if nil
	Rescan  time.Duration // between looks without an event; 30 s if zero
}

// Watcher follows manifest directories, and files besides, and hands out a Set for each change that counts. It is owned
// by the goroutine of Run; the other methods may be called from any goroutine.
type Watcher struct {
	cfg     WatchConfig
	sets    chan *Set
	rescans chan chan *Set
	kick    chan struct{} // follow has changed
	done    chan struct{} // closed when Run has returned
	notify  func() (*fsnotify.Watcher, error)

	mu     sync.Mutex
	follow []string
}

// NewWatcher returns a watcher that does nothing until Run.
func NewWatcher(cfg WatchConfig) *Watcher {
	if cfg.Log == nil {
		cfg.Log = slog.Default()
	}
	if cfg.Rescan <= 0 {
		cfg.Rescan = defaultRescan
	}
	cfg.Dirs = absoluteDirs(cfg.Dirs)
	return &Watcher{
		cfg:     cfg,
		sets:    make(chan *Set, 1),
		rescans: make(chan chan *Set),
		kick:    make(chan struct{}, 1),
		done:    make(chan struct{}),
		notify:  fsnotify.NewWatcher,
	}
}

// Sets returns the channel of Sets: one when Run begins, then one whenever an effective manifest, a problem or a followed
// file has changed. A Set that is not received in time is replaced by the next one. The channel is never closed.
func (w *Watcher) Sets() <-chan *Set { return w.sets }

// Follow makes files, which replace those of the last call, be watched besides the manifests: a Set is sent when the
// content of one of them changes. A file that does not exist is waited for. Of a folder the names in it count.
func (w *Watcher) Follow(files []string) {
	w.mu.Lock()
	w.follow = slices.Clone(files)
	w.mu.Unlock()
	select {
	case w.kick <- struct{}{}:
	default:
	}
}

// ErrStopped is what Rescan returns when Run has ended.
var ErrStopped = errors.New("manifest watcher stopped")

// Rescan reads every file again as it is at this moment, without waiting for it to settle, and returns the Set, which has
// been sent to Sets as well, whether it differs or not.
func (w *Watcher) Rescan(ctx context.Context) (*Set, error) {
	reply := make(chan *Set, 1)
	select {
	case w.rescans <- reply:
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.done:
		return nil, ErrStopped
	}
	select {
	case s := <-reply:
		return s, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-w.done:
		return nil, ErrStopped
	}
}

// Run watches until ctx ends, which is no error: it returns nil when everything that it started has stopped. It may be
// called once.
func (w *Watcher) Run(ctx context.Context) error {
	defer close(w.done)
	e := newEye(w)
	defer e.notify.close()
	e.begin(time.Now())
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		timer.Reset(time.Until(e.next()))
		events, failures := e.notify.events()
		select {
		case <-ctx.Done():
			return nil
		case event, ok := <-events:
			if !ok {
				e.lost(errNotifyEnded, time.Now())
				break
			}
			e.hint(event, time.Now())
		case err := <-failures:
			e.lost(err, time.Now())
		case <-w.kick:
			e.refollow(time.Now())
		case reply := <-w.rescans:
			reply <- e.reload(time.Now())
		case <-timer.C:
			e.look(time.Now())
		}
	}
}

// send puts s into the channel in place of a Set that nobody has received. Only Run's goroutine sends.
func (w *Watcher) send(s *Set) {
	select {
	case <-w.sets:
	default:
	}
	w.sets <- s
}
