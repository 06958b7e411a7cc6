package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"workerd/execenv"
	"workerd/identity"
	"workerd/manifest"
)

// engineWait is how long doctor waits for one answer of an engine: one that needs longer is not well.
const engineWait = 15 * time.Second

// engineDoctor looks at the container engines as the caller has them.
type engineDoctor struct {
	planner *execenv.Planner
	id      identity.Identity
	environ []string
	needed  func() map[string]int // how many manifests name each kind
	// initDirs are where podman has its init, beside PATH.
	initDirs []string
}

var podmanDirs = []string{"/usr/libexec/podman", "/usr/lib/podman", "/usr/local/libexec/podman"}

func (a *app) engineChecks(s *settings, d *dirs, needed func() map[string]int) []check {
	h, err := a.hostOf(s, d)
	if err != nil {
		return nil // said with the manifests
	}
	h.EngineTimeout = engineWait
	e := &engineDoctor{
		planner: execenv.NewPlanner(h, execenv.OSRunner{Children: &children}),
		id:      h.ID, environ: h.Environ, needed: needed, initDirs: podmanDirs,
	}
	return []check{
		{manifest.Docker, func(ctx context.Context) []finding { return e.oci(ctx, manifest.Docker) }},
		{manifest.Podman, func(ctx context.Context) []finding { return e.oci(ctx, manifest.Podman) }},
		{manifest.Apptainer, e.apptainer},
		{"user namespaces", func(ctx context.Context) []finding {
			return []finding{checkUserNamespaces("/", h.ID.UID, tryUserNamespace(ctx), e.needs(manifest.Podman)+e.needs(manifest.Apptainer) > 0)}
		}},
		{"subordinate ids", func(ctx context.Context) []finding {
			return checkSubIDs(ctx, "/", h.ID, e.needs(manifest.Podman) > 0)
		}},
	}
}

func (e *engineDoctor) needs(kind string) int { return e.needed()[kind] }

// broken is the finding about an engine that cannot be used. That matters as much as there are manifests that name it.
func (e *engineDoctor) broken(kind string, err error) finding {
	status, suffix := findWarning, ""
	n := e.needs(kind)
	if n > 0 {
		status, suffix = findProblem, fmt.Sprintf(" (needed by %d of the manifests)", n)
	}
	ee, typed := errors.AsType[*execenv.EngineError](err)
	if !typed {
		return finding{kind, status, err.Error() + suffix, ""}
	}
	text := ee.Kind.String()
	if ee.Kind == execenv.EngineRefused {
		text = fmt.Sprintf("`%s %s` failed (exit %d)", kind, ee.Verb, ee.Code)
	}
	do := ee.Hint
	switch ee.Kind {
	case execenv.EngineNotInstalled:
		if n == 0 {
			return finding{kind, findNote, text, ""}
		}
		return finding{kind, status, text + suffix, do}
	case execenv.EnginePermission:
		if stale := staleGroup("docker"); stale != "" {
			do = stale
		}
	}
	text += suffix
	if ee.Msg != "" {
		text += ": " + strings.TrimPrefix(ee.Msg, ": ")
	}
	if ee.Err != nil {
		text += ": " + ee.Err.Error()
	}
	return finding{kind, status, text, do}
}

// staleGroup says what to do where the caller is a member of a group and this login is older than that.
func staleGroup(name string) string {
	g, err := user.LookupGroup(name)
	if err != nil {
		return ""
	}
	me, err := user.Current()
	if err != nil {
		return ""
	}
	ids, err := me.GroupIds()
	gid, _ := strconv.Atoi(g.Gid)
	has, err2 := os.Getgroups()
	if err == nil && err2 == nil && slices.Contains(ids, g.Gid) && !slices.Contains(has, gid) {
		return "this user is in the group " + name + ", but logged in before that: log in anew, and restart workerd"
	}
	return ""
}

// oci looks at docker or podman.
func (e *engineDoctor) oci(ctx context.Context, kind string) []finding {
	engine, err := e.planner.Engine(kind)
	var info execenv.EngineInfo
	if err == nil {
		info, err = engine.Info(ctx)
	}
	if err != nil {
		return []finding{e.broken(kind, err)}
	}
	mode := "rootful"
	switch {
	case info.Rootless:
		mode = "rootless"
	case info.Remapped:
		mode = "userns-remap"
	}
	all := []finding{ok(kind, "%s %s, %s, runtime %s, cgroup v%d (%s)", info.Engine, info.Version, mode, orDash(info.Runtime), info.CgroupVersion, info.Bin)}
	add := func(status, do, format string, args ...any) {
		all = append(all, finding{kind, status, fmt.Sprintf(format, args...), do})
	}
	if info.Engine != kind {
		add(findNote, fmt.Sprintf("env.kind = %q says the same more clearly", info.Engine), "the program is %s under another name, and is used as such", info.Engine)
	}
	if info.Unread {
		add(findWarning, "", "its info cannot be read: it is taken for the usual mode")
	}
	var lost []string
	for limit, has := range map[string]bool{"limits.memory": info.Memory, "limits.cpus": info.CPUs, "limits.pids": info.Pids} {
		if !has {
			lost = append(lost, limit)
		}
	}
	if len(lost) > 0 {
		slices.Sort(lost)
		do := "have systemd delegate the controllers: Delegate=cpu memory pids for user@.service"
		if info.CgroupVersion != 2 {
			do = "boot with cgroups v2 alone (systemd.unified_cgroup_hierarchy=1)"
		}
		add(findNote, do, "%s cannot be enforced", strings.Join(lost, ", "))
	}
	if info.Engine == manifest.Docker {
		return append(all, e.docker(kind, info)...)
	}
	return append(all, e.podman(kind, info)...)
}

