package manifest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// watch runs a watcher on dirs and collects every Set it sends.
type watch struct {
	*Watcher
	t    *testing.T
	logs *syncBuffer

	mu   sync.Mutex
	sets []*Set
	at   []time.Time
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func startWatch(t *testing.T, dirs ...string) *watch {
	t.Helper()
	logs := &syncBuffer{}
	return runWatch(t, logs, NewWatcher(WatchConfig{
		// Nothing is found by looking at everything: what a test sees came from an event.
		Dirs: dirs, Options: testOptions(), Rescan: time.Hour, Log: slog.New(slog.NewTextHandler(logs, nil)),
	}))
}

func runWatch(t *testing.T, logs *syncBuffer, watcher *Watcher) *watch {
	t.Helper()
	w := &watch{t: t, logs: logs, Watcher: watcher}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		assert.NoError(t, w.Run(ctx))
	}()
	go func() {
		defer close(done)
		for {
			select {
			case s := <-w.Sets():
				w.mu.Lock()
				w.sets, w.at = append(w.sets, s), append(w.at, time.Now())
				w.mu.Unlock()
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ran
		<-done
	})
	eventually(t, "the first set is there", func() bool { return w.count() > 0 })
	// Behind the first set comes a look that would find what a test does at once without any event.
	begin := time.Now()
	eventually(t, "the first look is over", func() bool { return time.Since(begin) > 5*quietArrived })
	return w
}

func (w *watch) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.sets)
}

// last returns the newest Set and when it came.
func (w *watch) last() (*Set, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sets[len(w.sets)-1], w.at[len(w.at)-1]
}

// titles returns the titles of slug in all sets so far, "invalid" and "none" among them, each change once.
func (w *watch) titles(slug string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, s := range w.sets {
		title := "none"
		if e, ok := s.Lookup(slug); ok && e.Manifest == nil {
			title = "invalid"
		} else if ok {
			title = e.Manifest.Title
		}
		if len(out) == 0 || out[len(out)-1] != title {
			out = append(out, title)
		}
	}
	return out
}

func (w *watch) waitTitle(slug, title string) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%s is %q", slug, title), func() bool {
		titles := w.titles(slug)
		return titles[len(titles)-1] == title
	})
}

// quiesce waits until all that was done before has been seen: a marker written after it has.
func (w *watch) quiesce(dir string) {
	w.t.Helper()
	w.mu.Lock()
	marker := fmt.Sprintf("marker%d", len(w.sets))
	w.mu.Unlock()
	rename(w.t, filepath.Join(dir, marker+".toml"), titled(marker))
	w.waitTitle(marker, marker)
}

func titled(title string) string { return command(fmt.Sprintf("title = %q\n", title)) }

// rename puts text in place as editors and deployment tools do.
func rename(t *testing.T, path, text string) {
	t.Helper()
	tmp := filepath.Join(filepath.Dir(path), ".new"+filepath.Base(path))
	write(t, tmp, text)
	require.NoError(t, os.Rename(tmp, path))
}
