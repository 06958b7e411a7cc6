package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/execenv/gpu/gputest"
	"workerd/protocol"
)

// withGPUs gives the machine cards: NVML is the library's stand-in, called as the real one is.
func (e *e2e) withGPUs(s gputest.Script) (script string) {
	e.t.Helper()
	if !readVersion().CGO {
		e.t.Fatal("NVML needs cgo")
	}
	script = filepath.Join(e.dir, "gpus")
	e.env[gputest.LibraryVariable] = gputest.Library(e.t)
	e.env[gputest.ScriptVariable] = script
	s.Write(e.t, script)
	return script
}

func card(i, gib int) gputest.Card {
	return gputest.Card{UUID: fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i), TotalMiB: gib << 10}
}

// gpuProvider writes a provider whose worker takes mib of each of its devices, and gives them back linger after its end.
func (e *e2e) gpuProvider(slug, tables string, mib int, linger time.Duration) {
	e.t.Helper()
	tables += fmt.Sprintf("\n[env.variables]\nMIB = \"%d\"\nLINGER = \"%g\"\n", mib, linger.Seconds())
	e.write(slug, "gpu.py", e.manifest(`worker = "gpu.py"`, fmt.Sprintf("python = %q", interpreter(e.t)), tables))
}

type where struct {
	PID     int
	GPUs    []string
	Visible string
}

func (e *e2e) where(slug string) (w where) {
	e.t.Helper()
	m, err := e.dial(slug).try("where", "{}")
	require.NoError(e.t, err)
	require.Nil(e.t, m.Error)
	require.NoError(e.t, json.Unmarshal(m.Result, &w))
	return w
}

const lazily = "[start]\nwhen = \"request\"\n"

func TestGPUsAreShown(t *testing.T) {
	e := newE2E(t)
	cards := gputest.Script{Cards: []gputest.Card{card(0, 24), card(1, 80)}}
	cards.Cards[1].Processes = []gputest.Process{{PID: 1, MiB: 7 << 10}}
	script := e.withGPUs(cards)
	e.gpuProvider("m", lazily+"[gpu]\npolicy = \"shared\"\nmemory = \"20GiB\"\n", 15<<10, 0)
	e.gpuProvider("cpu", lazily+"[gpu]\npolicy = \"none\"\n", 0, 0)
	e.start()
	w := e.where("m")
	assert.Equal(t, []string{cards.Cards[0].UUID}, w.GPUs)
	assert.Equal(t, cards.Cards[0].UUID, w.Visible)
	assert.Empty(t, e.where("cpu").GPUs)

	var g protocol.GPUs
	require.NoError(t, json.Unmarshal([]byte(e.ok("gpus", "--json")), &g))
	assert.Equal(t, "nvml", g.Source)
	assert.Equal(t, "550.54.15", g.Driver)
	d := g.Devices[0]
	assert.EqualValues(t, []int64{24 << 30, 15 << 30, 20 << 30, 4 << 30}, []int64{d.TotalBytes, d.UsedBytes, d.ReservedBytes, d.FreeBytes})
	assert.Equal(t, "m", d.Workers[0].Provider)
	assert.EqualValues(t, 15<<30, d.Workers[0].UsedBytes)
	assert.Equal(t, 1, g.Devices[1].Others[0].PID)
	text := e.ok("gpus")
	for _, want := range []string{"NVIDIA Stand-In", "15 GiB", "20 GiB", "usable", "m/", "idle", "pid 1 ("} {
		assert.Contains(t, text, want)
	}
	assert.Contains(t, e.ok("status", "m"), "GPU "+cards.Cards[0].UUID)
	assert.Contains(t, e.ok("doctor"), "1 x NVIDIA Stand-In, 24 GiB; 1 x NVIDIA Stand-In, 80 GiB, driver 550.54.15 (by nvml)")
	metrics := e.metricsText()
	assert.Contains(t, metrics, `workerd_gpu_memory_bytes{gpu="`+d.UUID+`",kind="reserved"} `)

	// Case 48: NVML hangs. Who needs no GPU notices nothing, and the last word on the others is shown.
	cards.Hang = "nvmlDeviceGetCount_v2"
	cards.Write(t, script)
	begin := time.Now()
	e.where("cpu")
	assert.Less(t, time.Since(begin), 5*time.Second)
	assert.Contains(t, e.ok("gpus"), "warning: ")
	cards.Hang = ""
	cards.Write(t, script)
	e.until("NVML answers again", func() bool { return !strings.Contains(e.ok("gpus"), "warning: ") })
}

