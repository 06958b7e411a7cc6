package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"workerd/protocol"
)

func (a *app) statusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status [SLUG...]",
		Short: "Show providers and their workers",
		Long: `Show the state of every provider, of those named with more detail.

States: stopped, starting, loading, ready, draining, backoff (waiting to be restarted), failed (given
up until an edit or a restart), invalid (the manifest has errors and nothing of it runs).`,
		Args:              cobra.ArbitraryArgs,
		ValidArgsFunction: a.completeSlugs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.status(cmd.Context(), args)
		},
	}
	a.jsonFlag(cmd)
	return cmd
}

func (a *app) status(ctx context.Context, slugs []string) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	s, err := c.Status(ctx)
	if err != nil {
		return err
	}
	for _, slug := range slugs {
		if !slices.ContainsFunc(s.Providers, func(p protocol.ProviderStatus) bool { return p.Slug == slug }) {
			_, err := c.Provider(ctx, slug) // its answer names the slug most like it
			return err
		}
	}
	if len(slugs) > 0 {
		s.Providers = slices.DeleteFunc(s.Providers, func(p protocol.ProviderStatus) bool { return !slices.Contains(slugs, p.Slug) })
	}
	switch {
	case a.json:
		return writeJSON(a.out, s)
	case len(s.Providers) == 0:
		set, err := a.loadSettings()
		if err != nil {
			return err
		}
		a.printf("no providers: workerd runs and found no manifest in %s\n`workerd init SLUG` writes one to start from\n", strings.Join(set.Providers, ", "))
	case len(slugs) > 0:
		for i, p := range s.Providers {
			if i > 0 {
				a.printf("\n")
			}
			a.printProvider(p, time.Now())
		}
	default:
		a.printStatus(s, time.Now())
	}
	return nil
}

// stateColor is the colour of a state: what is well, what is on its way, what needs somebody.
func stateColor(state string) string {
	switch state {
	case "ready":
		return green
	case "starting", "loading", "draining", "backoff":
		return yellow
	case "failed", "invalid":
		return red
	}
	return dim
}

// printStatus shows one line per provider, and below it what is wrong with it.
func (a *app) printStatus(s protocol.Status, now time.Time) {
	rows := [][]cell{{{"SLUG", bold}, {"STATE", bold}, {"KIND", bold}, {"WORKERS", bold}, {"FOR", bold}, {"RUNNING", bold}, {"WAITING", bold}, {"RESTARTS", bold}, {"PID", bold}}}
	var notes []string
	for _, p := range s.Providers {
		ready, seats, restarts := 0, 0, 0
		var since time.Time
		var pids []string
		for _, w := range p.Workers {
			if w.Role == "" { // what stands by, comes or goes is beyond the replicas
				seats++
				if w.State == "ready" {
					ready++
				}
			}
			if w.Role != protocol.RoleLeaving { // who replaced it counts on from its restarts
				restarts += w.Restarts
			}
			if w.PID > 0 {
				pids = append(pids, strconv.Itoa(w.PID))
			}
			if w.Role == "" && w.State == p.State && (since.IsZero() || w.Since.After(since)) {
				since = w.Since
			}
		}
		held := "-"
		if !since.IsZero() {
			held = age(now.Sub(since))
		}
		rows = append(rows, []cell{
			{p.Slug, ""}, {p.State, stateColor(p.State)}, {p.Kind, ""}, {workersText(ready, seats, p.Workers), ""}, {held, ""},
			{strconv.Itoa(p.InFlight), ""}, {fmt.Sprintf("%d/%d", p.Queue.Waiting, p.Queue.Limit), ""}, {strconv.Itoa(restarts), ""},
			{orDash(strings.Join(pids, ",")), ""},
		})
		notes = append(notes, a.notes(p)...)
	}
	a.printTable(rows)
	if len(notes) > 0 {
		a.printf("\n%s\n", strings.Join(notes, "\n"))
	}
}

// workersText counts the workers that serve, of those that are to, and names those beyond them.
func workersText(ready, seats int, workers []protocol.WorkerStatus) string {
	text := fmt.Sprintf("%d/%d", ready, seats)
	for _, w := range workers {
		switch {
		case w.Role == "":
		case w.Role == protocol.RoleStandby && w.ReadySince != nil:
			text += " +standby"
		case w.Role != protocol.RoleStandby || w.State != "stopped": // which it is where nothing runs
			text += fmt.Sprintf(" +%s %s", w.Role, w.State)
		}
	}
	return text
}

