package manifest

import (
	"errors"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// checkEnv checks that the chosen kind has what it needs.
func (c *checker) checkEnv() {
	e := &c.m.Env
	switch {
	case c.kind(Venv):
		c.checkPython()
	case c.kind(Docker, Podman):
		if c.need("env.image", e.Image, "a "+e.Kind+" provider needs an image") {
			c.checkWord("env.image", e.Image)
		}
	case c.kind(Apptainer):
		if c.need("env.sif", e.SIF, "an apptainer provider needs a .sif file or a sandbox directory") {
			c.checkSIF()
		}
	}
	if c.kind(Docker, Podman, Apptainer) {
		c.checkWord("env.network", e.Network)
		if e.ContainerPython == "" && c.m.Worker != "" && c.ok("env.container_python") {
			c.report("env.container_python", "is empty: name the interpreter in the image, such as %q", DefaultContainerPython)
		}
	}
}

// need reports a key that the kind needs and that is unset; the key of another kind tells what was probably meant.
func (c *checker) need(key, value, why string) bool {
	if value != "" || !c.ok(key) {
		return value != "" && c.ok(key)
	}
	hint := ""
	for _, other := range []struct{ key, value, kind string }{
		{"env.image", c.m.Env.Image, Docker},
		{"env.sif", c.m.Env.SIF, Apptainer},
		{"env.python", c.m.Env.Python, Venv},
	} {
		if other.key != key && other.value != "" && c.layers.manifest.keys[other.key] {
			hint = "; " + other.key + " is set: did you mean kind = \"" + other.kind + "\"?"
			break
		}
	}
	c.report(key, "missing: %s%s", why, hint)
	return false
}

// checkWord refuses what an engine would take for an option or for several words.
func (c *checker) checkWord(key, value string) {
	switch {
	case !c.ok(key):
	case value == "":
		c.report(key, "is empty")
	case strings.HasPrefix(value, "-"), strings.ContainsAny(value, " \t\r\n"):
		c.report(key, "%q is no name: it may not begin with - or hold white space", value)
	}
}

func (c *checker) checkSIF() {
	const key = "env.sif"
	written, _ := c.writtenString("env", "sif")
	if scheme, _, ok := strings.Cut(written, "://"); ok {
		c.report(key, "must be a file or a sandbox directory, not a %s:// address: run apptainer build image.sif %s first", scheme, written)
		return
	}
	if info := c.stat(key, c.m.Env.SIF); info != nil && !info.IsDir() && !info.Mode().IsRegular() {
		c.report(key, "%s is neither a .sif file nor a sandbox directory", c.m.Env.SIF)
	}
}

// writtenString returns a string as the file has it, before expansion.
func (c *checker) writtenString(table, name string) (string, bool) {
	raw, _ := c.layers.merged()[table].(map[string]any)
	s, ok := raw[name].(string)
	return s, ok
}

// checkPython resolves a venv's or conda prefix's directory to its interpreter and checks that it can be run.
func (c *checker) checkPython() {
	const key = "env.python"
	e := &c.m.Env
	if e.Python == "" && len(c.m.Command) > 0 {
		return
	}
	if !c.need(key, e.Python, "a venv provider needs an interpreter, or the directory of a venv or conda prefix") {
		return
	}
	if info, err := os.Stat(e.Python); err == nil && info.IsDir() {
		folder := e.Python
		e.Python = interpreterIn(folder)
		if e.Python == "" {
			c.awaits = append(c.awaits, strings.TrimSuffix(folder, "/")+"/bin/python")
			c.report(key, "%s has no bin/python: name a venv, a conda prefix or an interpreter", folder)
			return
		}
	}
	_, err := os.Stat(e.Python)
	if target := danglingTarget(e.Python); err != nil && target != "" {
		c.awaits = append(c.awaits, e.Python)
		c.report(key, "interpreter symlink points to missing %s; re-create the venv", target)
		return
	}
	if written, _ := c.writtenString("env", "python"); err != nil && !strings.Contains(written, "/") {
		c.missing(key, e.Python, err, "; write an absolute path such as /usr/bin/python3")
		return
	}
	c.executable(key, e.Python)
}

// interpreterIn returns the interpreter of a venv or conda prefix, "" where folder has none. A dangling symlink counts: it
// is reported as such.
func interpreterIn(folder string) string {
	for _, name := range []string{"python", "python3"} {
		file := strings.TrimSuffix(folder, "/") + "/bin/" + name
		if _, err := os.Lstat(file); err == nil {
			return file
		}
	}
	return ""
}

func (c *checker) checkSetup() {
	e := &c.m.Env
	if e.Setup != "" && c.ok("env.setup") {
		c.file("env.setup", e.Setup)
	}
	for i, module := range e.Modules {
		c.checkWord(indexKey("env.modules", i), module)
	}
	for i, glob := range e.PassEnv {
		key := indexKey("env.pass_env", i)
		_, err := path.Match(glob, "")
		switch {
		case !c.ok(key):
		case glob == "", strings.ContainsAny(glob, "= \t\n"):
			c.report(key, `%q is no name of a variable: write a name or a glob such as "SLURM_*"`, glob)
		case err != nil:
			c.report(key, "%q is no glob: * ? and [...] are known", glob)
		}
	}
}

func (c *checker) checkVariables() {
	for _, name := range sortedKeys(c.m.Env.Variables) {
		c.checkVariableName(joinKey("env.variables", name), name)
	}
}

func (c *checker) checkVariableName(key, name string) {
	switch {
	case !variableName.MatchString(name):
		c.report(key, "%q is no name of a variable: write letters, digits and _, the first no digit", name)
	case strings.HasPrefix(name, "WORKERD_"):
		c.report(key, "names that begin with WORKERD_ are workerd's own: choose another one")
	}
}

func (c *checker) checkSecrets() {
	for _, name := range sortedKeys(c.m.Env.Secrets) {
		s, key := c.m.Env.Secrets[name], joinKey("env.secrets", name)
		c.checkVariableName(key, name)
		if _, twice := c.m.Env.Variables[name]; twice {
			c.report(key, "is in env.variables too: keep one of them")
		}
		fileKey, envKey := joinKey(key, "file"), joinKey(key, "env")
		switch {
		case !c.ok(key, fileKey, envKey):
		case (s.File == "") == (s.Env == ""):
			c.report(key, `write exactly one of { file = "..." } and { env = "..." }`)
		case s.File != "":
			c.file(fileKey, s.File)
		case !variableName.MatchString(s.Env):
			c.report(envKey, "%q is no name of a variable", s.Env)
		default:
			if _, set := c.opt.LookupEnv(s.Env); !set {
				c.report(envKey, "%s is not set in workerd's environment: set it, or use { file = \"...\" }", s.Env)
			}
		}
	}
}

// systemFolders are those of an image that a mount must not hide; what lies below them is fine.
var systemFolders = []string{
	"/", "/usr", "/lib", "/lib32", "/lib64", "/libx32", "/bin", "/sbin", "/etc", "/proc", "/sys", "/dev",
	// On images with a merged /usr these are /lib, /bin and /sbin.
	"/usr/lib", "/usr/lib32", "/usr/lib64", "/usr/libx32", "/usr/bin", "/usr/sbin",
}

// checkMounts checks what a container gets mounted.
func (c *checker) checkMounts() {
	if !c.kind(Docker, Podman, Apptainer) {
		return
	}
	for _, mount := range c.mounts() {
		if !c.ok(mount.key) {
			continue
		}
		if hidden := hides(mount.path); hidden != "" {
			c.report(mount.key, "%s would hide the image's own %s: bind a folder below it", mount.path, hidden)
		}
		c.checkRelabel(mount.path)
	}
}

// checkRelabel refuses labels that would lock the host out of its own folders.
func (c *checker) checkRelabel(folder string) {
	const key = "env.selinux"
	if !c.ok(key) || !c.kind(Docker, Podman) {
		return
	}
	selinux := c.m.Env.SELinux
	if selinux != "private" && selinux != "shared" {
		return
	}
	for _, precious := range []string{c.opt.Home, "/", "/usr", "/etc", "/home"} {
		if !sameFolder(folder, precious) {
			continue
		}
		if selinux == "private" {
			c.report(key, `"private" would relabel all of %s for this container alone: use "disable", or bind a folder below it`, folder)
		} else {
			c.warn(key, `"shared" relabels all of %s: "disable" leaves it alone`, folder)
		}
		return
	}
}

type mount struct{ key, path string }

// mounts lists what the manifest makes a container see of the host.
func (c *checker) mounts() []mount {
	m := c.m
	all := []mount{{"weights.root", m.Weights.Root}, {"paths.work_root", m.Paths.WorkRoot}, {"", m.Dir}}
	for i, extra := range m.Weights.Extra {
		all = append(all, mount{indexKey("weights.extra", i), extra})
	}
	for i, b := range m.Paths.Binds {
		all = append(all, mount{indexKey("paths.binds", i), b.Path})
	}
	if m.Worker != "" {
		all = append(all, mount{"worker", filepath.Dir(m.Worker)})
	}
	if m.Smoke != "" {
		all = append(all, mount{"smoke", filepath.Dir(m.Smoke)})
	}
	return slices.DeleteFunc(all, func(m mount) bool { return m.path == "" })
}

// hides returns the system folder that a mount of path hides, "" if none.
func hides(path string) string {
	names := []string{filepath.Clean(path)}
	if real, err := filepath.EvalSymlinks(path); err == nil {
		names = append(names, real)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return ""
	}
	for _, name := range names {
		if slices.Contains(systemFolders, name) {
			return name
		}
	}
	return ""
}
