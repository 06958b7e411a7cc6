package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// fakeSystemd answers as systemctl does, and remembers what it was asked to change.
type fakeSystemd struct {
	version string            // of systemd
	unit    map[string]string // properties of workerd.service
	fail    map[string]error  // by verb
	orders  []string
}

func (f *fakeSystemd) run(_ context.Context, args ...string) (string, error) {
	if err := f.fail[args[0]]; err != nil {
		return "", err
	}
	switch args[0] {
	case "--version":
		return "systemd " + f.version + "\n+PAM", nil
	case "show":
		for _, arg := range args {
			if name, ok := strings.CutPrefix(arg, "--property="); ok {
				return f.unit[name], nil
			}
		}
	}
	f.orders = append(f.orders, strings.Join(args, " "))
	return "", nil
}

// installer is a rig with a fake systemd and a home of its own.
type installer struct {
	*rig
	systemd *fakeSystemd
	path    string // of the unit
}

func newInstaller(t *testing.T) *installer {
	r := newRig(t)
	i := &installer{rig: r, path: filepath.Join(r.dir, ".config/systemd/user/workerd.service")}
	i.systemd = &fakeSystemd{version: "252 (252.39)", unit: map[string]string{"ActiveState": "inactive", "FragmentPath": i.path}, fail: map[string]error{}}
	delete(r.env, "WORKERD_RUNTIME_DIR")
	r.env["XDG_RUNTIME_DIR"] = filepath.Join(r.dir, "xdg")
	require.NoError(t, os.Mkdir(r.env["XDG_RUNTIME_DIR"], 0o700))
	r.env["PATH"] = "/usr/bin:/bin"
	return i
}

func (i *installer) install(args ...string) int {
	i.out.Reset()
	i.err.Reset()
	a := i.app()
	a.binary = func() (string, error) { return "/opt/w/workerd", nil }
	a.manager = &systemd{user: true, run: i.systemd.run}
	return a.runContext(i.t.Context(), append([]string{"install"}, args...))
}

func (i *installer) unit() string { return string(mustRead(i.t, i.path)) }

// line returns the values of a key of the unit.
func (i *installer) line(key string) (values []string) {
	for l := range strings.Lines(i.unit()) {
		if v, ok := strings.CutPrefix(strings.TrimSuffix(l, "\n"), key+"="); ok {
			values = append(values, v)
		}
	}
	return values
}

func TestInstallWritesTheUnit(t *testing.T) {
	i := newInstaller(t)
	require.Equal(t, exitOK, i.install(), i.err.String())
	require.Contains(t, i.out.String(), "wrote "+i.path)
	require.Contains(t, i.out.String(), "systemctl --user enable --now workerd")
	require.Empty(t, i.systemd.orders, "nothing is started unasked")
	require.Equal(t, []string{"/opt/w/workerd serve"}, i.line("ExecStart"))
	require.Equal(t, []string{"/opt/w/workerd reload"}, i.line("ExecReload"))
	require.Equal(t, []string{"-/opt/w/workerd sweep", "-/opt/w/workerd leave-cgroup"}, i.line("ExecStopPost"))
	require.Equal(t, []string{"PATH=/usr/bin:/bin"}, i.line("Environment"))
	require.Equal(t, []string{"notify"}, i.line("Type"))
	require.Equal(t, []string{"process"}, i.line("KillMode"))

	require.Equal(t, exitOK, i.install(), i.err.String())
	require.Equal(t, i.path+" is as it should be\n", i.out.String())
}

