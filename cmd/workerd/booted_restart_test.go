package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
	"workerd/protocol/control"
)

// Who connects while workerd restarts, or after it was killed, waits in the backlog of a listener that systemd holds.
func TestBootedRestartRefusesNobody(t *testing.T) {
	b := newBooted(t)
	b.counter("count", "")
	b.counter("more", "")
	b.ok("install", "--now")
	b.ready("count")
	b.ready("more")
	var over atomic.Bool
	var answered atomic.Int64
	ended := make(chan map[string]int, 1)
	failed := make(chan error, 16)
	go func() {
		ended <- gather(t, 9, func(i int, count func(string)) error {
			for !over.Load() {
				if i == 8 {
					if err := control.NewClient(filepath.Join(b.runtimeDir(), "workerd.sock")).Health(t.Context()); errors.Is(err, control.ErrNotRunning) {
						failed <- err
					}
					count("health")
					continue
				}
				w, err := connect(b.front([]string{"count", "more"}[i%2]))
				if err != nil {
					failed <- fmt.Errorf("connect: %w", err)
					return nil
				}
				m, err := w.try("count", "{}")
				_ = w.conn.Close()
				switch {
				case err != nil:
					count("connection closed")
				case m.Error == nil:
					count("answered")
					answered.Add(1)
				case m.kind() == protocol.ShuttingDown:
					count(string(m.kind()))
				default:
					failed <- m.Error
				}
			}
			return nil
		})
	}()
	more := func() { // answers come again
		t.Helper()
		n := answered.Load()
		b.until("answers come", func() bool { return answered.Load() > n+100 })
	}
	for n := range 3 {
		more()
		begin := time.Now()
		b.does("restart", "workerd")
		t.Logf("restart %d: %s", n+1, time.Since(begin).Round(time.Millisecond))
	}
	more()
	require.NoError(t, syscall.Kill(b.main(), syscall.SIGKILL))
	b.restarted(1)
	more()
	over.Store(true)
	t.Log(<-ended)
	select {
	case err := <-failed:
		t.Fatal(err)
	default:
	}
	require.Equal(t, "3", b.is("NFileDescriptorStore"), "two front sockets and the control socket, once each")

	// A provider that goes takes its listener along.
	require.NoError(t, os.Remove(filepath.Join(b.manifests(), "more", "provider.toml")))
	b.until("its socket is gone", func() bool { return b.status("more").State == "" })
	b.until("its listener is gone", func() bool { return b.is("NFileDescriptorStore") == "2" })
	b.stopped()
	require.Equal(t, "0", b.is("NFileDescriptorStore"))
	require.NoFileExists(t, b.front("count"))
	require.NoFileExists(t, filepath.Join(b.runtimeDir(), "workerd.sock"))
}
