package main

import (
	"time"

	"github.com/spf13/cobra"
)

func (a *app) reloadCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "reload",
		Short: "Read the manifests again",
		Long: `Read the manifest directories again now. workerd follows edits by itself; this is for file systems
that do not report them, and for scripts that want to know when an edit has been taken.

Only providers whose manifest changed are touched.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			s, err := c.Reload(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.out, s)
			}
			broken := 0
			for _, p := range s.Providers {
				if len(p.ManifestError) > 0 {
					broken++
				}
			}
			a.printf("%d providers, %d with errors in the manifest\n", len(s.Providers), broken)
			if broken > 0 {
				a.printStatus(s, time.Now())
			}
			return nil
		},
	}
	a.jsonFlag(cmd)
	return cmd
}
