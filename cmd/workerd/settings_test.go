package main

import (
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// load reads the settings that a `serve` with these flags would have.
func (r *rig) load(args ...string) (*settings, error) {
	r.t.Helper()
	a := r.app()
	root := a.rootCommand()
	cmd, rest, err := root.Find(append([]string{"serve"}, args...))
	require.NoError(r.t, err)
	if err := cmd.ParseFlags(rest); err != nil {
		return nil, err
	}
	return a.loadSettings()
}

func (r *rig) settings(args ...string) *settings {
	r.t.Helper()
	s, err := r.load(args...)
	require.NoError(r.t, err)
	return s
}

// Every key is a flag of serve and a variable, and each place wins over the next: flag, variable, file, default.
func TestEverySettingInEveryPlace(t *testing.T) {
	values := map[string]struct {
		file, env, flag string // TOML; text; text
		want            [4]any // of flag, variable, file, default
	}{
		"providers":          {`["/f", "g"]`, "/e:/e2", "/x", [4]any{[]string{"/x"}, []string{"/e", "/e2"}, []string{"/f", "DIR/g"}, []string{"HOME/.config/workerd/providers", "/etc/workerd/providers"}}},
		"runtime_dir":        {`"/f"`, "/e", "/x", [4]any{"/x", "/e", "/f", ""}},
		"state_dir":          {`"/f"`, "/e", "/x", [4]any{"/x", "/e", "/f", ""}},
		"cache_dir":          {`"~/f"`, "~/e", "~/x", [4]any{"HOME/x", "HOME/e", "HOME/f", ""}},
		"scratch_dir":        {`"${HOME}/f"`, "/e", "/x", [4]any{"/x", "/e", "HOME/f", ""}},
		"hf_home":            {`"f/../g"`, "/e", "/x", [4]any{"/x", "/e", "DIR/g", ""}},
		"listen":             {`"f"`, "e", "x", [4]any{"x", "e", "f", ""}},
		"trusted_groups":     {`["f"]`, "e:e2", "x", [4]any{[]string{"x"}, []string{"e", "e2"}, []string{"f"}, []string(nil)}},
		"log_level":          {`"error"`, "warn", "debug", [4]any{"debug", "warn", "error", "info"}},
		"log_format":         {`"json"`, "text", "json", [4]any{"json", "text", "json", "text"}},
		"engine_timeout":     {`"1s"`, "2s", "3s", [4]any{dur("3s"), dur("2s"), dur("1s"), dur("60s")}},
		"pull_timeout":       {`"1s"`, "2s", "3s", [4]any{dur("3s"), dur("2s"), dur("1s"), dur("1h")}},
		"container_ttl":      {`"1s"`, "2s", "3s", [4]any{dur("3s"), dur("2s"), dur("1s"), dur("24h")}},
		"log_max_size":       {`"1MiB"`, "2MiB", "3MiB", [4]any{manifest.Bytes(3 << 20), manifest.Bytes(2 << 20), manifest.Bytes(1 << 20), manifest.Bytes(10 << 20)}},
		"log_max_files":      {`1`, "2", "3", [4]any{3, 2, 1, 10}},
		"gpu_health_check":   {`false`, "true", "false", [4]any{false, true, false, true}},
		"gpu_external_check": {`false`, "true", "false", [4]any{false, true, false, true}},
		"gpu_devices":        {`["0=24GiB"]`, "GPU-e:1=8GB", "MIG-x", [4]any{[]string{"MIG-x"}, []string{"GPU-e", "1=8GB"}, []string{"0=24GiB"}, []string(nil)}},
	}
	typ := reflect.TypeFor[settings]()
	for i := range typ.NumField() {
		key := typ.Field(i).Tag.Get("toml")
		if key == "" || key == "defaults" {
			continue
		}
		require.Contains(t, values, key, "every key is in this test")
		t.Run(key, func(t *testing.T) {
			v := values[key]
			r := newRig(t)
			delete(r.env, "WORKERD_RUNTIME_DIR")
			dir := filepath.Join(r.dir, ".config/workerd")
			check := func(n int, args ...string) {
				t.Helper()
				got := reflect.ValueOf(r.settings(args...)).Elem().Field(i).Interface()
				require.Equal(t, expand(v.want[n], r.dir, dir), got)
			}
			check(3)
			r.write(".config/workerd/workerd.toml", key+" = "+v.file+"\n")
			check(2)
			variable := "WORKERD_" + strings.ToUpper(key)
			r.env[variable] = v.env
			check(1)
			flag := "--" + strings.ReplaceAll(key, "_", "-")
			check(0, flag+"="+v.flag)
			r.env[variable] = ""
			check(2)
		})
	}
	require.Len(t, options, len(values))
}

func dur(s string) manifest.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		panic(err)
	}
	return manifest.Duration(d)
}

// expand puts the directories of a test into what it expects.
func expand(want any, home, dir string) any {
	replace := strings.NewReplacer("HOME", home, "DIR", dir)
	switch w := want.(type) {
	case string:
		return replace.Replace(w)
	case []string:
		for i := range w {
			w[i] = replace.Replace(w[i])
		}
	}
	return want
}

