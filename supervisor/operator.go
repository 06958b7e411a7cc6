package supervisor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"workerd/protocol"
)

// find returns a provider, or why there is none.
func (s *Supervisor) find(slug string) (*provider, error) {
	if p := s.lookup(slug); p != nil {
		return p, nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	for _, e := range s.listed {
		if e.Slug == slug {
			return nil, fmt.Errorf("%w: %w", protocol.ErrInvalidManifest, e.Problems)
		}
	}
	return nil, fmt.Errorf("%w: %s", protocol.ErrNoProvider, slug)
}

// Status describes the providers with these slugs, all where there are none, sorted by slug.
func (s *Supervisor) Status(slugs []string) protocol.Status {
	wanted := func(slug string) bool { return len(slugs) == 0 || slices.Contains(slugs, slug) }
	out := []protocol.ProviderStatus{}
	for _, p := range s.all() {
		if wanted(p.slug) {
			out = append(out, p.status())
		}
	}
	s.mu.RLock()
	for _, e := range s.listed {
		if wanted(e.Slug) {
			out = append(out, invalidStatus(e))
		}
	}
	s.mu.RUnlock()
	slices.SortStableFunc(out, func(a, b protocol.ProviderStatus) int { return cmp.Compare(a.Slug, b.Slug) })
	return protocol.Status{Providers: out}
}

// Start makes all replicas of a provider run.
func (s *Supervisor) Start(ctx context.Context, slug string, wait bool) error {
	p, err := s.find(slug)
	if err != nil {
		return err
	}
	return p.start(ctx, wait)
}

// Stop ends all workers of a provider until Start.
func (s *Supervisor) Stop(ctx context.Context, slug string, wait bool) error {
	p, err := s.find(slug)
	if err != nil {
		return err
	}
	return p.stop(ctx, wait)
}

// Restart replaces all workers of a provider as its on_change says.
func (s *Supervisor) Restart(ctx context.Context, slug string, wait bool) error {
	p, err := s.find(slug)
	if err != nil {
		return err
	}
	return p.restart(ctx, wait)
}

// SmokeFile names the smoke input of a provider.
func (s *Supervisor) SmokeFile(slug string) (string, error) {
	p, err := s.find(slug)
	if err != nil {
		return "", err
	}
	var file string
	if err := p.ask(s.clients, func() {
		if p.manifest != nil {
			file = p.manifest.Smoke
		}
	}); err != nil {
		return "", err
	}
	if file == "" {
		return "", fmt.Errorf("%w: %s", protocol.ErrNoSmoke, slug)
	}
	return file, nil
}

// Logs writes the last lines that a provider's workers printed, and with follow what comes, until ctx ends.
func (s *Supervisor) Logs(ctx context.Context, slug string, lines int, follow bool, w io.Writer) error {
	p, err := s.find(slug)
	if err != nil && !errors.Is(err, protocol.ErrInvalidManifest) {
		return err
	}
	if p == nil {
		return showLogs(ctx, &s.rotations, s.logDir(slug), lines, follow, w)
	}
	if follow && p.inContainers(ctx) {
		return p.followContainers(ctx, lines, w)
	}
	for _, b := range p.containers(ctx) { // what they printed lies with the engine until they end
		b.peek(ctx, time.Time{})
	}
	return showLogs(ctx, &s.rotations, s.logDir(slug), lines, follow, w)
}

// Events delivers what happens from now on until ctx ends.
func (s *Supervisor) Events(ctx context.Context) <-chan protocol.Event {
	return s.events.subscribe(ctx)
}

// Reload reads the manifest directories again and returns when what they say is applied.
func (s *Supervisor) Reload(ctx context.Context) error {
	if s.cfg.Rescan == nil {
		return errors.New("nothing to read again")
	}
	set, err := s.cfg.Rescan(ctx)
	if err != nil {
		return err
	}
	s.Apply(set)
	return s.Planned(ctx)
}

// Planned returns when no provider is still making a plan of its newest manifest.
func (s *Supervisor) Planned(ctx context.Context) error {
	for _, p := range s.all() {
		if err := p.planned(ctx); err != nil && ctx.Err() != nil {
			return ctx.Err()
		}
	}
	return nil
}
