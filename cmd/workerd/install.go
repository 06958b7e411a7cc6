package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
)

func (a *app) installCommand() *cobra.Command {
	var now, force bool
	cmd := &cobra.Command{
		Use:   "install",
		Short: "Write a systemd user unit, and start it",
		Long: `Write workerd.service for the systemd of this user, with the settings given here by flags and variables, the
PATH and the addresses of container engines of this session, and what else a service would not have of it. With
--now also enable and start it, which returns when workerd is ready.

A unit that nobody has edited is replaced. One that was edited is left alone unless --force is given, which keeps
it as a .bak file; what is to differ belongs into ` + "`systemctl --user edit workerd`" + `, which install never touches.

  workerd install --now
  systemctl --user status|stop|restart|reload workerd
  journalctl --user -u workerd -f
  loginctl enable-linger        # go on after the last logout, start at boot`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.install(cmd.Context(), now, force) },
	}
	cmd.Flags().BoolVar(&now, "now", false, "enable and start the unit")
	cmd.Flags().BoolVar(&force, "force", false, "replace a unit that was edited")
	a.flags.register(cmd.Flags())
	a.jsonFlag(cmd)
	return cmd
}

// installed is what `install` did.
type installed struct {
	Unit    string   `json:"unit"`
	Written bool     `json:"written"` // false: it was as it should be
	Backup  string   `json:"backup,omitempty"`
	Enabled bool     `json:"enabled"`
	Active  bool     `json:"active"`
	Next    []string `json:"next"` // what is left to do
}

func (a *app) install(ctx context.Context, now, force bool) error {
	sd := a.manager
	if sd == nil {
		sd = newSystemd(true)
	}
	u, err := a.unit(ctx, sd)
	if err != nil {
		return err
	}
	state := ""
	if now {
		if state, err = a.startable(ctx, sd); err != nil {
			return err
		}
	}
	done := &installed{Unit: filepath.Join(a.configHome(), "systemd", "user", unitName), Next: []string{}}
	if err := done.write(seal(u.text()), force); err != nil {
		return err
	}
	if now {
		if err := done.start(ctx, sd, state); err != nil {
			return err
		}
	} else if done.Written {
		done.next("systemctl --user daemon-reload")
		done.next("systemctl --user enable --now workerd")
	}
	if f := lingering(ctx, a.uid); f.Status == findWarning {
		done.next(f.Do + "   # " + f.Message)
	}
	if a.json {
		return writeJSON(a.out, done)
	}
	done.print(a)
	return nil
}

func (d *installed) next(step string) { d.Next = append(d.Next, step) }

func (d *installed) print(a *app) {
	if d.Written {
		a.printf("wrote %s\n", d.Unit)
	} else {
		a.printf("%s is as it should be\n", d.Unit)
	}
	if d.Backup != "" {
		a.printf("the edited one is now %s\n", d.Backup)
	}
	if d.Enabled {
		a.printf("workerd is enabled and runs\n")
	}
	for i, step := range d.Next {
		if i == 0 {
			a.printf("next:\n")
		}
		a.printf("  %s\n", step)
	}
}

// unit makes the unit for the settings in effect.
func (a *app) unit(ctx context.Context, sd *systemd) (*unit, error) {
	s, err := a.loadSettings() // what they have wrong is said here, not in the journal
	if err != nil {
		return nil, err
	}
	if err := s.unsupported(); err != nil {
		return nil, err
	}
	if _, err := a.dirs(); err != nil {
		return nil, err
	}
	version, err := sd.version(ctx)
	if err != nil {
		return nil, err
	}
	find := a.binary
	if find == nil {
		find = ownBinary
	}
	binary, err := find()
	if err != nil {
		return nil, err
	}
	u := &unit{binary: binary, systemd: version, environ: a.sessionEnviron()}
	if a.config != "" {
		u.args = append(u.args, "--config="+s.file)
	}
	for _, o := range options {
		values, err := a.given(o)
		if err != nil {
			return nil, err
		}
		for _, v := range values {
			if o.key == "runtime_dir" {
				u.args = append(u.args, "--"+o.flag()+"="+v)
			} else {
				u.serve = append(u.serve, "--"+o.flag()+"="+v)
			}
		}
	}
	return u, nil
}

