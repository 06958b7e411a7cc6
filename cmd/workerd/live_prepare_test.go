package main

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// weights.prepare runs once, with a network and with progress, and not again until its content changes.
func TestLivePrepareRunsOnce(t *testing.T) {
	eachKind(t, allKinds, func(t *testing.T, l *live) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		defer func() { _ = listener.Close() }()
		_, port, err := net.SplitHostPort(listener.Addr().String())
		require.NoError(t, err)
		weights, open := filepath.Join(l.dir, "data/weights"), filepath.Join(l.dir, "gate/open")
		require.NoError(t, os.MkdirAll(filepath.Dir(open), 0o755))
		file := l.add("x", fmt.Sprintf("[env]\nnetwork = \"host\"\n[weights]\nroot = %q\nprepare = [\"fetch.py\", %q, %q]\n[paths]\nbinds = [%q]\n",
			weights, port, open, filepath.Dir(open)))
		script := filepath.Join(filepath.Dir(file), "fetch.py")
		const code = `
import os, socket, sys, time
socket.create_connection(("127.0.0.1", int(sys.argv[1]))).close()
print("shard 1 of 2", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.02)
with open(os.environ["WORKERD_WEIGHTS"] + "/model", "a") as f:
    f.write("x")
`
		require.NoError(t, os.WriteFile(script, []byte(code), 0o600))
		l.start()
		w := l.dial("x")
		_, err = w.request("count", `{"_meta":{"progressToken":1}}`)
		require.NoError(t, err)
		begin := time.Now()
		for heard := ""; !strings.Contains(heard, "shard 1 of 2"); {
			require.Less(t, time.Since(begin), patience, "last heard: %s", heard)
			m, err := w.read()
			require.NoError(t, err)
			require.Nil(t, m.Error)
			require.Nil(t, m.ID, "answered before the weights are there")
			heard = m.Params.Message
		}
		require.NoError(t, os.WriteFile(open, nil, 0o600))
		m, err := w.answer(nil)
		require.NoError(t, err)
		require.Nil(t, m.Error)
		model := func() string {
			return run[string](l, "x", "import os; answer = open(os.environ['WORKERD_WEIGHTS'] + '/model').read()", nil)
		}
		require.Equal(t, "x", model())
		if l.kind != "venv" {
			require.True(t, run[bool](l, "x", `
import os
try:
    open(os.environ["WORKERD_WEIGHTS"] + "/new", "w")
    answer = False
except OSError as e:
    answer = e.errno == 30
`, nil), "the worker itself may not write")
		}
		l.ok("restart", "x")
		require.Equal(t, "x", model())
		l.stop()
		l.start()
		require.Equal(t, "x", model())

		pid := l.worker("x").PID
		replace(t, script, code+"# another edition\n")
		l.until("it has run again", func() bool { return string(mustRead(t, filepath.Join(weights, "model"))) == "xx" })
		l.until("a worker that loads the new weights has taken over", func() bool {
			p := l.status("x")
			return p.State == "ready" && len(p.Workers) == 1 && p.Workers[0].PID != pid
		})
		require.Equal(t, "xx", model())
		l.until("no container of prepare is left", func() bool { return len(l.owned()) <= 1 })
	})
}

// Where the worker has no network its script still has one: the engine's, or where that has none to give the host's.
func TestLivePrepareHasANetwork(t *testing.T) {
	eachKind(t, containers, func(t *testing.T, l *live) {
		weights := filepath.Join(l.dir, "data/weights")
		file := l.add("x", fmt.Sprintf("[weights]\nroot = %q\nprepare = [\"fetch.py\"]\n", weights))
		const code = `
import os
with open(os.environ["WORKERD_WEIGHTS"] + "/model", "w") as f:
    f.write(" ".join(line.split(":")[0].strip() for line in open("/proc/net/dev").readlines()[2:]))
`
		require.NoError(t, os.WriteFile(filepath.Join(filepath.Dir(file), "fetch.py"), []byte(code), 0o600))
		l.start()
		l.worker("x")
		seen := string(mustRead(t, filepath.Join(weights, "model")))
		t.Log(seen)
		require.Greater(t, len(strings.Fields(seen)), 1, "lo alone is no network")
		require.Equal(t, 1, run[int](l, "x", "answer = len(open('/proc/net/dev').readlines()) - 2", nil), "the worker has none")
	})
}
