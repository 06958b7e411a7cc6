package supervisor

import (
	"slices"
	"strconv"
	"strings"

	"workerd/execenv"
	"workerd/execenv/gpu"
)

// owners says which worker each process that holds GPU memory is of, by the marker in its environment.
type owners map[int]owner

type owner struct {
	start uint64
	id    string // <slug>/<n>; "": a stranger
}

// renew looks at the processes of a snapshot. A process is looked at once: what it was executed with does not change.
func (o owners) renew(s gpu.Snapshot, instance string) {
	seen := map[int]bool{}
	for i := range s.Devices {
		for _, p := range s.Devices[i].Processes {
			st, err := execenv.ReadStat(p.PID)
			if err != nil {
				continue
			}
			seen[p.PID] = true
			if known, ok := o[p.PID]; ok && known.start == st.Start {
				continue
			}
			marker, blank := execenv.MarkerOf(p.PID)
			if blank && !st.NoEnv { // in the middle of exec
				continue
			}
			o[p.PID] = owner{st.Start, workerOfMarker(marker, instance)}
		}
	}
	for pid := range o {
		if !seen[pid] {
			delete(o, pid)
		}
	}
}

func (o owners) of(pid int) string { return o[pid].id }

// ids are the owners of all processes that have one.
func (o owners) ids() map[int]string {
	out := map[int]string{}
	for pid, w := range o {
		if w.id != "" {
			out[pid] = w.id
		}
	}
	return out
}

// workerOfMarker is the <slug>/<n> of a marker of this instance; "" for any other.
func workerOfMarker(marker, instance string) string {
	id, ours := strings.CutPrefix(marker, instance+"/")
	if _, n, ok := strings.Cut(id, "/"); !ours || !ok || n == "" {
		return ""
	}
	return id
}

func numberOf(id string) int64 {
	_, n, _ := strings.Cut(id, "/")
	number, _ := strconv.ParseInt(n, 10, 64)
	return number
}

// killRemains kills processes that hold memory of devices and are of a worker that this workerd started and that is gone: they left
// its process tree in a way that its sweep did not see. Strangers are never touched.
func (g *gpus) killRemains() {
	var dead []string
	for i := range g.snap.Devices {
		for _, p := range g.snap.Devices[i].Processes {
			id := g.owners.of(p.PID)
			if id != "" && numberOf(id) >= g.first && !g.killing[id] && !slices.Contains(dead, id) && !g.living(id) {
				dead = append(dead, id)
			}
		}
	}
	for _, id := range dead {
		g.killing[id] = true
		go func() {
			if killed := g.children.KillTree(execenv.Tree{Marker: g.instance + "/" + id}, execenv.Full); len(killed) > 0 {
				g.log.Warn("killed what a dead worker left on a GPU", keyWorker, id, keyPID, killed)
			}
			g.kills <- id
		}()
	}
}
