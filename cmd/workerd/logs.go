package main

import (
	"github.com/spf13/cobra"
)

func (a *app) logsCommand() *cobra.Command {
	var lines int
	var follow bool
	cmd := &cobra.Command{
		Use:   "logs [-f] [-n N] SLUG",
		Short: "Show what a provider's workers printed",
		Long: `Show the last lines that the workers of a provider printed to stdout and stderr, merged. With -f go on
until interrupted. Colours and other escape sequences are shown on a terminal, and left out elsewhere.`,
		Args:              cobra.ExactArgs(1),
		ValidArgsFunction: a.completeSlugs,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			out := a.out
			if !a.outTTY {
				out = &escapeFilter{w: out}
			}
			err = c.Logs(cmd.Context(), args[0], lines, follow, out)
			if follow && cmd.Context().Err() != nil {
				return nil // interrupting is how one stops following
			}
			return err
		},
	}
	cmd.Flags().IntVarP(&lines, "lines", "n", 100, "`number` of lines")
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on with what comes")
	return cmd
}
