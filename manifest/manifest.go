package manifest

import (
	"crypto/sha256"
	"encoding/json"
)

// Manifest is one provider as its file declares it, with defaults filled in, variables expanded and paths made absolute
// (symlinks kept: a bind is mounted under the name the operator wrote). It is immutable once loaded: share it freely.
//
// Keys whose effect comes with a later version are parsed, checked and shown all the same.
//
// Besides toml, the fields carry what decoding, checking and the JSON Schema need: enum (allowed words), min and max
// (numbers), form (how a string expands, see expand.go) and kinds (the values of env.kind that use the key; all if absent).
type Manifest struct {
	// File is the manifest's absolute path and Dir the directory that relative paths resolve against. Not keys.
	File string `toml:"-" json:"-"`
	Dir  string `toml:"-" json:"-"`

	Slug        string   `toml:"slug" form:"text"`
	Title       string   `toml:"title" form:"text"`
	Description string   `toml:"description" form:"text"`
	Worker      string   `toml:"worker" form:"path"`
	Args        []string `toml:"args"`
	Command     []string `toml:"command" form:"program"`
	Smoke       string   `toml:"smoke" form:"path"`

	Env     Env     `toml:"env"`
	Weights Weights `toml:"weights"`
	Paths   Paths   `toml:"paths"`
	GPU     GPU     `toml:"gpu"`
	Limits  Limits  `toml:"limits"`
	Start   Start   `toml:"start"`
	Restart Restart `toml:"restart"`
	Serve   Serve   `toml:"serve"`
	Health  Health  `toml:"health"`
	Tools   []Tool  `toml:"tools"`
}

// The values of env.kind.
const (
	Venv      = "venv"
	Docker    = "docker"
	Podman    = "podman"
	Apptainer = "apptainer"
)

// Env is the environment that the worker runs in.
type Env struct {
	Kind            string            `toml:"kind" enum:"venv,docker,podman,apptainer"`
	Python          string            `toml:"python" form:"path" kinds:"venv"` // its symlink is kept: that is how Python finds the venv
	Image           string            `toml:"image" form:"text" kinds:"docker,podman"`
	Pull            string            `toml:"pull" enum:"never,missing,always" kinds:"docker,podman"`
	PullTimeout     Duration          `toml:"pull_timeout" kinds:"docker,podman"`
	SIF             string            `toml:"sif" form:"path" kinds:"apptainer"`
	ContainerPython string            `toml:"container_python" form:"text" kinds:"docker,podman,apptainer"`
	Entrypoint      string            `toml:"entrypoint" enum:"replace,image" kinds:"docker,podman"`
	KeepFailed      bool              `toml:"keep_failed" kinds:"docker,podman"`
	Network         string            `toml:"network" form:"text" kinds:"docker,podman,apptainer"`
	Setup           string            `toml:"setup" form:"path"`
	Modules         []string          `toml:"modules" form:"text"`
	SELinux         string            `toml:"selinux" enum:"disable,none,shared,private" kinds:"docker,podman"`
	PassEnv         []string          `toml:"pass_env" form:"text"`
	ExtraArgs       []string          `toml:"extra_args" kinds:"docker,podman,apptainer"`
	Variables       map[string]string `toml:"variables"`
	Secrets         map[string]Secret `toml:"secrets"`
}

// Container reports whether the worker runs in a container.
func (e *Env) Container() bool { return e.Kind != Venv }

// Secret says where a secret's value comes from: exactly one of File and Env. The value itself is never held here.
type Secret struct {
	File string `toml:"file" form:"path"`
	Env  string `toml:"env" form:"text"`
}

// Weights are the model's read-only data.
type Weights struct {
	Root           string   `toml:"root" form:"path"`
	Extra          []string `toml:"extra" form:"path"`
	Prepare        []string `toml:"prepare" form:"script"`
	PrepareTimeout Duration `toml:"prepare_timeout"`
}

// Paths are the folders that the worker shares with its callers, under the same names on both sides.
type Paths struct {
	WorkRoot string `toml:"work_root" form:"path"`
	Binds    []Bind `toml:"binds"`
	Cwd      string `toml:"cwd" form:"path"` // never empty after Load: the manifest's directory by default
}

