package execenv

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"workerd/manifest"
)

const (
	ro = "ro"
	rw = "rw"
)

// promise is one path that the manifest names, with the key that names it.
type promise struct {
	key    string
	path   string
	mode   string
	create os.FileMode // made by Prepare with this mode where it is missing; 0: it has to exist
}

// promises lists the paths that a worker is promised under their own names. The cache is always writable.
func promises(h Host, m *manifest.Manifest) []promise {
	out := []promise{{"", m.Dir, ro, 0}}
	add := func(key, path, mode string, create os.FileMode) {
		if path != "" {
			out = append(out, promise{key, path, mode, create})
		}
	}
	for _, f := range []struct{ key, path string }{{"worker", m.Worker}, {"smoke", m.Smoke}} {
		if f.path != "" {
			add(f.key, filepath.Dir(f.path), ro, 0)
		}
	}
	switch {
	case h.preparing:
		add("weights.root", m.Weights.Root, rw, 0o777) // less the caller's umask
	case len(m.Weights.Prepare) > 0:
		add("weights.root", m.Weights.Root, ro, 0o777) // the scripts fill it
	default:
		add("weights.root", m.Weights.Root, ro, 0)
	}
	for _, p := range m.Weights.Extra {
		add("weights.extra", p, ro, 0)
	}
	add("paths.work_root", m.Paths.WorkRoot, rw, 0o777) // less the caller's umask, as mkdir by hand
	for _, b := range m.Paths.Binds {
		var create os.FileMode
		if b.Create {
			create = 0o700
		}
		add("paths.binds", b.Path, b.Mode, create)
	}
	add("", providerCache(h, m.Slug), rw, 0o700)
	return out
}

// checkPromises says which of them are missing, and not to be made.
func checkPromises(ps []promise) error {
	for _, p := range ps {
		if p.create != 0 {
			continue
		}
		if _, err := os.Stat(p.path); err != nil {
			return &Error{Key: p.key, Msg: p.path, Err: errCause(err), Watch: []string{p.path}}
		}
	}
	return nil
}

// errCause is the cause of an error of package os without the operation and path, which the message names already.
func errCause(err error) error {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err
	}
	return err
}

// makeBinds turns promises into binds: every path under the name that the manifest gave it, and at its resolved path too
// where a symlink makes those differ. Parents come before children; a child that its parent's bind shows in the same mode is
// left out, and of two modes for one path rw wins.
func makeBinds(ps []promise, resolve func(string) string) []Bind {
	modes := map[string]string{}
	add := func(path, mode string) {
		if modes[path] != rw {
			modes[path] = mode
		}
	}
	for _, p := range ps {
		add(p.path, p.mode)
		add(resolve(p.path), p.mode)
	}
	paths := make([]string, 0, len(modes))
	for p := range modes {
		paths = append(paths, p)
	}
	slices.Sort(paths) // a parent sorts before its children
	out := []Bind{}
	for _, p := range paths {
		if nearestMode(out, p) != modes[p] {
			out = append(out, Bind{Source: p, Target: p, Mode: modes[p]})
		}
	}
	return out
}

// nearestMode returns the mode of the innermost bind that shows path.
func nearestMode(binds []Bind, path string) string {
	mode, depth := "", -1
	for _, b := range binds {
		if within(b.Target, path) && len(b.Target) > depth {
			mode, depth = b.Mode, len(b.Target)
		}
	}
	return mode
}

func within(dir, path string) bool {
	return path == dir || dir == "/" || strings.HasPrefix(path, dir+"/")
}

// tidyPaths returns m with its paths as they are mounted and told to the worker. The kernel, and docker for the targets of
// mounts, take "//" and ".." out of a path: what is compared as text here must have none.
func tidyPaths(m *manifest.Manifest) *manifest.Manifest {
	out := *m
	out.Weights.Extra, out.Paths.Binds = slices.Clone(m.Weights.Extra), slices.Clone(m.Paths.Binds)
	paths := []*string{&out.Worker, &out.Smoke, &out.Weights.Root, &out.Paths.WorkRoot, &out.Paths.Cwd}
	for i := range out.Weights.Extra {
		paths = append(paths, &out.Weights.Extra[i])
	}
	for i := range out.Paths.Binds {
		paths = append(paths, &out.Paths.Binds[i].Path)
	}
	for _, p := range paths {
		*p = tidy(*p)
	}
	return &out
}

// tidy cleans a path, which may still have to be made. Where that would lead elsewhere, because ".." follows a symlink, it returns what
// the path resolves to.
func tidy(path string) string {
	if path == "" {
		return ""
	}
	clean := filepath.Clean(path)
	if !strings.Contains(path+"/", "/../") {
		return clean
	}
	real := "/"
	for _, name := range strings.Split(path, "/") {
		if name == ".." {
			real = filepath.Dir(resolvePath(real))
		} else {
			real = filepath.Join(real, name)
		}
	}
	if real = resolvePath(real); resolvePath(clean) != real {
		return real
	}
	return clean
}

// resolvePath resolves the symlinks of a path as far as it exists; what is to be made below is kept as it is, so that the
// answer is the same before and after.
func resolvePath(path string) string {
	rest := ""
	for p := path; ; p = filepath.Dir(p) {
		if real, err := filepath.EvalSymlinks(p); err == nil {
			return filepath.Join(real, rest)
		}
		if p == "/" || p == "." {
			return path
		}
		rest = filepath.Join(filepath.Base(p), rest)
	}
}
