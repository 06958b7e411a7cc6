package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"workerd/protocol"
	"workerd/protocol/control"
)

// order is one of start, stop and restart.
type order struct {
	verb, done string
	do         func(c *control.Client, ctx context.Context, slug string, wait bool) error
}

var (
	orderStart   = order{"start", "ready", (*control.Client).Start}
	orderStop    = order{"stop", "stopped", (*control.Client).Stop}
	orderRestart = order{"restart", "ready", (*control.Client).Restart}
)

func (a *app) startCommand() *cobra.Command {
	return a.orderCommand(orderStart, "Start providers and wait until they are ready", `Start providers and wait until a worker of each is ready, showing how it loads. What was stopped by
the operator runs again and stays so over workerd's restarts.`)
}

func (a *app) stopCommand() *cobra.Command {
	return a.orderCommand(orderStop, "Stop providers and wait until nothing of them is left", `Stop providers and wait until their workers and all that they started are gone. A provider stays
stopped, over workerd's restarts too, until it is started; its requests are answered provider_stopped.`)
}

func (a *app) restartCommand() *cobra.Command {
	return a.orderCommand(orderRestart, "Restart providers and wait until they are ready", `Restart providers as their restart.on_change says (rolling: the new worker beside the old, which goes
when the new one is ready) and wait until that is done. A failed provider is tried again.`)
}

func (a *app) orderCommand(o order, short, long string) *cobra.Command {
	var noWait bool
	cmd := &cobra.Command{
		Use:               o.verb + " SLUG...",
		Short:             short,
		Long:              long,
		Args:              cobra.MinimumNArgs(1),
		ValidArgsFunction: a.completeSlugs,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.order(cmd.Context(), o, args, !noWait)
		},
	}
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "return as soon as the order is taken")
	a.jsonFlag(cmd)
	return cmd
}

// outcome is what became of an order for one provider.
type outcome struct {
	Slug    string  `json:"slug"`
	OK      bool    `json:"ok"`
	Seconds float64 `json:"seconds"`
	Error   *string `json:"error"`
	err     error
}

// order gives an order for each slug at once and shows each result.
func (a *app) order(ctx context.Context, o order, slugs []string, wait bool) error {
	c, err := a.client()
	if err != nil {
		return err
	}
	line := a.liveLine()
	if wait {
		stop, err := a.watchProgress(ctx, c, slugs, line)
		if err != nil {
			return err
		}
		defer stop()
	}
	results := make([]outcome, len(slugs))
	var wg sync.WaitGroup
	for i, slug := range slugs {
		wg.Go(func() {
			begin := time.Now()
			err := o.do(c, ctx, slug, wait)
			results[i] = outcome{Slug: slug, OK: err == nil, Seconds: time.Since(begin).Seconds(), err: err}
		})
	}
	wg.Wait()
	line.clear()
	return a.reportOrders(o, results, wait)
}

func (a *app) reportOrders(o order, results []outcome, wait bool) error {
	var failure error
	down := 0
	for i := range results {
		r := &results[i]
		if r.err == nil {
			continue
		}
		if failure == nil {
			failure = errReported
		}
		if errors.Is(r.err, control.ErrNotRunning) {
			failure = errReportedDown
			down++
		}
		text := r.err.Error()
		r.Error = &text
		if (len(results) == 1 || down == len(results)) && !a.json {
			return r.err
		}
	}
	if a.json {
		if err := writeJSON(a.out, results); err != nil {
			return err
		}
		return failure
	}
	for _, r := range results {
		switch {
		case r.err != nil:
			a.errorf("%s: ", a.paintErr(bold, r.Slug))
			a.printError(r.err)
		case !wait:
			a.printf("%s: %s ordered\n", r.Slug, o.verb)
		default:
			a.printf("%s: %s (%.1f s)\n", r.Slug, a.paint(stateColor(o.done), o.done), r.Seconds)
		}
	}
	return failure
}

// watchProgress shows on line what the providers do, until the returned function is called. Off a terminal it does nothing.
func (a *app) watchProgress(ctx context.Context, c *control.Client, slugs []string, line *liveLine) (stop func(), err error) {
	if !line.on {
		return func() {}, nil
	}
	ctx, cancel := context.WithCancel(ctx)
	run, err := c.Events(ctx, slugs)
	if err != nil {
		cancel()
		return nil, err
	}
	latest := map[string]string{}
	var wg sync.WaitGroup
	wg.Go(func() {
		// The end of the stream ends the show, not the order.
		_ = run(func(e protocol.Event) error {
			text := e.State
			if e.Progress != nil {
				text = strings.TrimSpace("loading " + progressText(*e.Progress))
			}
			if text == "" {
				return nil
			}
			latest[e.Provider] = text
			var all []string
			for _, slug := range slugs {
				if latest[slug] != "" {
					all = append(all, fmt.Sprintf("%s: %s", slug, latest[slug]))
				}
			}
			line.show(strings.Join(all, "  "))
			return nil
		})
	})
	return func() {
		cancel()
		wg.Wait()
		line.clear()
	}, nil
}
