package execenv

import "workerd/manifest"

// Plan is all that a worker of one manifest is run with, as values: making it starts nothing. `workerd explain` prints it
// whole; Planner.Command turns it into the Command of one worker. A Plan is immutable and shared.
type Plan struct {
	Slug string `json:"slug"`
	Kind string `json:"kind"`
	// Argv is the argument vector of the worker's own process; argv[0] is an absolute path.
	Argv []string `json:"argv"`
	// Env is the complete environment less secrets (Secrets names them) and less what each worker gets of its own:
	// there "<n>" and "<gpus>" stand for those, as in WORKERD_SOCKET=/run/user/1001/workerd/w/ocr/<n>.sock.
	Env     map[string]string `json:"env"`
	Secrets []string          `json:"secrets"` // names only
	Cwd     string            `json:"cwd"`
	Binds   []Bind            `json:"binds"`
	User    User              `json:"user"`
	GPU     GPU               `json:"gpu"`
	// Fingerprint is the sha256, in hex, of what the worker can see: workers with the same one need no restart.
	Fingerprint string `json:"fingerprint"`
	// Engine is what runs the worker detached, docker or podman: what the program is, not what the manifest calls it. It is
	// empty where the process of Argv is the worker's own, or with apptainer the parent of it.
	Engine  string `json:"engine,omitempty"`
	Image   string `json:"image,omitempty"`    // or the sif
	ImageID string `json:"image_id,omitempty"` // of docker and podman
	// StopSignal asks the worker to end: it goes to the worker's own process, or to the engine that passes it on.
	StopSignal string `json:"stop_signal"`
	// Warnings are what the manifest asks for and this host cannot give, and what probes complained of.
	Warnings []string `json:"warnings,omitempty"`
	// Watch lists the files whose content or stamp went into Fingerprint, for the directory watch.
	Watch []string `json:"-"`

	secrets    map[string]manifest.Secret
	overridden map[string]bool // variables of each worker's own that the manifest sets instead
	dirs       []promise       // what Prepare makes
	files      []planFile      // what Prepare writes
	carry      *carrier        // nil for a venv
	keep       bool            // env.keep_failed
	view       *view           // what a container worker can see of the plan; nil for a venv
}

// view is what of a container's plan goes into its fingerprint in place of argv and binds, of which some are workerd's own.
type view struct {
	argv  []string
	binds []Bind
	image string
}

// Bind is one identity-mapped mount, or for a venv worker a path that it is promised.
type Bind struct {
	Source string `json:"source"`
	Target string `json:"target"`
	Mode   string `json:"mode"` // ro, rw
}

// User is who the worker runs as.
type User struct {
	UID    int   `json:"uid"`
	GID    int   `json:"gid"`
	Groups []int `json:"groups"`
}

// GPU is what the worker is to have: the devices are chosen at start, of Devices where that is not empty. Policy is "none" also for
// "auto" where it is certain that there is no GPU.
type GPU struct {
	Policy  string   `json:"policy"`
	Count   int      `json:"count"`
	Memory  int64    `json:"memory"`
	Devices []string `json:"devices"`
	amd     bool     // there are, or may be, AMD cards on the host, for this worker or not
}

// WorkerParams is what one worker has of its own.
type WorkerParams struct {
	N      int64    // the worker's number, never repeated within an instance
	Socket string   // absolute path of the worker socket, at most 107 bytes
	Tmp    string   // its own TMPDIR, existing, at most 70 bytes
	GPUs   []string // UUIDs, or indices where nobody could be asked for those; empty for none
	Nodes  []string // device nodes of the AMD cards among them
	// Indices are those of GPUs, -1 for one that has none of its own or is not known; nil: none is known.
	Indices []int
	// Warm: it is a warm standby, see StandbyVar. Only of a plan whose manifest says serve.standby = "warm".
	Warm bool
	// Attempt names one try to start the worker: the label workerd.attempt of its container.
	Attempt string
}

// Command is one process to execute. Env holds the values of secrets: never log or print it.
type Command struct {
	Path string
	Argv []string
	Env  []string
	Dir  string
	// Stdin is what an engine's client reads: variables that it would take for its own. It may hold secrets too.
	Stdin []byte
}
