package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"workerd/execenv"
	"workerd/manifest"
	"workerd/protocol"
)

func (a *app) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine and the settings",
		Long: `Check what workerd needs of this machine, its directories, Python and the settings, and say what to do
about each finding. Exits with 1 where something keeps workerd from running.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context()) },
	}
	a.flags.register(cmd.Flags(), "providers", "trusted_groups")
	a.jsonFlag(cmd)
	return cmd
}

// The weights of findings.
const (
	findOK      = "ok"
	findNote    = "note"    // worth knowing
	findWarning = "warning" // something will not work as it could
	findProblem = "problem" // workerd or a provider cannot run
)

// finding is the outcome of one check.
type finding struct {
	Check   string `json:"check"`
	Status  string `json:"status"`
	Message string `json:"message"`
	Do      string `json:"do,omitempty"`
}

func ok(check, format string, args ...any) finding {
	return finding{check, findOK, fmt.Sprintf(format, args...), ""}
}

func (a *app) doctor(ctx context.Context) error {
	findings := a.examine(ctx)
	bad := false
	for _, f := range findings {
		bad = bad || f.Status == findProblem
	}
	if a.json {
		if err := writeJSON(a.out, map[string]any{"findings": findings}); err != nil {
			return err
		}
	} else {
		color := map[string]string{findOK: green, findNote: "", findWarning: yellow, findProblem: red}
		var rows [][]cell
		for _, f := range findings {
			rows = append(rows, []cell{{f.Status, color[f.Status]}, {f.Check, ""}, {f.Message, ""}})
			if f.Do != "" {
				rows = append(rows, []cell{{"", ""}, {"", ""}, {"-> " + f.Do, bold}})
			}
		}
		a.printTable(rows)
	}
	if bad {
		return errReported
	}
	return nil
}

// examine makes all checks. Those of the settings come first; without settings the directories are not known.
func (a *app) examine(ctx context.Context) []finding {
	var all []finding
	s, err := a.loadSettings()
	if err != nil {
		all = append(all, finding{"settings", findProblem, err.Error(), "correct them"})
	} else {
		all = append(all, a.checkSettings(s)...)
		d, err := a.dirs()
		if err != nil {
			all = append(all, finding{"runtime directory", findProblem, err.Error(), "name a shorter one with --runtime-dir or runtime_dir"})
		} else {
			all = append(all, a.checkRuntimeDir(d)...)
			all = append(all, a.checkRunning(ctx), checkWritable("state directory", d.state), checkWritable("cache directory", d.cache))
			all = append(all, a.checkManifests(s, d)...)
		}
	}
	if !readVersion().CGO {
		all = append(all, finding{"build", findNote, "built without cgo: GPUs cannot be asked for by NVML", ""})
	}
	all = append(all, a.checkPython(ctx), checkKernel(), checkPidfd(), checkInotify(), checkFiles(), checkCgroup())
	return append(all, checkSession(ctx, a.uid)...)
}

func (a *app) checkSettings(s *settings) []finding {
	if s.data == nil {
		return []finding{ok("settings", "defaults; there is no %s", s.file)}
	}
	all := []finding{ok("settings", "%s", s.file)}
	if len(s.Defaults) > 0 {
		opt := manifest.Options{LookupEnv: a.lookup, Defaults: s.data, DefaultsTable: "defaults", DefaultsFile: s.file}
		if err := manifest.CheckDefaults(opt); err != nil {
			all = append(all, finding{"settings", findProblem, err.Error(), "correct [defaults]: no manifest can be used"})
		}
	}
	for _, key := range s.withoutEffect() {
		all = append(all, finding{"settings", findWarning, key + " has no effect in this version", ""})
	}
	return all
}

func (a *app) checkRuntimeDir(d *dirs) []finding {
	const check = "runtime directory"
	var all []finding
	if d.note != "" {
		all = append(all, finding{check, findNote, d.note, "sockets there survive a logout, but are cleaned away by what cleans /tmp; name another one with runtime_dir"})
	}
	fi, err := os.Lstat(d.runtime)
	where := d.runtime
	switch {
	case errors.Is(err, fs.ErrNotExist):
		where = nearestParent(d.runtime)
		all = append(all, ok(check, "%s (made by `workerd serve`)", d.runtime))
	case err != nil:
		return append(all, finding{check, findProblem, err.Error(), ""})
	case !fi.IsDir() && fi.Mode().Type() != fs.ModeSymlink:
		return append(all, finding{check, findProblem, d.runtime + " is no directory", "remove it, or name another one with runtime_dir"})
	default:
		if err := makePrivate(d.runtime, a.uid, d.fallback); err != nil {
			return append(all, finding{check, findProblem, err.Error(), ""})
		}
		all = append(all, ok(check, "%s", d.runtime))
	}
	if name, network := protocol.FileSystem(where); network {
		all = append(all, finding{check, findWarning, fmt.Sprintf("%s is on %s: sockets may not work there, and other machines see them in vain", where, name),
			"name a local directory with runtime_dir"})
	}
	// A worker's socket is the longest path: w/<slug>/<n>.sock with a long number.
	room := protocol.MaxSocketPath - len(d.runtime) - len("/w//9999999.sock")
	if room < 40 {
		all = append(all, finding{check, findNote, fmt.Sprintf("its path leaves room for slugs of %d letters", max(room, 0)), "name a shorter one with runtime_dir for longer slugs"})
	}
	return all
}

func (a *app) checkRunning(ctx context.Context) finding {
	c, err := a.client()
	if err == nil {
		err = c.Health(ctx)
	}
	if err != nil {
		return finding{"workerd", findNote, err.Error(), "start it with `workerd serve`"}
	}
	return ok("workerd", "runs and answers on %s", c.Socket())
}

// checkWritable says whether a directory can be written, or made.
func checkWritable(check, dir string) finding {
	at := nearestParent(dir)
	if err := access(at); err != nil {
		return finding{check, findProblem, fmt.Sprintf("%s: %v", at, err), "give workerd another one (--state-dir, --cache-dir)"}
	}
	if name, network := protocol.FileSystem(at); network {
		return ok(check, "%s (on %s)", dir, name)
	}
	return ok(check, "%s", dir)
}

// nearestParent returns the first directory on the way up from path that exists.
func nearestParent(path string) string {
	for {
		if _, err := os.Stat(path); err == nil || path == "/" || path == "." {
			return path
		}
		path = filepath.Dir(path)
	}
}

func (a *app) checkManifests(s *settings, d *dirs) []finding {
	const check = "manifests"
	var all []finding
	h, err := a.hostOf(s, d)
	if err != nil {
		return []finding{{check, findProblem, err.Error(), ""}}
	}
	opt := a.manifestOptions(s, h)
	total := 0
	for _, dir := range s.Providers {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			all = append(all, finding{check, findNote, dir + " does not exist (workerd waits for it)", ""})
			continue
		}
		set := manifest.LoadDirs([]string{dir}, nil, opt)
		for _, p := range set.Problems {
			all = append(all, finding{check, findProblem, p.Error(), "correct it, or name another directory (providers)"})
		}
		broken := 0
		for _, e := range set.Entries {
			total++
			if len(e.Problems) > 0 || e.Manifest != nil && len(execenv.CheckSupported(e.Manifest)) > 0 {
				broken++
			}
		}
		if broken > 0 {
			all = append(all, finding{check, findWarning, fmt.Sprintf("%s: %d of %d manifests cannot be used", dir, broken, len(set.Entries)), "`workerd validate " + dir + "` says why"})
		} else if len(set.Problems) == 0 {
			all = append(all, ok(check, "%s: %d", dir, len(set.Entries)))
		}
	}
	if total == 0 {
		all = append(all, finding{check, findNote, "there are none", "`workerd init SLUG` writes one to start from"})
	}
	return all
}

func (a *app) checkPython(ctx context.Context) finding {
	exe, err := a.findPython(ctx)
	if err != nil {
		return finding{"python", findWarning, err.Error(), "Debian: apt-get install python3 (a manifest may also name any other interpreter)"}
	}
	return ok("python", "%s", strings.TrimSpace(exe))
}