func (e *engineDoctor) docker(kind string, info execenv.EngineInfo) []finding {
	var all []finding
	switch {
	case info.Rootless && info.OwnerUID != e.id.UID:
		status := findWarning
		if e.needs(kind) > 0 {
			status = findProblem
		}
		all = append(all, finding{kind, status, fmt.Sprintf("this rootless daemon belongs to another user (uid %d): files would not be yours", info.OwnerUID), "name a daemon of your own with DOCKER_HOST"})
	case info.Rootless && len(e.id.Groups) > 0:
		all = append(all, finding{kind, findWarning, "rootless docker loses supplementary groups: what only they may read is closed to workers", "use docker with a daemon of root, or podman with crun"})
	case info.Remapped:
		all = append(all, finding{kind, findNote, "the daemon remaps users: workers run with --userns=host, to be you", ""})
	}
	if info.ProxyConfig {
		all = append(all, finding{kind, findNote, "the client's configuration gives proxy variables to every container: workers get only those that their manifest sets", ""})
	}
	return all
}

func (e *engineDoctor) podman(kind string, info execenv.EngineInfo) []finding {
	if !info.Rootless {
		return nil
	}
	var all []finding
	add := func(status, message, do string) { all = append(all, finding{kind, status, message, do}) }
	if info.Runtime == "runc" && len(e.id.Groups) > 0 {
		add(findWarning, "with the runtime runc supplementary groups are lost: what only they may read is closed to workers",
			"install crun, and set runtime = \"crun\" under [engine] of ~/.config/containers/containers.conf")
	}
	if !found(e.environ, "catatonit", e.initDirs...) {
		add(findWarning, "catatonit, its init, is not in the usual places: containers do not start without one", "Debian: apt-get install catatonit")
	}
	if !found(e.environ, "slirp4netns") && !found(e.environ, "pasta") {
		add(findNote, "neither slirp4netns nor pasta is installed: env.network = \"bridge\" and weights.prepare, which has a network, do not work", "Debian: apt-get install slirp4netns")
	} else if err := readWritable("/dev/net/tun"); err != nil {
		add(findNote, "/dev/net/tun: "+err.Error()+": env.network = \"bridge\" and weights.prepare, which has a network, do not work", "modprobe tun; chmod 666 /dev/net/tun")
	}
	if fi, err := os.Stat(e.id.Home); err == nil && fi.Mode().Perm()&0o001 == 0 {
		add(findNote, fmt.Sprintf("the home %s may not be passed by others (%s): images below it may not be readable in the user namespace", e.id.Home, fi.Mode().Perm()),
			"where containers do not start: chmod o+x "+e.id.Home)
	}
	return all
}

// found says whether a program is on the PATH of an environment or in one of some directories.
func found(environ []string, name string, dirs ...string) bool {
	for _, kv := range environ {
		if path, is := strings.CutPrefix(kv, "PATH="); is {
			dirs = append(dirs, filepath.SplitList(path)...)
		}
	}
	return slices.ContainsFunc(dirs, func(dir string) bool {
		_, err := exec.LookPath(filepath.Join(dir, name))
		return filepath.IsAbs(dir) && err == nil
	})
}

func readWritable(path string) error {
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return errors.Unwrap(err) // without the path
	}
	return f.Close()
}

// apptainer looks at Apptainer or SingularityCE.
func (e *engineDoctor) apptainer(ctx context.Context) []finding {
	const kind = manifest.Apptainer
	name, version, bin, err := e.planner.RunnerInfo(ctx)
	if err != nil {
		return []finding{e.broken(kind, err)}
	}
	mode := "needs user namespaces"
	if setuidStarter(bin, name) {
		mode = "setuid"
	}
	all := []finding{ok(kind, "%s %s, %s (%s)", name, version, mode, bin)}
	if mode == "setuid" {
		return all
	}
	if err := readWritable("/dev/fuse"); err != nil {
		all = append(all, finding{kind, findWarning, "/dev/fuse: " + err.Error() + ": images are unpacked at each start instead of mounted", "modprobe fuse; chmod 666 /dev/fuse"})
	}
	if !found(e.environ, "squashfuse_ll", helperDirs(bin, name)...) && !found(e.environ, "squashfuse") {
		all = append(all, finding{kind, findWarning, "squashfuse is not installed: images are unpacked at each start instead of mounted", "Debian: apt-get install squashfuse fuse3"})
	}
	return all
}

// helperDirs are where an installation keeps its own helpers.
func helperDirs(bin, name string) []string {
	prefix := filepath.Dir(filepath.Dir(realPath(bin)))
	return []string{filepath.Join(prefix, "libexec", name, "bin"), filepath.Join(prefix, "lib", name, "bin"), filepath.Join("/usr/libexec", name, "bin")}
}

func setuidStarter(bin, name string) bool {
	return slices.ContainsFunc(helperDirs(bin, name), func(dir string) bool {
		fi, err := os.Stat(filepath.Join(dir, "starter-suid"))
		return err == nil && fi.Mode()&os.ModeSetuid != 0
	})
}
