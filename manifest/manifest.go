package manifest

import "time"

// Manifest is one provider as its file declares it, with defaults filled in, variables expanded and paths made absolute
// (symlinks kept: a bind is mounted under the name the operator wrote). It is immutable once loaded: share it freely.
//
// Keys whose effect comes with a later version are parsed, checked and shown all the same.
type Manifest struct {
	// File is the manifest's absolute path and Dir the directory that relative paths resolve against. Not keys.
	File string `toml:"-" json:"-"`
	Dir  string `toml:"-" json:"-"`

	Slug        string   `toml:"slug"`
	Title       string   `toml:"title"`
	Description string   `toml:"description"`
	Worker      string   `toml:"worker"`
	Args        []string `toml:"args"`
	Command     []string `toml:"command"`
	Smoke       string   `toml:"smoke"`

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
	Kind            string            `toml:"kind"`
	Python          string            `toml:"python"` // as written after expansion: its symlink is how Python finds the venv
	Image           string            `toml:"image"`
	Pull            string            `toml:"pull"`
	PullTimeout     Duration          `toml:"pull_timeout"`
	SIF             string            `toml:"sif"`
	ContainerPython string            `toml:"container_python"`
	Entrypoint      string            `toml:"entrypoint"`
	Network         string            `toml:"network"`
	Setup           string            `toml:"setup"`
	Modules         []string          `toml:"modules"`
	SELinux         string            `toml:"selinux"`
	PassEnv         []string          `toml:"pass_env"`
	ExtraArgs       []string          `toml:"extra_args"`
	Variables       map[string]string `toml:"variables"`
	Secrets         map[string]Secret `toml:"secrets"`
}

// Secret says where a secret's value comes from: exactly one of File and Env. The value itself is never held here.
type Secret struct {
	File string `toml:"file"`
	Env  string `toml:"env"`
}

// Weights are the model's read-only data.
type Weights struct {
	Root           string   `toml:"root"`
	Extra          []string `toml:"extra"`
	Prepare        []string `toml:"prepare"`
	PrepareTimeout Duration `toml:"prepare_timeout"`
}

// Paths are the folders that the worker shares with its callers, under the same names on both sides.
type Paths struct {
	WorkRoot string `toml:"work_root"`
	Binds    []Bind `toml:"binds"`
	Cwd      string `toml:"cwd"` // never empty after Load: the manifest's directory by default
}

// Bind is one entry of paths.binds: a string "/path", "/path:ro", "/path:rw", or a table.
type Bind struct {
	Path   string `toml:"path"`
	Mode   string `toml:"mode"` // ro, rw
	Create bool   `toml:"create"`
}

// GPU says what the worker needs of the machine's GPUs.
type GPU struct {
	Policy   string   `toml:"policy"` // none, auto, shared, exclusive
	Count    int      `toml:"count"`
	Memory   Bytes    `toml:"memory"` // per device; 0: unset
	Devices  []string `toml:"devices"`
	Priority int      `toml:"priority"`
	Pinned   bool     `toml:"pinned"`
	Wait     Duration `toml:"wait"`
}

// Limits bound what the worker may use; zero means no limit but for Pids and ShmSize, which have defaults.
type Limits struct {
	Memory  Bytes   `toml:"memory"`
	CPUs    float64 `toml:"cpus"`
	Pids    int     `toml:"pids"`
	ShmSize Bytes   `toml:"shm_size"`
}

// Start says when a worker starts and how long its phases may take.
type Start struct {
	When        string   `toml:"when"` // boot, request
	Timeout     Duration `toml:"timeout"`
	IdleTimeout Duration `toml:"idle_timeout"`
	StopTimeout Duration `toml:"stop_timeout"`
}

// Restart is the policy after a worker ended unasked, and for edits.
type Restart struct {
	Policy     string   `toml:"policy"` // always, on-failure, never
	Backoff    Duration `toml:"backoff"`
	MaxBackoff Duration `toml:"max_backoff"`
	MaxCrashes int      `toml:"max_crashes"`
	Window     Duration `toml:"window"`
	OnChange   string   `toml:"on_change"` // rolling, stop-first; filled in by Load ("stop-first" for an exclusive GPU)
}

// Serve is how requests are admitted and bounded.
type Serve struct {
	Replicas       int      `toml:"replicas"`
	Concurrency    int      `toml:"concurrency"`
	Queue          int      `toml:"queue"`
	RequestTimeout Duration `toml:"request_timeout"`
	MaxMessage     Bytes    `toml:"max_message"`
	CancelGrace    Duration `toml:"cancel_grace"`
	Allow          Allow    `toml:"allow"`
	RetryOnCrash   bool     `toml:"retry_on_crash"`
	OnDisconnect   string   `toml:"on_disconnect"` // cancel, finish
	Standby        string   `toml:"standby"`       // none, warm, hot
	Protocol       string   `toml:"protocol"`      // jsonrpc, http
	HTTP           HTTP     `toml:"http"`
}

// HTTP is where a worker with protocol = "http" serves, when not on WORKERD_SOCKET.
type HTTP struct {
	Port int `toml:"port"`
}

// Allow names who may connect to the front socket besides the same uid and root.
type Allow struct {
	Users  []string `toml:"users"`
	Groups []string `toml:"groups"`
}

// Health is the liveness check.
type Health struct {
	Interval    Duration `toml:"interval"`
	Timeout     Duration `toml:"timeout"`
	BusyTimeout Duration `toml:"busy_timeout"`
}

// Tool is one tool that an MCP client is shown. InputSchema is the schema itself: a file named in the manifest has been read.
type Tool struct {
	Name        string         `toml:"name"`
	Method      string         `toml:"method"`
	Description string         `toml:"description"`
	InputSchema map[string]any `toml:"input_schema"`
}

// Duration is a time.Duration written as in Go: "200ms", "10m", "1h30m". "0s" means none.
type Duration time.Duration

// D returns d as a time.Duration.
func (d Duration) D() time.Duration { return time.Duration(d) }

// String formats d as Go does.
func (d Duration) String() string { return time.Duration(d).String() }

// Bytes is a size written with a unit: "64MiB", "24GiB", "8GB", "512B"; a bare integer is bytes.
type Bytes int64
