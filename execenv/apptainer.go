package execenv

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"workerd/manifest"
)

// apptainer runs workers in the foreground, as children of ours, by Apptainer or SingularityCE.
type apptainer struct{}

var _ Runtime = apptainer{}

// runnerInfo is what is known of an Apptainer or SingularityCE.
type runnerInfo struct {
	Bin     string
	Name    string // apptainer or singularity: what it is, whatever the program's name
	Version string
	// Flags are the options of exec that it has, of those that not every version has.
	Flags map[string]bool
}

// prefix is that of the variables that it gives to a container.
func (r runnerInfo) prefix() string { return strings.ToUpper(r.Name) + "ENV_" }

// Probe implements Runtime.
func (a apptainer) Probe(ctx context.Context, h Host, m *manifest.Manifest, run Runner, f *facts) error {
	var err error
	if f.ctr.runner, err = f.planner.runner(ctx); err != nil {
		return planError("env.kind", err)
	}
	f.watch = append(f.watch, f.ctr.runner.Bin, m.Env.SIF)
	if f.ctr.stamp, err = imageStamp(m.Env.SIF); err != nil {
		return &Error{Key: "env.sif", Msg: m.Env.SIF, Err: errCause(err), Watch: []string{m.Env.SIF}}
	}
	if err := checkContainer(h, m, f); err != nil {
		return err
	}
	if err := a.check(h, m, f); err != nil {
		return err
	}
	if f.ctr.image.Env, err = f.planner.imageEnv(ctx, f.ctr.runner, m.Env.SIF, f.ctr.stamp); err != nil {
		return planError("env.sif", err)
	}
	if f.setup, err = probeContainerSetup(ctx, run, h, m, f); err != nil {
		return err
	}
	env := containerEnv(h, m, f)
	source, target := homeOf(h, m, env, f.binds)
	if err := checkMountPath("env.variables.HOME", target); err != nil {
		return err
	}
	for _, path := range []string{source, target} {
		if strings.ContainsAny(path, ":,") {
			return permanent("env.kind", "the worker's home %s holds ':' or ',', which %s cannot be told as --home: choose another cache_dir", path, f.ctr.runner.Name)
		}
	}
	if !f.ctr.runner.Flags["--no-eval"] {
		for _, name := range sortedKeys(env) {
			if strings.ContainsAny(env[name], "$`\\\"") {
				return permanent("env.variables."+name, "%s %s runs values of variables as shell code, so one with $, `, \\ or \" cannot be given: Apptainer 1.1 or newer is needed",
					f.ctr.runner.Name, f.ctr.runner.Version)
			}
		}
	}
	return nil
}

// check refuses what it cannot do for this caller.
func (apptainer) check(h Host, m *manifest.Manifest, f *facts) error {
	switch network := m.Env.Network; {
	case network == "none" || network == "host":
	case h.ID.UID != 0:
		return permanent("env.network", "%s gives users other than root only \"none\" and \"host\", not %q", f.ctr.runner.Name, network)
	}
	return nil
}

// imageStamp names the content of an image file, or of a sandbox directory, by what changes with it.
func imageStamp(path string) (string, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return "", err
	}
	ino := uint64(0)
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		ino = st.Ino
	}
	return fmt.Sprintf("%d %d %d", ino, fi.Size(), fi.ModTime().UnixNano()), nil
}

