package supervisor

import "fmt"

// State is where a worker stands. The names are those of status, events and logs.
type State string

// The states of a worker. A provider's state is that of its most useful worker.
const (
	Stopped  State = "stopped"  // no process, none wanted
	Starting State = "starting" // process executed, has not answered initialize
	Loading  State = "loading"  // answered initialize, loads its model
	Ready    State = "ready"    // takes requests
	Draining State = "draining" // told to stop; finishes what it runs
	Backoff  State = "backoff"  // died; a restart is due
	Failed   State = "failed"   // no further restart until an edit or an operator

	// Invalid is a provider's state only: its manifest is invalid and nothing runs.
	Invalid State = "invalid"
)

var states = []State{Stopped, Starting, Loading, Ready, Draining, Backoff, Failed}

// Event is what moves a worker from one state to the next.
type Event string

// The events of a worker.
const (
	evStart     Event = "start"     // a process is executed: boot, request, operator, backoff timer, next version
	evConnected Event = "connected" // initialize answered with state loading
	evReady     Event = "ready"     // initialize answered ready, or notifications/ready
	evDrain     Event = "drain"     // operator, idleness, reload, shutdown
	evExited    Event = "exited"    // the process is gone and none follows
	evRespawn   Event = "respawn"   // the process is gone and the next one is executed at once
	evRetry     Event = "retry"     // the process is gone and the next one follows after a delay
	evFail      Event = "fail"      // the process is gone, or none could be made, and none will be tried
)

var events = []Event{evStart, evConnected, evReady, evDrain, evExited, evRespawn, evRetry, evFail}

// transitions is the whole state machine: a cell that is missing is an event that cannot happen in that state.
var transitions = map[State]map[Event]State{
	Stopped: {
		evStart: Starting,
		evDrain: Stopped, // stopping what is stopped is no error
		evRetry: Backoff, // nothing can be planned now, for a reason that may pass
		evFail:  Failed,  // no process could be made
	},
	Starting: {
		evConnected: Loading,
		evReady:     Ready,
		evDrain:     Draining,
		evExited:    Stopped,
		evRespawn:   Starting,
		evRetry:     Backoff,
		evFail:      Failed,
	},
	Loading: {
		evReady:   Ready,
		evDrain:   Draining,
		evExited:  Stopped,
		evRespawn: Starting,
		evRetry:   Backoff,
		evFail:    Failed,
	},
	Ready: {
		evDrain:   Draining,
		evExited:  Stopped,
		evRespawn: Starting,
		evRetry:   Backoff,
		evFail:    Failed,
	},
	Draining: {
		evDrain:   Draining,
		evExited:  Stopped,
		evRespawn: Starting, // restart, stop-first: the next one follows as soon as this one is gone
	},
	Backoff: {
		evStart: Starting,
		evDrain: Stopped,
		evRetry: Backoff, // the new process could not be executed for a passing reason
		evFail:  Failed,
	},
	Failed: {
		evStart: Starting,
		evDrain: Stopped,
		evFail:  Failed,
	},
}

// next returns the state that event e leads to from s, and false where e cannot happen in s.
func next(s State, e Event) (State, bool) {
	n, ok := transitions[s][e]
	return n, ok
}

// rank orders states for the summary of a provider: the most useful worker speaks for it.
func (s State) rank() int {
	switch s {
	case Ready:
		return 6
	case Loading:
		return 5
	case Starting:
		return 4
	case Backoff:
		return 3
	case Draining:
		return 2
	case Failed:
		return 1
	}
	return 0
}

// illegal describes an event that cannot happen; it is logged, never acted on.
func illegal(s State, e Event) error {
	return fmt.Errorf("event %q cannot happen in state %q", e, s)
}
