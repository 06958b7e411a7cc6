package supervisor

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"workerd/execenv"
	"workerd/protocol"
)

// A GPU fault is a lost context or device: the process lives, answers ping, and can never compute again. It is known by what the
// worker prints, or answers, and the cure is another process.

// faultPatterns are what CUDA, ROCm and the drivers say when a context or a device is lost, as regular expressions. Running out of
// memory is none: the context survives it. gpu.fault_patterns of a manifest replaces them.
var faultPatterns = []string{
	`Failed to initialize NVML: Unknown Error`, // the container lost its devices, as after systemctl daemon-reload
	`CUDA error: (unspecified launch failure|device-side assert triggered|an illegal memory access was encountered|misaligned address|an illegal instruction was encountered|the launch timed out and was terminated|uncorrectable ECC error encountered|hardware stack error|invalid program counter|unknown error)`,
	`CUDA_ERROR_(LAUNCH_FAILED|ASSERT|ILLEGAL_ADDRESS|MISALIGNED_ADDRESS|ILLEGAL_INSTRUCTION|LAUNCH_TIMEOUT|ECC_UNCORRECTABLE|HARDWARE_STACK_ERROR|INVALID_PC|CONTEXT_IS_DESTROYED|DEVICE_UNAVAILABLE|UNKNOWN)\b`,
	`cuda(ErrorLaunchFailure|ErrorAssert|ErrorIllegalAddress|ErrorMisalignedAddress|ErrorIllegalInstruction|ErrorLaunchTimeout|ErrorECCUncorrectable|ErrorHardwareStackError|ErrorInvalidPc|ErrorDevicesUnavailable)\b`,
	`device-side assert triggered`,
	`unspecified launch failure`,
	`GPU (is lost|has fallen off the bus)`,
	`NVRM: Xid .*: (48|63|64|74|79|94|95|119|120),`,
	`hipError(LaunchFailure|IllegalAddress|Assert|ECCNotCorrectable)\b`,
	`HSA_STATUS_ERROR_(EXCEPTION|ILLEGAL_INSTRUCTION|MEMORY_APERTURE_VIOLATION)`,
	`Memory access fault by GPU node`,
}

// compileFaults makes one expression of a provider's patterns; nil where it has none. The manifest has checked each of them.
func compileFaults(patterns []string) *regexp.Regexp {
	switch {
	case patterns == nil:
		return usualFaults()
	case len(patterns) == 0:
		return nil
	}
	return anyOf(patterns)
}

// usualFaults is of most providers, of which there may be a thousand, and an expression of this size takes 70 KB.
var usualFaults = sync.OnceValue(func() *regexp.Regexp { return anyOf(faultPatterns) })

func anyOf(patterns []string) *regexp.Regexp {
	return regexp.MustCompile("(?:" + strings.Join(patterns, ")|(?:") + ")")
}

// faultIn returns the words of output or an answer that tell of a fault of this worker's GPU, "" for none.
func (f *life) faultIn(text []byte) string {
	if len(f.gpus) == 0 || f.spec.faults == nil {
		return ""
	}
	return excerpt(f.spec.faults.Find(text))
}

// faultReason is how a fault stands in the reason for a worker's end.
func faultReason(words string) string { return fmt.Sprintf("GPU fault: %q", words) }

const (
	// cordonAfter faults of workers on one device within cordonWithin, nothing is placed on it for cordonFor.
	cordonAfter  = 3
	cordonWithin = 10 * time.Minute
	cordonFor    = time.Hour
)

// fault is one that a worker met on a device.
type fault struct {
	at   time.Time
	slug string
}

// cordon says why nothing is placed on a device, and until when.
type cordon struct {
	reason string
	until  time.Time
}

// countFault enters a fault on a device into its history. own says that its provider has met too many there, all that the device is
// to blame: two providers have. A program that is wrong by itself must not take a device away from the others. Pure.
func countFault(history []fault, now fault) (kept []fault, own, all bool) {
	for _, f := range history {
		if now.at.Sub(f.at) < cordonWithin {
			kept = append(kept, f)
		}
	}
	kept = append(kept, now)
	mine := 0
	for _, f := range kept {
		if f.slug == now.slug {
			mine++
		}
	}
	return kept, mine >= cordonAfter, len(kept) >= cordonAfter && mine < len(kept)
}

