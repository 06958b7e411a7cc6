package execenv

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"workerd/manifest"
)

// venv runs a worker as a plain process with an interpreter of the host.
type venv struct{}

var _ Runtime = venv{}

// interpreter is the Python of a venv worker; its zero value is none.
type interpreter struct {
	// Path is as the manifest gave it. Its symlink is not resolved: Python finds its venv beside the path that it was
	// executed by.
	Path  string
	Conda string // the conda prefix that it belongs to; empty for none
	Stamp string // when the path and what it resolves to were changed last
}

// findInterpreter takes an interpreter, or the directory of a venv or conda prefix.
func findInterpreter(python string) (interpreter, error) {
	if python == "" {
		return interpreter{}, nil
	}
	in := interpreter{Path: python}
	if fi, err := os.Stat(python); err == nil && fi.IsDir() {
		in.Path = filepath.Join(python, "bin", "python")
		if _, err := os.Lstat(in.Path); err != nil {
			return in, permanent("env.python", "%s is a folder without bin/python: neither a venv nor a conda prefix", python)
		}
	}
	if err := inspectProgram(in.Path); err != nil {
		msg := "interpreter " + err.Error()
		if _, e := os.Readlink(in.Path); e == nil && !exists(in.Path) {
			msg += "; re-create the venv"
		}
		return in, &Error{Key: "env.python", Msg: msg, Watch: []string{in.Path}}
	}
	if prefix := filepath.Dir(filepath.Dir(in.Path)); isDir(filepath.Join(prefix, "conda-meta")) {
		in.Conda = prefix
	}
	in.Stamp = stamp(in.Path)
	return in, nil
}

