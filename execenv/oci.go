package execenv

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"workerd/manifest"
)

// oci runs workers in containers of docker or podman. Both take nearly the same command line; what differs is asked of
// dialect.
type oci struct{ kind string }

var _ Runtime = oci{}

// dialect is what docker and podman say differently. It is chosen by what the program is, not by its name.
type dialect interface {
	// identity returns the flags that say who the worker is, and warnings; an error where it could not be the caller.
	identity(h Host, f *facts) (flags, warnings []string, err error)
	// gpus returns the flags for devices.
	gpus(h Host, w WorkerParams) []string
	// network returns the name of a network as the engine has it.
	network(name string, info EngineInfo) string
	// log returns the flags that bound the engine's log.
	log(maxSize int64) []string
	// umask returns the flags that give the container a umask; ok says that there are such flags.
	umask(mask int) (flags []string, ok bool)
	// bind returns the flags of one mount; label is "", z or Z.
	bind(b Bind, label string) []string
	// unset returns the flags that take away a variable which the image or the client's configuration gives to a container.
	unset(name string, info EngineInfo) []string
	// more returns other flags.
	more(f *facts) []string
	// check refuses what the engine's version cannot do.
	check(m *manifest.Manifest, f *facts) error
}

var dialects = map[string]dialect{manifest.Docker: dockerDialect{}, manifest.Podman: podmanDialect{}}

// Probe implements Runtime.
func (o oci) Probe(ctx context.Context, h Host, m *manifest.Manifest, run Runner, f *facts) error {
	if err := checkExtraArgs(m); err != nil {
		return err
	}
	e, err := f.planner.Engine(o.kind)
	if err != nil {
		return planError("env.kind", err)
	}
	f.watch = append(f.watch, e.Bin())
	if f.ctr.engine, err = e.Info(ctx); err != nil {
		return planError("env.kind", err)
	}
	if f.ctr.engine.Unread {
		f.warnings = append(f.warnings, fmt.Sprintf("env.kind: %s info said nothing that can be read: taken for the usual mode of %s", o.kind, f.ctr.engine.Engine))
	}
	if f.ctr.image, err = e.ImageInspect(ctx, m.Env.Image); err != nil {
		return imageError(m, err)
	}
	if err := checkImage(m, f.ctr.image); err != nil {
		return err
	}
	if err := checkContainer(h, m, f); err != nil {
		return err
	}
	d := dialects[f.ctr.engine.Engine]
	if err := d.check(m, f); err != nil {
		return err
	}
	_, warnings, err := d.identity(h, f)
	if err != nil {
		return err
	}
	f.warnings = append(append(f.warnings, warnings...), limitWarnings(m, f.ctr.engine)...)
	if f.setup, err = probeContainerSetup(ctx, run, h, m, f); err != nil {
		return err
	}
	env := containerEnv(h, m, f)
	for _, name := range sortedKeys(env) {
		if isOwnToClient(name) {
			if err := checkEnvLine("env.variables."+name, name, env[name]); err != nil {
				return err
			}
		}
	}
	_, home := homeOf(h, m, env, f.binds)
	if err := checkMountPath("env.variables.HOME", home); err != nil {
		return err
	}
	f.ctr.files, err = identityFiles(h, h.ID, home, mappedRoot(h, f.ctr.engine))
	return err
}

// imageError says what a missing image means: with pull = "never" only an operator can help.
func imageError(m *manifest.Manifest, err error) error {
	if !IsEngineError(err, EngineImageMissing) {
		return planError("env.image", err)
	}
	kind := Transient
	hint := "it is pulled before the provider starts"
	if m.Env.Pull == "never" {
		kind, hint = Permanent, fmt.Sprintf("build, load or pull it (%s pull %s); env.pull = \"never\" keeps workerd from doing so", m.Env.Kind, m.Env.Image)
	}
	return &Error{Kind: kind, Key: "env.image", Msg: fmt.Sprintf("%s has no image %s; %s", m.Env.Kind, m.Env.Image, hint), Err: err}
}

