package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"workerd/execenv"
	"workerd/manifest"
)

func (a *app) validateCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "validate [PATH...]",
		Short: "Check manifests and show every problem",
		Long: `Check manifests: files, provider folders, or directories of either; by default the configured ones.
Every problem is shown as path:line:column: key: what is wrong and what would be right. What this
version or this machine cannot give is said too. workerd need not run.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error { return a.validate(cmd.Context(), args) },
	}
	a.flags.register(cmd.Flags(), "providers", "trusted_groups")
	a.jsonFlag(cmd)
	return cmd
}

// report is what `validate --json` prints.
type report struct {
	Providers []reportEntry     `json:"providers"` // those without problems
	Problems  manifest.Problems `json:"problems"`
	Warnings  []string          `json:"warnings"`
}

type reportEntry struct {
	Slug     string `json:"slug"`
	Manifest string `json:"manifest"`
}

func (a *app) validate(ctx context.Context, paths []string) error {
	b, err := a.bench()
	if err != nil {
		return err
	}
	r := report{Providers: []reportEntry{}, Problems: manifest.Problems{}, Warnings: []string{}}
	if err := manifest.CheckDefaults(b.options); err != nil {
		r.addProblems(b.settings.file, err)
	}
	if len(paths) == 0 {
		b.addDirs(ctx, &r, b.settings.Providers)
	}
	for _, path := range paths {
		if err := b.addPath(ctx, &r, path); err != nil {
			return err
		}
	}
	if a.json {
		if err := writeJSON(a.out, r); err != nil {
			return err
		}
	} else {
		a.printReport(b, r, paths)
	}
	if len(r.Problems) > 0 {
		return errReported
	}
	return nil
}

func (a *app) printReport(b *bench, r report, paths []string) {
	for _, p := range r.Problems {
		a.printf("%s\n", p.Error())
	}
	for _, w := range r.Warnings {
		a.printf("%s %s\n", a.paint(yellow, "warning:"), w)
	}
	switch {
	case len(r.Problems) > 0:
		a.errorf("%s %d problems\n", a.paintErr(red, "invalid:"), len(r.Problems))
	case len(r.Providers) == 0:
		dirs := paths
		if len(dirs) == 0 {
			dirs = b.settings.Providers
		}
		a.printf("no manifests in %s\n", joinPaths(dirs))
	default:
		for _, p := range r.Providers {
			a.printf("%s %s (%s)\n", a.paint(green, "ok:"), p.Slug, p.Manifest)
		}
	}
}

// manifestIn returns the manifest of a provider's folder, or path itself.
func manifestIn(path string) (file string, isDir bool, err error) {
	fi, err := os.Stat(path)
	if err != nil {
		return "", false, err
	}
	if !fi.IsDir() {
		return path, false, nil
	}
	file = filepath.Join(path, "provider.toml")
	if _, err := os.Stat(file); err == nil {
		return file, false, nil
	} else if !errors.Is(err, fs.ErrNotExist) {
		return "", false, err
	}
	return path, true, nil
}

// addPath checks a manifest, a provider's folder or a directory of manifests.
func (b *bench) addPath(ctx context.Context, r *report, path string) error {
	file, isDir, err := manifestIn(path)
	if err != nil {
		return err
	}
	if isDir {
		b.addDirs(ctx, r, []string{file})
		return nil
	}
	m, warnings, err := manifest.Load(file, b.options)
	r.Warnings = append(r.Warnings, warnings...)
	if err != nil {
		r.addProblems(file, err)
		return nil
	}
	b.addManifest(ctx, r, m)
	return nil
}

func (b *bench) addDirs(ctx context.Context, r *report, dirs []string) {
	set := manifest.LoadDirs(dirs, nil, b.options)
	r.Problems = append(r.Problems, set.Problems...)
	for _, e := range set.Entries {
		r.Warnings = append(r.Warnings, e.Warnings...)
		switch {
		case len(e.Problems) > 0:
			r.Problems = append(r.Problems, e.Problems...)
		case e.ShadowedBy != "":
			r.Warnings = append(r.Warnings, fmt.Sprintf("%s: not used: %s has the slug %q", e.File, e.ShadowedBy, e.Slug))
		case e.Manifest != nil:
			b.addManifest(ctx, r, e.Manifest)
		}
	}
}

// addManifest checks what a manifest without errors asks of this version and this machine.
func (b *bench) addManifest(ctx context.Context, r *report, m *manifest.Manifest) {
	if ps := execenv.CheckSupported(m); len(ps) > 0 {
		r.Problems = append(r.Problems, ps...)
		return
	}
	pl, err := b.planner.Plan(ctx, m)
	if err != nil {
		e, _ := errors.AsType[*execenv.Error](err)
		switch {
		case e != nil && (e.Kind == execenv.EngineUnavailable || e.Kind == execenv.Transient):
			r.Warnings = append(r.Warnings, fmt.Sprintf("%s: %v", m.File, err))
		case e != nil:
			detail := *e
			detail.Key = ""
			r.Problems = append(r.Problems, manifest.Problem{File: m.File, Key: e.Key, Message: detail.Error()})
			return
		default:
			r.Problems = append(r.Problems, manifest.Problem{File: m.File, Message: err.Error()})
			return
		}
	} else {
		for _, w := range pl.Warnings {
			r.Warnings = append(r.Warnings, m.File+": "+w)
		}
	}
	r.Providers = append(r.Providers, reportEntry{Slug: m.Slug, Manifest: m.File})
}

func (r *report) addProblems(file string, err error) {
	if ps, ok := errors.AsType[manifest.Problems](err); ok {
		r.Problems = append(r.Problems, ps...)
		return
	}
	r.Problems = append(r.Problems, manifest.Problem{File: file, Message: err.Error()})
}