// Without NVML nvidia-smi is asked: a child that workerd waits for itself, while it reaps what its workers orphan.
func TestGPUsByNvidiaSMI(t *testing.T) {
	e := newE2E(t)
	bin := filepath.Join(e.dir, "bin")
	require.NoError(t, os.Mkdir(bin, 0o755))
	writeProgram(t, filepath.Join(bin, "nvidia-smi"), `#!/bin/sh
case "$*" in
*index*) sleep 0.05; echo "0, GPU-00000000, 24576, 1024, 23000, 550.54.15, Disabled, 0, Old Card" ;;
esac
`)
	e.env["PATH"] = bin + ":" + e.env["PATH"]
	e.gpuProvider("m", lazily+"[gpu]\npolicy = \"shared\"\nmemory = \"20GiB\"\n", 0, 0)
	e.start()
	for range 10 {
		var g protocol.GPUs
		require.NoError(t, json.Unmarshal([]byte(e.ok("gpus", "--json")), &g))
		require.Equal(t, "nvidia-smi", g.Source, "%+v", g)
		require.Len(t, g.Devices, 1)
	}
}

// The memory of a dead worker: the next start waits for it, and not for a stranger's.
func TestGPUMemoryIsWaitedFor(t *testing.T) {
	e := newE2E(t)
	cards := gputest.Script{Cards: []gputest.Card{card(0, 24)}}
	script := e.withGPUs(cards)
	e.gpuProvider("fast", "[gpu]\npolicy = \"shared\"\nmemory = \"20GiB\"\n", 20<<10, 0)
	e.start()
	restart := func(slug string) time.Duration {
		t.Helper()
		pid := e.ready(slug)
		begin := time.Now()
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		assert.NotEqual(t, pid, e.where(slug).PID)
		return time.Since(begin)
	}
	assert.Less(t, restart("fast"), soon(time.Second))
	e.gpuProvider("slow", lazily+"[gpu]\npolicy = \"shared\"\nmemory = \"20GiB\"\n", 20<<10, 3*time.Second)
	e.ok("reload")
	e.where("slow") // the other one has made room
	took := restart("slow")
	assert.GreaterOrEqual(t, took, 2900*time.Millisecond)
	assert.Less(t, took, 3*time.Second+soon(time.Second))

	// A stranger: it is named, and left alone.
	e.ok("stop", "slow")
	stranger := exec.Command("sleep", "600")
	require.NoError(t, stranger.Start())
	defer func() { _ = stranger.Process.Kill(); _ = stranger.Wait() }()
	gputest.Hold(t, script, stranger.Process.Pid, cards.Cards[0].UUID, 20<<10, 0)
	e.gpuProvider("late", lazily+"[gpu]\npolicy = \"shared\"\nmemory = \"20GiB\"\nwait = \"4s\"\n", 20<<10, 0)
	e.ok("stop", "fast")
	e.ok("reload")
	begin := time.Now()
	m, err := e.dial("late").try("where", "{}")
	require.NoError(t, err)
	require.NotNil(t, m.Error)
	assert.Equal(t, protocol.NoGPU, m.Error.Data.Kind)
	assert.Contains(t, m.Error.Message, fmt.Sprintf("pid %d", stranger.Process.Pid))
	assert.GreaterOrEqual(t, time.Since(begin), 4*time.Second)
	assert.NoError(t, stranger.Process.Signal(syscall.Signal(0)))
	assert.Contains(t, e.fails(exitFailed, "start", "late"), "pid")
}

// 20 first requests at once on three providers of 10 GB over one card of 24 GB, with real workers.
func TestGPUsInTurns(t *testing.T) {
	e := newE2E(t)
	script := e.withGPUs(gputest.Script{Cards: []gputest.Card{card(0, 24)}})
	slugs := []string{"a", "b", "c"}
	for _, slug := range slugs {
		e.gpuProvider(slug, lazily+"[gpu]\npolicy = \"shared\"\nmemory = \"10GB\"\n", 9<<10, 0)
	}
	e.start()
	stop, most := make(chan struct{}), make(chan int)
	go func() {
		n := 0
		look := time.NewTicker(time.Millisecond)
		defer look.Stop()
		for {
			select {
			case <-stop:
				most <- n
				return
			case <-look.C:
				n = max(n, holders(script))
			}
		}
	}()
	var wg sync.WaitGroup
	for i := range 20 {
		w := e.dial(slugs[i%3])
		wg.Go(func() {
			m, err := w.try("compute", "{}")
			assert.NoError(t, err)
			assert.Nil(t, m.Error)
		})
	}
	wg.Wait()
	close(stop)
	assert.Equal(t, 2, <-most)
}