// stamp is the time of a path's last change, as a link and as what it leads to: the one changes with the venv, the other
// with the system's Python.
func stamp(path string) string {
	var b strings.Builder
	for _, stat := range []func(string) (os.FileInfo, error){os.Lstat, os.Stat} {
		if fi, err := stat(path); err == nil {
			b.WriteString(strconv.FormatInt(fi.ModTime().UnixNano(), 10) + " ")
		}
	}
	return b.String()
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

func isDir(path string) bool {
	fi, err := os.Stat(path)
	return err == nil && fi.IsDir()
}

// Probe implements Runtime.
func (v venv) Probe(ctx context.Context, h Host, m *manifest.Manifest, run Runner, f *facts) error {
	var err error
	if f.interp, err = findInterpreter(m.Env.Python); err != nil {
		return err
	}
	if f.interp.Path != "" {
		f.watch = append(f.watch, f.interp.Path, resolvePath(f.interp.Path))
	}
	if f.setup, err = probeSetup(ctx, run, h, m, f, v.base(h, m).list()); err != nil {
		return err
	}
	if len(m.Command) == 0 {
		f.program = f.interp.Path
		return nil
	}
	env := v.env(h, m, f)
	if f.program, err = findCommand(m, f.interp, env["PATH"]); err != nil {
		return err
	}
	sum, err := fileSum(f.program)
	if err == nil {
		f.content[f.program] = sum
	}
	f.watch = append(f.watch, f.program)
	return nil // a program that may be executed but not read has no sum
}

// findCommand resolves command[0]: a path, or a name looked up beside the interpreter first and on the worker's PATH then.
func findCommand(m *manifest.Manifest, in interpreter, path string) (string, error) {
	name := m.Command[0]
	if strings.Contains(name, "/") {
		p := commandPath(m)
		if err := inspectProgram(p); err != nil {
			return "", &Error{Key: "command", Msg: err.Error()}
		}
		return p, nil
	}
	dirs := filepath.SplitList(path)
	if in.Path != "" {
		dirs = append([]string{filepath.Dir(in.Path)}, dirs...)
	}
	for _, dir := range dirs {
		p := filepath.Join(dir, name)
		if fi, err := os.Stat(p); !filepath.IsAbs(dir) || err != nil || fi.IsDir() || fi.Mode()&0o111 == 0 {
			continue
		}
		if err := inspectProgram(p); err != nil {
			return "", &Error{Key: "command", Msg: err.Error(), Watch: []string{p}}
		}
		return p, nil
	}
	return "", permanent("command", "there is no program %s beside the interpreter or on PATH (%s)", name, path)
}

// base is the environment that a setup is given: the worker's without what is its own.
//
// HOME is the caller's: a venv worker runs on the host as the caller, whose dot files (tokens, ssh and git settings) its
// libraries expect; the home in the cache is for containers, which never see the host's. Python's user site is off, and
// caches have variables of their own. It is filled in where workerd has none, as a system service.
func (venv) base(h Host, m *manifest.Manifest) environ {
	own := parseEnviron(h.Environ)
	e := inherit(own, m.Env.Secrets)
	home := h.ID.Home
	if home == "" {
		home = providerHome(h, m.Slug)
	}
	for name, value := range map[string]string{"HOME": home, "USER": h.ID.Name, "LOGNAME": h.ID.Name} {
		if e[name] == "" {
			e[name] = value
		}
	}
	// A glob adds what is not there; a name that is written out also overrides what workerd would set.
	pass := passed(own, m.Env.PassEnv, m.Env.Secrets)
	e.set(pass)
	e.set(cacheEnv(h, m.Slug))
	e.set(pythonEnv())
	for _, name := range m.Env.PassEnv {
		if v, ok := pass[name]; ok {
			e[name] = v
		}
	}
	setVariables(e, m)
	e["PWD"] = m.Paths.Cwd
	return e
}

// env is the whole environment of a Plan.
func (v venv) env(h Host, m *manifest.Manifest, f *facts) environ {
	e := v.base(h, m)
	for _, name := range f.setup.Unset {
		delete(e, name)
	}
	e.set(f.setup.Set)
	dropSecrets(e, m.Env.Secrets)
	setVariables(e, m) // once more: they win over the setup too
	over := overridden(h, m)
	for name, value := range perWorker(h, m, f.gpu) {
		if !over[name] {
			e[name] = value
		}
	}
	e.set(workerdEnv(h, m))
	if p := withSDK(h.SDKDir, e["PYTHONPATH"]); p != "" {
		e["PYTHONPATH"] = p
	}
	return e
}

// overridden are the variables of perWorker that the manifest sets itself, or hands on by name.
func overridden(h Host, m *manifest.Manifest) map[string]bool {
	over := map[string]bool{}
	own := parseEnviron(h.Environ)
	for name := range perWorker(h, m, GPU{Count: 1, amd: true}) { // all that a worker may be given
		if reservedVars[name] {
			continue
		}
		_, set := m.Env.Variables[name]
		_, secret := m.Env.Secrets[name]
		_, have := own[name]
		named := false
		for _, p := range m.Env.PassEnv {
			named = named || p == name && have
		}
		over[name] = set || secret || named
	}
	return over
}

// Plan implements Runtime.
func (v venv) Plan(h Host, m *manifest.Manifest, f *facts) *Plan {
	pl := &Plan{
		Slug:       m.Slug,
		Kind:       manifest.Venv,
		Env:        v.env(h, m, f),
		Secrets:    append([]string{}, sortedKeys(m.Env.Secrets)...),
		Cwd:        m.Paths.Cwd,
		Binds:      f.binds,
		User:       User{UID: h.ID.UID, GID: h.ID.GID, Groups: append([]int{}, h.ID.Groups...)},
		GPU:        f.gpu,
		StopSignal: StopSignal,
		secrets:    m.Env.Secrets,
		overridden: overridden(h, m),
		dirs:       dirsToMake(h, m, f),
	}
	if len(m.Command) > 0 {
		pl.Argv = append([]string{f.program}, m.Command[1:]...)
	} else {
		pl.Argv = append([]string{f.program, m.Worker}, m.Args...)
	}
	pl.Fingerprint = fingerprint(h, m, pl, f)
	return pl
}

// dirsToMake lists what Prepare makes: the promises that may be made, and the folders of the cache.
func dirsToMake(h Host, m *manifest.Manifest, f *facts) []promise {
	var out []promise
	for _, p := range f.promises {
		if p.create != 0 {
			out = append(out, p)
		}
	}
	caches := cacheEnv(h, m.Slug)
	for _, name := range sortedKeys(caches) {
		out = append(out, promise{path: caches[name], mode: ro, create: 0o700})
	}
	return append(out, promise{path: providerHome(h, m.Slug), mode: rw, create: 0o700})
}

// Check implements Runtime.
func (venv) Check(h Host, m *manifest.Manifest) []string {
	out := cgroupWarnings(h, m)
	over := overridden(h, m)
	if over["CUDA_VISIBLE_DEVICES"] {
		out = append(out, "env: CUDA_VISIBLE_DEVICES is set by the manifest, so the worker may use GPUs that workerd knows nothing of")
	}
	if over["TMPDIR"] {
		out = append(out, "env: TMPDIR is set by the manifest, so workerd does not clean up the worker's temporary files")
	}
	return out
}