// faulted counts a fault of a worker against its devices.
func (g *gpus) faulted(id, slug string, devices []string, words string) {
	if t := g.tenants[id]; t != nil {
		if t.faulty {
			return // it is on its way out
		}
		t.faulty = true
	}
	now := time.Now()
	for _, uuid := range devices {
		var own, all bool
		g.faults[uuid], own, all = countFault(g.faults[uuid], fault{now, slug})
		if !own && !all {
			continue
		}
		where := berth{uuid: uuid}
		if !all {
			where.slug = slug
		}
		reason := fmt.Sprintf("%d faults within %s, the last of %s: %s", len(g.faults[uuid]), cordonWithin, id, words)
		g.cordoned[where] = cordon{reason, now.Add(cordonFor)}
		g.log.Error("GPU is cordoned: no worker is placed on it", "gpu", uuid, "of", cmp.Or(where.slug, "any provider"), "for", cordonFor, keyReason, reason)
	}
	g.looked = time.Time{}
}

// uncordon gives devices another chance.
func (g *gpus) uncordon(now time.Time) {
	for where, c := range g.cordoned {
		if now.After(c.until) {
			delete(g.cordoned, where)
			delete(g.faults, where.uuid)
			g.log.Info("GPU is used again", "gpu", where.uuid)
		}
	}
}

// scanMost is how much of a worker's output is looked through at a time: what comes faster is skipped.
const scanMost = 1 << 20

// scanOutput looks through what workers have printed since the last time. That of docker and podman lies with the engine: it is
// looked through when a request fails (lane.go) and at the end.
func (g *gpus) scanOutput() {
	for _, t := range g.tenants {
		f := t.life
		if t.faulty || f.spec.faults == nil || f.spec.plan.Engine != "" {
			continue
		}
		var text []byte
		if text, t.read = readOn(f.paths.log, t.read); len(text) == 0 {
			continue
		}
		if words := f.faultIn(text); words != "" {
			f.onFault(words)
		}
	}
}

// readOn reads what a log has got since at, whole lines, and returns how far that is. A log that is shorter was rotated.
func readOn(path string, at int64) (text []byte, next int64) {
	st, err := os.Stat(path)
	if err != nil || st.Size() == at {
		return nil, at
	}
	if st.Size() < at {
		at = 0
	}
	at = max(at, st.Size()-scanMost)
	file, err := os.Open(path)
	if err != nil {
		return nil, at
	}
	defer func() { _ = file.Close() }()
	text, err = io.ReadAll(io.NewSectionReader(file, at, scanMost))
	if err != nil {
		return nil, at
	}
	if len(text) < scanMost { // half a line is read again when it is whole
		text = text[:bytes.LastIndexByte(text, '\n')+1]
	}
	return text, at + int64(len(text))
}

// onFault ends a worker whose GPU is lost to it. It may be called from any goroutine, and more than once.
func (f *life) onFault(words string) {
	id, devices := f.id, slices.Clone(f.gpus)
	f.p.sup.gpus.tell(func() { f.p.sup.gpus.faulted(id, f.p.slug, devices, words) })
	f.kill(causeGPU, faultReason(words))
}

// failedWith looks at an error that the worker answered, which may tell that its GPU is lost. Then the request is answered with
// what makes its caller try again, and the worker ends. In a container it looks at the last output as well, apart.
func (l *lane) failedWith(r *request, line []byte) bool {
	f := l.life
	words := f.faultIn(line)
	if words == "" {
		if f.spec.plan.Engine != "" && len(f.gpus) > 0 && f.spec.faults != nil {
			f.lookAtOutput()
		}
		return false
	}
	e := protocol.Errorf(protocol.WorkerCrashed, "the worker lost its GPU with this request and is replaced: %s", words).
		WithDetail(map[string]any{"gpu_fault": words, "gpus": f.gpus, "answer": excerpt(line)}).From(f.p.slug, f.id)
	l.pool.lost(l) // before the slot is freed: the next request must not be given this connection
	f.onFault(words)
	l.pool.resolve(r, l, false, e)
	return true
}

// errFault ends a connection to a worker that has lost its GPU.
var errFault = errors.New("the worker has lost its GPU")

// lookAtOutput has the engine tell what the worker printed last, one look at a time.
func (f *life) lookAtOutput() {
	b, ok := f.body.(*containerBody)
	if !ok || !f.looking.CompareAndSwap(false, true) {
		return
	}
	f.wg.Go(func() {
		defer f.looking.Store(false)
		ctx, cancel := context.WithTimeout(f.ctx, settleWithin)
		defer cancel()
		var out bytes.Buffer
		if b.engine.Logs(ctx, b.id, execenv.LogOptions{Tail: tailLines}, &out) == nil {
			if words := f.faultIn(out.Bytes()); words != "" {
				f.onFault(words)
			}
		}
	})
}
