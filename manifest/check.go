package manifest

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// checker normalises one decoded manifest and collects what is wrong with it. Everything is checked: a key that has a
// problem is left out of later checks, the others are not.
type checker struct {
	opt       *Options
	trust     *truster // nil: trust is not checked
	layers    layers
	m         *Manifest
	schemas   map[string]string
	kindKnown bool

	problems Problems
	warnings Problems
	bad      map[string]bool
	reads    []dep    // files whose content counts
	awaits   []string // paths whose absence is a problem
}

// evaluate turns layers into a manifest that is ready to use, or says what is wrong with it.
func evaluate(l layers, file string, opt *Options, trust *truster) *checker {
	c := &checker{opt: opt, trust: trust, layers: l, bad: map[string]bool{}}
	c.m, c.schemas = l.decode(c.report, c.distrust)
	c.m.File, c.m.Dir = file, filepath.Dir(file)
	c.kindKnown = !c.bad["env.kind"]
	c.expandAll()
	c.fillIn()
	for _, check := range []func(){
		c.checkSlug, c.checkSockets, c.checkProgram, c.checkEnv, c.checkSetup, c.checkVariables, c.checkSecrets,
		c.checkWeights, c.checkPaths, c.checkMounts, c.checkGPU, c.checkNumbers, c.checkAllow, c.checkTools, c.checkSmoke,
		c.checkUnused,
	} {
		check()
	}
	c.problems, c.warnings = c.problems.sorted(), c.warnings.sorted()
	return c
}

func (c *checker) report(key, format string, args ...any) {
	c.bad[key] = true
	c.problems = append(c.problems, c.layers.problem(key, fmt.Sprintf(format, args...)))
}

// distrust leaves a key out of the checks to come: an unknown key was probably to be this one.
func (c *checker) distrust(key string) { c.bad[key] = true }

func (c *checker) warn(key, format string, args ...any) {
	c.warnings = append(c.warnings, c.layers.problem(key, fmt.Sprintf(format, args...)))
}

// ok reports whether nothing was found wrong with any of the keys.
func (c *checker) ok(keys ...string) bool {
	return !slices.ContainsFunc(keys, func(key string) bool { return c.bad[key] })
}

// given reports whether the manifest or the site's defaults have the key.
func (c *checker) given(key string) bool { return c.layers.source(key).keys[key] }

// kind reports whether the chosen kind is one of kinds; false where it is not known.
func (c *checker) kind(kinds ...string) bool {
	return c.kindKnown && slices.Contains(kinds, c.m.Env.Kind)
}

// stat returns what path leads to; where that is nothing it reports so under key and returns nil.
func (c *checker) stat(key, path string) fs.FileInfo {
	info, err := os.Stat(path)
	if err != nil {
		c.missing(key, path, err, "")
		return nil
	}
	return info
}

func (c *checker) missing(key, path string, err error, hint string) {
	c.awaits = append(c.awaits, path)
	c.report(key, "%s%s", whyUnusable(path, err), hint)
}

// file reports a path that is no readable regular file.
func (c *checker) file(key, path string) bool {
	info := c.stat(key, path)
	if info == nil {
		return false
	}
	if !info.Mode().IsRegular() {
		c.report(key, "%s is no regular file", path)
		return false
	}
	if err := unix.Access(path, unix.R_OK); err != nil {
		c.report(key, "%s cannot be read: %v", path, err)
		return false
	}
	return true
}

// executable reports a path that is no program which may be run.
func (c *checker) executable(key, path string) {
	info := c.stat(key, path)
	if info == nil {
		return
	}
	if !info.Mode().IsRegular() {
		c.report(key, "%s is no program but a %s", path, fileKind(info))
	} else if unix.Access(path, unix.X_OK) != nil {
		c.awaits = append(c.awaits, path)
		c.report(key, "%s is not executable: chmod +x %s", path, path)
	}
}

func fileKind(info fs.FileInfo) string {
	if info.IsDir() {
		return "folder"
	}
	return "special file"
}

// fillIn sets what has a default that depends on other keys.
func (c *checker) fillIn() {
	if c.m.Slug == "" && c.ok("slug") {
		c.m.Slug = nameSlug(c.m.File)
	}
	if c.m.Paths.Cwd == "" {
		c.m.Paths.Cwd = c.m.Dir
	}
	if c.m.Restart.OnChange == "" {
		c.m.Restart.OnChange = DefaultOnChange
		if c.m.GPU.Policy == "exclusive" {
			c.m.Restart.OnChange = DefaultOnChangeExclusive
		}
	}
}

// folderManifest is the name of the manifest of a provider that has a folder of its own.
const folderManifest = "provider.toml"

// nameSlug returns the slug that a manifest has by its name.
func nameSlug(file string) string {
	if filepath.Base(file) == folderManifest {
		return filepath.Base(filepath.Dir(file))
	}
	return strings.TrimSuffix(filepath.Base(file), ".toml")
}

