package main

import (
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"workerd/protocol"
	"workerd/supervisor"
)

// states are all that a provider can be in; each is a series, so that a query need not know which ever occurred.
var states = []string{"stopped", "starting", "loading", "ready", "draining", "backoff", "failed", "invalid"}

var (
	descState     = desc("provider_state", "1 for the state that the provider is in, 0 for the others.", "provider", "state")
	descWorkers   = desc("workers", "Workers that serve or are to, by state.", "provider", "state")
	descBeyond    = desc("workers_beyond_replicas", "Standby, candidate and leaving workers by role and state.", "provider", "role", "state")
	descInFlight  = desc("requests_in_flight", "Requests that a worker is busy with.", "provider")
	descWaiting   = desc("requests_waiting", "Requests that wait for a worker.", "provider")
	descLimit     = desc("requests_waiting_limit", "How many requests may wait.", "provider")
	descRequests  = desc("requests_total", "Requests that were answered, by outcome: result, worker_error (the worker's own), or the kind of workerd's error.", "provider", "outcome")
	descDuration  = desc("request_duration_seconds", "From when a request was read to its worker's answer.", "provider")
	descRestarts  = desc("worker_restarts_total", "Restarts of the provider's present workers.", "provider")
	descResident  = desc("workers_resident_bytes", "Resident memory of the workers' own processes.", "provider")
	descBroken    = desc("manifest_errors", "Problems of the manifest on disk, which is then not the one in force.", "provider")
	descGPUMemory = desc("gpu_memory_bytes", "Memory of a GPU as of the last look: total, used, reserved for workers, free for the next one.", "gpu", "kind")
	descGPUFaults = desc("gpu_faults_total", "Workers that were replaced since they had lost their GPU.", "provider")
	descGPUUsable = desc("gpu_usable", "Whether workers are placed on a GPU: 0 for one that is ill or cordoned.", "gpu")
	descBuildInfo = desc("build_info", "1.", "version", "revision")
)

func desc(name, help string, labels ...string) *prometheus.Desc {
	return prometheus.NewDesc("workerd_"+name, help, labels, nil)
}

// collector turns the status of a moment into metrics; it keeps nothing.
type collector struct {
	status func(slugs []string) protocol.Status
	gpus   func() protocol.GPUs // as of the last look
	// answers are those of each provider.
	answers func() map[string]supervisor.Answers
}

// metricsHandler serves the metrics of a registry of its own.
func metricsHandler(c collector) http.Handler {
	r := prometheus.NewRegistry()
	r.MustRegister(&c, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return promhttp.HandlerFor(r, promhttp.HandlerOpts{})
}

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{descState, descWorkers, descBeyond, descInFlight, descWaiting, descLimit, descRequests, descDuration, descRestarts, descResident, descBroken, descGPUMemory, descGPUFaults, descGPUUsable, descBuildInfo} {
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
	for _, d := range c.gpus().Devices {
		for kind, bytes := range map[string]int64{"total": d.TotalBytes, "used": d.UsedBytes, "reserved": d.ReservedBytes, "free": d.FreeBytes} {
			gauge(descGPUMemory, float64(bytes), d.UUID, kind)
		}
		usable := 0.0
		if d.State == protocol.GPUUsable {
			usable = 1
		}
		gauge(descGPUUsable, usable, d.UUID)
	}
	for slug, a := range c.answers() {
		collectAnswers(ch, slug, a)
	}
	seen := map[string]bool{}
	for _, p := range c.status(nil).Providers {
		if seen[p.Slug] { // a manifest that lost its slug to another one is no provider
			continue
		}
		seen[p.Slug] = true
		workers, beyond := map[string]int{}, map[[2]string]int{}
		restarts, resident := 0, int64(0)
		for _, w := range p.Workers {
			if w.Role == "" {
				workers[w.State]++
			} else {
				beyond[[2]string{w.Role, w.State}]++
			}
			if w.Role != protocol.RoleLeaving { // who replaced it counts on from its restarts
				restarts += w.Restarts
			}
			resident += w.RSSBytes
		}
		for k, n := range beyond {
			gauge(descBeyond, float64(n), p.Slug, k[0], k[1])
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
		ch <- prometheus.MustNewConstMetric(descGPUFaults, prometheus.CounterValue, float64(p.GPUFaults), p.Slug)
		ch <- prometheus.MustNewConstMetric(descRestarts, prometheus.CounterValue, float64(restarts), p.Slug)
	}
}

// collectAnswers sends the counters of one provider. The outcomes that there may always be are there from the first moment.
func collectAnswers(ch chan<- prometheus.Metric, slug string, a supervisor.Answers) {
	counter := func(n uint64, outcome string) {
		ch <- prometheus.MustNewConstMetric(descRequests, prometheus.CounterValue, float64(n), slug, outcome)
	}
	counter(a.Results, "result")
	counter(a.Errors, "worker_error")
	for kind, n := range a.Refused {
		counter(n, string(kind))
	}
	upTo, n := map[float64]uint64{}, uint64(0)
	for i, bound := range supervisor.AnswerBounds {
		n += a.Within[i]
		upTo[bound] = n
	}
	n += a.Within[len(supervisor.AnswerBounds)]
	ch <- prometheus.MustNewConstHistogram(descDuration, n, a.Seconds, upTo, slug)
}
