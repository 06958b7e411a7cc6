package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"workerd/execenv"
	"workerd/manifest"
	"workerd/protocol"
)

func (a *app) doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Check this machine and the settings",
		Long: `Check what workerd needs of this machine: directories, Python, container engines, user namespaces, cgroups,
GPUs, limits and the settings, and say what to do about each finding. An engine that is missing or broken
is a problem only where a manifest names it. Exits with 1 where something keeps workerd or a provider
from running.`,
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
		a.printFindings(findings)
	}
	if bad {
		return errReported
	}
	return nil
}

func (a *app) printFindings(findings []finding) {
	color := map[string]string{findOK: green, findNote: "", findWarning: yellow, findProblem: red}
	var rows [][]cell
	for _, f := range findings {
		first, more, _ := strings.Cut(f.Message, "\n")
		rows = append(rows, []cell{{f.Status, color[f.Status]}, {f.Check, ""}, {first, ""}})
		for line := range strings.Lines(more) { // an engine's own words
			rows = append(rows, []cell{{"", ""}, {"", ""}, {"   " + strings.TrimRight(line, "\n"), ""}})
		}
		if f.Do != "" {
			rows = append(rows, []cell{{"", ""}, {"", ""}, {"-> " + f.Do, bold}})
		}
	}
	a.printTable(rows)
}

// check is one part of the examination.
type check struct {
	name string
	run  func(ctx context.Context) []finding
}

// one makes a check of what finds one thing without asking anybody.
func one(name string, find func() finding) check {
	return check{name, func(context.Context) []finding { return []finding{find()} }}
}

// examine makes all checks. Without settings the directories are not known, and neither is where engines have their files.
func (a *app) examine(ctx context.Context) []finding {
	var all []finding
	var checks []check
	gpus := a.inventory(defaultSettings())
	s, err := a.loadSettings()
	if err != nil {
		all = append(all, finding{"settings", findProblem, err.Error(), "correct them"})
	} else {
		all = append(all, a.checkSettings(s)...)
		gpus = a.inventory(s)
		d, err := a.dirs()
		if err != nil {
			all = append(all, finding{"runtime directory", findProblem, err.Error(), "name a shorter one with --runtime-dir or runtime_dir"})
		} else {
			checks = a.directoryChecks(s, d)
		}
	}
	if !readVersion().CGO {
		all = append(all, finding{"build", findNote, "built without cgo: GPUs cannot be asked for by NVML", ""})
	}
	checks = append(checks, check{"python", func(ctx context.Context) []finding { return []finding{a.checkPython(ctx)} }})
	checks = append(checks, hostChecks(a.uid, gpus)...)
	return append(all, runChecks(ctx, checks, checkWait)...)
}

func (a *app) directoryChecks(s *settings, d *dirs) []check {
	manifests := sync.OnceValue(func() siteManifests { return a.loadManifests(s, d) })
	return append([]check{
		{"runtime directory", func(context.Context) []finding { return a.checkRuntimeDir(d) }},
		{"workerd", func(ctx context.Context) []finding { return []finding{a.checkRunning(ctx)} }},
		one("state directory", func() finding { return checkWritable("state directory", d.state) }),
		one("cache directory", func() finding { return checkWritable("cache directory", d.cache) }),
		{"manifests", func(context.Context) []finding { return manifests().findings }},
	}, a.engineChecks(s, d, func() map[string]int { return manifests().kinds })...)
}

// checkWait bounds each check: engines, network file systems and drivers are known to hang.
const checkWait = 40 * time.Second

// runChecks runs checks beside each other and returns their findings in order. One that hangs is left behind, since nothing can
// end a read of a file system that does not answer; this process ends soon.
func runChecks(ctx context.Context, checks []check, wait time.Duration) []finding {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	results := make([]chan []finding, len(checks))
	for i, c := range checks {
		results[i] = make(chan []finding, 1)
		go func() { results[i] <- c.run(ctx) }()
	}
	var all []finding
	for i, c := range checks {
		select {
		case found := <-results[i]:
			all = append(all, found...)
		case <-ctx.Done():
			select {
			case found := <-results[i]:
				all = append(all, found...)
			case <-time.After(time.Second): // for what the end of ctx ends
				all = append(all, finding{c.name, findWarning, fmt.Sprintf("nothing was found out within %s: what it asks hangs", wait), ""})
			}
		}
	}
	return all
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

// siteManifests are the manifests of the configured directories.
type siteManifests struct {
	findings []finding
	kinds    map[string]int // how many of those that can be used name each kind
}

func (a *app) loadManifests(s *settings, d *dirs) siteManifests {
	const check = "manifests"
	found := siteManifests{kinds: map[string]int{}}
	add := func(f finding) { found.findings = append(found.findings, f) }
	h, err := a.hostOf(s, d)
	if err != nil {
		add(finding{check, findProblem, err.Error(), ""})
		return found
	}
	opt := a.manifestOptions(s, h)
	total := 0
	for _, dir := range s.Providers {
		if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
			add(finding{check, findNote, dir + " does not exist (workerd waits for it)", ""})
			continue
		}
		set := manifest.LoadDirs([]string{dir}, nil, opt)
		for _, p := range set.Problems {
			add(finding{check, findProblem, p.Error(), "correct it, or name another directory (providers)"})
		}
		broken := 0
		for _, e := range set.Entries {
			total++
			if len(e.Problems) > 0 || e.Manifest != nil && len(execenv.CheckSupported(e.Manifest)) > 0 {
				broken++
			} else if e.Manifest != nil {
				found.kinds[e.Manifest.Env.Kind]++
			}
		}
		if broken > 0 {
			add(finding{check, findWarning, fmt.Sprintf("%s: %d of %d manifests cannot be used", dir, broken, len(set.Entries)), "`workerd validate " + dir + "` says why"})
		} else if len(set.Problems) == 0 {
			add(ok(check, "%s: %d", dir, len(set.Entries)))
		}
	}
	if total == 0 {
		add(finding{check, findNote, "there are none", "`workerd init SLUG` writes one to start from"})
	}
	return found
}

func (a *app) checkPython(ctx context.Context) finding {
	exe, err := a.findPython(ctx)
	if err != nil {
		return finding{"python", findWarning, err.Error(), "Debian: apt-get install python3 (a manifest may also name any other interpreter)"}
	}
	return ok("python", "%s", strings.TrimSpace(exe))
}
