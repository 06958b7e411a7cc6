package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"workerd/execenv/gpu"
	"workerd/manifest"
)

// settings are those of one workerd. Each but Defaults is a key of workerd.toml, a flag of `serve` and a variable:
// log_level, --log-level, WORKERD_LOG_LEVEL. A flag wins over the variable, that over the file, that over the default.
type settings struct {
	Providers     []string `toml:"providers"`
	RuntimeDir    string   `toml:"runtime_dir"`
	StateDir      string   `toml:"state_dir"`
	CacheDir      string   `toml:"cache_dir"`
	ScratchDir    string   `toml:"scratch_dir"`
	HFHome        string   `toml:"hf_home"`
	Listen        string   `toml:"listen"`
	TrustedGroups []string `toml:"trusted_groups"`
	LogLevel      string   `toml:"log_level" enum:"debug,info,warn,error"`
	LogFormat     string   `toml:"log_format" enum:"text,json"`

	EngineTimeout manifest.Duration `toml:"engine_timeout"`
	PullTimeout   manifest.Duration `toml:"pull_timeout"`
	ContainerTTL  manifest.Duration `toml:"container_ttl"`
	LogMaxSize    manifest.Bytes    `toml:"log_max_size"`
	LogMaxFiles   int               `toml:"log_max_files" min:"1" max:"10000"`

	GPUHealthCheck   bool     `toml:"gpu_health_check"`
	GPUExternalCheck bool     `toml:"gpu_external_check"`
	GPUDevices       []string `toml:"gpu_devices"`

	// Defaults is the manifest fragment laid under every manifest. The manifests' own loader reads it, from data.
	Defaults map[string]any `toml:"defaults"`

	file string // that was read, or would have been
	data []byte // its content; nil where there is none
}

func defaultSettings() *settings {
	return &settings{
		LogLevel:         "info",
		LogFormat:        "text",
		EngineTimeout:    manifest.Duration(time.Minute),
		PullTimeout:      manifest.Duration(time.Hour),
		ContainerTTL:     manifest.Duration(24 * time.Hour),
		LogMaxSize:       10 << 20,
		LogMaxFiles:      10,
		GPUHealthCheck:   true,
		GPUExternalCheck: true,
	}
}

// option is one setting as flag and variable.
type option struct {
	key, usage string
	list       bool
	path       bool
	// set takes the values given: one, or for a list any number.
	set func(s *settings, values []string) error
}

func (o option) flag() string     { return strings.ReplaceAll(o.key, "_", "-") }
func (o option) variable() string { return "WORKERD_" + strings.ToUpper(o.key) }

// options lists every setting.
var options = []option{
	listOption("providers", "`directory` of manifests, instead of the default ones (repeatable)", true, func(s *settings) *[]string { return &s.Providers }),
	textOption("runtime_dir", "`directory` of sockets (default $XDG_RUNTIME_DIR/workerd)", true, func(s *settings) *string { return &s.RuntimeDir }),
	textOption("state_dir", "`directory` of logs and state (default $XDG_STATE_HOME/workerd)", true, func(s *settings) *string { return &s.StateDir }),
	textOption("cache_dir", "`directory` of caches and homes (default $XDG_CACHE_HOME/workerd)", true, func(s *settings) *string { return &s.CacheDir }),
	textOption("scratch_dir", "`directory` of the workers' TMPDIRs (default $SLURM_TMPDIR, $TMPDIR or the cache)", true, func(s *settings) *string { return &s.ScratchDir }),
	textOption("hf_home", "HF_HOME of all workers: a `directory` of models shared by the lab", true, func(s *settings) *string { return &s.HFHome }),
	textOption("listen", "TCP `address` for the operator API (not in this version)", false, func(s *settings) *string { return &s.Listen }),
	listOption("trusted_groups", "`group` whose members may write manifests (repeatable)", false, func(s *settings) *[]string { return &s.TrustedGroups }),
	wordOption("log_level", "debug, info, warn or error", []string{"debug", "info", "warn", "error"}, func(s *settings) *string { return &s.LogLevel }),
	wordOption("log_format", "text or json", []string{"text", "json"}, func(s *settings) *string { return &s.LogFormat }),
	durationOption("engine_timeout", "`time` that a command of a container engine may take", func(s *settings) *manifest.Duration { return &s.EngineTimeout }),
	durationOption("pull_timeout", "`time` that pulling an image may take", func(s *settings) *manifest.Duration { return &s.PullTimeout }),
	durationOption("container_ttl", "`time` that the container of a failed worker stays where env.keep_failed keeps it", func(s *settings) *manifest.Duration { return &s.ContainerTTL }),
	{key: "log_max_size", usage: "`size` at which a worker's log is rotated", set: func(s *settings, v []string) error {
		return s.LogMaxSize.UnmarshalText([]byte(v[0]))
	}},
	{key: "log_max_files", usage: "`number` of log files kept of a provider", set: func(s *settings, v []string) error {
		n, err := strconv.Atoi(v[0])
		if err != nil || n < 1 || n > 10000 {
			return fmt.Errorf("%q: must be a number from 1 to 10000", v[0])
		}
		s.LogMaxFiles = n
		return nil
	}},
	boolOption("gpu_health_check", "watch GPUs for faults", func(s *settings) *bool { return &s.GPUHealthCheck }),
	boolOption("gpu_external_check", "watch GPUs for processes of others", func(s *settings) *bool { return &s.GPUExternalCheck }),
	{key: "gpu_devices", list: true, usage: "GPU that is there though the driver cannot be asked: `name`, an index or UUID, or name=size, \"0=24GiB\" (repeatable)",
		set: func(s *settings, v []string) error {
			s.GPUDevices = v
			_, err := gpu.ParseDevices(v)
			return err
		}},
}

