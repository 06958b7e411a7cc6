package execenv

import (
	"cmp"
	"context"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"workerd/manifest"
)

// containerFacts are what was found out for a worker in a container.
type containerFacts struct {
	engine  EngineInfo
	image   Image // of apptainer only Env
	runner  runnerInfo
	files   []planFile // identity files
	own     folders    // workerd's own, which no fingerprint has: sockets, SDK, identity files
	shared  folders    // those that other providers see too
	umask   int
	selinux bool   // SELinux enforces
	stamp   string // of the sif
	rocm    bool
}

var plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// containerBase is the environment of a container worker before setup and manifest have their say, and without what the
// image brings. Nothing is inherited but what pass_env names.
func containerBase(h Host, m *manifest.Manifest) environ {
	pass := passed(parseEnviron(h.Environ), m.Env.PassEnv, m.Env.Secrets)
	maps.DeleteFunc(pass, func(name, _ string) bool { return !plainName.MatchString(name) })
	e := pass.clone()
	e.set(cacheEnv(h, m.Slug))
	e.set(pythonEnv())
	e.set(map[string]string{"HOME": providerHome(h, m.Slug), "USER": h.ID.Name, "LOGNAME": h.ID.Name})
	if m.Env.Network == manifest.DefaultNetwork {
		e.set(map[string]string{"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"})
	}
	for _, name := range m.Env.PassEnv {
		if v, ok := pass[name]; ok {
			e[name] = v
		}
	}
	setVariables(e, m)
	dropSecrets(e, m.Env.Secrets)
	setVariables(e, m)
	return e
}

// containerEnv is all that a container worker is given besides what its image brings; of that PYTHONPATH, behind the SDK.
func containerEnv(h Host, m *manifest.Manifest, f *facts) environ {
	e := containerBase(h, m)
	for _, name := range f.setup.Unset {
		delete(e, name)
	}
	e.set(f.setup.Set)
	setVariables(e, m)
	over := overridden(h, m)
	for name, value := range perWorker(h, m, f.gpu) {
		if !over[name] {
			e[name] = value
		}
	}
	e.set(workerdEnv(h, m))
	python := e["PYTHONPATH"]
	if python == "" {
		python = parseEnviron(f.ctr.image.Env)["PYTHONPATH"]
	}
	if p := withSDK(h.SDKDir, python); p != "" {
		e["PYTHONPATH"] = p
	}
	return e
}

// probeContainerSetup finds out what a setup file and modules change. They run on the host, with the host's PATH: what an image
// says of its own variables is not let near a program of the host, nor are those of the manifest that act on the loader. So
// that a variable can be extended all the same, a word stands for the image's value, and that takes the word's place in the
// answer.
func probeContainerSetup(ctx context.Context, run Runner, h Host, m *manifest.Manifest, f *facts) (change, error) {
	own, image := parseEnviron(h.Environ), parseEnviron(f.ctr.image.Env)
	base := containerBase(h, m)
	words := map[string]string{}
	for _, name := range imageVars {
		delete(base, name)
		if image[name] != "" {
			base[name] = "/.workerd-image/" + name
			words[name] = base[name]
		}
	}
	maps.DeleteFunc(base, func(name, _ string) bool { return strings.HasPrefix(name, "LD_") && words[name] == "" })
	base["PATH"] = cmp.Or(own["PATH"], defaultPath)
	words["PATH"] = base["PATH"]
	for name, v := range own {
		if matchAny([]string{"MODULE*", "LMOD_*", "LOADEDMODULES", "_LMFILES_"}, name) {
			base[name] = v // where modules are found
		}
	}
	base["PWD"] = m.Paths.Cwd
	c, err := probeSetup(ctx, run, h, m, f, base.list())
	image["PATH"] = cmp.Or(image["PATH"], defaultPath)
	for name, word := range words {
		if v, ok := c.Set[name]; ok {
			c.Set[name] = strings.Replace(v, word, image[name], 1)
		}
	}
	return c, err
}

// containerArgv is the argument vector inside a container.
func (f *facts) containerArgv(m *manifest.Manifest) []string {
	if len(m.Command) > 0 {
		return append([]string{f.program}, m.Command[1:]...)
	}
	return append([]string{m.Env.ContainerPython, m.Worker}, m.Args...)
}

// findContainerCommand resolves command[0] of a container worker: a path resolves against the manifest's directory as every
// path does, whether it is the image's or a bound one; a name is looked up on the image's PATH. A bound file's content counts.
func findContainerCommand(m *manifest.Manifest, f *facts) error {
	if len(m.Command) == 0 {
		return nil
	}
	f.program = m.Command[0]
	if !strings.Contains(f.program, "/") {
		return nil
	}
	f.program = commandPath(m)
	own := tidy(f.program)
	if nearestMode(f.binds, own) == "" {
		return nil // the image's, whose symlinks are not known here
	}
	f.program = own
	if _, err := os.Stat(f.program); err != nil { // whether it can be executed is the image's matter
		return &Error{Key: "command", Msg: f.program, Err: missing(f.program, err), Watch: []string{f.program}}
	}
	if sum, err := fileSum(f.program); err == nil {
		f.content[f.program] = sum
	}
	f.watch = append(f.watch, f.program)
	return nil
}

// checkContainer finds out, and checks, what all kinds of containers need.
func checkContainer(h Host, m *manifest.Manifest, f *facts) error {
	f.promises = append(f.promises, ownPromises(h, m)...)
	if err := checkMounts(f.promises); err != nil {
		return err
	}
	if err := checkMountPath("", scratch(h)); err != nil {
		return err
	}
	f.binds = makeBinds(f.promises, resolvePath)
	if nearestMode(f.binds, m.Paths.Cwd) == "" {
		return permanent("paths.cwd", "%s is not bound into the container: add it to paths.binds, or leave the key out for the manifest's directory",
			m.Paths.Cwd)
	}
	caches := cacheEnv(h, m.Slug)
	f.ctr.own = newFolders(h.SDKDir, socketDir(h, m.Slug), identityDir(h, ""))
	f.ctr.shared = newFolders(h.SDKDir, identityDir(h, ""), caches["HF_HOME"], caches["TORCH_HOME"])
	f.ctr.umask = umask()
	f.ctr.selinux = selinuxEnforces()
	f.ctr.rocm = exists("/dev/kfd") && !exists("/dev/nvidiactl")
	return findContainerCommand(m, f)
}

// umask returns the umask of this process, without the moment in which setting it to read it would change it for all threads.
func umask() int {
	data, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0o22
	}
	for line := range strings.Lines(string(data)) {
		if v, ok := strings.CutPrefix(line, "Umask:"); ok {
			if n, err := strconv.ParseInt(strings.TrimSpace(v), 8, 32); err == nil {
				return int(n)
			}
		}
	}
	return 0o22
}

func selinuxEnforces() bool {
	data, err := os.ReadFile("/sys/fs/selinux/enforce")
	return err == nil && strings.TrimSpace(string(data)) == "1"
}

// identityDir is where the identity files with a content are. Files of another content have another folder: containers that run
// hold theirs.
func identityDir(h Host, sum string) string { return filepath.Join(h.CacheDir, "identity", sum) }
