package protocol

import (
	"encoding/json"
	"time"
)

// Status is what `workerd status --json`, GET /v1/providers and the method workerd.status answer.
type Status struct {
	Providers []ProviderStatus `json:"providers"`
}

// ProviderStatus is one entry of Status. A manifest that lost its slug to another one is an entry of its own.
type ProviderStatus struct {
	Slug          string          `json:"slug"`
	Title         string          `json:"title"`
	Kind          string          `json:"kind"`           // venv, docker, podman, apptainer
	State         string          `json:"state"`          // stopped starting loading ready draining backoff failed invalid
	Reason        string          `json:"reason"`         // why it is in that state, for people
	Manifest      string          `json:"manifest"`       // absolute path
	ManifestError []ManifestError `json:"manifest_error"` // null where the manifest on disk is the one in force
	FrontSocket   string          `json:"front_socket"`
	LastExit      *Exit           `json:"last_exit"`
	Queue         QueueStatus     `json:"queue"`
	InFlight      int             `json:"in_flight"`
	Workers       []WorkerStatus  `json:"workers"`
	Methods       []MethodInfo    `json:"methods,omitempty"`  // as the newest ready worker declared them
	Warnings      []string        `json:"warnings,omitempty"` // what the manifest asks for and this host cannot enforce
	// GPUFaults counts the workers that were replaced since they had lost their GPU. Such an end is no crash.
	GPUFaults int `json:"gpu_faults,omitempty"`
}

// ManifestError is one problem of a manifest: where it stands, and what would be right. Line and column count from 1; 0 is unknown.
type ManifestError struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Column  int    `json:"column"`
	Key     string `json:"key"`
	Message string `json:"message"`
}

// QueueStatus counts the requests that wait for a worker.
type QueueStatus struct {
	Waiting int `json:"waiting"`
	Limit   int `json:"limit"`
}

// WorkerStatus is one worker of a provider. Times are RFC 3339 UTC; ReadySince is null before it was ready.
type WorkerStatus struct {
	ID         string     `json:"id"` // <slug>/<n>
	State      string     `json:"state"`
	Role       string     `json:"role,omitempty"` // one of the Roles; missing for a worker that serves, or is to
	PID        int        `json:"pid"`            // host pid of the worker process itself; 0 where none runs
	Container  string     `json:"container"`
	Since      time.Time  `json:"since"` // of this state
	ReadySince *time.Time `json:"ready_since"`
	Restarts   int        `json:"restarts"`
	LastExit   *Exit      `json:"last_exit"`
	GPUs       []string   `json:"gpus"`
	RSSBytes   int64      `json:"rss_bytes"`
	Progress   *Progress  `json:"progress,omitempty"` // of loading
}

// The values of WorkerStatus.Role: workers beyond serve.replicas.
const (
	RoleStandby   = "standby"   // gets no requests until it takes over, which it can since ready_since; a warm one is loading meanwhile
	RoleCandidate = "candidate" // the next version, which replaces a worker when it is ready
	RoleLeaving   = "leaving"   // replaced, or one too many: it finishes what it runs
)

// Exit says how a worker ended. Code and Signal exclude each other; both are null where they cannot be known.
type Exit struct {
	Code      *int      `json:"code"`
	Signal    *string   `json:"signal"` // "SIGKILL", or null
	OOMKilled bool      `json:"oom_killed"`
	Reason    string    `json:"reason"`
	Output    string    `json:"output"` // the last lines that the worker printed
	Time      time.Time `json:"time"`
}

// Progress is what a worker reports while it loads or runs.
type Progress struct {
	Progress float64  `json:"progress"`
	Total    *float64 `json:"total,omitempty"`
	Message  string   `json:"message,omitempty"`
}

// MethodInfo describes one method of a worker. InputSchema is a JSON Schema of its parameters.
type MethodInfo struct {
	Name        string          `json:"name"`
	Description string          `json:"description,omitempty"`
	InputSchema json.RawMessage `json:"inputSchema,omitempty"`
}

// Event is one entry of GET /v1/events: every change of state with its reason, and the loading progress of workers.
type Event struct {
	Time     time.Time `json:"time"`
	Type     string    `json:"type"` // state, progress, manifest
	Provider string    `json:"provider"`
	Worker   string    `json:"worker,omitempty"`
	From     string    `json:"from,omitempty"`
	State    string    `json:"state,omitempty"`
	Reason   string    `json:"reason,omitempty"`
	Progress *Progress `json:"progress,omitempty"`
}
