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

// watch points the notifier at every folder in which something could happen that matters.
func (e *eye) watch() {
	e.names, e.roots = map[string][]string{}, map[string]string{}
	e.folders, e.listed = map[string]bool{}, map[string]bool{}
	e.inside = map[string][]string{}
	watched := map[string]bool{}
	traced := map[string]bool{}
	t := newTracer()
	add := func(path, file string) (real string) {
		if file != "" && traced[file] {
			return ""
		}
		traced[file] = true
		names, real := t.trace(path)
		for _, name := range names {
			e.names[name] = append(e.names[name], file)
			watched[filepath.Dir(name)] = true
		}
		return real
	}
	for _, dir := range e.w.cfg.Dirs {
		real := add(dir, "")
		if real == "" {
			continue
		}
		e.roots[real] = dir
		watched[real] = true
		entries, err := os.ReadDir(real)
		if err != nil {
			continue
		}
		for _, entry := range entries {
			name := entry.Name()
			file := filepath.Join(dir, name)
			switch {
			case ignored(name):
				continue
			case isFolder(filepath.Join(real, name), entry):
				e.folders[filepath.Join(real, name)] = true
				file = filepath.Join(file, folderManifest)
			case !strings.HasSuffix(name, ".toml"):
				continue
			}
			if add(file, file) != "" {
				e.listed[file] = true
			}
		}
	}
	for file := range e.set.files {
		add(file, file)
	}
	for path, x := range e.extra {
		if real := add(path, path); real != "" && x.asked && isDir(real) {
			e.inside[real] = append(e.inside[real], path)
			watched[real] = true
		}
	}
	e.notify.checkRemote(e.w.cfg.Dirs)
	e.notify.point(watched)
}
