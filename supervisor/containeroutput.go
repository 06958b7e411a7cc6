package supervisor

import (
	"context"
	"os"
	"path/filepath"
	"sync"
	"time"

	"workerd/execenv"
)

// fetchLogs writes what a container has printed to a file beside its worker's log and returns its name; "" where nothing better
// than what the log has was to be had, such as from a container that is gone. A full disk loses it, and nothing else.
func fetchLogs(ctx context.Context, e engine, id, log string, until time.Time) (path string) {
	f, err := os.CreateTemp(filepath.Dir(log), filepath.Base(log)+".new*") // goes with the log
	if err != nil {
		return ""
	}
	err = e.Logs(ctx, id, execenv.LogOptions{Until: until}, f)
	got, statErr := f.Stat()
	has, _ := os.Stat(log)
	if f.Close() != nil || statErr != nil || err != nil && has != nil && got.Size() <= has.Size() {
		_ = os.Remove(f.Name())
		return ""
	}
	return f.Name()
}

// saveLogs takes a container's output over into its worker's log, whole or not at all: who follows the log takes one that shrank
// for a rotated one, and shows it all again.
func saveLogs(ctx context.Context, e engine, id, log string) {
	if path := fetchLogs(ctx, e, id, log, time.Time{}); path != "" {
		_ = os.Rename(path, log)
	}
}

// output says where what a container printed is found. Whoever shows it by the log and by the engine shows it once by its means.
type output struct {
	mu    sync.Mutex
	saved bool // the log has all of it, and is not written again
}

func (o *output) isSaved() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.saved
}

// unlessSaved runs take while the log has not got everything yet.
func (o *output) unlessSaved(take func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if !o.saved {
		take()
	}
}

// save takes all that a dead container has printed over into the worker's log.
func (b *containerBody) save() {
	ctx, cancel := context.WithTimeout(context.Background(), settleWithin)
	defer cancel()
	path := fetchLogs(ctx, b.engine, b.id, b.log, time.Time{})
	b.output.mu.Lock()
	defer b.output.mu.Unlock()
	b.output.saved = true
	if path != "" {
		_ = os.Rename(path, b.log)
	}
}

// peek takes what a container has printed, up to a moment or zero for now, over into the worker's log, unless that has everything.
func (b *containerBody) peek(ctx context.Context, until time.Time) {
	if b.output.isSaved() {
		return
	}
	path := fetchLogs(ctx, b.engine, b.id, b.log, until)
	if path == "" {
		return
	}
	b.output.unlessSaved(func() { _ = os.Rename(path, b.log) })
	_ = os.Remove(path)
}
