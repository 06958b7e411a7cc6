package manifest

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// tracer resolves paths and remembers what it saw, so it is good for one look at the file system.
type tracer struct{ seen map[string]node }

type node struct {
	link   string // target of a symlink
	exists bool
}

func newTracer() *tracer { return &tracer{seen: map[string]node{}} }

func (t *tracer) lstat(path string) node {
	if n, ok := t.seen[path]; ok {
		return n
	}
	n := node{}
	if info, err := os.Lstat(path); err == nil {
		n.exists = true
		if info.Mode()&fs.ModeSymlink != 0 {
			n.link, _ = os.Readlink(path)
		}
	}
	t.seen[path] = n
	return n
}

// trace returns the names whose change can change what path leads to: each symlink on the way, and the end of the way or
// the first component that is missing. All are free of symlinks themselves. real is the end, "" if it is missing.
func (t *tracer) trace(path string) (names []string, real string) {
	real = "/"
	rest := strings.Split(path, "/")
	for hops := 0; len(rest) > 0; {
		part := rest[0]
		rest = rest[1:]
		switch part {
		case "", ".":
			continue
		case "..":
			real = filepath.Dir(real)
			continue
		}
		next := filepath.Join(real, part)
		n := t.lstat(next)
		switch {
		case !n.exists:
			return append(names, next), ""
		case n.link != "":
			names = append(names, next)
			if hops++; hops > 40 {
				return names, ""
			}
			if filepath.IsAbs(n.link) {
				real = "/"
			}
			rest = append(strings.Split(n.link, "/"), rest...)
		default:
			real = next
		}
	}
	return append(names, real), real
}