func textOption(key, usage string, path bool, at func(*settings) *string) option {
	return option{key: key, usage: usage, path: path, set: func(s *settings, v []string) error {
		*at(s) = v[0]
		return nil
	}}
}

func wordOption(key, usage string, words []string, at func(*settings) *string) option {
	return option{key: key, usage: usage, set: func(s *settings, v []string) error {
		if !slices.Contains(words, v[0]) {
			return fmt.Errorf("%q: must be one of %s", v[0], strings.Join(words, ", "))
		}
		*at(s) = v[0]
		return nil
	}}
}

func listOption(key, usage string, path bool, at func(*settings) *[]string) option {
	return option{key: key, usage: usage, path: path, list: true, set: func(s *settings, v []string) error {
		*at(s) = v
		return nil
	}}
}

func durationOption(key, usage string, at func(*settings) *manifest.Duration) option {
	return option{key: key, usage: usage, set: func(s *settings, v []string) error { return at(s).UnmarshalText([]byte(v[0])) }}
}

func boolOption(key, usage string, at func(*settings) *bool) option {
	return option{key: key, usage: usage, set: func(s *settings, v []string) error {
		b, err := strconv.ParseBool(v[0])
		if err != nil {
			return fmt.Errorf("%q: must be true or false", v[0])
		}
		*at(s) = b
		return nil
	}}
}

// flagValues are the settings given as flags, by key.
type flagValues map[string][]string

// register adds the flags of these settings, of all where none is named.
func (f flagValues) register(flags *pflag.FlagSet, keys ...string) {
	for _, o := range options {
		if len(keys) > 0 && !slices.Contains(keys, o.key) {
			continue
		}
		flag := flags.VarPF(&flagValue{option: o, into: f}, o.flag(), "", o.usage)
		if strings.HasPrefix(o.key, "gpu_") && !o.list {
			flag.NoOptDefVal = "true"
		}
	}
}

// flagValue collects what one flag is given.
type flagValue struct {
	option
	into flagValues
}

var errEmpty = errors.New("must not be empty")

func (v *flagValue) String() string { return "" }
func (v *flagValue) Type() string   { return "value" }

func (v *flagValue) Set(text string) error {
	if text == "" && (v.path || v.list) { // a shell variable that is not set: it would mean the working directory
		return errEmpty
	}
	if err := v.set(new(settings), []string{text}); err != nil {
		return err
	}
	if v.list {
		v.into[v.key] = append(v.into[v.key], text)
	} else {
		v.into[v.key] = []string{text}
	}
	return nil
}

// loadSettings reads the settings once.
func (a *app) loadSettings() (*settings, error) {
	if a.settings == nil {
		s, err := a.readSettings()
		if err != nil {
			return nil, err
		}
		a.settings = s
	}
	return a.settings, nil
}

