package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

func TestE2EReplicasChangeWhileTheyAreCalled(t *testing.T) {
	e := newE2E(t)
	file := e.bare("x", "[serve]\nreplicas = 1\n")
	e.start()
	e.ready("x")
	ctx, cancel := context.WithCancel(t.Context())
	caller := make(chan error, 1)
	go func() {
		caller <- e.besiege(ctx, "x", 4, false, func(what string) {
			if what == "crashed" {
				t.Error("a request was lost to an edit")
			}
		})
	}()
	text := string(mustRead(t, file))
	for _, replicas := range []int{3, 5, 2, 1} {
		replace(t, file, strings.Replace(text, "replicas = 1", fmt.Sprintf("replicas = %d", replicas), 1))
		e.until(fmt.Sprintf("%d replicas", replicas), func() bool {
			p := e.status("x")
			ready := 0
			for _, w := range p.Workers {
				if w.State == "ready" {
					ready++
				}
			}
			return ready == replicas && len(p.Workers) == replicas && len(e.marked("x/")) == replicas
		})
	}
	cancel()
	require.NoError(t, <-caller)
	require.NotContains(t, e.log.String(), "worker died")
}

func TestE2EReplicasShareTheWork(t *testing.T) {
	e := newE2E(t)
	e.provider("x", "[serve]\nreplicas = 2\nconcurrency = 2\nqueue = 1\n")
	e.start()
	e.until("both are ready", func() bool {
		p := e.status("x")
		return len(p.Workers) == 2 && p.Workers[0].State == "ready" && p.Workers[1].State == "ready"
	})
	w := e.dial("x")
	begin := time.Now()
	for range 6 {
		_, err := w.request("sleep", `{"seconds":2}`)
		require.NoError(t, err)
	}
	pids, kinds := map[int]int{}, map[protocol.Kind]int{}
	for range 6 {
		m, err := w.answer(nil)
		require.NoError(t, err)
		kinds[m.kind()]++
		if m.Error == nil {
			pids[m.said().PID]++
		}
	}
	require.Equal(t, map[protocol.Kind]int{"": 5, protocol.QueueFull: 1}, kinds, "four run, one waits, one is refused")
	require.Len(t, pids, 2)
	require.Less(t, time.Since(begin), 4*time.Second+soon(time.Second))
}

func TestE2EASlugThatMoves(t *testing.T) {
	e := newE2E(t)
	first := e.editable("first", "slug = \"model\"")
	e.start()
	first.slug = "model"
	_, pid := first.runs(1)
	require.NoFileExists(t, e.front("first"))

	second := e.editable("second", "slug = \"model\"") // its slug is taken: it is shown, and hurts nobody
	e.until("the second is refused", func() bool {
		s, err := e.control().Status(t.Context())
		return err == nil && len(s.Providers) == 2
	})
	require.Contains(t, e.ok("status"), second.file)
	_, still := first.runs(1)
	require.Equal(t, pid, still)

	require.NoError(t, os.Remove(first.file)) // now it is the second's
	second.slug = "model"
	e.until("the second is served", func() bool { return e.status("model").Manifest == second.file && second.started() == "1" })
	e.until("the first is gone", func() bool { return !alive(pid) })
	second.runs(1)

	replace(t, second.file, strings.Replace(second.text(2), "\"model\"", "\"other\"", 1))
	e.until("the old slug is gone", func() bool { _, err := os.Lstat(e.front("model")); return err != nil })
	second.slug = "other"
	e.until("the new one is served", func() bool { _, err := os.Lstat(e.front("other")); return err == nil })
	second.runs(2)
	require.NoFileExists(t, filepath.Join(e.runtimeDir(), "model.sock"))
}

func TestE2EClientsThatMisbehaveHurtNobody(t *testing.T) {
	e := newE2E(t)
	e.bare("x", "")
	e.start()
	w := e.dial("x")
	pid := e.call(w, "echo", "{}").PID
	before := openFiles(t, e.pid())

	// One that sends and never reads: its answers wait at most so long as it stays.
	slow := e.dial("x")
	require.NoError(t, slow.conn.SetWriteDeadline(time.Now().Add(2*time.Second)))
	line := `{"jsonrpc":"2.0","id":%d,"method":"echo","params":{"text":"x","times":200000}}` + "\n"
	sent := 0
	for ; sent < 60; sent++ {
		if _, err := fmt.Fprintf(slow.conn, line, sent); err != nil {
			break
		}
	}
	begin := time.Now()
	require.Equal(t, pid, e.call(w, "echo", "{}").PID)
	t.Logf("%d requests of 200 kB each unread; another is answered after %s", sent, time.Since(begin).Round(time.Millisecond))

	// Many that connect and say nothing.
	idle := make([]*wire, 500)
	for i := range idle {
		var err error
		idle[i], err = connect(e.front("x"))
		require.NoError(t, err)
	}
	require.Equal(t, pid, e.call(w, "echo", "{}").PID)
	for _, w := range idle {
		require.NoError(t, w.conn.Close())
	}
	require.NoError(t, slow.conn.Close())
	e.until("their descriptors are closed", func() bool { return openFiles(t, e.pid()) <= before+1 })
	require.Equal(t, pid, e.call(w, "echo", "{}").PID)
	require.Equal(t, 0, e.status("x").Workers[0].Restarts)
}