// ownBinary returns the path of this program as it was called, so that a link which is moved to the next version keeps working.
func ownBinary() (string, error) {
	exe, err := os.Executable()
	if err != nil {
		return "", err
	}
	if strings.Contains(exe, "/go-build") {
		return "", &withHint{fmt.Errorf("%s is a temporary build, and soon gone", exe), "go build -o ~/bin/workerd ./cmd/workerd, and run that one"}
	}
	self, err := os.Stat(exe)
	if err != nil {
		return "", fmt.Errorf("this program's file: %w", err)
	}
	if named, err := exec.LookPath(os.Args[0]); err == nil {
		if named, err = filepath.Abs(named); err == nil {
			if st, err := os.Stat(named); err == nil && os.SameFile(st, self) {
				return named, nil
			}
		}
	}
	return exe, nil
}

// carried are the variables that a service gets from the session that installs it: they say where engines answer and keep their
// files. Base directories are carried where they are not the usual ones.
var carried = []string{
	"DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_CONFIG", "CONTAINER_HOST",
	"APPTAINER_CACHEDIR", "APPTAINER_TMPDIR", "APPTAINER_CONFIGDIR",
	"SINGULARITY_CACHEDIR", "SINGULARITY_TMPDIR", "SINGULARITY_CONFIGDIR",
	"XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME",
}

// sessionEnviron returns what the unit carries of this session's environment, sorted.
func (a *app) sessionEnviron() []string {
	var environ []string
	usual := map[string]string{"XDG_CONFIG_HOME": ".config", "XDG_STATE_HOME": ".local/state", "XDG_CACHE_HOME": ".cache"}
	for _, name := range carried {
		v := a.getenv(name)
		if below, isBase := usual[name]; isBase && (!filepath.IsAbs(v) || filepath.Clean(v) == filepath.Join(a.home(), below)) {
			continue
		}
		if v != "" {
			environ = append(environ, name+"="+v)
		}
	}
	if path := a.servicePath(); path != "" {
		environ = append(environ, "PATH="+path)
	}
	slices.Sort(environ)
	return environ
}

// servicePath is PATH without what belongs to this session only: relative entries, and the environment that is active in it.
func (a *app) servicePath() string {
	var keep []string
	for _, dir := range filepath.SplitList(a.getenv("PATH")) {
		session := false
		for _, name := range []string{"VIRTUAL_ENV", "CONDA_PREFIX"} {
			prefix := a.getenv(name)
			session = session || prefix != "" && (dir == prefix || strings.HasPrefix(dir, prefix+"/"))
		}
		if filepath.IsAbs(dir) && !session && !slices.Contains(keep, dir) {
			keep = append(keep, dir)
		}
	}
	return strings.Join(keep, string(filepath.ListSeparator))
}

// startable says why the unit could not be started, before anything is written; state is that of the unit.
func (a *app) startable(ctx context.Context, sd *systemd) (state string, err error) {
	if _, err := sd.ask(ctx, "show", "--property=Version"); err != nil {
		return "", &withHint{fmt.Errorf("the systemd of this user does not answer: %w", err),
			"log in as the user (ssh, console; not su or sudo), or: sudo loginctl enable-linger " + strconv.Itoa(a.uid) +
				"; export XDG_RUNTIME_DIR=/run/user/" + strconv.Itoa(a.uid)}
	}
	if state, err = sd.property(ctx, unitName, "ActiveState"); err != nil {
		return "", err
	}
	if state != "inactive" && state != "failed" {
		return state, nil
	}
	if c, err := a.client(); err == nil && c.Health(ctx) == nil {
		return "", &withHint{fmt.Errorf("a workerd that systemd did not start answers on %s", c.Socket()), "stop that one first"}
	}
	return state, nil
}

// start enables and starts the unit that was written.
func (d *installed) start(ctx context.Context, sd *systemd, state string) error {
	if _, err := sd.ask(ctx, "daemon-reload"); err != nil {
		return err
	}
	used, err := sd.property(ctx, unitName, "FragmentPath")
	if err != nil {
		return err
	}
	if realPath(used) != realPath(d.Unit) {
		return &withHint{fmt.Errorf("systemd does not read %s: its %s is %q", d.Unit, unitName, used),
			"the XDG_CONFIG_HOME of the service manager may be another: systemctl --user show-environment"}
	}
	if _, err := sd.ask(ctx, "enable", unitName); err != nil {
		return err
	}
	d.Enabled = true
	if _, err := sd.run(ctx, "start", unitName); err != nil {
		return &withHint{err, "journalctl --user -u workerd -n 30   # says why"}
	}
	d.Active = true
	if state != "inactive" && state != "failed" && d.Written {
		d.next("systemctl --user restart workerd   # it runs with the unit as it was before")
	}
	return nil
}
