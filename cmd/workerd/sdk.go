package main

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"workerd/execenv"
	"workerd/protocol/pysdk"
)

func (a *app) sdkCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "sdk [DIR]",
		Short: "Write the Python SDK into a directory",
		Long: `Write workerd.py into a directory, the working directory by default: for the environment of a tool
server, which imports Client or AsyncClient from it. Workers need no copy: workerd gives them its own.
The file needs Python 3.7 or later and nothing else.`,
		Args: cobra.MaximumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			dir := "."
			if len(args) > 0 {
				dir = args[0]
			}
			// Unlike the workers' own copy it is for others to read.
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("SDK: %w", err)
			}
			path := filepath.Join(dir, pysdk.Filename)
			if err := execenv.WriteFile(path, pysdk.Source, 0o644); err != nil {
				return fmt.Errorf("SDK: %w", err)
			}
			a.printf("%s\n", path)
			return nil
		},
	}
}
