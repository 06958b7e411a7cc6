package supervisor

import (
	"fmt"
	"time"
)

// stableAfter is how long a worker must have been ready for its death to be answered by an immediate restart.
const stableAfter = 10 * time.Second

// cause says why a process ended, for the restart policy.
type cause string

const (
	causeExit         cause = "exit"          // ended by itself, code or signal
	causeOOM          cause = "oom"           // killed for memory
	causeStartTimeout cause = "start timeout" // not ready in time
	causePing         cause = "ping"          // idle and not answering ping
	causeConnection   cause = "connection"    // closed its connection and did not take another
	causeDeadline     cause = "deadline"      // killed with a request past its deadline
	causeAsked        cause = "asked"         // operator, idleness, reload, shutdown
	causeEngine       cause = "engine"        // the container engine does not answer
	causeGPU          cause = "gpu fault"     // its GPU context or device is lost
	causeNoGPU        cause = "no gpu"        // no device was to be had: nothing was executed
	causePermanent    cause = "permanent"     // cannot be executed at all: missing interpreter, wrong protocol
)

// counted says whether an ending of this cause counts against max_crashes.
func (c cause) counted() bool {
	switch c {
	case causeExit, causeOOM, causeStartTimeout, causePing, causeConnection:
		return true
	}
	return false
}

// ending is what the policy needs to know of a process that is gone.
type ending struct {
	cause    cause
	code     int  // exit code; -1 where it was a signal
	wasReady bool // had been ready
	readyFor time.Duration
	// signature is the code or signal and the last line printed: five equal failures to start are hopeless however
	// far apart they are.
	signature string
}

// policy is the [restart] table.
type policy struct {
	policy     string // always, on-failure, never
	backoff    time.Duration
	maxBackoff time.Duration
	maxCrashes int // 0: no limit
	window     time.Duration
}

// history is what is remembered of a provider's endings. Times carry the monotonic clock, so that clock jumps change nothing.
type history struct {
	crashes   []time.Time // counted ones within the window
	streak    int         // endings since the last stable run: the exponent of the delay
	signature string      // of the last failure to start
	same      int         // how often in a row it was the same
}

// action is what follows an ending.
type action int

const (
	actRespawn action = iota // execute the next process at once
	actRetry                 // after a delay
	actStop                  // none; the next request may start one
	actFail                  // none until an edit or an operator
)

// decision is the policy's answer.
type decision struct {
	action action
	after  time.Duration
	reason string
}

// decide applies the restart policy to one ending. jitter is in [0,1). It is pure: the history passed in is not changed,
// the one returned is to be kept.
func decide(p policy, h history, e ending, now time.Time, jitter float64) (decision, history) {
	n := history{streak: h.streak, signature: h.signature, same: h.same}
	for _, t := range h.crashes {
		if now.Sub(t) < p.window {
			n.crashes = append(n.crashes, t)
		}
	}
	if e.cause == causePermanent {
		return decision{action: actFail, reason: "cannot be executed"}, n
	}
	if !e.wasReady && e.cause == causeExit && e.code >= 125 && e.code <= 127 {
		return decision{action: actFail, reason: fmt.Sprintf("exit code %d: the program could not be executed", e.code)}, n
	}
	if e.cause == causeAsked || p.policy == "never" || (p.policy == "on-failure" && e.cause == causeExit && e.code == 0) {
		return decision{action: actStop, reason: "restart policy"}, n
	}
	if e.cause == causeEngine || e.cause == causeNoGPU {
		n.streak++
		return decision{action: actRetry, after: delay(policy{backoff: max(p.backoff, time.Second), maxBackoff: p.maxBackoff}, n.streak, jitter)}, n
	}
	n = count(n, e, now)
	if p.maxCrashes > 0 && len(n.crashes) >= p.maxCrashes {
		return decision{action: actFail, reason: fmt.Sprintf("%d crashes within %s", len(n.crashes), p.window)}, n
	}
	if p.maxCrashes > 0 && n.same >= p.maxCrashes {
		return decision{action: actFail, reason: fmt.Sprintf("failed to start %d times in the same way", n.same)}, n
	}
	if n.streak == 0 || p.backoff <= 0 {
		return decision{action: actRespawn}, n
	}
	d := delay(p, n.streak, jitter)
	return decision{action: actRetry, after: d}, n
}

// count enters one ending into the history.
func count(h history, e ending, now time.Time) history {
	if e.cause.counted() {
		h.crashes = append(h.crashes, now)
	}
	switch {
	case e.wasReady && e.readyFor >= stableAfter:
		h.streak = 0
	case e.cause == causeDeadline:
		// workerd ended it and the worker is sound: its successor need not wait
		h.streak = 0
	default:
		h.streak++
	}
	switch {
	case e.wasReady:
		h.signature, h.same = "", 0
	case h.same > 0 && h.signature == e.signature:
		h.same++
	default:
		h.signature, h.same = e.signature, 1
	}
	return h
}

// delay is exponential in the streak, with up to 25 % of jitter below it, and capped.
func delay(p policy, streak int, jitter float64) time.Duration {
	limit := p.maxBackoff
	if limit <= 0 {
		limit = p.backoff
	}
	d := p.backoff
	for i := 1; i < streak && d < limit; i++ {
		d *= 2
	}
	d = min(d, limit)
	return d - time.Duration(jitter*0.25*float64(d))
}
