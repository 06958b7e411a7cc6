package execenv

import (
	"context"

	"workerd/manifest"
)

// PrepareNetworks are the networks that a prepare script may run with, best first. It is there to fetch what the worker reads
// without a network; where an engine has no network of its own to give (EngineNoNetwork), that of the host is left.
func PrepareNetworks(m *manifest.Manifest) []string {
	switch {
	case !m.Env.Container() || m.Env.Network != "none":
		return []string{m.Env.Network}
	case m.Env.Kind == manifest.Apptainer:
		return []string{"host"} // the only other one that it gives without privileges
	default:
		return []string{"bridge", "host"}
	}
}

// PlanPrepare makes the plan of weights.prepare, a script and its arguments: it runs as the worker would, in the same environment, but with the
// weights writable and with a network, one of PrepareNetworks.
func (p *Planner) PlanPrepare(ctx context.Context, m *manifest.Manifest, network string) (*Plan, error) {
	prep := *m
	prep.Worker, prep.Args, prep.Command = m.Weights.Prepare[0], m.Weights.Prepare[1:], nil
	prep.Weights.Prepare = nil
	prep.GPU.Policy = "none"
	prep.Env.Network = network
	host := p.host
	host.preparing = true
	return NewPlanner(host, p.run).Plan(ctx, &prep)
}