func (a *app) readSettings() (*settings, error) {
	s := defaultSettings()
	if err := a.readFile(s); err != nil {
		return nil, err
	}
	for _, o := range options {
		values := a.variable(o)
		if values == nil {
			continue
		}
		if err := a.apply(s, o, values); err != nil {
			return nil, &usageError{fmt.Errorf("%s: %w", o.variable(), err)}
		}
	}
	for _, o := range options {
		if values := a.flags[o.key]; values != nil {
			if err := a.apply(s, o, values); err != nil {
				return nil, &usageError{fmt.Errorf("--%s: %w", o.flag(), err)}
			}
		}
	}
	if len(s.Providers) == 0 {
		s.Providers = []string{filepath.Join(a.configHome(), "workerd", "providers"), "/etc/workerd/providers"}
	}
	return s, nil
}

// variable returns what the environment says of an option, nil where it says nothing.
func (a *app) variable(o option) []string {
	text := a.getenv(o.variable())
	if o.list {
		var values []string
		for part := range strings.SplitSeq(text, ":") {
			if part != "" {
				values = append(values, part)
			}
		}
		return values
	}
	if text == "" {
		return nil
	}
	return []string{text}
}

// given returns what flag or variable say of an option, paths absolute; nil where neither does.
func (a *app) given(o option) ([]string, error) {
	if values := a.flags[o.key]; values != nil {
		return a.absolute(o, values)
	}
	return a.absolute(o, a.variable(o))
}

// absolute makes the values of an option given as flag or variable mean the same everywhere: a relative path is one of the
// working directory.
func (a *app) absolute(o option, values []string) ([]string, error) {
	values = slices.Clone(values)
	for i := range values {
		if !o.path {
			continue
		}
		abs, err := filepath.Abs(a.tilde(values[i]))
		if err != nil {
			return nil, err
		}
		values[i] = abs
	}
	return values, nil
}

// apply sets an option given as flag or variable.
func (a *app) apply(s *settings, o option, values []string) error {
	values, err := a.absolute(o, values)
	if err != nil {
		return err
	}
	return o.set(s, values)
}

// readFile reads workerd.toml into s. Only the file that --config names must exist. A relative path in it is one of its own
// directory.
func (a *app) readFile(s *settings) error {
	s.file = filepath.Join(a.configHome(), "workerd", "workerd.toml")
	if a.config != "" {
		abs, err := filepath.Abs(a.config)
		if err != nil {
			return &usageError{err}
		}
		s.file = abs
	}
	data, err := os.ReadFile(s.file)
	if errors.Is(err, fs.ErrNotExist) && a.config == "" {
		return nil
	}
	if err != nil {
		return &usageError{fmt.Errorf("settings: %w", err)}
	}
	s.data = data
	if err := manifest.DecodeStrict(data, s.file, s); err != nil {
		return &usageError{err}
	}
	dir := filepath.Dir(s.file)
	for key, at := range map[string]*string{
		"runtime_dir": &s.RuntimeDir, "state_dir": &s.StateDir, "cache_dir": &s.CacheDir,
		"scratch_dir": &s.ScratchDir, "hf_home": &s.HFHome,
	} {
		if *at == "" { // as if it were not there
			continue
		}
		if err := a.resolve(dir, at); err != nil {
			return &usageError{fmt.Errorf("%s: %s: %w", s.file, key, err)}
		}
	}
	for i := range s.Providers {
		if err := a.resolve(dir, &s.Providers[i]); err != nil {
			return &usageError{fmt.Errorf("%s: providers[%d]: %w", s.file, i, err)}
		}
	}
	if _, err := gpu.ParseDevices(s.GPUDevices); err != nil {
		return &usageError{fmt.Errorf("%s: gpu_devices: %w", s.file, err)}
	}
	return nil
}

var variable = regexp.MustCompile(`\$\{([A-Za-z_][A-Za-z0-9_]*)\}`)

// resolve expands ~ and ${NAME} in a path of a file in dir and makes it absolute.
func (a *app) resolve(dir string, path *string) error {
	var unset error
	p := variable.ReplaceAllStringFunc(*path, func(ref string) string {
		name := variable.FindStringSubmatch(ref)[1]
		v, ok := a.lookup(name)
		if !ok {
			unset = fmt.Errorf("${%s} is not set", name)
		}
		return v
	})
	if unset != nil {
		return unset
	}
	if p == "" {
		return errEmpty
	}
	p = a.tilde(p)
	if !filepath.IsAbs(p) {
		p = filepath.Join(dir, p)
	}
	*path = filepath.Clean(p)
	return nil
}

// tilde expands a leading ~.
func (a *app) tilde(path string) string {
	if path == "~" || strings.HasPrefix(path, "~/") {
		return a.home() + path[1:]
	}
	return path
}
