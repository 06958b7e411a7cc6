package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// standbyWorker is a real worker, of the Python SDK. Its first words are its pid.
const standbyWorker = `
import os
from workerd import Worker
worker = Worker()

@worker.method
def echo(model, ctx):
    return {"pid": os.getpid()}

if __name__ == "__main__":
    worker.run()
`

// findPython is asked once, before there are workers: a supervisor would take the process for an orphan of one and wait for it.
var findPython = sync.OnceValues(func() ([]byte, error) {
	return exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
})

// interpreter is the one behind python3 in PATH, which may be a wrapper that takes its time.
func interpreter(t testing.TB) string {
	t.Helper()
	out, err := findPython()
	require.NoError(t, err)
	return strings.TrimSpace(string(out))
}

// python writes a provider with a Python worker.
func (r *rig) python(slug, worker, toml string) {
	r.t.Helper()
	sdk, err := filepath.Abs("../protocol/pysdk")
	require.NoError(r.t, err)
	require.NoError(r.t, os.WriteFile(filepath.Join(r.dir, slug+".py"), []byte(worker), 0o600))
	text := fmt.Sprintf("worker = %q\n[env]\nkind = \"venv\"\npython = %q\n[env.variables]\nPYTHONPATH = %q\nPYTHONDONTWRITEBYTECODE = \"1\"\n%s",
		slug+".py", interpreter(r.t), sdk, toml)
	require.NoError(r.t, os.WriteFile(filepath.Join(r.dir, slug+".toml"), []byte(text), 0o600))
}

// BenchmarkTakeover compares, in one run and in turns, a normal round trip with the first answer after kill -9 of a worker that has a
// hot standby: the time from the kill to the answer to a request that is sent right after it. Most of that is the kernel's, which
// takes a process apart before it tells anybody: bare-us is the time from kill to wait of such a worker without any workerd.
func BenchmarkTakeover(b *testing.B) {
	r := newRig(b)
	r.python("echo", standbyWorker, "[restart]\nbackoff = \"0s\"\nmax_crashes = 1000000\n[serve]\nstandby = \"hot\"\n")
	r.load()
	c := r.dial("echo")
	var normal, after, bare []time.Duration
	trip := func() (time.Duration, int) {
		begin := time.Now()
		a := c.call("echo", `{}`)
		return time.Since(begin), a.pid(b)
	}
	b.ResetTimer()
	for range b.N {
		r.until("echo", "a loaded standby", func(s protocol.ProviderStatus) bool { return standbyOf(s).State == "ready" })
		var trips []time.Duration
		pid := 0
		for range 50 {
			took, who := trip()
			trips, pid = append(trips, took), who
		}
		normal = append(normal, median(trips))
		begin := time.Now()
		require.NoError(b, syscall.Kill(pid, syscall.SIGKILL))
		_, next := trip()
		after = append(after, time.Since(begin))
		require.NotEqual(b, pid, next)
		bare = append(bare, r.bareDeath(b))
	}
	b.StopTimer()
	us := func(d []time.Duration) float64 { return float64(median(d).Nanoseconds()) / 1e3 }
	b.ReportMetric(us(normal), "trip-us")
	b.ReportMetric(us(after), "takeover-us")
	b.ReportMetric(us(bare), "bare-us")
	b.ReportMetric(us(after)/us(normal), "x-trip")
	b.ReportMetric(float64(slices.Max(after).Nanoseconds())/1e3, "max-us")
	b.ReportMetric(0, "ns/op")
}

// bareDeath starts such a worker by itself, kills it when it listens, and says how long it took to wait for.
func (r *rig) bareDeath(b *testing.B) time.Duration {
	socket := filepath.Join(b.TempDir(), "s")
	sdk, err := filepath.Abs("../protocol/pysdk")
	require.NoError(b, err)
	cmd := exec.Command(interpreter(b), filepath.Join(r.dir, "echo.py"))
	cmd.Env = append(os.Environ(), "WORKERD_SOCKET="+socket, "PYTHONPATH="+sdk)
	_, err = r.sup.children.Start(func() (int, error) { // or workerd would take it for an orphan of a worker
		err := cmd.Start()
		return cmd.Process.Pid, err
	})
	require.NoError(b, err)
	eventually(b, func() bool { _, err := os.Stat(socket); return err == nil }, func() string { return "it listens" })
	var took time.Duration
	begin := time.Now()
	require.NoError(b, cmd.Process.Kill())
	r.sup.children.Done(cmd.Process.Pid, func() { _ = cmd.Wait(); took = time.Since(begin) })
	return took
}

// standbyOf is the worker that stands by; the zero one where there is none.
func standbyOf(s protocol.ProviderStatus) protocol.WorkerStatus {
	for _, w := range s.Workers {
		if w.Role == protocol.RoleStandby {
			return w
		}
	}
	return protocol.WorkerStatus{}
}
