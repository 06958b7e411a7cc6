package execenv

import (
	"context"

	"workerd/manifest"
)

// PlanPrepare makes the plan of weights.prepare, a script and its arguments: it runs as the worker would, in the same environment, but with the
// weights writable and with a network, since it is there to fetch them.
func (p *Planner) PlanPrepare(ctx context.Context, m *manifest.Manifest) (*Plan, error) {
	prep := *m
	prep.Worker, prep.Args, prep.Command = m.Weights.Prepare[0], m.Weights.Prepare[1:], nil
	prep.Weights.Prepare = nil
	prep.GPU.Policy = "none"
	if prep.Env.Container() && prep.Env.Network == "none" {
		prep.Env.Network = "bridge"
		if prep.Env.Kind == manifest.Apptainer {
			prep.Env.Network = "host" // the only other one that it gives without privileges
		}
	}
	host := p.host
	host.preparing = true
	return NewPlanner(host, p.run).Plan(ctx, &prep)
}
