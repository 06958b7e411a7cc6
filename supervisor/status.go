package supervisor

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"workerd/protocol"
)

// phase says what waiting requests wait for, in words, and whether workers are missing that a request could start.
func (p *provider) phase() (words string, short bool) {
	if p.pulling != "" && p.spec == nil {
		return p.pulling, true
	}
	best := Stopped
	var at *worker
	seats := p.seats()
	for _, w := range seats {
		if w.state.rank() > best.rank() {
			best, at = w.state, w
		}
		if w.state == Stopped || w.state == Draining || w.state == Backoff && w.noGPU {
			short = true
		}
	}
	switch best {
	case Ready:
		return "", short
	case Loading:
		return loadingWords(at.life.progress), short
	case Starting:
		if at.life != nil && at.life.waitsFor != "" && at.life.body == nil {
			return at.life.waitsFor, short
		}
		return "starting", short
	case Backoff:
		return fmt.Sprintf("restarting in %s after: %s", time.Until(at.retryAt).Round(100*time.Millisecond), at.reason), short
	case Draining:
		return "restarting", short
	}
	return "starting", true
}

func loadingWords(pr *protocol.Progress) string {
	if pr == nil {
		return "loading"
	}
	words := "loading"
	if pr.Total != nil && *pr.Total > 0 {
		words = fmt.Sprintf("loading %.0f%%", 100*pr.Progress / *pr.Total)
	} else if pr.Progress > 0 && pr.Progress <= 1 {
		words = fmt.Sprintf("loading %.0f%%", 100*pr.Progress)
	}
	if pr.Message != "" {
		words += ": " + pr.Message
	}
	return words
}

// publish renews the snapshot for readers. What the pool counts is added when it is read.
func (p *provider) publish() {
	p.publishFacts()
	s := &protocol.ProviderStatus{
		Slug: p.slug, Manifest: p.file, FrontSocket: p.front.path,
		LastExit: p.lastExit, ManifestError: p.manifestErrors(), Warnings: p.warnings, GPUFaults: p.gpuFaults,
		Workers: []protocol.WorkerStatus{},
	}
	if p.gpuWarning != "" {
		s.Warnings = append(slices.Clone(s.Warnings), p.gpuWarning)
	}
	if m := p.manifest; m != nil {
		s.Title, s.Kind = m.Title, m.Env.Kind
	}
	best := Stopped
	for _, w := range p.workers {
		s.Workers = append(s.Workers, w.status())
		if w.state.rank() > best.rank() && !w.candidate && !w.standby {
			best, s.Reason = w.state, w.reason
		}
	}
	slices.SortStableFunc(s.Workers, func(a, b protocol.WorkerStatus) int {
		return slices.Index(roles, a.Role) - slices.Index(roles, b.Role)
	})
	s.State = string(best)
	p.explain(s, best)
	p.snapshot.Store(s)
}

// roles in the order in which status lists them.
var roles = []string{"", protocol.RoleStandby, protocol.RoleCandidate, protocol.RoleLeaving}

func (w *worker) role() string {
	switch {
	case w.leaving:
		return protocol.RoleLeaving
	case w.candidate:
		return protocol.RoleCandidate
	case w.standby:
		return protocol.RoleStandby
	}
	return ""
}

// explain fills in the reason for a provider's state.
func (p *provider) explain(s *protocol.ProviderStatus, best State) {
	switch {
	case p.failure != nil && p.failed != nil:
		s.State, s.Reason = string(Failed), p.failed.Reason
	case p.spec == nil && p.invalid != nil:
		s.State, s.Reason = string(Invalid), p.invalid[0].Message
	case p.spec == nil && p.pulling != "":
		s.Reason = p.pulling
	case p.spec == nil && best != Backoff:
		s.Reason = "the environment is being probed"
	case p.held && best == Stopped:
		s.Reason = "stopped by the operator"
	case best == Stopped && s.Reason == "":
		s.Reason = p.stoppedReason()
	}
	switch w := p.standby(); {
	case p.roll != nil && p.roll.cand == nil:
		s.Reason = "a new version is to be started when the worker beside the running one has ended"
	case p.roll != nil:
		s.Reason = "a new version is being started beside the running one"
	case len(p.rejected) > 0:
		s.Reason = p.rejected[0].Message
	case w != nil && w.state == Failed && best == Ready:
		s.Reason = "it runs without a standby, which has failed: " + w.reason
	}
	for _, w := range p.workers {
		if w.life != nil && w.life.silent {
			s.Reason = "a worker is busy and does not answer ping"
		}
	}
}

// stoppedReason says why nothing runs and what would start it.
func (p *provider) stoppedReason() string {
	for _, w := range p.workers {
		if w.reason != "" {
			return w.reason + "; the next request starts it"
		}
	}
	return "the next request starts it"
}

// manifestErrors is what status shows beside a version that is not the one on disk.
func (p *provider) manifestErrors() []protocol.ManifestError {
	switch {
	case p.invalid != nil:
		return p.invalid
	case p.planErr != nil:
		return []protocol.ManifestError{{File: p.file, Message: p.planErr.Error()}}
	}
	return p.rejected
}

func (w *worker) status() protocol.WorkerStatus {
	s := protocol.WorkerStatus{
		State: string(w.state), Role: w.role(), Since: w.since.UTC(), Restarts: w.restarts, LastExit: w.lastExit, GPUs: []string{},
	}
	if f := w.life; f != nil && f.heir != nil { // dead and replaced; what follows is being decided
		s.State = string(Stopped)
	} else if f != nil {
		s.ID, s.PID, s.Progress = f.id, f.pid(), f.progress
		if f.body != nil {
			s.Container = f.body.container()
			s.GPUs = append(s.GPUs, f.gpus...)
		}
		since := f.readyAt
		if f.waiting {
			since = f.waitingAt
		}
		if !since.IsZero() {
			since = since.UTC()
			s.ReadySince = &since
		}
	}
	return s
}

// status is the provider's status now. Safe from any goroutine.
func (p *provider) status() protocol.ProviderStatus {
	snap := p.snapshot.Load()
	if snap == nil {
		return protocol.ProviderStatus{Slug: p.slug, State: string(Stopped), Workers: []protocol.WorkerStatus{}}
	}
	s := *snap
	l := p.pool.load()
	s.Queue = protocol.QueueStatus{Waiting: l.waiting, Limit: l.queue}
	s.InFlight = l.running
	s.Methods = p.pool.knownMethods()
	s.Workers = append([]protocol.WorkerStatus(nil), snap.Workers...)
	for i := range s.Workers {
		s.Workers[i].RSSBytes = rss(s.Workers[i].PID)
	}
	if s.Workers == nil {
		s.Workers = []protocol.WorkerStatus{}
	}
	return s
}

// rss reads a process's resident memory; 0 where it is gone.
func rss(pid int) int64 {
	if pid == 0 {
		return 0
	}
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/statm")
	if err != nil {
		return 0
	}
	fields := strings.Fields(string(data))
	if len(fields) < 2 {
		return 0
	}
	pages, _ := strconv.ParseInt(fields[1], 10, 64)
	return pages * int64(os.Getpagesize())
}
