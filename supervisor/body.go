package supervisor

import (
	"syscall"

	"workerd/execenv"
	"workerd/manifest"
)

// body is what a worker runs in: a child process, one of an earlier workerd, or a container behind an engine. Its methods may
// be called from any goroutine.
type body interface {
	// pid is the worker's own process on this host, container the engine's id of its container; 0 and "" where there is none.
	pid() int
	container() string
	// await blocks until the worker's own process has ended.
	await()
	// settle ends what is left of the worker and establishes how it ended. Once, after await.
	settle() ended
	// signal asks (SIGTERM) or makes (SIGKILL) the worker end. It does not wait for that.
	signal(sig syscall.Signal)
	// sweep looks for leftovers once more, thoroughly, and returns the pids of what it killed. After settle.
	sweep() []int
	// release lets go of the last resources. After sweep.
	release()
	// enter completes a record for a later workerd.
	enter(r *record)
}

// processBody is a worker that runs as a process of this host.
type processBody struct {
	*process
	marker string          // of WORKERD_WORKER, by which everything that the worker forks is known
	group  *execenv.Cgroup // nil where it has none of its own
}

var _ body = (*processBody)(nil)

func (b *processBody) pid() int          { return b.process.pid }
func (b *processBody) container() string { return "" }

func (b *processBody) settle() ended {
	tree, scope := execenv.Tree{Marker: b.marker, Session: b.process.pid, Root: b.process.pid, RootStart: b.start}, execenv.Fast
	if b.adopted {
		// Not our child: what it orphaned went elsewhere, and nobody holds its session's number for us.
		tree, scope = execenv.Tree{Marker: b.marker}, execenv.Full
	}
	oom := 0
	if b.group != nil {
		oom = b.group.OOMKills()
		b.group.Kill() // all at once; what is looked for then is what left the cgroup
	}
	b.children.KillTree(tree, scope)
	if b.adopted {
		execenv.KillHelpers(b.process.pid, b.start)
	}
	e := b.reap()
	e.oom = oom > 0
	return e
}

// signal with SIGKILL ends all that is in the worker's cgroup.
func (b *processBody) signal(sig syscall.Signal) {
	b.process.signal(sig)
	if sig == syscall.SIGKILL && b.group != nil {
		b.group.KillNow()
	}
}

// limit brings limits into force for a worker that runs.
func (b *processBody) limit(l manifest.Limits) error {
	if b.group == nil {
		return nil
	}
	return b.group.Limit(l)
}

func (b *processBody) release() {
	if b.group != nil {
		b.group.Remove()
	}
	b.process.release()
}

func (b *processBody) sweep() []int {
	return b.children.KillTree(execenv.Tree{Marker: b.marker}, execenv.Full)
}

func (b *processBody) enter(r *record) {
	r.PID, r.Start = b.process.pid, b.start
	if b.group != nil {
		r.Cgroup = b.group.Dir()
	}
}
