package execenv

import (
	"bytes"
	"os"
	"slices"
	"strconv"
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
		if ns, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/pid"); err != nil || ns != own {
			continue // gone, somebody else's, or in a container: that is its engine's to end
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
