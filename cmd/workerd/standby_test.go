package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// Workers beyond the replicas are counted apart: of a change of version that is under way status said 1/2, and its restarts twice.
func TestWorkersBeyondTheReplicas(t *testing.T) {
	since := time.Now()
	serves := protocol.WorkerStatus{State: "ready", Restarts: 2}
	tests := map[string]struct {
		workers []protocol.WorkerStatus
		want    string
	}{
		"none":                     {[]protocol.WorkerStatus{serves}, "1/1"},
		"a standby":                {[]protocol.WorkerStatus{serves, {Role: "standby", State: "ready", ReadySince: &since}}, "1/1 +standby"},
		"a warm one":               {[]protocol.WorkerStatus{serves, {Role: "standby", State: "loading", ReadySince: &since}}, "1/1 +standby"},
		"one that is not ready":    {[]protocol.WorkerStatus{serves, {Role: "standby", State: "loading"}}, "1/1 +standby loading"},
		"one that has failed":      {[]protocol.WorkerStatus{serves, {Role: "standby", State: "failed"}}, "1/1 +standby failed"},
		"a stopped one is no news": {[]protocol.WorkerStatus{{State: "stopped"}, {Role: "standby", State: "stopped"}}, "0/1"},
		"a change of version":      {[]protocol.WorkerStatus{serves, {Role: "leaving", State: "draining", Restarts: 2}}, "1/1 +leaving draining"},
		"a candidate":              {[]protocol.WorkerStatus{serves, {Role: "candidate", State: "loading"}}, "1/1 +candidate loading"},
	}
	for name, k := range tests {
		ready, seats := 0, 0
		for _, w := range k.workers {
			if w.Role == "" {
				seats++
				if w.State == "ready" {
					ready++
				}
			}
		}
		require.Equal(t, k.want, workersText(ready, seats, k.workers), name)
	}

	leaving := protocol.WorkerStatus{Role: "leaving", State: "draining", Restarts: 2}
	text := scrape(t, func([]string) protocol.Status {
		return protocol.Status{Providers: []protocol.ProviderStatus{{Slug: "x", State: "ready", Workers: []protocol.WorkerStatus{serves, leaving}}}}
	})
	for _, line := range []string{
		`workerd_workers{provider="x",state="ready"} 1`,
		`workerd_workers{provider="x",state="draining"} 0`,
		`workerd_workers_beyond_replicas{provider="x",role="leaving",state="draining"} 1`,
		`workerd_worker_restarts_total{provider="x"} 2`,
	} {
		require.Contains(t, text, line+"\n")
	}
}
