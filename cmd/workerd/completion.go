package main

import (
	"context"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"workerd/protocol/control"
)

func (a *app) completionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "completion bash|zsh|fish",
		Short: "Print a shell completion script",
		Long: `Print the script that makes a shell complete workerd's commands and providers.

  bash   source <(workerd completion bash)
  zsh    workerd completion zsh > "${fpath[1]}/_workerd"
  fish   workerd completion fish > ~/.config/fish/completions/workerd.fish`,
		Args:      cobra.MatchAll(cobra.ExactArgs(1), cobra.OnlyValidArgs),
		ValidArgs: []string{"bash", "zsh", "fish"},
		RunE: func(cmd *cobra.Command, args []string) error {
			root := cmd.Root()
			switch args[0] {
			case "bash":
				return root.GenBashCompletionV2(a.out, true)
			case "zsh":
				return root.GenZshCompletion(a.out)
			default:
				return root.GenFishCompletion(a.out, true)
			}
		},
	}
}

// completeSlugs offers the providers of the workerd that runs, or nothing.
func (a *app) completeSlugs(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	var slugs []string
	a.complete(cmd, func(ctx context.Context, c *control.Client) error {
		s, err := c.Status(ctx)
		for _, p := range s.Providers {
			if !slices.Contains(args, p.Slug) {
				slugs = append(slugs, p.Slug)
			}
		}
		return err
	})
	return slugs, cobra.ShellCompDirectiveNoFileComp
}

// complete asks workerd for a moment: nobody waits long for a completion, and what cannot be had is not offered.
func (a *app) complete(cmd *cobra.Command, ask func(context.Context, *control.Client) error) {
	c, err := a.client()
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(cmd.Root().Context()), time.Second)
	defer cancel()
	_ = ask(ctx, c)
}
