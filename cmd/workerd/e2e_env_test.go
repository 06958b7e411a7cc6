package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// environment is what the SDK worker says of itself.
type environment struct {
	Env    map[string]string
	Path   []string
	Prefix string
	Argv   []string
	Cwd    string
	Groups []int
}

func (e *e2e) environment(slug string) environment {
	e.t.Helper()
	m, err := e.dial(slug).try("environment", "{}")
	require.NoError(e.t, err)
	require.Nil(e.t, m.Error)
	var env environment
	require.NoError(e.t, json.Unmarshal(m.Result, &env))
	return env
}

// tomlBasic writes a TOML basic string. "${" stands for itself.
func tomlBasic(s string) string {
	quoted, _ := json.Marshal(s) // for plain text JSON's escapes are TOML's
	return strings.ReplaceAll(string(quoted), "${", "$${")
}

// Cases 30, 84 and 32: what the caller's session says to its own Python says nothing to the worker's.
func TestE2ECase30NothingLeaksIntoTheWorker(t *testing.T) {
	e := newE2E(t)
	for name, value := range map[string]string{
		"PYTHONPATH": "/leak", "PYTHONHOME": "/bad", "PYTHONSTARTUP": "/bad.py", "LD_PRELOAD": "", "CONDA_PREFIX": "/bad", "CONDA_DEFAULT_ENV": "bad",
		"VIRTUAL_ENV": "/bad", "APPTAINERENV_X": "bad", "SINGULARITY_X": "bad", "NOTIFY_SOCKET": filepath.Join(e.dir, "notify"), "LISTEN_FDS": "3",
		"WORKERD_LOG_LEVEL": "debug", "WORKERD_SOCKET": "/bad", "CUDA_VISIBLE_DEVICES": "0,1", "HF_HOME": "/bad", "MPLCONFIGDIR": "/bad",
		"LD_LIBRARY_PATH": "/some/lib", "SLURM_JOB_NAME": "fold", "SLURM_NTASKS": "2", "LANG": "C.UTF-8", "KEPT": "kept",
	} {
		e.env[name] = value
	}
	version, err := exec.Command(interpreter(t), "-c", "import sys; print('%d.%d' % sys.version_info[:2])").Output()
	require.NoError(t, err)
	site := filepath.Join(e.env["HOME"], ".local/lib/python"+strings.TrimSpace(string(version)), "site-packages")
	require.NoError(t, os.MkdirAll(site, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(site, "shadow.py"), nil, 0o600))

	e.provider("x", "[env]\npass_env = [\"SLURM_*\", \"PYTHONSTARTUP\"]\n")
	e.provider("own", "[env.variables]\nPYTHONPATH = \"/own\"\nMPLCONFIGDIR = \"/mpl\"\n")
	e.start()

	env := e.environment("x")
	for _, name := range []string{
		"PYTHONHOME", "LD_PRELOAD", "CONDA_PREFIX", "CONDA_DEFAULT_ENV", "VIRTUAL_ENV", "APPTAINERENV_X", "SINGULARITY_X",
		"NOTIFY_SOCKET", "LISTEN_FDS", "WORKERD_LOG_LEVEL", "WORKERD_RUNTIME_DIR",
	} {
		require.NotContains(t, env.Env, name)
	}
	require.NotContains(t, env.Env["PYTHONPATH"], "/leak")
	require.NotContains(t, env.Path, "/leak")
	require.Equal(t, "/bad.py", env.Env["PYTHONSTARTUP"], "asked for by name, it arrives")
	require.Equal(t, "fold", env.Env["SLURM_JOB_NAME"])
	require.Equal(t, "2", env.Env["SLURM_NTASKS"])
	require.Equal(t, "kept", env.Env["KEPT"])
	require.Equal(t, "/some/lib", env.Env["LD_LIBRARY_PATH"])
	value, set := env.Env["CUDA_VISIBLE_DEVICES"]
	require.True(t, set, "set empty: unset would mean every GPU")
	require.Empty(t, value)
	require.Equal(t, e.env["HOME"], env.Env["HOME"])
	require.Equal(t, filepath.Join(e.manifests(), "x"), env.Cwd)
	require.LessOrEqual(t, len(env.Env["TMPDIR"]), 70)
	for _, name := range []string{"XDG_CACHE_HOME", "NUMBA_CACHE_DIR", "MPLCONFIGDIR", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "TMPDIR", "HF_HOME"} {
		dir := env.Env[name]
		require.True(t, strings.HasPrefix(dir, filepath.Join(e.dir, "cache")), "%s=%s", name, dir)
		probe := filepath.Join(dir, "probe")
		require.NoError(t, os.MkdirAll(dir, 0o700))
		require.NoError(t, os.WriteFile(probe, nil, 0o600), name)
		require.NoError(t, os.Remove(probe))
	}

	m, err := e.dial("x").try("imports", `{"name":"shadow"}`)
	require.NoError(t, err)
	require.Equal(t, "false", string(m.Result), "case 32: the user's own site-packages are not the worker's")

	env = e.environment("own")
	require.Contains(t, env.Path, "/own", "what the manifest says arrives, behind the SDK")
	require.Equal(t, "/mpl", env.Env["MPLCONFIGDIR"])
}