func TestInstallCarriesTheSettings(t *testing.T) {
	i := newInstaller(t)
	conf := i.write("site %1/workerd.toml", "log_format = \"json\"\n")
	i.env["WORKERD_PROVIDERS"] = "/a:/b"
	i.env["WORKERD_LOG_LEVEL"] = "debug"
	i.env["DOCKER_HOST"] = "unix:///run/user/1/docker.sock"
	i.env["XDG_CONFIG_HOME"] = filepath.Join(i.dir, ".config") // the usual one
	i.env["XDG_STATE_HOME"] = "/st"
	i.env["CONDA_PREFIX"] = "/conda"
	i.env["PATH"] = "/conda/bin:rel:/usr/bin:/opt/a b/bin:/usr/bin"
	require.Equal(t, exitOK, i.install("--config", conf, "--runtime-dir", "/r/$x", "--trusted-groups", "g", "--log-level", "warn"), i.err.String())
	args := fmt.Sprintf(`"--config=%s" --runtime-dir=/r/$$x`, strings.ReplaceAll(conf, "%", "%%"))
	serve := "--providers=/a --providers=/b --trusted-groups=g --log-level=warn"
	require.Equal(t, []string{"/opt/w/workerd " + args + " serve " + serve}, i.line("ExecStart"))
	require.Equal(t, []string{"/opt/w/workerd " + args + " reload"}, i.line("ExecReload"))
	require.Equal(t, []string{"-/opt/w/workerd " + args + " sweep " + serve, "-/opt/w/workerd " + args + " leave-cgroup"}, i.line("ExecStopPost"))
	require.Equal(t, []string{"DOCKER_HOST=unix:///run/user/1/docker.sock", `"PATH=/usr/bin:/opt/a b/bin"`, "XDG_STATE_HOME=/st"}, i.line("Environment"))
}

func TestInstallUsesWhatSystemdHas(t *testing.T) {
	for version, want := range map[string]struct {
		kind           string
		reloads, steps int
	}{
		"247":              {"notify", 1, 0},
		"252 (252.39-1)":   {"notify", 1, 0},
		"253":              {"notify-reload", 0, 0},
		"254 (v254.1-2.f)": {"notify-reload", 0, 1},
		"257.7":            {"notify-reload", 0, 1},
	} {
		i := newInstaller(t)
		i.systemd.version = version
		require.Equal(t, exitOK, i.install(), i.err.String())
		assert.Equal(t, []string{want.kind}, i.line("Type"), version)
		assert.Len(t, i.line("ExecReload"), want.reloads, version)
		assert.Len(t, i.line("RestartSteps"), want.steps, version)
		assert.Len(t, i.line("DelegateSubgroup"), want.steps, version) // 254 too
		assert.Len(t, i.line("ExecStopPost"), 2-want.steps, version)
	}
}

func TestInstallLeavesAnEditedUnit(t *testing.T) {
	i := newInstaller(t)
	require.Equal(t, exitOK, i.install())
	require.Equal(t, exitOK, i.install("--log-level", "debug"), "one that nobody edited is replaced")
	require.Equal(t, []string{"/opt/w/workerd serve --log-level=debug"}, i.line("ExecStart"))

	edited := strings.Replace(i.unit(), "OOMPolicy=continue", "OOMPolicy=kill", 1)
	require.NoError(t, os.WriteFile(i.path, []byte(edited), 0o600))
	require.Equal(t, exitFailed, i.install())
	require.Contains(t, i.err.String(), "was edited")
	require.Contains(t, i.err.String(), "- ExecStart=/opt/w/workerd serve --log-level=debug\n+ ExecStart=/opt/w/workerd serve\n")
	require.Contains(t, i.err.String(), "\n- OOMPolicy=kill\n")
	require.Contains(t, i.err.String(), "\n+ OOMPolicy=continue\n")
	require.NotContains(t, i.err.String(), "KillMode")
	require.Contains(t, i.err.String(), "--force")
	require.Equal(t, edited, i.unit())

	for _, backup := range []string{".bak", ".bak2"} {
		require.NoError(t, os.WriteFile(i.path, []byte(edited), 0o600))
		require.Equal(t, exitOK, i.install("--force"), i.err.String())
		require.Equal(t, edited, string(mustRead(t, i.path+backup)))
		require.Contains(t, i.out.String(), i.path+backup)
		require.Equal(t, []string{"continue"}, i.line("OOMPolicy"))
	}
}