// checkImage refuses an image for another machine.
func checkImage(m *manifest.Manifest, im Image) error {
	if im.Arch != "" && im.Arch != runtime.GOARCH && !foreignFormats() {
		return permanent("env.image", "%s is an image for %s, this machine is %s", m.Env.Image, im.Arch, runtime.GOARCH)
	}
	return nil
}

// mappedRoot says that root in a container is the caller outside: so it is with rootless docker, which knows no other way to
// be the caller.
func mappedRoot(h Host, info EngineInfo) bool {
	return info.Engine == manifest.Docker && info.Rootless && h.ID.UID != 0
}

// Plan implements Runtime.
func (o oci) Plan(h Host, m *manifest.Manifest, f *facts) *Plan {
	d := dialects[f.ctr.engine.Engine]
	env := containerEnv(h, m, f)
	pl := newContainerPlan(h, m, f, env)
	pl.keep = m.Env.KeepFailed
	pl.Engine, pl.Image, pl.ImageID = f.ctr.engine.Engine, m.Env.Image, f.ctr.image.ID
	source, target := homeOf(h, m, env, f.binds)
	if source != target {
		pl.Binds = append(pl.Binds, Bind{source, target, rw})
	}
	pl.Binds = append(pl.Binds, identityBinds(f.ctr.files)...)

	argv := f.containerArgv(m)
	options := o.options(d, h, m, f)
	pl.view = &view{argv: slices.Concat(argv, options, m.Env.ExtraArgs), binds: f.ctr.own.without(pl.Binds), image: f.ctr.image.ID}
	pl.Fingerprint = fingerprint(h, m, pl, f)

	c := &carrier{env: clientEnv(h, o.kind), home: source}
	for name := range c.env {
		if isProxy(name) {
			delete(c.env, name)
		}
	}
	c.args = append(c.args, fixed(f.ctr.engine.Bin, "run", "--detach"), nameArg(h, pl), labelArgs(h, pl))
	c.args = append(c.args, fixed(options...))
	c.args = append(c.args, fixed(d.log(h.LogMaxSize)...)) // a setting of the site's, which no worker sees
	if flags, ok := d.umask(f.ctr.umask); ok {             // inherited, as the environment of a venv worker is, so no part of options
		c.args = append(c.args, fixed(flags...))
	}
	if f.gpu.Count > 0 {
		c.args = append(c.args, arg{text: d.gpus(h, WorkerParams{GPUs: []string{"<gpus>"}}), fill: func(w WorkerParams, _ ContainerSpec) []string { return d.gpus(h, w) }})
	}
	label := map[string]string{"shared": "z", "private": "Z"}[m.Env.SELinux]
	for _, b := range pl.Binds {
		l := label
		if label == "Z" && f.ctr.shared.has(b.Source) {
			l = "z" // a private label would shut the other providers out
		}
		c.args = append(c.args, fixed(d.bind(b, l)...))
	}
	tmp := func(dirs ...string) (out []string) {
		for _, dir := range dirs {
			out = append(out, d.bind(Bind{dir, dir, rw}, label)...)
		}
		return out
	}
	c.args = append(c.args, arg{text: tmp(tmpOf(h)), fill: func(w WorkerParams, _ ContainerSpec) []string { return tmp(bothNames(w.Tmp)...) }})
	c.args = append(c.args, fixed("--workdir", m.Paths.Cwd))
	c.args = append(c.args, fixed(envArgs(d, env, pl.Secrets, f)...))
	c.args = append(c.args, fixed(o.program(d, m, f, argv)...))
	pl.carry = c
	pl.Argv = c.argv()
	return pl
}

func nameArg(h Host, pl *Plan) arg {
	return arg{
		text: []string{"--name", "workerd-" + h.Instance + "-" + pl.Slug + "-<n>"},
		fill: func(_ WorkerParams, spec ContainerSpec) []string { return []string{"--name", spec.Name} },
	}
}

func containerLabels(instance, slug, fingerprint string, n int64, gpus []string, attempt string) map[string]string {
	return map[string]string{
		LabelInstance: instance, LabelSlug: slug, LabelWorker: strconv.FormatInt(n, 10),
		LabelFingerprint: fingerprint, LabelGPUs: strings.Join(gpus, ","), LabelAttempt: attempt,
	}
}

