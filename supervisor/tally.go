package supervisor

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"workerd/protocol"
)

// AnswerBounds are the upper bounds of Answers.Within, in seconds: from a lookup to a structure prediction.
var AnswerBounds = [...]float64{0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 15, 60, 300, 1800}

// Answers says what the requests of a provider were answered since its workerd started it.
type Answers struct {
	Results uint64 // a worker's results
	Errors  uint64 // a worker's own errors
	// Refused are the errors of workerd's own, by kind.
	Refused map[protocol.Kind]uint64
	// Within counts the answers of workers, results and errors, that took at most so many seconds (AnswerBounds) from when the request
	// was read, each bound's alone; the last one is of those that took longer. Seconds is their sum.
	Within  [len(AnswerBounds) + 1]uint64
	Seconds float64
}

// tally counts the answers of a provider. Its methods may be called from any goroutine.
type tally struct {
	results, errors atomic.Uint64
	within          [len(AnswerBounds) + 1]atomic.Uint64
	took            atomic.Int64 // nanoseconds

	mu      sync.Mutex // guards what follows
	refused map[protocol.Kind]uint64
}

// answered counts an answer of a worker.
func (t *tally) answered(result bool, took time.Duration) {
	if result {
		t.results.Add(1)
	} else {
		t.errors.Add(1)
	}
	i, _ := slices.BinarySearch(AnswerBounds[:], took.Seconds())
	t.within[i].Add(1)
	t.took.Add(int64(took))
}

// refuse counts an error of workerd's own.
func (t *tally) refuse(k protocol.Kind) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.refused == nil {
		t.refused = map[protocol.Kind]uint64{}
	}
	t.refused[k]++
}

func (t *tally) read() Answers {
	a := Answers{Results: t.results.Load(), Errors: t.errors.Load(), Seconds: time.Duration(t.took.Load()).Seconds()}
	for i := range t.within {
		a.Within[i] = t.within[i].Load()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	a.Refused = maps.Clone(t.refused)
	return a
}

// Answers says for each provider what its requests were answered.
func (s *Supervisor) Answers() map[string]Answers {
	out := map[string]Answers{}
	for _, p := range s.all() {
		out[p.slug] = p.tally.read()
	}
	return out
}
