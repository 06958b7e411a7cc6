package execenv

import (
	"cmp"
	"errors"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// MarkerVar is the variable by which every process that descends from a worker can be told, unless it cleared its
// environment. Its value is Marker's.
const MarkerVar = "WORKERD_WORKER"

// Tree says which processes belong to one worker: its own process and what descends from it, the members of its session,
// and whatever carries its marker; and what descends from any of those.
type Tree struct {
	Marker string // of WORKERD_WORKER, whole
	// Session is the worker's session, the pid of its own process. As long as that process is alive or not reaped, or a
	// member of the session lives, the number is nobody else's: kill first, reap after.
	Session int
	// Root is the worker's own process, 0 for none (it has been reaped); RootStart its Stat.Start, where known. A Root that
	// is a zombie is left to whoever waits for it.
	Root      int
	RootStart uint64
}

// Scope says where KillTree looks.
type Scope int

const (
	// Fast looks at what descends from this process: at once after a worker's death everything that it left does. It
	// costs next to nothing where nothing was left.
	Fast Scope = iota
	// Full looks at every process that /proc shows, which also finds what was reparented to another subreaper or to init.
	Full
)

// treeBudget bounds a KillTree, the wait for the killed to go included.
var treeBudget = 3 * time.Second

// maxBlank bounds how often a process is looked at again that seems to be in the middle of exec, a millisecond apart.
const maxBlank = 200

// KillTree kills every process of t and returns their pids. It never touches a process that is not provably the worker's,
// nor a registered child other than Root.
//
// Everything found is stopped first (SIGSTOP), at once as it is found, until a scan finds nothing new, and killed then,
// children before parents: so nothing forks while the scan goes on, and no child loses the parent by which it is known. A
// last scan that began after the last signal confirms. It returns when all of them are gone, or after a bounded time (a
// process in an uninterruptible sleep ends when that does).
func (c *Children) KillTree(t Tree, scope Scope) []int {
	k := treeKill{Tree: t, scope: scope, kids: c, self: os.Getpid(), seen: map[procID]bool{}, blank: map[procID]int{}}
	if sid, err := unix.Getsid(0); err == nil && sid == t.Session {
		k.Session = 0 // never our own session, whatever the caller believes
	}
	if st, err := ReadStat(t.Root); err != nil || st.Dead() {
		k.Root = 0
	}
	k.run(time.Now().Add(treeBudget))
	if len(k.killed) > 0 {
		c.ReapOrphans()
	}
	return k.killed
}

type procID struct {
	pid   int
	start uint64
}

type treeKill struct {
	Tree
	scope Scope
	kids  *Children
	self  int

	seen    map[procID]bool // found, and sent a stop
	stopped []procID        // sent a stop and not yet a kill
	killed  []int
	dying   []procID       // sent a kill
	blank   map[procID]int // how often one was found in the middle of exec
}

func (k *treeKill) run(deadline time.Time) {
	for time.Now().Before(deadline) {
		fresh, again := k.scan(deadline)
		switch {
		case fresh > 0:
		case again:
			time.Sleep(time.Millisecond) // something is in the middle of exec
		case len(k.stopped) > 0:
			k.kill()
		default:
			k.await(deadline)
			return
		}
	}
	k.kill()
	k.await(deadline)
}

// stop stops a process of the tree, once, and says whether it was new.
func (k *treeKill) stop(st Stat) bool {
	p := procID{st.PID, st.Start}
	if st.Dead() || k.seen[p] {
		return false
	}
	k.seen[p] = true
	if signalProc(p, unix.SIGSTOP) != nil {
		return false // it has gone, or may not be signalled: a setuid program
	}
	k.stopped = append(k.stopped, p)
	return true
}

func (k *treeKill) kill() {
	slices.SortStableFunc(k.stopped, func(a, b procID) int { return cmp.Compare(b.start, a.start) })
	for _, p := range k.stopped {
		if signalProc(p, unix.SIGKILL) == nil {
			k.killed = append(k.killed, p.pid)
			k.dying = append(k.dying, p)
		}
	}
	k.stopped = nil
}

// await waits until what was killed has ended.
func (k *treeKill) await(deadline time.Time) {
	for pause := 50 * time.Microsecond; ; pause = min(2*pause, 10*time.Millisecond) {
		k.dying = slices.DeleteFunc(k.dying, func(p procID) bool {
			st, err := ReadStat(p.pid)
			return err != nil || st.Start != p.start || st.Dead()
		})
		if len(k.dying) == 0 || time.Now().After(deadline) {
			return
		}
		time.Sleep(pause)
	}
}

// scan stops what of the tree lives, and returns how much of that was new. again says that one of the processes looked at
// may have been in the middle of exec, so that its environment could not be read.
//
// It lists and looks until a list holds nothing that it has not looked at. One list is not enough for a chain of processes
// that each fork the next and exit: the one that was listed is gone when it is looked at, and its child came after. For the
// same reason it begins at the end of a list, where the youngest are.
func (k *treeKill) scan(deadline time.Time) (fresh int, again bool) {
	looked := map[int]bool{}
	byParent := map[int][]Stat{}
	var living []int
	var proven []Stat
	for news := true; news && time.Now().Before(deadline); {
		news = false
		for _, pid := range slices.Backward(k.list(living)) {
			if looked[pid] {
				continue
			}
			looked[pid], news = true, true
			st, err := ReadStat(pid)
			if err != nil || st.Kernel || st.Dead() {
				continue
			}
			living = append(living, pid)
			byParent[st.PPID] = append(byParent[st.PPID], st)
			proof, blank := k.proves(st)
			if proof {
				proven = append(proven, st)
				if k.stop(st) {
					fresh++
				}
			}
			if id := (procID{st.PID, st.Start}); blank && k.blank[id] < maxBlank {
				k.blank[id]++
				again = true
			}
		}
		if !news {
			break
		}
		fresh += k.stopBelow(proven, byParent)
		for _, pid := range k.kids.reapOrphans() {
			delete(looked, pid) // it may be another's from now on
		}
	}
	return fresh, again
}

// stopBelow stops what descends from the proven, and returns how much of that was new.
func (k *treeKill) stopBelow(proven []Stat, byParent map[int][]Stat) (fresh int) {
	queue := slices.Clone(proven)
	done := map[int]bool{}
	for len(queue) > 0 {
		st := queue[0]
		queue = queue[1:]
		if done[st.PID] || !k.mayTouch(st) {
			continue
		}
		done[st.PID] = true
		if k.stop(st) {
			fresh++
		}
		for _, child := range byParent[st.PID] {
			if child.Start >= st.Start { // else the pid had another bearer when the child was read
				queue = append(queue, child)
			}
		}
	}
	return fresh
}

// list returns the processes of the scope, the youngest last if only roughly. In the fast scope those are our unregistered
// children, the dead among them too, since that one which lived in the last list has ended is a reason to look for its
// children; and the children of those that are known to live.
func (k *treeKill) list(living []int) []int {
	if k.scope == Full {
		return allPIDs()
	}
	var pids []int
	if k.Root != 0 {
		pids = append(pids, k.Root)
	}
	pids = append(pids, k.kids.unregistered()...)
	for _, pid := range living {
		pids = append(pids, ChildPIDs(pid)...)
	}
	return pids
}

// proves says whether a process is the worker's by itself, not by its ancestors.
func (k *treeKill) proves(st Stat) (proof, blank bool) {
	if st.Dead() || !k.mayTouch(st) {
		return false, false
	}
	if k.isRoot(st) || k.Session != 0 && st.Session == k.Session {
		return true, false
	}
	if k.Marker == "" {
		return false, false
	}
	proof, blank = HasMarker(st.PID, k.Marker)
	return proof, blank && inExec(st.PID)
}

func (k *treeKill) isRoot(st Stat) bool {
	return st.PID == k.Root && (k.RootStart == 0 || st.Start == k.RootStart)
}

func (k *treeKill) mayTouch(st Stat) bool {
	return st.PID > 1 && st.PID != k.self && (k.isRoot(st) || !k.kids.Known(st.PID))
}

// signalProc signals exactly this process: the pidfd holds it while its start time is compared. Kernels before 5.3 have no
// pidfd; there the pid is signalled right after the comparison.
func signalProc(p procID, sig unix.Signal) error {
	fd, err := unix.PidfdOpen(p.pid, 0)
	if err != nil && !errors.Is(err, unix.ENOSYS) {
		return err
	}
	if err == nil {
		defer unix.Close(fd)
	}
	st, statErr := ReadStat(p.pid)
	if statErr != nil {
		return statErr
	}
	if st.Start != p.start || st.Dead() {
		return ErrNoProcess
	}
	if err != nil {
		return unix.Kill(p.pid, sig)
	}
	return unix.PidfdSendSignal(fd, sig, nil, 0)
}
