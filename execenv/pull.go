package execenv

import (
	"context"

	"workerd/manifest"
)

// EnsureImage fetches the image of a manifest where its env.pull says so and the engine does not have it. It is to be called
// before Plan, which needs the image, and outside every start clock: the pull has env.pull_timeout. progress, which may be
// nil, gets the engine's lines. The error is an *Error.
func (p *Planner) EnsureImage(ctx context.Context, m *manifest.Manifest, progress func(line string)) error {
	kind := m.Env.Kind
	if kind != manifest.Docker && kind != manifest.Podman || m.Env.Pull == "never" {
		return nil
	}
	e, err := p.Engine(kind)
	if err != nil {
		return planError("env.kind", err)
	}
	if m.Env.Pull != "always" {
		_, err := e.ImageInspect(ctx, m.Env.Image)
		if err == nil || !IsEngineError(err, EngineImageMissing) {
			return planError("env.image", err)
		}
	}
	return planError("env.image", e.Pull(ctx, m.Env.Image, m.Env.PullTimeout.D(), progress))
}