// holders counts the living processes that hold memory.
func holders(script string) (n int) {
	files, _ := filepath.Glob(script + ".d/*")
	for _, f := range files {
		if stat, err := os.ReadFile(filepath.Join("/proc", filepath.Base(f), "stat")); err == nil && !strings.Contains(string(stat), ") Z ") {
			n++
		}
	}
	return n
}

// A workerd that is killed and comes back knows what its workers hold, and reloads no model.
func TestGPUsAfterARestart(t *testing.T) {
	e := newE2E(t)
	e.withGPUs(gputest.Script{Cards: []gputest.Card{card(0, 24)}})
	e.gpuProvider("m", "[gpu]\npolicy = \"shared\"\nmemory = \"20GiB\"\npinned = true\n", 10<<10, 0)
	e.gpuProvider("other", lazily+"[gpu]\npolicy = \"shared\"\nmemory = \"6GiB\"\nwait = \"1s\"\n", 6<<10, 0)
	e.start()
	pid := e.ready("m")
	e.killsRecorded()
	e.start()
	assert.Equal(t, pid, e.ready("m"))
	assert.NotEmpty(t, e.status("m").Workers[0].GPUs)
	m, err := e.dial("other").try("where", "{}")
	require.NoError(t, err)
	require.NotNil(t, m.Error, "it has reserved more than it uses")
	assert.Contains(t, m.Error.Message, "m/1 (20 GiB)")
}

// Case 51: a worker whose context is dead.
func TestGPUFault(t *testing.T) {
	e := newE2E(t)
	e.withGPUs(gputest.Script{Cards: []gputest.Card{card(0, 24)}})
	e.gpuProvider("m", "[gpu]\npolicy = \"shared\"\nmemory = \"1GiB\"\n", 1<<10, 0)
	e.start()
	pid := e.ready("m")
	m, err := e.dial("m").try("broken", "{}")
	require.NoError(t, err)
	require.NotNil(t, m.Error)
	assert.Equal(t, protocol.WorkerCrashed, m.Error.Data.Kind)
	assert.True(t, m.Error.Data.Retryable)
	assert.Contains(t, m.Error.Message, "device-side assert")
	assert.NotEqual(t, pid, e.where("m").PID)
	assert.Contains(t, e.ok("status", "m"), "1 GPU fault")
}

// Case 41: inside an allocation only its devices exist. A manifest that names another one is refused, never given it by another name.
func TestGPUsOfAnAllocation(t *testing.T) {
	e := newE2E(t)
	cards := gputest.Script{Cards: []gputest.Card{card(0, 80), card(1, 80), card(2, 24), card(3, 24)}}
	e.withGPUs(cards)
	e.env["CUDA_VISIBLE_DEVICES"] = "2,3"
	e.gpuProvider("any", lazily+"[gpu]\npolicy = \"shared\"\nmemory = \"10GiB\"\n", 10<<10, 0)
	e.gpuProvider("zero", lazily+"[gpu]\npolicy = \"shared\"\ndevices = [\"0\"]\n", 0, 0)
	e.gpuProvider("three", lazily+"[gpu]\npolicy = \"shared\"\ndevices = [\"3\"]\n", 0, 0)
	e.gpuProvider("large", lazily+"[gpu]\npolicy = \"shared\"\nmemory = \"40GiB\"\n", 0, 0)
	e.start()
	assert.Equal(t, cards.Cards[2].UUID, e.where("any").Visible)
	assert.Equal(t, cards.Cards[3].UUID, e.where("three").Visible)
	for slug, why := range map[string]string{"zero": "outside of the allocation", "large": "40 GiB"} {
		m, err := e.dial(slug).try("where", "{}")
		require.NoError(t, err)
		require.NotNil(t, m.Error, slug)
		assert.Equal(t, protocol.NoGPU, m.Error.Data.Kind)
		assert.Contains(t, m.Error.Message, why)
	}
	var g protocol.GPUs
	require.NoError(t, json.Unmarshal([]byte(e.ok("gpus", "--json")), &g))
	assert.Len(t, g.Devices, 2)
	assert.Contains(t, e.ok("validate"), "outside of the allocation")
}
