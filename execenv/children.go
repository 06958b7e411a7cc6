package execenv

import (
	"errors"
	"os/exec"
	"slices"
	"sync"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Children is the registry of the processes that this workerd forked and waits for itself. workerd is a child subreaper, so
// that what its workers orphan becomes its child too; those are nobody's to wait for, and ReapOrphans tells them apart by
// this registry. Every fork of the program goes through Start, or its exit status may be reaped by somebody else.
//
// The zero value is ready. Its methods may be called from any goroutine.
type Children struct {
	mu sync.Mutex
	// known counts, since a pid can be forked again between the reaping of its first bearer and the call of Done for it.
	known map[int]int
	// forking holds when each of the forks under way began. Until it is registered, its child cannot be told from an orphan
	// except by its age. No lock is held meanwhile: an exec may take as long as a file system likes.
	forking []uint64
	skipped bool // a child was passed over for that reason
}

// Start runs fork, which returns the pid of the child that it made, and registers that.
func (c *Children) Start(fork func() (pid int, err error)) (int, error) {
	began := bootTicks()
	c.mu.Lock()
	c.forking = append(c.forking, began)
	c.mu.Unlock()

	pid, err := fork()

	c.mu.Lock()
	if err == nil {
		if c.known == nil {
			c.known = map[int]int{}
		}
		c.known[pid]++
	}
	i := slices.Index(c.forking, began)
	c.forking = slices.Delete(c.forking, i, i+1)
	again := c.skipped && len(c.forking) == 0
	if again {
		c.skipped = false
	}
	c.mu.Unlock()
	if again {
		c.ReapOrphans()
	}
	return pid, err
}

// Fork starts a command as a registered child, and returns what waits for it, as cmd.Wait does.
func (c *Children) Fork(cmd *exec.Cmd) (wait func() error, err error) {
	pid, err := c.Start(func() (int, error) {
		if err := cmd.Start(); err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
	if err != nil {
		return nil, err
	}
	return func() (err error) {
		c.Done(pid, func() { err = cmd.Wait() })
		return err
	}, nil
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

// ReapOrphans reaps the children that ended and that nobody here waits for, and returns how many those were. It never waits,
// neither for a child nor for a fork.
func (c *Children) ReapOrphans() int { return len(c.reapOrphans()) }

// subreaper says whether orphans come to this process at all. Where they do not (the commands other than serve), every child is
// somebody's here, also one that was not forked through a registry.
func subreaper() bool {
	var on int32
	err := unix.Prctl(unix.PR_GET_CHILD_SUBREAPER, uintptr(unsafe.Pointer(&on)), 0, 0, 0)
	return err != nil || on != 0
}

func (c *Children) reapOrphans() (reaped []int) {
	if !subreaper() {
		return nil
	}
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

// eachOrphan calls f, which may not block, for each child that is certainly nobody's.
func (c *Children) eachOrphan(f func(pid int)) {
	for _, pid := range ChildPIDs(unix.Getpid()) {
		c.mu.Lock()
		if c.known[pid] == 0 {
			if c.young(pid) {
				c.skipped = true
			} else {
				f(pid)
			}
		}
		c.mu.Unlock()
	}
}

// young says whether a child may be that of a fork under way. The caller holds mu.
func (c *Children) young(pid int) bool {
	if len(c.forking) == 0 {
		return false
	}
	st, err := ReadStat(pid)
	return err != nil || st.Start >= slices.Min(c.forking)
}

// unregistered lists the children that are not registered: orphans, and children of forks under way.
func (c *Children) unregistered() []int {
	return slices.DeleteFunc(ChildPIDs(unix.Getpid()), c.Known)
}

const hz = 100 // of all that /proc shows, whatever the kernel's own

// Age is how long ago a process started whose Stat.Start is given. It goes by the clock that runs since boot: nobody sets it.
func Age(start uint64) time.Duration {
	now := bootTicks()
	if start == 0 || now < start {
		return 0
	}
	return time.Duration(now-start) * (time.Second / hz)
}

// bootTicks is the time in the unit and rounding of Stat.Start.
func bootTicks() uint64 {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		return 0 // before every child: none is reaped while a fork is under way
	}
	return uint64(ts.Nano() / (int64(time.Second) / hz))
}
