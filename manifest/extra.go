package manifest

import (
	"crypto/sha256"
	"fmt"
	"os"
	"time"
)

// extra is a file that is followed besides the manifests.
type extra struct {
	stamp stamp
	sum   [32]byte
	asked bool // by Follow; the others are files that manifests are judged by
}

// freshAge is the age below which a file that is newly followed may have changed after the caller read it.
const freshAge = time.Second

// refollow takes over the list of the last call of Follow.
func (e *eye) refollow(now time.Time) {
	if e.collect(now) {
		e.watch()
		e.recheck(now)
	}
}

// collect makes extra what Follow asked for and what the manifests were judged by: schemas, smoke files, and paths that
// are missing and may come. It reports whether a file is new.
func (e *eye) collect(now time.Time) (added bool) {
	e.w.mu.Lock()
	asked := e.w.follow
	e.w.mu.Unlock()
	wanted := map[string]bool{}
	for _, f := range e.set.files {
		for _, d := range f.reads {
			wanted[d.file] = false
		}
		for _, path := range f.awaits {
			wanted[path] = false
		}
	}
	for _, path := range asked {
		wanted[path] = true
	}
	for path, byCaller := range wanted {
		x := e.extra[path]
		if x == nil {
			x = &extra{stamp: stampFile(path)}
			x.sum = contentSum(path, x.stamp)
			e.extra[path] = x
			added = true
		}
		if byCaller && !x.asked && now.Sub(time.Unix(0, x.stamp.ctime)) < freshAge {
			// The caller may have read it before the change: let it look again.
			x.sum = [32]byte{}
			e.change(path, now).arrived = true
		}
		x.asked = byCaller
	}
	for path := range e.extra {
		if _, ok := wanted[path]; !ok {
			delete(e.extra, path)
			if !e.manifestName(path) {
				delete(e.changes, path)
			}
		}
	}
	return added
}

// takeExtra takes the followed files that have settled, and reports whether one that a caller follows has other content.
func (e *eye) takeExtra(now time.Time) (changed bool) {
	for path, x := range e.extra {
		c := e.changes[path]
		if c == nil || !c.ready {
			continue
		}
		sum := contentSum(path, c.stamp)
		if stampFile(path) != c.stamp {
			c.ready, c.last = false, now
			continue
		}
		changed = changed || x.asked && sum != x.sum
		x.stamp, x.sum = c.stamp, sum
		if !e.manifestName(path) {
			delete(e.changes, path)
			e.taken[path] = now
		}
	}
	return changed
}

// maxHashed is the size up to which the content of a followed file is compared; of a larger one, such as an interpreter
// or an image, its stamp is.
const maxHashed = 4 << 20

// contentSum tells one content of a file or folder from another; the zero sum is that of a missing one.
func contentSum(path string, now stamp) [32]byte {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return [32]byte{}
	case info.IsDir():
		return sha256.Sum256([]byte(fmt.Sprintf("folder %d %d %q", now.dev, now.ino, folderNames(path))))
	case info.Mode().IsRegular() && info.Size() <= maxHashed:
		if c, err := readRegular(path, maxHashed); err == nil {
			return sha256.Sum256(c.data)
		}
	}
	return sha256.Sum256([]byte(fmt.Sprintf("stamp %d %d %d %d", now.dev, now.ino, now.size, now.mtime)))
}

func isDir(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}

// folderNames lists a folder without what comes and goes by itself.
func folderNames(path string) []string {
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil
	}
	var names []string
	for _, entry := range entries {
		if name := entry.Name(); !ignored(name) && name != "__pycache__" {
			names = append(names, name)
		}
	}
	return names
}
