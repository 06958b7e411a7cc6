package execenv

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"workerd/execenv/gpu"
	"workerd/identity"
	"workerd/manifest"
)

// Host is the place that plans are made for: who runs workerd, and where its files are. Paths are absolute.
type Host struct {
	ID         identity.Identity
	Instance   string // InstanceID
	RuntimeDir string
	StateDir   string
	CacheDir   string
	ScratchDir string // setting scratch_dir; may be empty
	HFHome     string // setting hf_home; may be empty
	SDKDir     string // where Prepare puts the Python SDK; may be empty
	SDK        fs.FS  // the files of the Python SDK; nil: they are in SDKDir already
	Environ    []string
	// EngineTimeout bounds each probe.
	EngineTimeout time.Duration
	// LogMaxSize bounds the log that an engine keeps of a container, in bytes; 0: 10 MiB.
	LogMaxSize int64
	// Cgroups is what workers that are processes of the host can be limited by.
	Cgroups   CgroupState
	preparing bool // the plan is of a prepare script: the weights are writable
	// CDIDirs are the folders of CDI specifications; nil: those that engines read.
	CDIDirs []string
	// GPUs lists the devices; nil for none.
	GPUs gpu.Inventory
	kfd  string // the node of AMD's driver; empty: /dev/kfd
}

const (
	defaultEngineTimeout = 60 * time.Second
	defaultLogMaxSize    = 10 << 20
)

// Planner makes Plans for one Host. Its methods may be called from any goroutine.
type Planner struct {
	host Host
	run  Runner

	runners flights[runnerInfo]
	sifs    flights[[]string]

	mu      sync.Mutex
	engines map[string]*Engine // by kind
}

// NewPlanner returns the Planner of a host; run executes its probes.
func NewPlanner(h Host, run Runner) *Planner {
	if h.EngineTimeout <= 0 {
		h.EngineTimeout = defaultEngineTimeout
	}
	h.HFHome = tidy(h.HFHome)
	if h.LogMaxSize <= 0 {
		h.LogMaxSize = defaultLogMaxSize
	}
	if h.CDIDirs == nil {
		h.CDIDirs = []string{"/etc/cdi", "/var/run/cdi"}
	}
	if h.kfd == "" {
		h.kfd = "/dev/kfd"
	}
	if h.GPUs == nil {
		h.GPUs = gpu.None{}
	}
	return &Planner{host: h, run: run}
}

// Host returns the host that p plans for.
func (p *Planner) Host() Host { return p.host }

// Plan makes the plan of a manifest. It starts no worker and creates nothing but the key by which secrets are fingerprinted;
// the manifest's own setup runs in a probe with a deadline. The error is an *Error.
func (p *Planner) Plan(ctx context.Context, m *manifest.Manifest) (*Plan, error) {
	pl, err := p.plan(ctx, m)
	if err == nil {
		return pl, nil
	}
	var e *Error
	if !errors.As(err, &e) {
		e = &Error{Kind: Transient, Msg: "plan", Err: err}
	}
	out := *e
	out.Watch = compactSorted(append(slices.Clone(e.Watch), watched(m)...))
	return nil, &out
}

func (p *Planner) plan(ctx context.Context, m *manifest.Manifest) (*Plan, error) {
	if ps := CheckSupported(m); len(ps) > 0 {
		return nil, unsupportedError(ps)
	}
	if err := checkValues(m); err != nil {
		return nil, err
	}
	if err := checkSockets(p.host.RuntimeDir, m.Slug); err != nil {
		return nil, err
	}
	m = tidyPaths(m)
	rt := runtimes[m.Env.Kind]
	f, err := p.commonFacts(ctx, m)
	if err != nil {
		return nil, err
	}
	f.planner = p
	if err := rt.Probe(ctx, p.host, m, p.run, f); err != nil {
		return nil, err
	}
	pl := rt.Plan(p.host, m, f)
	pl.Warnings = append(p.Check(m), f.warnings...)
	pl.Watch = compactSorted(append(f.watch, watched(m)...))
	return pl, nil
}

// Check returns what the manifest asks for and this host, or this version, gives in another way than asked.
func (p *Planner) Check(m *manifest.Manifest) []string {
	if rt, ok := runtimes[m.Env.Kind]; ok {
		return rt.Check(p.host, m)
	}
	return nil
}

