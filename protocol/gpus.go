package protocol

import "time"

// GPUs is what `workerd gpus --json` and GET /v1/gpus answer.
type GPUs struct {
	Driver  string      `json:"driver"`  // version; "" where it is not known
	Source  string      `json:"source"`  // who was asked: nvml, nvidia-smi, sysfs, ..., joined with "+"; "" where there is no GPU
	Problem string      `json:"problem"` // why figures are missing or old; "" where all is well
	Time    time.Time   `json:"time"`    // when the figures were true
	Devices []GPUStatus `json:"devices"`
	Waiting []GPUWait   `json:"waiting"` // in the order in which they are served
}

// The values of GPUStatus.State.
const (
	GPUUsable   = "usable"
	GPUSplit    = "split"    // in MIG mode: its MIG devices are used
	GPUIll      = "ill"      // lost, or with errors that it cannot correct
	GPUCordoned = "cordoned" // workers met too many faults on it
)

// GPUStatus is one card or MIG device. Sizes are bytes; 0 where the memory cannot be told.
type GPUStatus struct {
	Index         int    `json:"index"`
	UUID          string `json:"uuid"`
	Name          string `json:"name"`
	Vendor        string `json:"vendor"`
	Card          string `json:"card,omitempty"` // of a MIG device: the UUID of its card
	State         string `json:"state"`
	Reason        string `json:"reason"`
	TotalBytes    int64  `json:"total_bytes"`
	UsedBytes     int64  `json:"used_bytes"`
	ReservedBytes int64  `json:"reserved_bytes"` // for workers, what they use of it included
	FreeBytes     int64  `json:"free_bytes"`     // for the next worker: total less what is used and what is reserved and not used yet
	Faults        int    `json:"faults"`         // of workers on it, in the last ten minutes

	Workers []GPUWorker  `json:"workers"`
	Others  []GPUProcess `json:"others"` // processes of no living worker
}

// GPUWorker is a worker that has a device.
type GPUWorker struct {
	ID            string `json:"id"` // <slug>/<n>
	Provider      string `json:"provider"`
	ReservedBytes int64  `json:"reserved_bytes"` // 0: nothing is known of what it takes
	UsedBytes     int64  `json:"used_bytes"`     // -1: something, but how much cannot be told
	Exclusive     bool   `json:"exclusive"`
	Idle          bool   `json:"idle"` // so that it may have to make room
	Standby       bool   `json:"standby"`
	Pinned        bool   `json:"pinned"`
	Priority      int    `json:"priority"`
	Leaving       bool   `json:"leaving"` // it makes room
}

// GPUProcess is a process that is of no living worker.
type GPUProcess struct {
	PID       int    `json:"pid"`
	Name      string `json:"name"`
	UsedBytes int64  `json:"used_bytes"` // -1: not known
	Worker    string `json:"worker,omitempty"`
}

// GPUWait is a worker that waits for devices.
type GPUWait struct {
	ID          string    `json:"id"`
	Provider    string    `json:"provider"`
	Count       int       `json:"count"`
	MemoryBytes int64     `json:"memory_bytes"` // on each; 0: not known
	Since       time.Time `json:"since"`
	Reason      string    `json:"reason"`
}
