package manifest

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
)

// eye is what a running Watcher knows. It is a local of Run's goroutine and holds no lock.
//
// Events only say where to look and in what way a file is being changed. Each look compares the stamps of files with those
// they were last taken with; a file that differs becomes a change, which settles on its own while others are taken.
type eye struct {
	w      *Watcher
	notify notifier
	set    *Set

	names   map[string][]string // a name that events may have -> the files it concerns, "" for the directories themselves
	roots   map[string]string   // resolved manifest directory -> its path as configured
	folders map[string]bool     // resolved folders in the manifest directories
	inside  map[string][]string // resolved folder -> the followed paths that lead to it
	listed  map[string]bool     // manifest files that are there

	changes map[string]*change
	taken   map[string]time.Time // when a file was last taken
	extra   map[string]*extra

	check  time.Time // when to compare all stamps, zero: not until rescan
	told   bool      // by an event, so list the directories too: what is new there has just been put there as a whole
	rescan time.Time // when to look at everything, whatever events say
}

func newEye(w *Watcher) *eye {
	return &eye{
		w:       w,
		notify:  notifier{log: w.cfg.Log, make: w.notify},
		set:     &Set{},
		changes: map[string]*change{},
		taken:   map[string]time.Time{},
		extra:   map[string]*extra{},
	}
}

// begin makes the first Set. A file that is just being written is left for later.
func (e *eye) begin(now time.Time) {
	e.watch()
	e.set = loadDirs(e.w.cfg.Dirs, nil, e.w.cfg.Options, loading{
		settled: func(file string, _ stamp) bool { return !beingWritten(file) },
	})
	e.collect(now)
	e.watch()
	e.w.send(e.set)
	e.recheck(now)
	e.rescan = now.Add(e.notify.interval(e.w.cfg.Rescan))
}

// next returns when to look again if nothing happens before.
func (e *eye) next() time.Time {
	next := e.rescan
	if !e.check.IsZero() && e.check.Before(next) {
		next = e.check
	}
	for _, c := range e.changes {
		if due := c.due(); due.Before(next) {
			next = due
		}
	}
	return next
}

// hint takes note of an event.
func (e *eye) hint(event fsnotify.Event, now time.Time) {
	name := eventName(event.Name)
	files, known := e.names[name]
	for _, file := range files {
		if file == "" {
			e.list(now)
		} else {
			e.mark(file, event, now)
		}
	}
	if !event.Has(fsnotify.Write) && !event.Has(fsnotify.Chmod) {
		for _, folder := range e.inside[filepath.Dir(name)] {
			e.change(folder, now).last = now
		}
	}
	dir, inRoot := e.roots[filepath.Dir(name)]
	if known || !inRoot {
		return
	}
	base := filepath.Base(name)
	switch {
	case ignored(base) && !strings.HasPrefix(base, ".."): // "..data" is how Kubernetes swaps all files of a folder
	case strings.HasSuffix(base, ".toml"):
		e.mark(filepath.Join(dir, base), event, now)
	case event.Has(fsnotify.Create):
		if info, err := os.Lstat(name); err != nil || !info.Mode().IsRegular() {
			e.list(now)
		}
	case event.Has(fsnotify.Remove), event.Has(fsnotify.Rename):
		if e.folders[name] {
			e.list(now)
		}
	}
}

// list asks for a look at the directories themselves.
func (e *eye) list(now time.Time) {
	e.recheck(now)
	e.told = true
}

// recheck asks for a look at the stamps of all files: what changed before its folder was watched had no event.
func (e *eye) recheck(now time.Time) {
	if e.check.IsZero() {
		e.check = now.Add(quietArrived)
	}
}

// mark notes a sign that file changes.
func (e *eye) mark(file string, event fsnotify.Event, now time.Time) {
	c := e.change(file, now)
	c.last, c.writer = now, time.Time{}
	if event.Has(fsnotify.Create) {
		c.arrived, c.written = true, false
	}
	if event.Has(fsnotify.Write) {
		c.written = true
	}
}

func (e *eye) change(file string, now time.Time) *change {
	c := e.changes[file]
	if c == nil {
		c = &change{since: now, last: now, burst: now.Sub(e.taken[file]) < burstAge}
		e.changes[file] = c
	}
	return c
}