// notes are what a person should know of a provider that is not well.
func (a *app) notes(p protocol.ProviderStatus) []string {
	var out []string
	cold := p.State == "stopped" && p.LastExit == nil && len(p.Warnings) == 0 && !strings.Contains(p.Reason, "operator") // as it should be
	if p.Reason != "" && p.State != "ready" && !cold {
		out = append(out, fmt.Sprintf("%s: %s", a.paint(bold, p.Slug), oneLine(p.Reason)))
	}
	for _, e := range p.ManifestError {
		out = append(out, fmt.Sprintf("%s: %s", a.paint(bold, p.Slug), a.paint(red, problemLine(e))))
	}
	for _, w := range p.Workers {
		if w.Progress != nil && w.State == "loading" && w.Role == "" {
			out = append(out, fmt.Sprintf("%s: loading: %s", a.paint(bold, w.ID), progressText(*w.Progress)))
		}
	}
	return out
}

// printProvider shows one provider whole.
func (a *app) printProvider(p protocol.ProviderStatus, now time.Time) {
	title := p.Title
	if title == "" {
		title = p.Slug
	}
	a.printf("%s (%s): %s", a.paint(bold, p.Slug), title, a.paint(stateColor(p.State), p.State))
	if p.Reason != "" {
		a.printf(": %s", oneLine(p.Reason))
	}
	a.printf("\n")
	rows := [][]cell{
		{{"  manifest", ""}, {p.Manifest, ""}},
		{{"  kind", ""}, {p.Kind, ""}},
		{{"  socket", ""}, {orDash(p.FrontSocket), ""}},
		{{"  requests", ""}, {fmt.Sprintf("%d running, %d waiting (at most %d)", p.InFlight, p.Queue.Waiting, p.Queue.Limit), ""}},
	}
	var names []string
	for _, m := range p.Methods {
		names = append(names, m.Name)
	}
	if len(names) > 0 {
		rows = append(rows, []cell{{"  methods", ""}, {strings.Join(names, ", "), ""}})
	}
	a.printTable(rows)
	for _, e := range p.ManifestError {
		a.printf("  %s %s\n", a.paint(red, "manifest error:"), problemLine(e))
	}
	for _, w := range p.Warnings {
		a.printf("  %s %s\n", a.paint(yellow, "warning:"), w)
	}
	if n := p.GPUFaults; n > 0 {
		a.printf("  %s %d GPU fault%s: workers that had lost their GPU were replaced\n", a.paint(yellow, "warning:"), n, map[bool]string{true: "s"}[n > 1])
	}
	for _, w := range p.Workers {
		a.printWorker(w, now)
	}
	// The last exit of a worker that is there is shown with it.
	if p.LastExit != nil && !slices.ContainsFunc(p.Workers, func(w protocol.WorkerStatus) bool { return w.LastExit != nil }) {
		a.printf("  last exit\n")
		a.printExit(p.LastExit, now)
	}
}

func (a *app) printWorker(w protocol.WorkerStatus, now time.Time) {
	what := "worker"
	if w.Role != "" {
		what = w.Role
	}
	a.printf("  %s %s: %s for %s", what, orDash(w.ID), a.paint(stateColor(w.State), w.State), age(now.Sub(w.Since)))
	if w.PID > 0 {
		a.printf(", pid %d", w.PID)
	}
	if w.Container != "" {
		a.printf(", container %s", w.Container)
	}
	if w.RSSBytes > 0 {
		a.printf(", %s", size(w.RSSBytes))
	}
	if len(w.GPUs) > 0 {
		a.printf(", GPU %s", strings.Join(w.GPUs, " "))
	}
	if w.Restarts > 0 {
		a.printf(", %d restarts", w.Restarts)
	}
	if w.Progress != nil {
		a.printf(": %s", progressText(*w.Progress))
	}
	a.printf("\n")
	if w.LastExit != nil {
		a.printExit(w.LastExit, now)
	}
}

func (a *app) printExit(e *protocol.Exit, now time.Time) {
	a.printf("    last exit %s ago: %s\n", age(now.Sub(e.Time)), oneLine(e.Reason))
	printIndented(a.out, "      ", e.Output)
}

// problemLine formats a manifest error as the manifest's own checks do.
func problemLine(e protocol.ManifestError) string {
	text := e.File
	if e.Line > 0 {
		text += fmt.Sprintf(":%d:%d", e.Line, e.Column)
	}
	if e.Key != "" {
		text += ": " + e.Key
	}
	return text + ": " + e.Message
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}
