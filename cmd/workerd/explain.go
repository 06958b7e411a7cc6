package main

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/BurntSushi/toml"
	"github.com/spf13/cobra"

	"workerd/execenv"
	"workerd/manifest"
	"workerd/protocol"
)

func (a *app) explainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain SLUG|PATH",
		Short: "Show what a provider's worker is run with",
		Long: `Show what would be run for a manifest, without running it: the command, the whole environment (secrets
by name only), the working directory, binds, user, GPUs, and every key of the manifest with the
defaults filled in. workerd need not run. What each worker gets of its own stands in <angle brackets>.

With --json: {slug, kind, argv, env, secrets, cwd, binds, user, gpu, fingerprint, warnings, manifest}.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSlugs,
		RunE:              func(cmd *cobra.Command, args []string) error { return a.explain(cmd.Context(), args[0]) },
	}
	a.flags.register(cmd.Flags(), "providers", "trusted_groups")
	a.jsonFlag(cmd)
	return cmd
}

func (a *app) explain(ctx context.Context, name string) error {
	b, err := a.bench()
	if err != nil {
		return err
	}
	m, warnings, err := b.find(a.running(ctx, name))
	if err != nil {
		return err
	}
	keys, err := effective(m)
	if err != nil {
		return err
	}
	pl, err := b.planner.Plan(ctx, m)
	if err != nil {
		// A provider that cannot run here still has a manifest to look at.
		if !a.json {
			a.printKeys(m, keys)
		}
		return fmt.Errorf("%s: %w", m.File, err)
	}
	pl.Warnings = append(slices.Clone(warnings), pl.Warnings...)
	if a.json {
		return writeJSON(a.out, struct {
			*execenv.Plan
			Manifest map[string]any `json:"manifest"`
		}{pl, keys})
	}
	a.printPlan(pl)
	a.printKeys(m, keys)
	return nil
}

// running returns the path of the manifest that the running workerd has for a slug, since that may read other directories than
// this command's settings name; name itself where there is none, or where --providers says which are meant.
func (a *app) running(ctx context.Context, name string) string {
	if strings.Contains(name, "/") || a.flags["providers"] != nil {
		return name
	}
	c, err := a.client()
	if err != nil {
		return name
	}
	if p, err := c.Provider(ctx, name); err == nil && p.Manifest != "" {
		return p.Manifest
	}
	return name
}

// find loads the manifest that a path names, or else that a slug has in the configured directories.
func (b *bench) find(name string) (*manifest.Manifest, []string, error) {
	_, statErr := os.Stat(name)
	if strings.Contains(name, "/") || statErr == nil {
		file, isDir, err := manifestIn(name)
		if err != nil {
			return nil, nil, err
		}
		if isDir {
			return nil, nil, &usageError{fmt.Errorf("%s is no provider's folder: it has no provider.toml", name)}
		}
		return manifest.Load(file, b.options)
	}
	set := manifest.LoadDirs(b.settings.Providers, nil, b.options)
	var slugs []string
	for _, e := range set.Entries {
		if e.Slug == name && e.ShadowedBy == "" {
			if e.Manifest == nil {
				return nil, nil, e.Problems
			}
			return e.Manifest, e.Warnings, nil
		}
		slugs = append(slugs, e.Slug)
	}
	err := fmt.Errorf("no manifest for %q in %s: %w", name, joinPaths(b.settings.Providers), protocol.ErrNoProvider)
	hint := "name a manifest by its path, or `workerd init " + name + "` to write one"
	if len(slugs) > 0 {
		hint = "there are: " + strings.Join(slugs, ", ")
	}
	return nil, nil, &withHint{err, hint}
}

// effective returns a manifest with defaults filled in as its file would write it. Secrets say where from, never what.
func effective(m *manifest.Manifest) (map[string]any, error) {
	var text bytes.Buffer
	if err := toml.NewEncoder(&text).Encode(m); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	keys := map[string]any{}
	if _, err := toml.Decode(text.String(), &keys); err != nil {
		return nil, fmt.Errorf("manifest: %w", err)
	}
	return keys, nil
}

func (a *app) printPlan(pl *execenv.Plan) {
	var groups []string
	for _, g := range pl.User.Groups {
		groups = append(groups, strconv.Itoa(g))
	}
	gpu := pl.GPU.Policy
	if pl.GPU.Policy != "none" {
		gpu += fmt.Sprintf(", %d", pl.GPU.Count)
		if pl.GPU.Memory > 0 {
			gpu += ", " + size(pl.GPU.Memory) + " each"
		}
	}
	table := [][]cell{{{"slug", bold}, {pl.Slug, ""}}, {{"kind", bold}, {pl.Kind, ""}}}
	if pl.Image != "" {
		table = append(table, []cell{{"image", bold}, {strings.TrimSpace(pl.Image + " " + pl.ImageID), ""}})
	}
	for i, line := range wrapArgs(pl.Argv, pl.Image) {
		name := cell{"argv", bold}
		if i > 0 {
			name = cell{}
		}
		table = append(table, []cell{name, {line, ""}})
	}
	a.printTable(append(table, [][]cell{
		{{"cwd", bold}, {pl.Cwd, ""}},
		{{"user", bold}, {fmt.Sprintf("uid %d, gid %d, groups %s", pl.User.UID, pl.User.GID, orDash(strings.Join(groups, " "))), ""}},
		{{"gpu", bold}, {gpu, ""}},
		{{"fingerprint", bold}, {pl.Fingerprint, ""}},
	}...))
	a.printf("\n%s\n", a.paint(bold, "binds"))
	var rows [][]cell
	for _, b := range pl.Binds {
		target := ""
		if b.Target != b.Source {
			target = "at " + b.Target
		}
		rows = append(rows, []cell{{"  " + b.Mode, ""}, {b.Source, ""}, {target, ""}})
	}
	a.printTable(rows)
	a.printf("\n%s\n", a.paint(bold, "environment"))
	for _, name := range slices.Sorted(maps.Keys(pl.Env)) {
		a.printf("  %s=%s\n", name, oneLine(pl.Env[name]))
	}
	for _, name := range pl.Secrets {
		a.printf("  %s=***\n", name)
	}
	for _, w := range pl.Warnings {
		a.printf("\n%s %s\n", a.paint(yellow, "warning:"), w)
	}
}

func (a *app) printKeys(m *manifest.Manifest, keys map[string]any) {
	a.printf("\n%s %s\n", a.paint(bold, "manifest"), m.File)
	var text bytes.Buffer
	e := toml.NewEncoder(&text)
	e.Indent = ""
	if err := e.Encode(keys); err == nil { // keys were decoded from TOML
		printIndented(a.out, "  ", text.String())
	}
}

// argvWidth is how long a line of a wrapped command gets, unless one flag with its value is longer.
const argvWidth = 100

// wrapArgs writes a command as a shell would take it. That of an engine, which has an image, is written over several lines: flags
// stay with their values, and the image begins a line with what runs in it.
func wrapArgs(args []string, image string) []string {
	at := slices.Index(args, image)
	if image == "" || at < 0 {
		return []string{quoteArgs(args)}
	}
	var lines []string
	line := quoteArgs(args[:1])
	add := func(part []string, begin bool) {
		text := quoteArgs(part)
		if begin || len(line)+len(text)+len(" ") > argvWidth {
			lines, line = append(lines, line+" \\"), "  "+text
			return
		}
		line += " " + text
	}
	for i := 1; i < at; {
		end := i + 1
		for end < at && !strings.HasPrefix(args[end], "-") {
			end++
		}
		add(args[i:end], false)
		i = end
	}
	add(args[at:], true)
	return append(lines, line)
}

// quoteArgs writes an argument list as a shell would take it.
func quoteArgs(args []string) string {
	out := make([]string, len(args))
	for i, arg := range args {
		out[i] = arg
		if arg == "" || strings.ContainsFunc(arg, needsQuote) {
			out[i] = "'" + strings.ReplaceAll(arg, "'", `'\''`) + "'"
		}
	}
	return strings.Join(out, " ")
}

func needsQuote(r rune) bool {
	safe := r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("-_./=:,+@%<>", r)
	return !safe
}

func joinPaths(paths []string) string { return strings.Join(paths, ", ") }
