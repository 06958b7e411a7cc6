package main

import (
	"flag"
	"fmt"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol/prototest"
)

var scale = flag.Bool("scale", false, "run TestScale, which takes minutes and gigabytes")

// What a thousand providers, two hundred resident workers and ten thousand connections cost workerd itself. `make scale` runs it,
// without the race detector.
func TestScale(t *testing.T) {
	if !*scale {
		prototest.Needs(t, "scale", "make scale")
	}
	const onRequest, resident, connections = 1000, 200, 10_000
	e := newE2E(t)
	for n := range onRequest {
		e.bare(fmt.Sprintf("r%04d", n), "[start]\nwhen = \"request\"\n")
	}
	for n := range resident {
		e.bare(fmt.Sprintf("b%03d", n), "")
	}
	begin := time.Now()
	e.start()
	t.Logf("%d providers: ready after %s", onRequest+resident, time.Since(begin).Round(time.Millisecond))
	within(t, 5*time.Minute, "all resident workers are ready", func() bool {
		s, err := e.control().Status(t.Context())
		ready := 0
		for _, p := range s.Providers {
			if p.State == "ready" {
				ready++
			}
		}
		return err == nil && ready == resident
	})
	t.Logf("%d workers: ready after %s", resident, time.Since(begin).Round(time.Millisecond))
	<-time.After(10 * time.Second) // until what the starts left to do is done

	const idle = 30 * time.Second
	before := cpuTime(t, e.pid())
	<-time.After(idle) // what is measured
	used := cpuTime(t, e.pid()) - before
	m := e.metrics()
	t.Logf("idle: %.2f %% of a core, %d MiB, %d descriptors, %d goroutines, %d threads",
		100*used.Seconds()/idle.Seconds(), m.resident>>20, m.fds, m.goroutines, threads(t, e.pid()))
	require.Less(t, used, idle/100, "1 %% of a core")
	require.Less(t, m.resident, 100<<20)

	var limit syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit))
	require.Greater(t, limit.Cur, uint64(connections+1000), "ulimit -n")
	open := make([]*wire, 0, connections)
	for n := range connections {
		w, err := connect(e.front(fmt.Sprintf("r%04d", n%onRequest)))
		require.NoError(t, err)
		defer func() { _ = w.conn.Close() }()
		open = append(open, w)
	}
	for _, w := range open[:100] {
		require.NoError(t, w.silent())
	}
	e.until("all are taken", func() bool { return e.metrics().fds > connections })
	<-time.After(5 * time.Second)
	m = e.metrics()
	t.Logf("with %d connections: %d MiB, %d goroutines", connections, m.resident>>20, m.goroutines)
	require.Less(t, m.resident, 300<<20)
	for _, w := range open {
		require.NoError(t, w.silent())
	}
	require.Empty(t, e.marked("r"), "nothing was started")
}
