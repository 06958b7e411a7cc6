package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"workerd/protocol"
)

// states are all that a provider can be in; each is a series, so that a query need not know which ever occurred.
var states = []string{"stopped", "starting", "loading", "ready", "draining", "backoff", "failed", "invalid"}

var (
	descState     = desc("provider_state", "1 for the state that the provider is in, 0 for the others.", "provider", "state")
	descWorkers   = desc("workers", "Workers by state.", "provider", "state")
	descInFlight  = desc("requests_in_flight", "Requests that a worker is busy with.", "provider")
	descWaiting   = desc("requests_waiting", "Requests that wait for a worker.", "provider")
	descLimit     = desc("requests_waiting_limit", "How many requests may wait.", "provider")
	descRestarts  = desc("worker_restarts_total", "Restarts of the provider's present workers.", "provider")
	descResident  = desc("workers_resident_bytes", "Resident memory of the workers' own processes.", "provider")
	descBroken    = desc("manifest_errors", "Problems of the manifest on disk, which is then not the one in force.", "provider")
	descBuildInfo = desc("build_info", "1.", "version", "revision")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("workerd_"+name, help, labels, nil)
}

// collector turns the status of a moment into metrics; it keeps nothing.
type collector struct {
	status func(slugs []string) protocol.Status
}

// metricsHandler serves the metrics of a registry of its own.
func metricsHandler(status func(slugs []string) protocol.Status) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(&collector{status}, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descState, descWorkers, descInFlight, descWaiting, descLimit, descRestarts, descResident, descBroken, descBuildInfo} {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	v := readVersion()
	gauge(descBuildInfo, 1, v.Version, v.Revision)
	seen := map[string]bool{}
	for _, p := range c.status(nil).Providers {
		if seen[p.Slug] { // a manifest that lost its slug to another one is no provider
			continue
		}
		seen[p.Slug] = true
		workers := map[string]int{}
		restarts, resident := 0, int64(0)
		for _, w := range p.Workers {
			workers[w.State]++
			restarts += w.Restarts
			resident += w.RSSBytes
		}
		for _, state := range states {
			is := 0.0
			if state == p.State {
				is = 1
			}
			gauge(descState, is, p.Slug, state)
			if state != "invalid" { // no state of a worker
				gauge(descWorkers, float64(workers[state]), p.Slug, state)
			}
		}
		gauge(descInFlight, float64(p.InFlight), p.Slug)
		gauge(descWaiting, float64(p.Queue.Waiting), p.Slug)
		gauge(descLimit, float64(p.Queue.Limit), p.Slug)
		gauge(descResident, float64(resident), p.Slug)
		gauge(descBroken, float64(len(p.ManifestError)), p.Slug)
		ch <- prometheus.MustNewConstMetric(descRestarts, prometheus.CounterValue, float64(restarts), p.Slug)
	}
}
