package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"workerd/manifest"
	"workerd/protocol"
	"workerd/protocol/control"
)

func (a *app) smokeCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "smoke [SLUG|PATH...]",
		Short: "Run the smoke tests of providers",
		Long: `Run the smoke test that each provider's manifest names, of all providers by default: its request is sent
to the worker, and the result must hold what the file expects.

  {"method": "recognize", "params": {"image": "page.png"}, "expect": {"text": {"$contains": "fox"}}}

An object in "expect" matches one that has all of its keys with matching values, an array one of the
same length whose elements match, {"$contains": X} a string that X is part of or an array of which
an element matches X, a number one that is equal to nine digits. Without "expect" any result is good.

A PATH (a manifest, or a provider's folder) is run by a private workerd for the time of the test, and
so is a SLUG where no workerd runs.`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.completeSlugs,
		RunE:              func(cmd *cobra.Command, args []string) error { return a.smoke(cmd.Context(), args) },
	}
	a.flags.register(cmd.Flags(), "providers", "trusted_groups")
	a.jsonFlag(cmd)
	return cmd
}

func (a *app) smoke(ctx context.Context, args []string) error {
	c, stop, slugs, err := a.smokeTarget(ctx, args)
	if err != nil {
		return err
	}
	results, err := a.smokeAll(ctx, c, slugs, len(args) == 0)
	if err := errors.Join(err, stop()); err != nil {
		return err
	}
	if a.json {
		if err := writeJSON(a.out, results); err != nil {
			return err
		}
	}
	if slices.ContainsFunc(results, func(r smokeOutcome) bool { return !r.Passed && !r.Skipped }) {
		return errReported
	}
	return nil
}

// smokeOutcome is a result, or why there is none.
type smokeOutcome struct {
	control.SmokeResult
	Skipped bool   `json:"skipped"` // it has no smoke test, and was not asked for by name
	Problem string `json:"problem,omitempty"`
}

// smokeTarget returns a client of the workerd that runs the tests, how to be done with it, and the providers.
func (a *app) smokeTarget(ctx context.Context, args []string) (*control.Client, func() error, []string, error) {
	isPath := func(arg string) bool {
		if strings.Contains(arg, "/") {
			return true
		}
		_, err := os.Stat(filepath.Join(arg, "provider.toml"))
		return err == nil || strings.HasSuffix(arg, ".toml")
	}
	if !slices.ContainsFunc(args, isPath) {
		c, err := a.client()
		if err != nil {
			return nil, nil, nil, err
		}
		s, err := c.Status(ctx)
		switch {
		case err == nil && len(args) == 0:
			for _, p := range s.Providers {
				args = append(args, p.Slug)
			}
			return c, func() error { return nil }, slices.Compact(args), nil
		case err == nil:
			return c, func() error { return nil }, args, nil
		case len(args) == 0 || !errors.Is(err, control.ErrNotRunning):
			return nil, nil, nil, err
		}
	}
	b, err := a.bench()
	if err != nil {
		return nil, nil, nil, err
	}
	set := new(manifest.Set)
	var slugs []string
	for _, arg := range args {
		m, warnings, err := b.find(arg)
		if err != nil {
			return nil, nil, nil, err
		}
		if slices.Contains(slugs, m.Slug) {
			return nil, nil, nil, &usageError{fmt.Errorf("two manifests have the slug %q", m.Slug)}
		}
		slugs = append(slugs, m.Slug)
		set.Entries = append(set.Entries, manifest.Entry{Slug: m.Slug, File: m.File, Manifest: m, Warnings: warnings, Sum: m.Hash()})
	}
	c, stop, err := a.private(ctx, b.settings, set, slog.New(slog.NewTextHandler(a.err, &slog.HandlerOptions{Level: slog.LevelError})))
	return c, stop, slugs, err
}

// private runs a workerd of its own in a temporary directory, with the caches of the caller: models are not fetched again.
func (a *app) private(ctx context.Context, s *settings, set *manifest.Set, log *slog.Logger) (*control.Client, func() error, error) {
	d, err := a.dirs()
	if err != nil {
		return nil, nil, err
	}
	dir, err := os.MkdirTemp(a.tmp, "workerd-")
	if err != nil {
		return nil, nil, err
	}
	i := &instance{
		app: a, settings: s, set: set, log: log,
		dirs: &dirs{runtime: filepath.Join(dir, "run"), state: filepath.Join(dir, "state"), cache: d.cache},
	}
	c, stop, err := i.start(ctx)
	if err != nil {
		os.RemoveAll(dir)
		return nil, nil, err
	}
	return c, func() error { return errors.Join(stop(), os.RemoveAll(dir)) }, nil
}

func (a *app) smokeAll(ctx context.Context, c *control.Client, slugs []string, all bool) ([]smokeOutcome, error) {
	outcomes := []smokeOutcome{}
	line := a.liveLine()
	for _, slug := range slugs {
		line.show(slug + ": testing")
		unwatch, err := a.watchProgress(ctx, c, []string{slug}, line)
		if err != nil {
			return nil, err
		}
		r, err := c.Smoke(ctx, slug)
		unwatch()
		line.clear()
		o := smokeOutcome{SmokeResult: r}
		o.Provider = slug
		if ctx.Err() != nil || errors.Is(err, control.ErrNotRunning) {
			return nil, err
		}
		if err != nil {
			o.Problem = err.Error()
			o.Skipped = all && errors.Is(err, protocol.ErrNoSmoke)
		}
		outcomes = append(outcomes, o)
		if !a.json {
			a.printSmoke(o, err)
		}
	}
	if len(slugs) == 0 && !a.json {
		a.printf("no providers\n")
	}
	return outcomes, nil
}

func (a *app) printSmoke(o smokeOutcome, err error) {
	switch {
	case o.Skipped:
		a.printf("%s: %s (no smoke test)\n", o.Provider, a.paint(dim, "skipped"))
	case err != nil:
		a.printf("%s: %s\n", o.Provider, a.paint(red, "failed"))
		a.printError(err)
	case o.Passed:
		a.printf("%s: %s (%s, %.2f s)\n", o.Provider, a.paint(green, "passed"), o.Method, o.Seconds)
	default:
		a.printf("%s: %s (%s, %.2f s)\n", o.Provider, a.paint(red, "failed"), o.Method, o.Seconds)
		for _, d := range o.Differences {
			a.printf("  %s\n", d)
		}
		if o.Error != nil {
			a.printError(fromProvider(o.Error, o.Provider))
		}
	}
}
