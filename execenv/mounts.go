package execenv

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"workerd/manifest"
)

// workerd's own paths in a container, beside what the manifest names.

// socketDir is the folder of a provider's worker sockets: folders are mounted, never sockets, since a mount would hold the
// socket of a worker that is gone.
func socketDir(h Host, slug string) string { return filepath.Join(h.RuntimeDir, "w", slug) }

// ownPromises are the folders of workerd's own that a container sees: the worker sockets, the SDK, and the caches that all
// providers share.
func ownPromises(h Host, m *manifest.Manifest) []promise {
	out := []promise{{"", socketDir(h, m.Slug), rw, 0o700}}
	if h.SDKDir != "" {
		out = append(out, promise{"", h.SDKDir, ro, 0})
	}
	caches := cacheEnv(h, m.Slug)
	for _, name := range []string{"HF_HOME", "TORCH_HOME"} {
		p := promise{"", caches[name], rw, 0o700}
		if isDir(p.path) && !writable(p.path) {
			p.mode = ro // the lab's own, filled by somebody else
		}
		out = append(out, p)
	}
	return out
}

// systemDirs are those of an image that no mount may hide. What lies below is fine.
var systemDirs = []string{
	"/", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/etc", "/proc", "/sys", "/dev",
	"/usr/bin", "/usr/sbin", "/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32",
}

// checkMountPath refuses what no engine can or should mount.
func checkMountPath(key, path string) error {
	switch {
	case slices.Contains(systemDirs, path):
		return permanent(key, "%s would hide the image's own %s: bind a folder below it", path, path)
	case strings.ContainsAny(path, "\n\r\x00"):
		return permanent(key, "%q: an engine's mount option cannot hold a line break", path)
	case !utf8.ValidString(path):
		return permanent(key, "%q is not UTF-8, which an engine's mount option has to be", path)
	}
	return nil
}

// checkMounts checks every path that a container is to see, under both its names.
func checkMounts(ps []promise) error {
	for _, p := range ps {
		for _, path := range []string{p.path, resolvePath(p.path)} {
			if err := checkMountPath(p.key, path); err != nil {
				return err
			}
		}
	}
	return nil
}

// csvField makes one field of a CSV record, as the engines read a mount option.
func csvField(s string) string {
	plain := strings.IndexFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-=+@%~:", r))
	}) < 0
	if plain {
		return s
	}
	return `"` + strings.ReplaceAll(s, `"`, `""`) + `"`
}

// mountOption writes a bind as the engines' --mount takes it; target names the key of the target, extra what comes last.
func mountOption(b Bind, target string, extra ...string) string {
	fields := []string{"type=bind", csvField("source=" + b.Source), csvField(target + "=" + b.Target)}
	return strings.Join(append(fields, extra...), ",")
}

// checkSources says which source of a container's binds has gone since the plan was made. Not every engine does: docker makes
// that of a --volume anew, as root, and the worker would start on an empty folder.
func checkSources(pl *Plan) error {
	if pl.carry == nil {
		return nil
	}
	for _, b := range pl.Binds {
		if _, err := os.Stat(b.Source); err != nil {
			return planError("", &EngineError{
				Kind: EngineUnseen, Engine: pl.Kind, Verb: "run", Hint: hintGone, Msg: "bind source path " + b.Source, Err: errCause(err),
			})
		}
	}
	return nil
}

// homeOf says what HOME of a container worker is, and which folder stands behind it: the home in the provider's cache, unless
// the manifest names a place that is bound anyhow.
func homeOf(h Host, m *manifest.Manifest, env environ, binds []Bind) (source, target string) {
	source = providerHome(h, m.Slug)
	target = env["HOME"]
	if nearestMode(binds, target) != "" {
		return target, target
	}
	return source, target
}

// bothNames returns a path, and what it resolves to where that is another.
func bothNames(path string) []string {
	if real := resolvePath(path); real != path {
		return []string{path, real}
	}
	return []string{path}
}

// tmpOf is where workers' TMPDIRs are, as a Plan shows it.
func tmpOf(h Host) string { return filepath.Join(scratch(h), tmpName(h.Instance, "<n>")) }

// folders are some folders under both their names.
type folders []string

func newFolders(dirs ...string) folders {
	var out folders
	for _, dir := range dirs {
		if dir != "" {
			out = append(out, bothNames(dir)...)
		}
	}
	return out
}

// has says whether a path is one of the folders, or lies in one.
func (f folders) has(path string) bool {
	return slices.ContainsFunc(f, func(dir string) bool { return within(dir, path) })
}

// without returns the binds of other sources.
func (f folders) without(binds []Bind) []Bind {
	return slices.DeleteFunc(slices.Clone(binds), func(b Bind) bool { return f.has(b.Source) })
}