func TestInstallLeavesLinks(t *testing.T) {
	i := newInstaller(t)
	require.NoError(t, os.MkdirAll(filepath.Dir(i.path), 0o755))
	require.NoError(t, os.Symlink(os.DevNull, i.path))
	require.Equal(t, exitFailed, i.install("--force"))
	require.Contains(t, i.err.String(), "systemctl --user unmask workerd")

	kept := i.write("dotfiles/workerd.service", "[Unit]\n")
	require.NoError(t, os.Remove(i.path))
	require.NoError(t, os.Symlink(kept, i.path))
	require.Equal(t, exitFailed, i.install())
	require.Contains(t, i.err.String(), "is a link to "+kept)
	require.Equal(t, exitOK, i.install("--force"), i.err.String())
	require.Equal(t, "[Unit]\n", string(mustRead(t, kept)), "what the link led to is as it was")
	link, err := os.Readlink(i.path + ".bak")
	require.NoError(t, err)
	require.Equal(t, kept, link)
}

func TestInstallNow(t *testing.T) {
	i := newInstaller(t)
	require.Equal(t, exitOK, i.install("--now", "--json"), i.err.String())
	require.Equal(t, []string{"daemon-reload", "enable workerd.service", "start workerd.service"}, i.systemd.orders)
	var done installed
	require.NoError(t, json.Unmarshal([]byte(i.out.String()), &done))
	require.True(t, done.Written && done.Enabled && done.Active)
	require.Equal(t, i.path, done.Unit)

	i.systemd.unit["ActiveState"] = "active"
	require.Equal(t, exitOK, i.install("--now"), i.err.String())
	require.NotContains(t, i.out.String(), "restart workerd")
	require.Equal(t, exitOK, i.install("--now", "--log-level", "debug"), i.err.String())
	require.Contains(t, i.out.String(), "systemctl --user restart workerd", "it is not restarted unasked: models are in memory")
}

func TestInstallSaysWhatIsMissing(t *testing.T) {
	for what, c := range map[string]struct {
		verb string
		err  error
		args []string
		code int
		want []string
	}{
		"no systemd":       {"--version", fmt.Errorf("systemctl --version: %w", exec.ErrNotFound), nil, exitFailed, []string{"no systemctl", "`workerd serve`"}},
		"no bus":           {"show", errors.New("Failed to connect to bus: No medium found"), []string{"--now"}, exitFailed, []string{"No medium found", "not su or sudo", "/run/user/"}},
		"start fails":      {"start", errors.New("Job for workerd.service failed"), []string{"--now"}, exitFailed, []string{"Job for workerd.service failed", "journalctl --user -u workerd"}},
		"no such setting":  {"", nil, []string{"--log-level", "loud"}, exitUsage, []string{"loud"}},
		"no such file":     {"", nil, []string{"--config", "/nonexistent.toml"}, exitUsage, []string{"/nonexistent.toml"}},
		"an unbuilt thing": {"", nil, []string{"--listen", ":1"}, exitUsage, []string{"listen"}},
		"an argument":      {"", nil, []string{"now"}, exitUsage, []string{"now"}},
	} {
		t.Run(what, func(t *testing.T) {
			i := newInstaller(t)
			i.systemd.fail[c.verb] = c.err
			require.Equal(t, c.code, i.install(c.args...), i.err.String())
			for _, want := range c.want {
				require.Contains(t, i.err.String(), want)
			}
			if what != "start fails" {
				require.NoFileExists(t, i.path, "nothing is written by half")
			}
		})
	}
	i := newInstaller(t)
	i.systemd.unit["FragmentPath"] = "/etc/systemd/user/workerd.service"
	require.Equal(t, exitFailed, i.install("--now"))
	require.Contains(t, i.err.String(), "/etc/systemd/user/workerd.service")
	require.NotContains(t, i.systemd.orders, "start workerd.service")
}

