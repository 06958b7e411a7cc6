package main

import (
	"context"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/stretchr/testify/require"
)

// measured is what workerd takes.
type measured struct{ fds, goroutines, resident int }

// like says whether m is what there was before: the same workers and no clients take the same, but for what is being tidied up.
func (m measured) like(before measured) bool {
	return m.fds <= before.fds+4 && m.goroutines <= before.goroutines+4 && m.resident <= before.resident*3/2+32<<20
}

// least asks workerd when its collector has run: the least of a while is what it really holds.
func (e *e2e) least() measured {
	e.t.Helper()
	least := measured{1 << 40, 1 << 40, 1 << 40}
	for range 10 {
		m := e.metrics()
		least = measured{min(least.fds, m.fds), min(least.goroutines, m.goroutines), min(least.resident, m.resident)}
		<-time.After(100 * time.Millisecond)
	}
	return least
}

func parseMetrics(text string) measured {
	values := map[string]float64{}
	for line := range strings.Lines(text) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		values[name], _ = strconv.ParseFloat(value, 64)
	}
	return measured{int(values["process_open_fds"]), int(values["go_goroutines"]), int(values["process_resident_memory_bytes"])}
}

// metrics asks workerd what it takes.
func (e *e2e) metrics() measured { return parseMetrics(e.metricsText()) }

// metricsText is what Prometheus gets.
func (e *e2e) metricsText() string {
	e.t.Helper()
	dial := func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "unix", filepath.Join(e.runtimeDir(), "workerd.sock"))
	}
	client := http.Client{Transport: &http.Transport{DialContext: dial, DisableKeepAlives: true}}
	resp, err := client.Get("http://workerd/metrics")
	require.NoError(e.t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	require.NoError(e.t, err)
	return string(text)
}
