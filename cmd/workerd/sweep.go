package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"workerd/manifest"
)

// sweepName is the command that the unit runs when workerd has ended.
const sweepName = "sweep"

func (a *app) sweepCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:    sweepName,
		Hidden: true,
		Short:  "End the workers that a killed workerd left",
		Long: `End the workers that a workerd which was killed has left, and remove its sockets. As ExecStopPost= of a unit it
does so only where the service is being stopped: where it is about to be restarted, the next workerd takes
the workers over.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.sweep(cmd.Context()) },
	}
	a.flags.register(cmd.Flags())
	return cmd
}

func (a *app) sweep(ctx context.Context) error {
	if result := a.getenv("SERVICE_RESULT"); result != "" {
		if result == "success" {
			return nil // it ended them itself
		}
		unit, sd, err := ownService()
		if err != nil || unit == "" {
			return err
		}
		if job, err := sd.job(ctx, unit); err != nil || job != "stop" {
			return err
		}
	}
	s, err := a.loadSettings()
	if err != nil {
		return err
	}
	d, err := a.dirs()
	if err != nil {
		return err
	}
	i := &instance{app: a, settings: s, dirs: d, log: a.newLogger(s), set: &manifest.Set{}}
	if err := i.open(); err != nil {
		return err
	}
	defer i.lock.Close()
	// The service manager may still hold the listeners, so they look alive.
	fronts, _ := filepath.Glob(filepath.Join(d.runtime, "front", "*", "sock"))
	for _, front := range fronts {
		_ = os.Remove(front)
	}
	links, _ := filepath.Glob(filepath.Join(d.runtime, "*.sock"))
	for _, link := range links { // the control socket too
		_ = os.Remove(link)
	}
	i.sup.Apply(i.set) // no manifest claims any worker
	ending, cancel := context.WithCancel(ctx)
	cancel()
	err = i.sup.Run(ending)
	i.children.ReapOrphans()
	return err
}
