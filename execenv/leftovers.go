package execenv

import (
	"bytes"
	"os"
	"slices"
	"strconv"

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
		killed = append(killed, c.KillTree(Tree{Marker: marker}, Full)...)
	}
	return killed
}

// liveMarkers lists the markers of an instance that living processes carry.
func liveMarkers(instance string) []string {
	prefix := []byte(MarkerVar + "=" + instance + "/")
	var out []string
	own, _ := os.Readlink("/proc/self/ns/pid")
	for _, pid := range allPIDs() {
		ns, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid")
		if err != nil || ns != own && !belowRunner(pid) {
			continue // gone, somebody else's, or in an engine's container: that is its engine's to end
		}
		environ, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/environ")
		if err != nil {
			continue // gone, or somebody else's
		}
		for entry := range bytes.SplitSeq(environ, []byte{0}) {
			if bytes.HasPrefix(entry, prefix) {
				out = append(out, string(entry[len(MarkerVar)+1:]))
			}
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
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

// IsRunner says whether a process is Apptainer's runner of a container. It has written its title over its environment, so that
// its marker is not to be seen.
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
