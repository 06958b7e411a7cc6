package supervisor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"workerd/protocol"
)

func TestFaultPatterns(t *testing.T) {
	re := compileFaults(nil)
	for text, want := range map[string]bool{
		"RuntimeError: CUDA error: unspecified launch failure":                             true,
		"RuntimeError: CUDA error: device-side assert triggered\nCUDA kernel errors might": true,
		"RuntimeError: CUDA error: an illegal memory access was encountered":               true,
		"Failed to initialize NVML: Unknown Error":                                         true,
		"XlaRuntimeError: INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal":                true,
		"NVRM: Xid (PCI:0000:3b:00): 79, pid=123, GPU has fallen off the bus.":             true,
		"hipErrorIllegalAddress": true,
		"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate": false,
		"CUDA error: out of memory":                                     false,
		"NVRM: Xid (PCI:0000:3b:00): 13, Graphics Exception":            false,
		"all is well": false,
	} {
		assert.Equal(t, want, re.MatchString(text), text)
	}
	assert.Nil(t, compileFaults([]string{}), "an empty list turns it off")
	own := compileFaults([]string{"x|y", "lost it"})
	assert.True(t, own.MatchString("we lost it"))
	assert.False(t, own.MatchString("device-side assert triggered"))
}

func TestCountFault(t *testing.T) {
	now := time.Now()
	at := func(slug string, ago time.Duration) fault { return fault{now.Add(-ago), slug} }
	for name, k := range map[string]struct {
		history  []fault
		kept     int
		own, all bool
	}{
		"the first":                       {nil, 1, false, false},
		"the second, and one of long ago": {[]fault{at("a", time.Hour), at("a", time.Minute)}, 2, false, false},
		"the third":                       {[]fault{at("a", 2*time.Minute), at("a", time.Minute)}, 3, true, false},
		"another provider met one too":    {[]fault{at("a", 2*time.Minute), at("b", time.Minute)}, 3, false, true},
		"two others":                      {[]fault{at("b", 2*time.Minute), at("b", time.Minute)}, 3, false, true},
	} {
		kept, own, all := countFault(k.history, fault{now, "a"})
		assert.Len(t, kept, k.kept, name)
		assert.Equal(t, k.own, own, name)
		assert.Equal(t, k.all, all, name)
	}
}

// Cases 49 and 51: a worker that lives and answers ping, and has lost its GPU, is replaced. Its request hears that it may try again.
func TestCase49GPUFault(t *testing.T) {
	r, c := newGPURig(t, cardOf(0, 24, 0))
	r.gpuProvider(c, "m", "policy = \"shared\"\nmemory = \"1GiB\"", 1<<10, "")
	r.gpuProvider(c, "again", "policy = \"shared\"\nmemory = \"1GiB\"", 1<<10, onRequest+"[serve]\nretry_on_crash = true\n")
	r.gpuProvider(c, "cpu", "policy = \"none\"", 0, "")
	r.load()
	r.state("m", "ready")
	cl := r.dial("m")
	first := cl.call("echo", `{}`).pid(t)
	failure := raw(`{"jsonrpc":"2.0","id":$ID,"error":{"code":-32000,"message":"RuntimeError: CUDA error: device-side assert triggered","data":{"kind":"worker_error","retryable":false}}}` + "\n")
	a := cl.call("raw", failure)
	assert.Equal(t, protocol.WorkerCrashed, a.kind(), "%+v", a)
	assert.True(t, a.Error.Data.Retryable)
	assert.Contains(t, a.Error.Message, "device-side assert triggered")
	second := cl.call("echo", `{}`).pid(t)
	assert.NotEqual(t, first, second)
	st := r.state("m", "ready")
	assert.Equal(t, 1, st.GPUFaults)
	assert.Contains(t, st.LastExit.Reason, "GPU fault")

	// It prints it, and the request goes on: the request is the worker's last one.
	a = cl.call("sleep", `{"sec":60,"text":"NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."}`)
	assert.Equal(t, protocol.WorkerCrashed, a.kind())
	r.until("m", "the fault is counted", func(s protocol.ProviderStatus) bool { return s.GPUFaults == 2 && s.State == "ready" })

	// One that dies of it is no crash either. The third on one device is one too many.
	require.Equal(t, "ready", r.status("m").State)
	a = cl.call("print", `{"text":"terminate called: CUDA error: misaligned address"}`)
	require.Nil(t, a.Error)
	_ = cl.call("crash", `{"code":6}`)
	a = r.dial("m").call("echo", `{}`)
	assert.Equal(t, protocol.NoGPU, a.kind(), "%+v", a)
	assert.Contains(t, a.Error.Message, "cordoned for this provider")
	g := r.sup.GPUs(t.Context()).Devices[0]
	assert.Equal(t, protocol.GPUUsable, g.State, "a program that is wrong takes no device away from others")
	assert.Contains(t, g.Reason, "cordoned for m: 3 faults")
	a = r.dial("again").call("raw", failure)
	assert.Equal(t, protocol.NoGPU, a.kind(), "%+v", a) // tried once more, and the device is to blame now
	g = r.sup.GPUs(t.Context()).Devices[0]
	assert.Equal(t, protocol.GPUCordoned, g.State)

	// Without a GPU such words mean nothing, and out of memory is none.
	a = r.dial("cpu").call("raw", failure)
	assert.Equal(t, protocol.WorkerError, a.kind())
}