// WorkerParams of a worker become its Command. Of the outside it reads only the secrets.
func (p *Planner) Command(pl *Plan, w WorkerParams) (Command, error) {
	if err := CheckSocket(w.Socket); err != nil {
		return Command{}, err
	}
	if len(w.Tmp) > TmpLimit {
		return Command{}, permanent("", "TMPDIR %s has %d bytes, the limit is %d", w.Tmp, len(w.Tmp), TmpLimit)
	}
	env := environ(pl.Env).clone()
	gpus := strings.Join(w.GPUs, ",")
	cuda, rocr := gpus, ""
	if pl.Engine != "" {
		cuda = strings.Join(namesInContainer(w.GPUs), ",")
	}
	if len(w.Nodes) > 0 {
		cuda, rocr = "", cuda
	}
	for name, value := range map[string]string{
		"WORKERD_SOCKET":       w.Socket,
		MarkerVar:              Marker(p.host.Instance, pl.Slug, w.N),
		"WORKERD_GPUS":         gpus,
		"CUDA_VISIBLE_DEVICES": cuda, // empty for no GPU: unset would be all of them
		"ROCR_VISIBLE_DEVICES": rocr,
		"TMPDIR":               w.Tmp,
	} {
		if _, known := env[name]; known && !pl.overridden[name] {
			env[name] = value
		}
	}
	if w.Warm {
		env[StandbyVar] = standbyWarm
	}
	own := parseEnviron(p.host.Environ)
	for name, s := range pl.secrets {
		v, err := readSecret(name, s, own)
		if err != nil {
			return Command{}, err
		}
		env[name] = v
	}
	if pl.carry != nil {
		return pl.carry.command(env, w, p.Container(pl, w))
	}
	return Command{Path: pl.Argv[0], Argv: slices.Clone(pl.Argv), Env: env.list(), Dir: pl.Cwd}, nil
}

// Prepare makes the folders that a plan needs and that may be made: the provider's cache, work_root, and binds with
// create = true, all as the caller. A work_root gets the mode that the caller's umask leaves, the others are 0700. It also
// writes the SDK and the identity files of containers, and says which bind of a container has gone. It is called before every
// start: people empty caches, and no start must fail for that.
func (p *Planner) Prepare(pl *Plan) error {
	if p.host.SDK != nil {
		if err := WriteSDK(p.host.SDK, p.host.SDKDir); err != nil {
			return &Error{Kind: Transient, Msg: "write the Python SDK", Err: errCause(err)}
		}
	}
	for _, d := range pl.dirs {
		if err := os.MkdirAll(d.path, d.create); err != nil {
			return &Error{Kind: Transient, Key: d.key, Msg: "make folder " + d.path, Err: errCause(err)}
		}
		if d.mode == rw && !writable(d.path) {
			return permanent(d.key, "%s cannot be written to%s", d.path, ownership(d.path))
		}
	}
	for _, f := range pl.files {
		err := os.MkdirAll(filepath.Dir(f.path), 0o700)
		if err == nil {
			err = WriteFile(f.path, f.data, 0o644) // rootless engines read them as another id
		}
		if err != nil {
			return &Error{Kind: Transient, Msg: "identity file " + f.path, Err: errCause(err)}
		}
	}
	if err := checkSources(pl); err != nil {
		return err
	}
	if err := inspectDir(pl.Cwd); err != nil {
		return &Error{Key: "paths.cwd", Msg: err.Error()}
	}
	return nil
}

// checkValues refuses what no process can be given: argument and environment strings end at a NUL byte.
func checkValues(m *manifest.Manifest) error {
	bad := func(key, s string) error {
		if strings.ContainsRune(s, 0) {
			return permanent(key, "holds a NUL byte, which no argument or variable can")
		}
		return nil
	}
	var errs []error
	for i, s := range m.Args {
		errs = append(errs, bad("args["+strconv.Itoa(i)+"]", s))
	}
	for i, s := range m.Command {
		errs = append(errs, bad("command["+strconv.Itoa(i)+"]", s))
	}
	for _, name := range sortedKeys(m.Env.Variables) {
		errs = append(errs, bad("env.variables."+name, m.Env.Variables[name]), badName("env.variables."+name, name))
		if m.Env.Kind == manifest.Apptainer && strings.Contains(m.Env.Variables[name], "\r\n") {
			errs = append(errs, permanent("env.variables."+name, "%s", noCRLF))
		}
	}
	for _, name := range sortedKeys(m.Env.Secrets) {
		errs = append(errs, badName("env.secrets."+name, name))
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// noCRLF is why Apptainer cannot be given a value with a DOS line break.
const noCRLF = "Apptainer takes the carriage return out of a line break that has one, so the worker would be given another value: use plain line breaks"

// badName refuses names that cannot be a variable's, and those by which workerd tells a worker what it is.
func badName(key, name string) error {
	switch {
	case name == "" || strings.ContainsAny(name, "=\x00"):
		return permanent(key, "%q cannot be the name of a variable", name)
	case reservedVars[name]:
		return permanent(key, "workerd sets this variable itself")
	}
	return nil
}

// reservedVars are what a manifest may not set: workerd finds the worker and all that it forked by them.
var reservedVars = map[string]bool{
	"WORKERD_SOCKET": true, MarkerVar: true, "WORKERD_PROVIDER": true, "WORKERD_PROVIDER_DIR": true,
	"WORKERD_WEIGHTS": true, "WORKERD_WORK_ROOT": true, "WORKERD_GPUS": true, "WORKERD_STOP_TIMEOUT": true, StandbyVar: true,
}