func TestE2ECase16ValuesArriveAsTheyAre(t *testing.T) {
	e := newE2E(t)
	values := map[string]string{
		"LINES": "l1\nl2=x,y \"q\" 'r'\n", "SHELL_WORDS": "$(touch /tmp/owned) `id` $HOME ; rm -rf x && echo *", "BRACES": "a ${HOME} b", "BACKSLASH": `a\b\\c`,
		"SPACES": "  two  ", "EMPTY": "", "UNICODE": "Größe 测试 🧬", "EQUALS": "=a=b=", "TAB": "a\tb", "PERCENT": "%h %n", "QUOTES": `""''`,
	}
	var toml strings.Builder
	toml.WriteString("[env.variables]\n")
	for name, value := range values {
		fmt.Fprintf(&toml, "%s = %s\n", name, tomlBasic(value))
	}
	e.provider("x", toml.String())
	e.start()
	got := e.environment("x").Env
	for name, value := range values {
		require.Equal(t, value, got[name], name)
	}
}

// Case 17: a secret reaches the worker and nobody else.
func TestE2ECase17SecretsShowNowhere(t *testing.T) {
	e := newE2E(t)
	const fromFile, fromEnv = "s3cr3t-of-a-file-0815", "s3cr3t-of-a-variable-4711"
	file := filepath.Join(e.dir, "token")
	require.NoError(t, os.WriteFile(file, []byte(fromFile+"\n"), 0o600))
	e.env["LAB_TOKEN"] = fromEnv
	e.provider("x", undaunted+fmt.Sprintf("[env.secrets]\nA = { file = %q }\nB = { env = \"LAB_TOKEN\" }\n", file))

	// All command lines of the machine, from before the start to after the stop.
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	seen := make(chan string, 1)
	go func() {
		found := ""
		for ctx.Err() == nil {
			dirs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
			for _, dir := range dirs {
				if data, err := os.ReadFile(dir); err == nil && strings.Contains(string(data), "s3cr3t") {
					found = dir + ": " + string(data)
				}
			}
		}
		seen <- found
	}()
	e.start("--log-level", "debug")
	env := e.environment("x").Env
	require.Equal(t, fromFile, env["A"])
	require.Equal(t, fromEnv, env["B"])
	require.NotContains(t, env, "LAB_TOKEN", "not under its own name either")

	var said strings.Builder
	for _, args := range [][]string{
		{"status"}, {"status", "x"}, {"status", "--json"}, {"explain", "x"}, {"explain", "x", "--json"}, {"validate"}, {"logs", "x"},
		{"call", "x", "die", "name=SIGKILL"}, {"restart", "x"}, {"reload"}, {"doctor"}, {"stop", "x"}, {"start", "x"},
	} {
		r := e.cli(args...)
		require.NotContains(t, r.out+r.err, "s3cr3t", args)
		said.WriteString(r.out)
	}
	require.Contains(t, said.String(), "A=***")
	e.stop()
	cancel()
	require.Empty(t, <-seen)
	require.NotContains(t, e.log.String(), "s3cr3t")
	for _, dir := range []string{"state", "cache", "run"} {
		require.NoError(t, filepath.WalkDir(filepath.Join(e.dir, dir), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Type().IsRegular() {
				require.NotContains(t, string(mustRead(t, path)), "s3cr3t", path)
			}
			return err
		}))
	}
}

// Case 15: a path with any bytes means the same to the worker.
func TestE2ECase15PathsKeepTheirBytes(t *testing.T) {
	e := newE2E(t)
	for i, name := range []string{`ws\back`, "a b ", "q$HOME", "~", "%h", "*", "run_12:34", `a,b"c`, "Größe"} {
		folder := filepath.Join(e.dir, "weights", name)
		require.NoError(t, os.MkdirAll(folder, 0o700))
		e.provider(fmt.Sprintf("w%d", i), fmt.Sprintf("[weights]\nroot = %s\n[start]\nwhen = \"request\"\n[paths]\nwork_root = %s\n",
			tomlBasic(folder), tomlBasic(filepath.Join(e.dir, "work", name))))
	}
	link := filepath.Join(e.dir, "link")
	require.NoError(t, os.Symlink(filepath.Join(e.dir, "weights"), link))
	e.provider("linked", fmt.Sprintf("[weights]\nroot = %s\n", tomlBasic(filepath.Join(link, "*"))))
	e.start()
	for i, name := range []string{`ws\back`, "a b ", "q$HOME", "~", "%h", "*", "run_12:34", `a,b"c`, "Größe"} {
		env := e.environment(fmt.Sprintf("w%d", i)).Env
		require.Equal(t, filepath.Join(e.dir, "weights", name), env["WORKERD_WEIGHTS"])
		require.DirExists(t, filepath.Join(e.dir, "work", name), "work_root is made")
	}
	require.Equal(t, filepath.Join(link, "*"), e.environment("linked").Env["WORKERD_WEIGHTS"], "as it is named, not resolved")
}
