package supervisor

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/execenv/gpu"
)

// cards is a machine's GPUs as they look from NVML: real processes hold memory of them, which they say in files of a folder, for as
// long as they live and the driver's linger longer.
type cards struct {
	dir string

	mu      sync.Mutex
	devices []gpu.Device
	linger  time.Duration
	gone    map[int]time.Time // when a process was seen to be dead first
	problem string
	most    int // processes that held memory at a time
}

func newCards(t testing.TB, devices ...gpu.Device) *cards {
	return &cards{dir: t.TempDir(), devices: devices, gone: map[int]time.Time{}}
}

func (c *cards) set(change func(*cards)) {
	c.mu.Lock()
	defer c.mu.Unlock()
	change(c)
}

// takeGPU has a process hold memory of devices from now on.
func takeGPU(dir string, pid int, devices []string, mib string) {
	var text strings.Builder
	for _, d := range devices {
		_, _ = fmt.Fprintf(&text, "%s %s\n", d, mib)
	}
	tmp := filepath.Join(dir, "."+strconv.Itoa(pid))
	_ = os.WriteFile(tmp, []byte(text.String()), 0o600)
	_ = os.Rename(tmp, filepath.Join(dir, strconv.Itoa(pid)))
}

func (c *cards) Snapshot(context.Context) (gpu.Snapshot, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := gpu.Snapshot{Source: "test", Problem: c.problem, Time: time.Now(), Devices: slices.Clone(c.devices)}
	if c.problem != "" {
		s.Devices = nil
	}
	files, _ := filepath.Glob(filepath.Join(c.dir, "[0-9]*"))
	holding := map[int]bool{}
	for _, f := range files {
		pid, _ := strconv.Atoi(filepath.Base(f))
		living := alive(pid)
		if _, dead := c.gone[pid]; !living && !dead {
			c.gone[pid] = time.Now()
		}
		if at, dead := c.gone[pid]; dead && time.Since(at) >= c.linger {
			continue
		}
		data, _ := os.ReadFile(f)
		for line := range strings.Lines(string(data)) {
			uuid, mib, _ := strings.Cut(strings.TrimSpace(line), " ")
			n, _ := strconv.ParseInt(mib, 10, 64)
			for i := range s.Devices {
				if d := &s.Devices[i]; d.UUID == uuid {
					d.Used += n << 20
					holding[pid] = true
					if living { // as NVML, which knows no process that has ended
						d.Processes = append(d.Processes, gpu.Process{PID: pid, Memory: n << 20})
					}
				}
			}
		}
	}
	c.most = max(c.most, len(holding))
	return s, nil
}

// newGPURig is a rig on a machine with GPUs.
func newGPURig(t testing.TB, devices ...gpu.Device) (*rig, *cards) {
	t.Helper()
	c := newCards(t, devices...)
	return newRigOf(t, &rig{gpus: c}), c
}

// gpuProvider writes a provider that takes mib of each device that it is given. body is as rig.provider's, without [gpu].
func (r *rig) gpuProvider(c *cards, slug, table string, mib int, body string, env ...string) {
	r.t.Helper()
	r.provider(slug, body+"\n[gpu]\n"+table+"\n", append(env, "GPU_DIR="+c.dir, "GPU_MIB="+strconv.Itoa(mib))...)
}

const onRequest = "[start]\nwhen = \"request\"\n"

// stranger is a process of nobody's that holds memory of a device.
func (c *cards) stranger(t testing.TB, uuid string, mib int, env ...string) int {
	t.Helper()
	p, err := os.StartProcess("/bin/sleep", []string{"sleep", "600"}, &os.ProcAttr{Env: append(env, "NOTHING=")})
	require.NoError(t, err)
	waited := make(chan struct{})
	go func() { defer close(waited); _, _ = p.Wait() }()
	t.Cleanup(func() { _ = p.Kill(); <-waited })
	takeGPU(c.dir, p.Pid, []string{uuid}, strconv.Itoa(mib))
	return p.Pid
}