func labelArgs(h Host, pl *Plan) arg {
	list := func(labels map[string]string) []string {
		var out []string
		for _, name := range sortedKeys(labels) {
			out = append(out, "--label", name+"="+labels[name])
		}
		return out
	}
	keep := map[string]string{}
	if pl.keep {
		keep[LabelKeep] = "1"
	}
	shown := containerLabels(h.Instance, pl.Slug, pl.Fingerprint, 0, []string{"<gpus>"}, "<attempt>")
	shown[LabelWorker] = "<n>"
	return arg{
		text: append(list(shown), list(keep)...),
		fill: func(_ WorkerParams, spec ContainerSpec) []string { return append(list(spec.Labels), list(keep)...) },
	}
}

// options are the flags that are the same for all workers and say what the worker can see and do, binds apart.
func (o oci) options(d dialect, h Host, m *manifest.Manifest, f *facts) []string {
	info := f.ctr.engine
	out := []string{"--pull=never", "--init", "--stop-signal", StopSignal, "--no-healthcheck"}
	who, _, _ := d.identity(h, f)
	out = append(out, who...)
	out = append(out, "--cap-drop=ALL")
	if h.ID.UID == 0 && !mappedRoot(h, info) {
		out = append(out, "--cap-add", "DAC_OVERRIDE") // so that root reads what it reads in a venv
	}
	out = append(out, "--security-opt=no-new-privileges")
	if m.Env.SELinux == manifest.DefaultSELinux && f.ctr.selinux {
		out = append(out, "--security-opt", "label=disable")
	}
	out = append(out, "--network", d.network(m.Env.Network, info))
	out = append(out, limitFlags(m, info)...)
	return append(out, d.more(f)...)
}

// limitFlags are the limits that the engine can enforce.
func limitFlags(m *manifest.Manifest, info EngineInfo) []string {
	var out []string
	if info.Pids {
		pids := m.Limits.Pids
		if pids == 0 {
			pids = -1
		}
		out = append(out, "--pids-limit", strconv.Itoa(pids))
	}
	if !sharesIPC(m) {
		out = append(out, "--shm-size", strconv.FormatInt(int64(m.Limits.ShmSize), 10))
	}
	if m.Limits.Memory > 0 && info.Memory {
		memory := strconv.FormatInt(int64(m.Limits.Memory), 10)
		out = append(out, "--memory", memory)
		if info.Swap { // the sum of both: engines would give as much swap space again
			out = append(out, "--memory-swap", memory)
		}
	}
	if m.Limits.CPUs > 0 && info.CPUs {
		cpus := m.Limits.CPUs
		if moreThanThere(m, info) {
			cpus = float64(info.Processors) // docker refuses what is beyond
		}
		out = append(out, "--cpus", strconv.FormatFloat(cpus, 'f', -1, 64))
	}
	return out
}

// moreThanThere says that limits.cpus is no limit, since the engine has no more processors.
func moreThanThere(m *manifest.Manifest, info EngineInfo) bool {
	return info.Processors > 0 && m.Limits.CPUs > float64(info.Processors)
}

// limitWarnings name the limits that were asked for and cannot be enforced, or are none.
func limitWarnings(m *manifest.Manifest, info EngineInfo) []string {
	var lost, out []string
	if info.CPUs && moreThanThere(m, info) {
		out = append(out, fmt.Sprintf("limits.cpus is %g, and %s has %d processors here: the worker is given all of them", m.Limits.CPUs, info.Engine, info.Processors))
	}
	if m.Limits.Memory > 0 && !info.Memory {
		lost = append(lost, "limits.memory")
	}
	if m.Limits.CPUs > 0 && !info.CPUs {
		lost = append(lost, "limits.cpus")
	}
	if m.Limits.Pids != manifest.DefaultPids && m.Limits.Pids != 0 && !info.Pids {
		lost = append(lost, "limits.pids")
	}
	if len(lost) == 0 {
		return out
	}
	why := "the engine has no cgroup controller for it"
	if info.Rootless && info.CgroupVersion == 1 {
		why = "a rootless engine needs cgroups v2"
	}
	return append(out, fmt.Sprintf("%s cannot be enforced by %s here (%s): the worker runs without", strings.Join(lost, ", "), info.Engine, why))
}

