package supervisor

import (
	"encoding/json"
	"errors"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"workerd/execenv"
)

// learned remembers how much GPU memory the workers of each provider were seen to take, over workerd's restarts. The goroutine of
// gpus owns it.
type learned struct {
	file string
	log  *slog.Logger
	all  map[string]figure // by slug
}

// figure is what was learned of one provider.
type figure struct {
	Run    string `json:"run"`    // the version that was seen, see runKey
	Memory int64  `json:"memory"` // bytes on one device, the largest seen
}

func openLearned(stateDir string, log *slog.Logger) *learned {
	l := &learned{file: filepath.Join(stateDir, "gpu-memory.json"), log: log, all: map[string]figure{}}
	data, err := os.ReadFile(l.file)
	if err == nil {
		err = json.Unmarshal(data, &l.all)
	}
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		log.Warn("what was learned of GPU memory is forgotten", "file", l.file, keyError, err)
	}
	if l.all == nil {
		l.all = map[string]figure{}
	}
	return l
}

// of returns what a worker of a provider is expected to take on a device, in bytes; 0: nothing is known. What another version took
// is the best guess there is until this one has been seen.
func (l *learned) of(slug string) int64 { return l.all[slug].Memory }

// note takes in what a worker was seen to take at most. Steps below one percent are not worth a write.
func (l *learned) note(slug, run string, memory int64) {
	old := l.all[slug]
	if memory <= 0 || old.Run == run && memory <= old.Memory+old.Memory/100 {
		return
	}
	l.all[slug] = figure{run, memory}
	data, err := json.MarshalIndent(l.all, "", "  ")
	if err == nil {
		err = execenv.WriteFile(l.file, append(data, '\n'), 0o600)
	}
	if err != nil {
		l.log.Warn("what was learned of GPU memory cannot be kept", "file", l.file, keyError, err)
	}
}

// measure enters what the processes of workers use into their figures.
func (g *gpus) measure() {
	for _, t := range g.tenants {
		for _, bytes := range g.uses(t.life.id) {
			t.peak = max(t.peak, bytes)
		}
		if facts := t.life.facts.Load(); facts != nil && facts.ready {
			t.loaded = true
			g.learn(t)
		}
		if t.declared && !t.warned && t.peak > t.need.memory {
			t.warned = true
			g.log.Warn("a worker uses more GPU memory than gpu.memory says", keyWorker, t.life.id, "memory", t.need.memory, "used", t.peak)
			f, words := t.life, "gpu.memory: it uses "+sizeWords(t.peak)+" and "+sizeWords(t.need.memory)+" are declared: others may be placed where there is no room"
			f.p.postAsync(func() { f.p.gpuWarning = words })
		}
	}
}

// learn notes what a worker took. One that has not loaded has not shown what it takes.
func (g *gpus) learn(t *tenant) {
	if t.loaded {
		g.learned.note(t.life.p.slug, t.life.spec.run, t.peak)
	}
}

func sortedIDs[T any](m map[string]T) []string { return slices.Sorted(maps.Keys(m)) }