const (
	slugForm     = "1 to 40 of a-z, 0-9 and -, the first no -"
	reservedSlug = "workerd"

	slugInDefaults = "has no place in the defaults: every provider has its own"
)

var slugPattern = regexp.MustCompile(`^[a-z0-9][a-z0-9-]{0,39}$`)

func (c *checker) checkSlug() {
	slug := c.m.Slug
	switch {
	case !c.ok("slug"):
	case c.layers.defaults != nil && c.layers.defaults.keys["slug"]:
		c.problems = append(c.problems, c.layers.defaults.problem("slug", slugInDefaults))
		c.bad["slug"] = true
	case !slugPattern.MatchString(slug) && !c.given("slug"):
		c.report("slug", "%q, from the name of the manifest, is no slug: rename it or set slug to %s", slug, slugForm)
	case !slugPattern.MatchString(slug):
		c.report("slug", "%q is no slug: write %s", slug, slugForm)
	case slug == reservedSlug:
		c.report("slug", "%q is reserved for workerd itself: choose another one", slug)
	}
}

// maxSocketPath is the longest path that a unix socket can be bound to on Linux.
const maxSocketPath = 107

func (c *checker) checkSockets() {
	if c.opt.RuntimeDir == "" || !c.ok("slug") {
		return
	}
	for _, path := range []string{
		c.opt.RuntimeDir + "/front/" + c.m.Slug + "/sock",
		c.opt.RuntimeDir + "/w/" + c.m.Slug + "/999999999999.sock",
	} {
		if len(path) > maxSocketPath {
			c.report("slug", "the socket path %s would have %d bytes, the kernel's limit is %d: choose a shorter slug or a shorter runtime directory",
				path, len(path), maxSocketPath)
			return
		}
	}
}

func (c *checker) checkProgram() {
	m := c.m
	switch {
	case !c.ok("worker", "command", "args"):
		return
	case m.Worker == "" && len(m.Command) == 0:
		c.report("worker", "missing: name the worker's script, or a command")
		return
	case m.Worker != "" && len(m.Command) > 0:
		c.report("command", "worker and command exclude each other: keep one of them")
		return
	case len(m.Command) > 0:
		if len(m.Args) > 0 {
			c.report("args", "belongs to worker: write the arguments into command")
		}
		c.checkCommand()
		return
	}
	if c.file("worker", m.Worker) {
		c.trusted("worker", m.Worker)
	}
}

func (c *checker) checkCommand() {
	program, key := c.m.Command[0], indexKey("command", 0)
	switch {
	case !c.ok(key):
	case program == "":
		c.report(key, "is empty: name a program")
	case c.kind(Venv) && strings.Contains(program, "/"), strings.HasPrefix(program, c.m.Dir+"/"):
		// In a container a program may be the image's own; without a slash it is looked up when it is run.
		c.executable(key, program)
		if c.ok(key) {
			c.trusted(key, program)
		}
	}
}

// trusted reports a program that others than the caller and root could replace.
func (c *checker) trusted(key, path string) {
	if c.trust == nil {
		return
	}
	info, err := os.Stat(path)
	if err == nil {
		err = c.trust.owned(path, info)
	}
	if err == nil {
		err = c.trust.folder(filepath.Dir(path))
	}
	if err != nil {
		c.report(key, "not trusted: %v", err)
	}
}

// checkUnused warns of keys of the manifest that its kind does not use. They are no error: a manifest may hold what
// several kinds need and be switched between them.
func (c *checker) checkUnused() {
	if !c.kindKnown {
		return
	}
	env := reflect.TypeFor[Env]()
	for i := range env.NumField() {
		tag := env.Field(i).Tag
		key := joinKey("env", tag.Get("toml"))
		if !c.layers.manifest.keys[key] || c.usesKinds(tag.Get("kinds")) || !c.ok(key) {
			continue
		}
		if key == "env.network" {
			c.warn(key, "has no effect: a worker of kind %q shares the host's network", c.m.Env.Kind)
		} else {
			c.warn(key, "has no effect with kind = %q: it is for %s", c.m.Env.Kind, strings.ReplaceAll(tag.Get("kinds"), ",", ", "))
		}
	}
	if c.given("serve.http.port") && c.m.Serve.Protocol != "http" {
		c.warn("serve.http.port", `has no effect without serve.protocol = "http"`)
	}
	if c.m.GPU.Policy == "none" {
		for _, key := range []string{"gpu.count", "gpu.memory", "gpu.devices", "gpu.pinned", "gpu.priority", "gpu.wait", "gpu.fault_patterns"} {
			if c.layers.manifest.keys[key] {
				c.warn(key, `has no effect with gpu.policy = "none"`)
			}
		}
	}
}
