package execenv

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// KillInstance kills the workers of an instance that an earlier workerd left behind, with all that descends from them, and
// returns the pids, but for those whose marker is to be kept. They are known by their markers; a process of another instance, or
// of nobody, is not touched.
func (c *Children) KillInstance(instance string, keep func(marker string) bool) []int {
	var killed []int
	for _, marker := range liveMarkers(instance) {
		if keep != nil && keep(marker) {
			continue
		}
		runners := runnersOf(marker)
		killed = append(killed, c.KillTree(Tree{Marker: marker}, Full)...)
		for _, r := range runners {
			r.end()
		}
	}
	return killed
}

// runnersOf lists the processes of Apptainer's that run the worker with this marker: each leads the session of what carries it.
func runnersOf(marker string) (all []procID) {
	for _, pid := range allPIDs() {
		if has, _ := HasMarker(pid, marker); !has {
			continue
		}
		st, err := ReadStat(pid)
		if err != nil {
			continue
		}
		leader, err := ReadStat(st.Session)
		if err != nil || leader.Dead() {
			continue
		}
		if early, _ := HasMarker(leader.PID, marker); !early && !IsRunner(leader.PID) {
			continue
		}
		if id := (procID{leader.PID, leader.Start}); !slices.Contains(all, id) {
			all = append(all, id)
		}
	}
	return all
}

// runnerPatience is how long a runner whose worker was killed has to unmount its image.
const runnerPatience = 2 * time.Second

// end waits for the end of a runner whose worker was killed, ends it where it does not come, and what it then leaves.
func (r procID) end() {
	if fd, err := unix.PidfdOpen(r.pid, 0); err == nil {
		defer func() { _ = unix.Close(fd) }()
		st, err := ReadStat(r.pid) // only now: the pidfd holds whoever bears the pid
		if err == nil && st.Start == r.start && !endsWithin(fd, runnerPatience) {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			endsWithin(fd, runnerPatience)
		}
	}
	KillHelpers(r.pid, r.start)
}

// endsWithin waits for the end of the process behind a pidfd.
func endsWithin(fd int, d time.Duration) bool {
	for deadline := time.Now().Add(d); ; {
		fds := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(time.Until(deadline).Milliseconds()))
		if !errors.Is(err, unix.EINTR) {
			return n > 0
		}
	}
}

// blankLooks is how often all processes are looked at again for markers while one of them seems to be in the middle of exec.
const blankLooks = 200

// liveMarkers lists the markers of an instance that living processes carry.
func liveMarkers(instance string) []string {
	var out []string
	own, _ := os.Readlink("/proc/self/ns/pid")
	for range blankLooks {
		again := false
		for _, pid := range allPIDs() {
			ns, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid")
			if err != nil || ns != own && !belowRunner(pid) {
				continue // gone, somebody else's, or in an engine's container: that is its engine's to end
			}
			marker, blank := MarkerOf(pid)
			if strings.HasPrefix(marker, instance+"/") {
				out = append(out, marker)
			}
			again = again || blank && inExec(pid)
		}
		if !again {
			break
		}
		time.Sleep(time.Millisecond)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// inExec says that a process whose environment read as empty may be in the middle of exec.
func inExec(pid int) bool {
	st, err := ReadStat(pid)
	return err == nil && !st.NoEnv && !st.Kernel && !st.Dead()
}

// belowRunner says whether a process descends from Apptainer's runner, so that nobody but us ends it.
func belowRunner(pid int) bool {
	for range 32 {
		st, err := ReadStat(pid)
		if err != nil || st.PPID <= 1 {
			return false
		}
		if pid = st.PPID; IsRunner(pid) {
			return true
		}
	}
	return false
}

// IsRunner says whether a process is Apptainer's runner of a container. Its title may lie over its environment, and its marker then
// is not to be seen.
func IsRunner(pid int) bool {
	line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	return err == nil && (bytes.HasPrefix(line, []byte("Apptainer runtime parent")) || bytes.HasPrefix(line, []byte("Singularity runtime parent")))
}

// fuseHelpers are the programs by which Apptainer's runner mounts images. It clears their environment, so they carry no marker.
var fuseHelpers = []string{"squashfuse_ll", "squashfuse", "fuse2fs", "fuse-overlayfs", "gocryptfs"}

// KillHelpers kills what mounted the image of a worker whose runner was killed and could not end it: the members of its session,
// which leader led from since on, that are such helpers. Where leader's pid is another process's by now, the session has no
// members left, and nothing is touched.
func KillHelpers(leader int, since uint64) (killed []int) {
	if st, err := ReadStat(leader); err == nil && !st.Dead() {
		return nil
	}
	for _, pid := range allPIDs() {
		st, err := ReadStat(pid)
		if err != nil || st.Session != leader || st.Start < since || st.Dead() || !slices.Contains(fuseHelpers, st.Comm) {
			continue
		}
		if signalProc(procID{st.PID, st.Start}, unix.SIGKILL) == nil {
			killed = append(killed, pid)
		}
	}
	return killed
}
