package execenv

import (
	"bytes"
	"os"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Monitor is a conmon: the process by which podman watches a container, here one of an instance's.
type Monitor struct {
	Name string // of the container
	proc procID
}

// Monitors lists the conmons that watch an instance's containers. Podman notes a container before it starts its monitor: one that is
// in this list, and not in a list of containers that is made later, watches a container that podman knows nothing of any more. Such
// ones are left where a podman that creates a container and one that removes it meet, or where the first is killed.
func Monitors(instance string) (all []Monitor) {
	for _, pid := range allPIDs() {
		st, err := ReadStat(pid)
		if err != nil || st.Comm != "conmon" || st.Dead() {
			continue
		}
		line, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if err != nil {
			continue
		}
		args := strings.Split(string(bytes.TrimSuffix(line, []byte{0})), "\x00")
		if i := slices.Index(args, "-n"); i >= 0 && i+1 < len(args) && strings.HasPrefix(args[i+1], "workerd-"+instance+"-") {
			all = append(all, Monitor{args[i+1], procID{st.PID, st.Start}})
		}
	}
	return all
}

// End kills what a monitor watches, after which it ends by itself; one that watches nothing is killed.
func (m Monitor) End() {
	if st, err := ReadStat(m.proc.pid); err != nil || st.Start != m.proc.start {
		return
	}
	watched := false
	for _, pid := range ChildPIDs(m.proc.pid) {
		st, err := ReadStat(pid)
		if err == nil && !st.Dead() && st.PPID == m.proc.pid {
			watched = true
			_ = signalProc(procID{st.PID, st.Start}, unix.SIGKILL)
		}
	}
	if !watched {
		_ = signalProc(m.proc, unix.SIGKILL)
	}
}