// Bind is one entry of paths.binds: a string "/path", "/path:ro", "/path:rw", or a table.
type Bind struct {
	Path   string `toml:"path" form:"path"`
	Mode   string `toml:"mode" enum:"ro,rw"`
	Create bool   `toml:"create"`
}

// GPU says what the worker needs of the machine's GPUs.
type GPU struct {
	Policy   string   `toml:"policy" enum:"none,auto,shared,exclusive"`
	Count    int      `toml:"count" min:"1"`
	Memory   Bytes    `toml:"memory"` // per device; 0: unset
	Devices  []string `toml:"devices" form:"text"`
	Priority int      `toml:"priority"`
	Pinned   bool     `toml:"pinned"`
	Wait     Duration `toml:"wait"`
	// FaultPatterns are the regular expressions that tell, in what a worker prints or answers, that it has lost its GPU; nil: those
	// that workerd knows.
	FaultPatterns []string `toml:"fault_patterns" form:"pattern"`
}

// Limits bound what the worker may use; zero means no limit. Pids and ShmSize have defaults.
type Limits struct {
	Memory  Bytes   `toml:"memory"`
	CPUs    float64 `toml:"cpus" min:"0"`
	Pids    int     `toml:"pids" min:"0"`
	ShmSize Bytes   `toml:"shm_size"`
}

// Start says when a worker starts and how long its phases may take.
type Start struct {
	When        string   `toml:"when" enum:"boot,request"`
	Timeout     Duration `toml:"timeout"`
	IdleTimeout Duration `toml:"idle_timeout"`
	StopTimeout Duration `toml:"stop_timeout"`
}

// Restart is the policy after a worker ended unasked, and for edits.
type Restart struct {
	Policy     string   `toml:"policy" enum:"always,on-failure,never"`
	Backoff    Duration `toml:"backoff"`
	MaxBackoff Duration `toml:"max_backoff"`
	MaxCrashes int      `toml:"max_crashes" min:"1"`
	Window     Duration `toml:"window"`
	OnChange   string   `toml:"on_change" enum:"rolling,stop-first"` // filled in by Load: stop-first for an exclusive GPU
}

// Serve is how requests are admitted and bounded.
type Serve struct {
	Replicas       int      `toml:"replicas" min:"1"`
	Concurrency    int      `toml:"concurrency" min:"1"`
	Queue          int      `toml:"queue" min:"0"`
	RequestTimeout Duration `toml:"request_timeout"`
	MaxMessage     Bytes    `toml:"max_message"`
	CancelGrace    Duration `toml:"cancel_grace"`
	Allow          Allow    `toml:"allow"`
	RetryOnCrash   bool     `toml:"retry_on_crash"`
	OnDisconnect   string   `toml:"on_disconnect" enum:"cancel,finish"`
	Standby        string   `toml:"standby" enum:"none,warm,hot"`
	Protocol       string   `toml:"protocol" enum:"jsonrpc,http"`
	HTTP           HTTP     `toml:"http"`
}

// HTTP is where a worker with protocol = "http" serves, when not on WORKERD_SOCKET.
type HTTP struct {
	Port int `toml:"port" min:"1" max:"65535"` // 0: unset
}

// Allow names who may connect to the front socket besides the same uid and root.
type Allow struct {
	Users  []string `toml:"users" form:"text"`
	Groups []string `toml:"groups" form:"text"`
}

// Health is the liveness check.
type Health struct {
	Interval    Duration `toml:"interval"`
	Timeout     Duration `toml:"timeout"`
	BusyTimeout Duration `toml:"busy_timeout"`
}

// Tool is one tool that an MCP client is shown. InputSchema is the schema itself: a file named in the manifest has been read.
type Tool struct {
	Name        string         `toml:"name" form:"text"`
	Method      string         `toml:"method" form:"text"`
	Description string         `toml:"description" form:"text"`
	InputSchema map[string]any `toml:"input_schema" form:"schema"`
}

// Hash is the sha256 of what the manifest effectively says: two files that differ in comments, in format, in the order of
// keys or in a default written out have the same one.
func (m *Manifest) Hash() [32]byte {
	// Dir is no key, but decides the default working directory and what a container sees.
	data, err := json.Marshal(struct {
		Dir string
		*Manifest
	}{m.Dir, m})
	if err != nil {
		// Only an infinite number can get here, and decoding refuses those.
		panic("manifest: hash: " + err.Error())
	}
	return sha256.Sum256(data)
}