// Plan implements Runtime.
func (a apptainer) Plan(h Host, m *manifest.Manifest, f *facts) *Plan {
	env := containerEnv(h, m, f)
	if v := env["LD_LIBRARY_PATH"]; v != "" && f.gpu.Count > 0 {
		env["LD_LIBRARY_PATH"] = driverLibs + ":" + v // or the driver's libraries would be hidden
	}
	source, target := homeOf(h, m, env, f.binds)
	pl := newContainerPlan(h, m, f, env)
	pl.Image = m.Env.SIF
	if source != target {
		pl.Binds = append(pl.Binds, Bind{source, target, rw})
	}
	argv := f.containerArgv(m)
	options := a.options(h, m, f)
	pl.view = &view{argv: slices.Concat(argv, options, m.Env.ExtraArgs), binds: f.ctr.own.without(pl.Binds), image: f.ctr.stamp}
	pl.Fingerprint = fingerprint(h, m, pl, f)

	c := &carrier{env: a.runnerEnv(h, f.ctr.runner), prefix: f.ctr.runner.prefix(), without: "HOME", home: source} // which only --home can set
	c.args = append(c.args, fixed(f.ctr.runner.Bin, "-q", "exec"), fixed(options...))
	c.args = append(c.args, fixed("--home", source+":"+target))
	if f.gpu.Count > 0 {
		c.args = append(c.args, arg{text: a.gpu(f), fill: func(w WorkerParams, _ ContainerSpec) []string {
			switch {
			case len(w.GPUs) == 0:
				return nil
			case len(w.Nodes) > 0:
				return []string{"--rocm"}
			}
			return a.gpu(f)
		}})
	}
	for _, b := range pl.Binds {
		if b.Target != target || source == target { // the home's own mount is --home
			c.args = append(c.args, fixed(a.bind(b)...))
		}
	}
	// /tmp and /var/tmp would be 64 MB of memory otherwise.
	tmp := func(dirs ...string) []string {
		out := []string{"--workdir", dirs[0]}
		for _, dir := range dirs {
			out = append(out, a.bind(Bind{dir, dir, rw})...)
		}
		return out
	}
	c.args = append(c.args, arg{text: tmp(tmpOf(h)), fill: func(w WorkerParams, _ ContainerSpec) []string { return tmp(bothNames(w.Tmp)...) }})
	c.args = append(c.args, fixed(m.Env.ExtraArgs...), fixed(m.Env.SIF), fixed(argv...))
	pl.carry = c
	pl.Argv = c.argv()
	return pl
}

// driverLibs is where --nv puts the driver's libraries.
const driverLibs = "/.singularity.d/libs"

func (apptainer) bind(b Bind) []string {
	if b.Mode == ro {
		return []string{"--mount", mountOption(b, "destination", "ro")}
	}
	return []string{"--mount", mountOption(b, "destination")}
}

func (apptainer) gpu(f *facts) []string {
	if f.ctr.rocm {
		return []string{"--rocm"}
	}
	return []string{"--nv"}
}

// options are the flags that are the same for all workers.
func (apptainer) options(h Host, m *manifest.Manifest, f *facts) []string {
	out := containFlags(h, f.ctr.runner)
	cwd := "--pwd"
	if f.ctr.runner.Flags["--cwd"] {
		cwd = "--cwd"
	}
	out = append(out, cwd, m.Paths.Cwd)
	if m.Env.Network != "host" {
		out = append(out, "--net", "--network", m.Env.Network)
	}
	return out
}

// containFlags keep the host out of a container.
func containFlags(h Host, r runnerInfo) []string {
	out := []string{"--cleanenv", "--containall"}
	if r.Flags["--no-eval"] {
		out = append(out, "--no-eval") // else values of variables are shell code
	}
	if h.ID.UID == 0 {
		// As in the other containers: root keeps what lets it read what it reads in a venv.
		out = append(out, "--no-privs", "--add-caps", "CAP_DAC_OVERRIDE")
	}
	return out
}

// runnerEnv is the environment of the runner itself. Every APPTAINER_ and SINGULARITY_ variable of workerd's own would act on
// the worker; three of them are about the runner's own files.
func (apptainer) runnerEnv(h Host, r runnerInfo) environ {
	e := clientEnv(h, manifest.Apptainer)
	for name := range e {
		if isProxy(name) { // --cleanenv lets them through
			delete(e, name)
		}
	}
	for name, v := range parseEnviron(h.Environ) {
		for _, p := range []string{"APPTAINER_", "SINGULARITY_"} {
			if name == p+"CACHEDIR" || name == p+"TMPDIR" || name == p+"CONFIGDIR" {
				e[name] = v
			}
		}
	}
	if config := strings.ToUpper(r.Name) + "_CONFIGDIR"; e[config] == "" {
		e[config] = filepath.Join(h.CacheDir, r.Name) // the caller's home may be closed, or not there
	}
	return e
}

// Check implements Runtime.
func (apptainer) Check(h Host, m *manifest.Manifest) []string {
	return append(cgroupWarnings(h, m), checkOverrides(h, m)...)
}