func TestSettingsAreStrict(t *testing.T) {
	r := newRig(t)
	r.env["EMPTY"] = ""
	for text, says := range map[string]string{
		"log_levl = \"info\"\n":            "workerd.toml:1:1: log_levl",
		"log_level = \"loud\"\n":           "workerd.toml:1:",
		"log_max_files = 0\n":              "log_max_files",
		"engine_timeout = 5\n":             "duration",
		"engine_timeout = \"-5s\"\n":       "negative",
		"providers = \"/x\"\n":             "array",
		"log_level = \n":                   "workerd.toml:1:",
		"state_dir = \"${NOT_SET}/x\"\n":   "${NOT_SET} is not set",
		"providers = [\"${NOT_SET}/x\"]\n": "providers[0]",
		"runtime_dir = \"${EMPTY}\"\n":     "runtime_dir: must not be empty",
		"providers = [\"/x\", \"\"]\n":     "providers[1]: must not be empty",
		"gpu_devices = [\"H100\"]\n":       "gpu_devices: \"H100\": write an index or a whole UUID",
	} {
		r.write(".config/workerd/workerd.toml", text)
		_, err := r.load()
		require.ErrorContains(t, err, says, text)
		require.Contains(t, r.fails(exitUsage, "status"), says)
	}
}

func TestBadFlagsAndVariables(t *testing.T) {
	r := newRig(t)
	for key, bad := range map[string]string{
		"LOG_LEVEL": "loud", "LOG_MAX_FILES": "none", "ENGINE_TIMEOUT": "5", "LOG_MAX_SIZE": "big", "GPU_HEALTH_CHECK": "perhaps", "GPU_DEVICES": "0=24",
	} {
		r.env["WORKERD_"+key] = bad
		_, err := r.load()
		require.ErrorContains(t, err, "WORKERD_"+key)
		delete(r.env, "WORKERD_"+key)
		_, err = r.load("--" + strings.ToLower(strings.ReplaceAll(key, "_", "-")) + "=" + bad)
		require.Error(t, err, key)
	}
	r.env["WORKERD_UNKNOWN"] = "x"
	r.env["WORKERD_SOCKET"] = "/some/worker/inside"
	_, err := r.load()
	require.NoError(t, err, "unknown variables are ignored")
}

// What comes of a shell variable that is not set never means the working directory.
func TestEmptyPaths(t *testing.T) {
	r := newRig(t)
	for _, o := range options {
		if !o.path && !o.list {
			continue
		}
		_, err := r.load("--"+o.flag(), "")
		require.ErrorContains(t, err, "must not be empty", o.key)
	}
	require.Contains(t, r.fails(exitUsage, "status", "--runtime-dir", ""), `"--runtime-dir" flag: must not be empty`)
	standard := r.settings().Providers
	for text, want := range map[string][]string{
		"": standard, ":": standard, ":/etc/x": {"/etc/x"}, "/a::/b:": {"/a", "/b"},
	} {
		r.env["WORKERD_PROVIDERS"] = text
		require.Equal(t, want, r.settings().Providers, text)
	}
	r.env["WORKERD_TRUSTED_GROUPS"] = ":"
	require.Empty(t, r.settings().TrustedGroups)
}

func TestRepeatedFlagsAndBareSwitches(t *testing.T) {
	r := newRig(t)
	require.Equal(t, []string{"/a", "/b:c"}, r.settings("--providers", "/a", "--providers", "/b:c").Providers)
	require.True(t, r.settings("--gpu-health-check").GPUHealthCheck)
	require.Equal(t, "/b", r.settings("--state-dir", "/a", "--state-dir", "/b").StateDir)
}

func TestConfigFlagNamesTheFile(t *testing.T) {
	r := newRig(t)
	r.write(".config/workerd/workerd.toml", "log_level = \"error\"\n")
	other := r.write("other/w.toml", "state_dir = \"s\"\n")
	s := r.settings("--config", other)
	require.Equal(t, "info", s.LogLevel)
	require.Equal(t, filepath.Join(r.dir, "other/s"), s.StateDir)
}

func TestDefaultsReachManifests(t *testing.T) {
	r := newRig(t)
	r.provider("one", "")
	r.write(".config/workerd/workerd.toml", "[defaults.serve]\nqueue = 7\n")
	require.Contains(t, r.ok("explain", "one"), "queue = 7")

	r.write(".config/workerd/workerd.toml", "log_level = \"warn\"\n[defaults.serve]\nqeue = 7\n")
	require.Equal(t, exitFailed, r.run("validate"))
	require.Contains(t, r.out.String(), "workerd.toml:3:1: defaults.serve.qeue")
	require.Equal(t, exitFailed, r.run("doctor"))
	require.Contains(t, r.out.String(), "defaults.serve.qeue")
}

func TestPullTimeoutIsTheDefaultOfManifests(t *testing.T) {
	r := newRig(t)
	pull := func(manifestTOML, settingsTOML string, args ...string) manifest.Duration {
		t.Helper()
		r.write(".config/workerd/workerd.toml", settingsTOML)
		a := r.app()
		cmd, rest, err := a.rootCommand().Find(append([]string{"serve"}, args...))
		require.NoError(t, err)
		require.NoError(t, cmd.ParseFlags(rest))
		b, err := a.bench()
		require.NoError(t, err)
		m, _, err := manifest.Parse([]byte("worker = \"w.py\"\n[env]\nkind = \"docker\"\nimage = \"x\"\n"+manifestTOML), r.write("w/provider.toml", ""), b.options)
		require.NoError(t, err)
		return m.Env.PullTimeout
	}
	r.write("w/w.py", "")
	require.Equal(t, dur("1h"), pull("", ""))
	require.Equal(t, dur("5m"), pull("", `pull_timeout = "5m"`))
	require.Equal(t, dur("7m"), pull("", `pull_timeout = "5m"`, "--pull-timeout", "7m"))
	require.Equal(t, dur("0s"), pull("", `pull_timeout = "0s"`), "none")
	require.Equal(t, dur("3m"), pull("", "pull_timeout = \"5m\"\n[defaults.env]\npull_timeout = \"3m\"\n"), "[defaults] is nearer")
	require.Equal(t, dur("2m"), pull(`pull_timeout = "2m"`, "pull_timeout = \"5m\"\n[defaults.env]\npull_timeout = \"3m\"\n"), "and the manifest nearest")
}
