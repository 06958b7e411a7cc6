package supervisor

import "workerd/manifest"

// standbyFacts is what the decision about a provider's standby is made of.
type standbyFacts struct {
	state   State   // of the standby
	wanted  bool    // serve.standby asks for one, and the provider may run workers
	stale   bool    // its process is of another version, or of another kind of standby, than is wanted
	rolling bool    // a change of version is under way
	crowded bool    // another process beyond the seats is not gone yet, or it is not known yet what an earlier workerd left
	rests   bool    // restart.policy said that no process follows until the next start
	seats   []State // of the workers that it stands by for
}

// standbyStep is what becomes of the standby.
type standbyStep int

const (
	standbyKeep    standbyStep = iota // it stays as it is
	standbyRaise                      // a process is executed for it
	standbyDismiss                    // its process ends, and its tries
)

// decideStandby is pure. A standby is raised behind seats that are settled, so that it never competes with a worker that somebody
// waits for, and only while there is no other process beyond the seats. One that is there stays while a version is tried, which
// may turn out to be broken: so there are at most replicas + 2 then, and replicas + 1 at any other time. It goes when nothing is
// left that it could stand by for.
func decideStandby(f standbyFacts) standbyStep {
	up, ready, settled := false, false, true
	for _, s := range f.seats {
		switch s {
		case Ready:
			up, ready = true, true
		case Starting, Loading, Backoff:
			up, settled = true, false
		case Draining:
			settled = false
		}
	}
	switch f.state {
	case Starting, Loading, Ready, Backoff:
		if !f.wanted || f.stale || !up {
			return standbyDismiss
		}
	case Failed:
		if !f.wanted {
			return standbyDismiss
		}
	case Stopped:
		if f.wanted && !f.rolling && !f.crowded && !f.rests && ready && settled {
			return standbyRaise
		}
	}
	return standbyKeep
}

// canTakeOver says whether a standby in state s takes the seat of a worker that has died. One that has not loaded yet does, too:
// a process that is executed now would be behind it.
func canTakeOver(s State) bool { return s == Starting || s == Loading || s == Ready }

// standbyMode is what kind of standby a manifest asks for; "" for none.
func standbyMode(m *manifest.Manifest) string {
	if m == nil || m.Serve.Standby == manifest.DefaultStandby {
		return ""
	}
	return m.Serve.Standby
}

// warm is the kind of standby that waits before it loads.
const warm = "warm"

// heirs deals out the workers that an earlier workerd left and that run the version in force: seats get those that served before
// those that stood by, and one that is left over becomes the standby, where one of its kind is wanted. The others are ended. Pure.
func heirs(left []*record, seats int, mode string) (seated []*record, standby *record, end []*record) {
	var spare []*record
	for _, pass := range []bool{false, true} {
		for _, r := range left {
			if (r.Standby != "") != pass {
				continue
			}
			if len(seated) < seats {
				seated = append(seated, r)
			} else {
				spare = append(spare, r)
			}
		}
	}
	for _, r := range spare {
		// One that served has loaded: it is a hot standby as any other. Of a warm one that is not known.
		if standby == nil && mode != "" && (r.Standby == mode || r.Standby == "" && mode != warm) {
			standby = r
		} else {
			end = append(end, r)
		}
	}
	return seated, standby, end
}
