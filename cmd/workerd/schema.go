package main

import (
	"github.com/spf13/cobra"

	"workerd/manifest"
)

func (a *app) schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "schema",
		Short: "Print the JSON Schema of manifests",
		Long: `Print the JSON Schema of provider.toml, for editors that complete and check it. With Even Better TOML or
taplo, put "#:schema FILE" into the manifest's first line.`,
		RunE: func(*cobra.Command, []string) error {
			schema, err := manifest.Schema()
			if err != nil {
				return err
			}
			a.printf("%s\n", schema)
			return nil
		},
	}
}
