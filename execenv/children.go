package execenv

import (
	"errors"
	"sync"

	"golang.org/x/sys/unix"
)

// Children is the registry of the processes that this workerd forked and waits for itself. workerd is a child subreaper, so
// that what its workers orphan becomes its child too; those are nobody's to wait for, and ReapOrphans tells them apart by
// this registry. Every fork of the program goes through Start, or its exit status may be reaped by somebody else.
//
// The zero value is ready. Its methods may be called from any goroutine.
type Children struct {
	// fork is held for reading from before a fork until its pid is in known, and for writing while the kernel's list of our
	// children is compared with known: a child just forked is never taken for an orphan. It comes before mu.
	fork sync.RWMutex

	mu sync.Mutex
	// known counts, since a pid can be forked again between the reaping of its first bearer and the call of Done for it.
	known map[int]int
}

// Start runs fork, which returns the pid of the child that it made, and registers that.
func (c *Children) Start(fork func() (pid int, err error)) (int, error) {
	c.fork.RLock()
	defer c.fork.RUnlock()
	pid, err := fork()
	if err != nil {
		return pid, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil {
		c.known = map[int]int{}
	}
	c.known[pid]++
	return pid, nil
}

// Done runs reap, which waits for the registered child, and then forgets it. reap may block.
func (c *Children) Done(pid int, reap func()) {
	reap()
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known[pid]--; c.known[pid] <= 0 {
		delete(c.known, pid)
	}
}

// Known says whether pid is a registered child.
func (c *Children) Known(pid int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.known[pid] > 0
}

// ReapOrphans reaps the children that ended and that nobody here waits for, and returns how many those were.
func (c *Children) ReapOrphans() int { return len(c.reapOrphans()) }

func (c *Children) reapOrphans() (reaped []int) {
	c.eachOrphan(func(pid int) {
		for {
			ended, err := waitPID(pid, unix.WEXITED|unix.WNOHANG)
			if errors.Is(err, unix.EINTR) {
				continue
			}
			if err == nil && ended {
				reaped = append(reaped, pid)
			}
			return
		}
	})
	return reaped
}

// Orphans returns the living children that nobody here waits for: what workers left behind, and helpers of engines.
func (c *Children) Orphans() []int {
	var out []int
	c.eachOrphan(func(pid int) {
		if st, err := ReadStat(pid); err == nil && !st.Dead() {
			out = append(out, pid)
		}
	})
	return out
}

func (c *Children) eachOrphan(f func(pid int)) {
	c.fork.Lock()
	defer c.fork.Unlock()
	for _, pid := range ChildPIDs(unix.Getpid()) {
		if !c.Known(pid) {
			f(pid)
		}
	}
}