// envArgs name the worker's variables; their values are in the client's environment, or, for what the client uses itself, on
// its stdin.
func envArgs(d dialect, env environ, secrets []string, f *facts) []string {
	names := sortedKeys(env)
	for _, s := range secrets {
		if _, ok := env[s]; !ok {
			names = append(names, s)
		}
	}
	slices.Sort(names)
	out := []string{"--env-file", "/dev/stdin"}
	for _, name := range names {
		if !isOwnToClient(name) {
			out = append(out, "--env", name)
		}
	}
	image := parseEnviron(f.ctr.image.Env)
	for _, name := range proxyNames {
		for _, n := range []string{name, strings.ToUpper(name)} {
			_, baked := image[n]
			if (baked || f.ctr.engine.ProxyConfig) && !slices.Contains(names, n) {
				out = append(out, d.unset(n, f.ctr.engine)...)
			}
		}
	}
	return out
}

// program is what comes last: the entrypoint, the manifest's own flags, the image, and what runs in it.
func (o oci) program(d dialect, m *manifest.Manifest, f *facts, argv []string) []string {
	if _, ok := d.umask(f.ctr.umask); !ok {
		argv = withUmask(m, f.ctr.umask, argv)
	}
	var out []string
	if m.Env.Entrypoint != "image" {
		out = append(out, "--entrypoint", argv[0])
		argv = argv[1:]
	}
	out = append(out, m.Env.ExtraArgs...)
	return append(append(out, m.Env.Image), argv...)
}

const umaskShell = "/bin/sh"

// withUmask has a program started with a umask, where the engine has no flag for it. Containers begin with 022. A worker has a Python in its
// image for sure; a command only perhaps a shell.
func withUmask(m *manifest.Manifest, mask int, argv []string) []string {
	const usual = 0o22
	if mask == usual {
		return argv
	}
	if len(m.Command) > 0 {
		return append([]string{umaskShell, "-c", fmt.Sprintf(`umask %04o && exec "$0" "$@"`, mask)}, argv...)
	}
	code := fmt.Sprintf("import os, sys; os.umask(0o%o); os.execvp(sys.argv[1], sys.argv[1:])", mask)
	return append([]string{argv[0], "-ISc", code}, argv...)
}

// StopSignal asks a worker to end.
const StopSignal = "SIGTERM"

// newContainerPlan fills in what the kinds of containers have in common.
func newContainerPlan(h Host, m *manifest.Manifest, f *facts, env environ) *Plan {
	return &Plan{
		Slug:       m.Slug,
		Kind:       m.Env.Kind,
		Env:        env,
		Secrets:    append([]string{}, sortedKeys(m.Env.Secrets)...),
		Cwd:        m.Paths.Cwd,
		Binds:      slices.Clone(f.binds),
		User:       User{UID: h.ID.UID, GID: h.ID.GID, Groups: append([]int{}, h.ID.Groups...)},
		GPU:        f.gpu,
		StopSignal: StopSignal,
		secrets:    m.Env.Secrets,
		overridden: overridden(h, m),
		dirs:       dirsToMake(h, m, f),
		files:      f.ctr.files,
	}
}

// Check implements Runtime.
func (o oci) Check(h Host, m *manifest.Manifest) []string {
	var out []string
	if m.Env.SELinux == "private" && (m.Serve.Replicas > 1 || m.Restart.OnChange == manifest.DefaultOnChange) {
		out = append(out, `env.selinux: "private" labels the binds for one container alone, so a worker that starts beside another shuts that out: use "shared", or one replica and on_change = "stop-first"`)
	}
	return append(out, checkOverrides(h, m)...)
}

// checkOverrides warns of variables that the manifest takes out of workerd's hands.
func checkOverrides(h Host, m *manifest.Manifest) []string {
	var out []string
	over := overridden(h, m)
	if over["CUDA_VISIBLE_DEVICES"] {
		out = append(out, "env: CUDA_VISIBLE_DEVICES is set by the manifest, so the worker may use GPUs that workerd knows nothing of")
	}
	if over["TMPDIR"] {
		out = append(out, "env: TMPDIR is set by the manifest, so workerd does not clean up the worker's temporary files")
	}
	return out
}
