package supervisor

import (
	"cmp"
	"slices"

	"workerd/manifest"
	"workerd/protocol"
)

// step is one thing that the reconcile of a set of manifests asks for.
type step struct {
	slug  string
	entry *manifest.Entry // nil: the provider is to be removed
}

// reconcile compares what the directories declare with the providers that exist. It is pure. An invalid entry whose provider
// exists is a step as well (the provider keeps the last good version and shows the problems); one of a slug that another
// file keeps, or of a slug that nobody runs, is only listed.
func reconcile(set *manifest.Set, running []string) (steps []step, listed []*manifest.Entry) {
	named := map[string]bool{}
	for i := range set.Entries {
		e := &set.Entries[i]
		switch {
		case e.ShadowedBy != "":
			listed = append(listed, e)
		case e.Manifest != nil:
			named[e.Slug] = true
			steps = append(steps, step{e.Slug, e})
		case slices.Contains(running, e.Slug) && !named[e.Slug]:
			named[e.Slug] = true
			steps = append(steps, step{e.Slug, e})
		default:
			listed = append(listed, e)
		}
	}
	for _, slug := range running {
		if !named[slug] {
			steps = append(steps, step{slug, nil})
		}
	}
	return steps, listed
}

// surplus are the seats beyond n, those of least use: failed ones above all, since requests start none of them. It is pure.
func surplus(seats []*worker, n int) []*worker {
	use := func(w *worker) int {
		if w.state == Failed {
			return -1
		}
		return w.state.rank()
	}
	order := slices.Clone(seats)
	slices.SortStableFunc(order, func(x, y *worker) int { return cmp.Compare(use(y), use(x)) })
	return order[min(n, len(order)):]
}

// invalidStatus is the status entry of a manifest that has no provider.
func invalidStatus(e *manifest.Entry) protocol.ProviderStatus {
	s := protocol.ProviderStatus{
		Slug: e.Slug, State: string(Invalid), Manifest: e.File, ManifestError: problemsOf(e.Problems),
		Workers: []protocol.WorkerStatus{}, Warnings: e.Warnings,
	}
	if e.Manifest != nil {
		s.Title, s.Kind = e.Manifest.Title, e.Manifest.Env.Kind
	}
	switch {
	case e.ShadowedBy != "":
		s.Reason = "the slug belongs to " + e.ShadowedBy
	case len(e.Problems) > 0:
		s.Reason = e.Problems[0].Message
	}
	return s
}

func problemsOf(problems manifest.Problems) []protocol.ManifestError {
	out := make([]protocol.ManifestError, len(problems))
	for i, p := range problems {
		out[i] = protocol.ManifestError{File: p.File, Line: p.Line, Column: p.Column, Key: p.Key, Message: p.Message}
	}
	return out
}
