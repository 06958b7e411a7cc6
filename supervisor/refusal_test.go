package supervisor

import (
	"fmt"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// refusingWorker is of the Python SDK: waits until a file is there, or refuses as if it were stopping.
const refusingWorker = `
import os, time
from workerd import Worker, WorkerError
worker = Worker()

@worker.method
def wait(model, ctx, file):
    while not os.path.exists(file):
        time.sleep(0.01)
    return {"pid": os.getpid()}

@worker.method
def echo(model, ctx):
    return {"pid": os.getpid()}

@worker.method
def refuse(model, ctx):
    raise WorkerError("shutting_down", True)

if __name__ == "__main__":
    worker.run()
`

// Somebody sends a worker SIGTERM: what it runs it finishes, and what it refuses meanwhile is answered by the next worker.
func TestRefusedByAWorkerThatIsStopping(t *testing.T) {
	usual := rest
	rest = 5 * time.Second
	t.Cleanup(func() { rest = usual })
	r := newRig(t)
	r.python("echo", refusingWorker, "[restart]\nbackoff = \"10ms\"\n[serve]\nconcurrency = 2\n")
	r.load()
	pid := r.state("echo", "ready").Workers[0].PID
	busy, other := r.dial("echo"), r.dial("echo")
	require.Equal(t, pid, other.call("echo", `{}`).pid(t))
	file := t.TempDir() + "/go"
	busy.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"wait","params":{"file":%q}}`, file))
	r.until("echo", "it runs", func(s protocol.ProviderStatus) bool { return s.InFlight == 1 })
	require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
	eventually(t, func() bool {
		sockets, _ := filepath.Glob(filepath.Join(r.run, "w/echo/*.sock"))
		return len(sockets) == 0
	}, func() string { return "it is stopping" })
	other.send(`{"jsonrpc":"2.0","id":2,"method":"echo","params":{}}`)
	r.until("echo", "the other one waits", func(s protocol.ProviderStatus) bool { return s.Queue.Waiting == 1 })
	require.NoError(t, syscall.Mkfifo(file, 0o600))
	require.Equal(t, pid, busy.next().pid(t))
	require.NotEqual(t, pid, other.next().pid(t))

	// A worker that only says so is believed once, and loses nothing by it.
	next := r.dial("echo")
	require.Equal(t, protocol.ShuttingDown, next.call("refuse", `{}`).kind())
	require.NotZero(t, next.call("echo", `{}`).pid(t))
}