// lost is called when events were lost or have ended: everything may have changed.
func (e *eye) lost(err error, now time.Time) {
	if errors.Is(err, errNotifyEnded) {
		e.notify.close()
	}
	e.rescan = now
}

// look takes what has settled and sends a Set if that changes anything.
func (e *eye) look(now time.Time) {
	rescan := !now.Before(e.rescan)
	check := rescan || !e.check.IsZero() && !now.Before(e.check)
	list := rescan || check && e.told
	if rescan {
		for file, at := range e.taken {
			if now.Sub(at) > burstAge {
				delete(e.taken, file)
			}
		}
	}
	if list {
		e.watch()
	}
	if check {
		e.find(now, e.told)
		e.check, e.told = time.Time{}, false
		if soon := now.Add(e.notify.interval(e.w.cfg.Rescan)); rescan || soon.Before(e.rescan) {
			e.rescan = soon
		}
	}
	ready := false
	for file, c := range e.changes {
		c.look(now, stampFile(file), func() bool { return beingWritten(file) })
		c.folder = c.stamp == stamp{} && e.rootGone(file)
		ready = ready || c.ready
	}
	resend := ready && e.takeExtra(now)
	sent := (list || ready) && e.load(now)
	if resend && !sent {
		e.w.send(e.set)
	}
}

// find makes a change of each file that is not as it was taken. arrived says that an event told of whole files: a folder
// that was moved in, a symlink that was swapped.
func (e *eye) find(now time.Time, arrived bool) {
	differs := func(file string, before stamp) {
		if _, known := e.changes[file]; known || stampFile(file) == before {
			return
		}
		c := e.change(file, now)
		if arrived {
			c.arrived, c.last = true, now.Add(-quietArrived)
		}
	}
	for file := range e.listed {
		if e.set.files[file] == nil {
			differs(file, stamp{})
		}
	}
	for file, f := range e.set.files {
		differs(file, f.stamp)
	}
	for file, x := range e.extra {
		differs(file, x.stamp)
	}
}

// rootGone reports whether the manifest directory that file was in is missing.
func (e *eye) rootGone(file string) bool {
	for _, dir := range e.w.cfg.Dirs {
		if below(file, dir) {
			_, err := os.Stat(dir)
			return errors.Is(err, fs.ErrNotExist)
		}
	}
	return false
}

// load takes the manifests that are ready and reports whether it has sent a Set.
func (e *eye) load(now time.Time) (sent bool) {
	s := loadDirs(e.w.cfg.Dirs, e.set, e.w.cfg.Options, loading{settled: func(file string, seen stamp) bool {
		if c := e.changes[file]; c != nil {
			return c.ready && c.stamp == seen
		}
		var before stamp
		if f := e.set.files[file]; f != nil {
			before = f.stamp
		}
		if seen != before {
			e.change(file, now) // changed since the look
		}
		return seen == before
	}})
	for file, c := range e.changes {
		if !c.ready {
			continue
		}
		var is stamp
		if f := s.files[file]; f != nil {
			is = f.stamp
		}
		if is == c.stamp || !e.manifestName(file) {
			delete(e.changes, file)
			e.taken[file] = now
		} else {
			c.ready, c.last = false, now
		}
	}
	changed := !s.sameAs(e.set)
	e.set = s
	if changed {
		e.w.send(s)
	}
	if e.collect(now) || changed {
		e.watch()
		e.recheck(now)
	}
	return changed
}

// manifestName reports whether file is one that a manifest directory may list: it is taken by load. A folder never is, whatever
// its name: its change would wait for ever.
func (e *eye) manifestName(file string) bool {
	for _, dir := range e.w.cfg.Dirs {
		if below(file, dir) {
			return !isDir(file)
		}
	}
	return false
}

// reload takes everything as it is.
func (e *eye) reload(now time.Time) *Set {
	e.set = loadDirs(e.w.cfg.Dirs, e.set, e.w.cfg.Options, loading{fresh: true})
	clear(e.changes)
	clear(e.extra)
	e.w.send(e.set)
	e.collect(now)
	e.watch()
	e.recheck(now)
	return e.set
}