func TestInstallBesideAnotherWorkerd(t *testing.T) {
	i := newInstaller(t)
	i.env["PATH"] = os.Getenv("PATH")
	i.startDaemon()
	require.Equal(t, exitFailed, i.install("--now"))
	require.Contains(t, i.err.String(), "a workerd that systemd did not start answers on")
	require.NoFileExists(t, i.path)
}

func TestQuoteUnit(t *testing.T) {
	for word, want := range map[string][2]string{
		"/usr/bin/x":    {"/usr/bin/x", "/usr/bin/x"},
		"":              {`""`, `""`},
		"a b":           {`"a b"`, `"a b"`},
		"50%":           {"50%%", "50%%"},
		"$HOME":         {"$HOME", "$$HOME"},
		`a"b\c`:         {`"a\"b\\c"`, `"a\"b\\c"`},
		"it's":          {`"it's"`, `"it's"`},
		";":             {`";"`, `";"`},
		"tab\there\n":   {`"tab\x09here\x0a"`, `"tab\x09here\x0a"`},
		"häuser":        {"häuser", "häuser"},
		"${X} %h \"$\"": {`"${X} %%h \"$\""`, `"$${X} %%h \"$$\""`},
	} {
		assert.Equal(t, want[0], quoteUnit(word, false), word)
		assert.Equal(t, want[1], quoteUnit(word, true), word)
	}
}

func TestSealed(t *testing.T) {
	text := (&unit{binary: "/x", systemd: 252}).text()
	assert.True(t, sealed(seal(text)))
	assert.False(t, sealed(text))
	assert.False(t, sealed(seal(text)+"# more\n"))
	assert.False(t, sealed(strings.Replace(seal(text), "on-failure", "no", 1)))
}

func TestOwnUnit(t *testing.T) {
	for cgroups, want := range map[string]string{
		"0::/user.slice/user-7.slice/user@7.service/app.slice/workerd.service\n":                            "workerd.service true",
		"0::/user.slice/user-7.slice/user@7.service/app.slice/workerd.service/.control\n":                   "workerd.service true",
		"0::/user.slice/user-7.slice/user@7.service/app.slice/w@a.service/sup/x.service\n":                  "w@a.service true",
		"0::/system.slice/workerd.service\n":                                                                "workerd.service false",
		"9:name=systemd:/docker/x\n8:pids:/docker/x\n0::/docker/x/user@7.service/app.slice/workerd.service": "workerd.service true",
		"1:name=systemd:/system.slice/lab.service\n":                                                        "lab.service false",
		"0::/user.slice/user-7.slice/session-3.scope\n":                                                     " false",
		"0::/user.slice/user-7.slice/user@7.service/init.scope\n":                                           " false",
		"0::/\n": " false",
		"":       " false",
	} {
		unit, user := ownUnit(cgroups)
		assert.Equal(t, want, fmt.Sprint(unit, " ", user), cgroups)
	}
}

func TestJobOf(t *testing.T) {
	list := "12 other.service start waiting\n15 workerd.service restart running\n"
	assert.Equal(t, "restart", jobOf(list, "workerd.service"))
	assert.Empty(t, jobOf(list, "workerd"))
	assert.Empty(t, jobOf("", "workerd.service"))
	assert.Empty(t, jobOf("No jobs running.\n", "workerd.service"))
}

func TestUnitCommandsParse(t *testing.T) {
	// Every option that a unit can carry is one that its commands take.
	a := newRig(t).app()
	root := a.rootCommand()
	for _, name := range []string{"serve", sweepName} {
		cmd, _, err := root.Find([]string{name})
		require.NoError(t, err)
		for _, o := range options {
			assert.NotNil(t, cmd.Flags().Lookup(o.flag()), "%s --%s", name, o.flag())
		}
	}
}
