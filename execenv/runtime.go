package execenv

import (
	"context"

	"workerd/manifest"
)

// Runtime is one kind of environment.
type Runtime interface {
	// Probe finds out what a Plan of this kind depends on besides the manifest, and adds it to f. It may run commands.
	Probe(ctx context.Context, h Host, m *manifest.Manifest, run Runner, f *facts) error
	// Plan makes the Plan out of values alone: equal arguments make equal Plans.
	Plan(h Host, m *manifest.Manifest, f *facts) *Plan
	// Check returns warnings about a manifest.
	Check(h Host, m *manifest.Manifest) []string
}

// runtimes holds all kinds.
var runtimes = map[string]Runtime{
	manifest.Venv:      venv{},
	manifest.Docker:    oci{manifest.Docker},
	manifest.Podman:    oci{manifest.Podman},
	manifest.Apptainer: apptainer{},
}
