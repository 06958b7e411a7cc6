package execenv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"workerd/manifest"
)

// facts is what was found out about the host for one manifest: the second argument, beside the manifest, of making a Plan.
type facts struct {
	promises []promise
	binds    []Bind
	gpu      GPU
	secrets  map[string]string // HMAC of each value
	content  map[string]string // sha256 of the worker script and of a command file, by path
	program  string            // argv[0], absolute
	interp   interpreter
	setup    change
	ctr      containerFacts
	warnings []string
	watch    []string
	planner  *Planner // whose engines probes ask
}

// commonFacts finds out what every kind of environment needs.
func (p *Planner) commonFacts(ctx context.Context, m *manifest.Manifest) (*facts, error) {
	f := &facts{promises: promises(p.host, m), content: map[string]string{}}
	if err := checkPromises(f.promises); err != nil {
		return nil, err
	}
	f.binds = makeBinds(f.promises, resolvePath)
	if err := checkCwd(m, f.promises); err != nil {
		return nil, err
	}
	if m.Worker != "" {
		sum, err := fileSum(m.Worker)
		if err != nil {
			return nil, &Error{Key: "worker", Msg: m.Worker + ownership(m.Worker), Err: errCause(err)}
		}
		f.content[m.Worker] = sum
	}
	var err error
	p.askGPUs(ctx, m, f)
	f.secrets, err = secretSums(p.host, m, parseEnviron(p.host.Environ))
	return f, err
}

// checkCwd refuses a working directory that is missing, unless it is a folder that Prepare will make.
func checkCwd(m *manifest.Manifest, ps []promise) error {
	made := slices.ContainsFunc(ps, func(p promise) bool { return p.create != 0 && p.path == m.Paths.Cwd })
	if _, err := os.Stat(m.Paths.Cwd); err != nil && made {
		return nil
	}
	if err := inspectDir(m.Paths.Cwd); err != nil {
		return &Error{Key: "paths.cwd", Msg: err.Error(), Watch: []string{m.Paths.Cwd}}
	}
	return nil
}

// watched lists the files that a manifest names and whose change matters to its Plan.
func watched(m *manifest.Manifest) []string {
	files := []string{m.Worker, m.Env.Setup}
	if len(m.Command) > 0 && strings.Contains(m.Command[0], "/") {
		files = append(files, commandPath(m))
	}
	if m.Env.Kind == manifest.Venv {
		files = append(files, m.Env.Python)
	}
	for _, s := range m.Env.Secrets {
		files = append(files, s.File)
	}
	return files
}

// commandPath is command[0] where it is a path; it resolves against the manifest's directory as every path does.
func commandPath(m *manifest.Manifest) string {
	if filepath.IsAbs(m.Command[0]) {
		return m.Command[0]
	}
	return filepath.Join(m.Dir, m.Command[0])
}

// fileSum returns the sha256 of a file's content.
func fileSum(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

func writable(dir string) bool {
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS) == nil
}

func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }

// compactSorted sorts paths and leaves out empty and repeated ones.
func compactSorted(paths []string) []string {
	paths = slices.DeleteFunc(paths, func(p string) bool { return p == "" })
	slices.Sort(paths)
	return slices.Compact(paths)
}