func raw(line string) string {
	b, _ := json.Marshal(map[string]string{"raw": line})
	return string(b)
}

func TestGPUFaultIsRetried(t *testing.T) {
	r, c := newGPURig(t, cardOf(0, 24, 0))
	flag := filepath.Join(t.TempDir(), "faulty")
	require.NoError(t, os.WriteFile(flag, nil, 0o600))
	r.gpuProvider(c, "m", "policy = \"shared\"\nfault_patterns = [\"lost my (GPU|way)\"]", 1<<10, onRequest+"[serve]\nretry_on_crash = true\n", "FAULTY="+flag)
	r.load()
	a := r.dial("m").call("faulty", `{}`)
	assert.Nil(t, a.Error, "%+v", a.Error)
	assert.Equal(t, 1, r.status("m").GPUFaults)
}

// A standby has a place of its own, and is the first to leave it.
func TestGPUStandby(t *testing.T) {
	r, c := newGPURig(t, cardOf(0, 24, 0), cardOf(1, 24, 20))
	r.gpuProvider(c, "hot", "policy = \"shared\"\nmemory = \"10GiB\"", 10<<10, "[serve]\nstandby = \"hot\"\n")
	r.load()
	st := r.until("hot", "it has a standby", func(s protocol.ProviderStatus) bool {
		return len(s.Workers) == 2 && s.Workers[1].ReadySince != nil
	})
	first := r.dial("hot").call("echo", `{}`).pid(t)
	require.Equal(t, first, st.Workers[0].PID)
	require.NoError(t, unix.Kill(first, unix.SIGKILL))
	assert.Equal(t, st.Workers[1].PID, r.dial("hot").call("echo", `{}`).pid(t))
	st = r.until("hot", "it has another one", func(s protocol.ProviderStatus) bool {
		return len(s.Workers) == 2 && s.Workers[1].ReadySince != nil && s.Workers[1].PID != first
	})
	// Somebody else needs the memory: a standby is the first to go, and does not come back before there is room.
	r.gpuProvider(c, "other", "policy = \"shared\"\nmemory = \"12GiB\"", 12<<10, onRequest)
	r.load()
	require.Nil(t, r.dial("other").call("echo", `{}`).Error)
	st = r.until("hot", "the standby has gone", func(s protocol.ProviderStatus) bool {
		return len(s.Workers) == 2 && s.Workers[1].PID == 0 && s.Workers[1].State == "backoff"
	})
	assert.Equal(t, "ready", st.State)
	c.set(func(c *cards) { assert.LessOrEqual(t, c.most, 3) })
}

// A warm standby has nothing on a GPU until it takes the place of the worker beside which it waits.
func TestGPUWarmStandby(t *testing.T) {
	r, c := newGPURig(t, cardOf(0, 24, 0), cardOf(1, 24, 0))
	r.gpuProvider(c, "warm", "policy = \"exclusive\"\nmemory = \"20GiB\"", 0, "[serve]\nstandby = \"warm\"\n")
	r.load()
	st := r.until("warm", "it has a standby", func(s protocol.ProviderStatus) bool {
		return len(s.Workers) == 2 && s.Workers[1].ReadySince != nil
	})
	assert.Equal(t, st.Workers[0].GPUs, st.Workers[1].GPUs)
	require.NoError(t, unix.Kill(st.Workers[0].PID, unix.SIGKILL))
	require.Nil(t, r.dial("warm").call("echo", `{}`).Error)
	eventually(t, func() bool {
		for _, d := range r.sup.GPUs(t.Context()).Devices {
			for _, w := range d.Workers {
				if w.ID == st.Workers[1].ID {
					return w.ReservedBytes == 20*gib && w.Exclusive
				}
			}
		}
		return false
	}, func() string { return fmt.Sprintf("%+v", r.sup.GPUs(t.Context())) })
}
