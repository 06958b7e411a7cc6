package supervisor

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"workerd/execenv"
)

// recordVersion is that of the record's format. A record of another one is ignored, and its worker ended. Members that a reader does
// not know are ignored too, so that a workerd takes over the workers of a newer one. Hence the rule: a member is added under the same
// version where whoever ignores it may still adopt the worker, and whatever else changes makes a new version.
const recordVersion = 1

// record is what a later workerd needs to know of a running worker to take it over. It lies beside the worker's socket as
// <n>.json, written by rename, from soon after the exec to the worker's end.
type record struct {
	Version  int       `json:"version"`
	Instance string    `json:"instance"`
	BootID   string    `json:"boot_id"`
	Slug     string    `json:"slug"`
	N        int64     `json:"n"`
	PID      int       `json:"pid"`   // of the process whose end is the worker's: of a container its first one
	Start    uint64    `json:"start"` // clock ticks after boot
	Run      string    `json:"run"`   // the version that it runs, see runKey
	Socket   string    `json:"socket"`
	Tmp      string    `json:"tmp"`
	Log      string    `json:"log"`
	Started  time.Time `json:"started"`
	Restarts int       `json:"restarts"`
	Standby  string    `json:"standby,omitempty"` // it stands by: hot or warm
	// Of a container: the kind of its engine, and its id.
	Engine    string   `json:"engine,omitempty"`
	Container string   `json:"container,omitempty"`
	GPUs      []string `json:"gpus,omitempty"` // UUIDs
	// Of one with GPUs: its gpu.policy, and its gpu.memory in bytes.
	GPUPolicy string `json:"gpu_policy,omitempty"`
	GPUMemory int64  `json:"gpu_memory,omitempty"`
	// Cgroup is the folder of the worker's own cgroup, where it has one.
	Cgroup string `json:"cgroup,omitempty"`
}

// name is that of the worker's cgroup or container.
func (r *record) name() string { return execenv.ContainerName(r.Instance, r.Slug, r.N) }

// id is that of the worker: <slug>/<n>.
func (r *record) id() string { return r.Slug + "/" + strconv.FormatInt(r.N, 10) }

func (r *record) marker() string { return execenv.Marker(r.Instance, r.Slug, r.N) }

// file is where the record lies.
func (r *record) file() string { return strings.TrimSuffix(r.Socket, ".sock") + ".json" }

// save writes the record so that a reader finds it whole or not at all.
func (r *record) save() error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	return execenv.WriteFile(r.file(), append(data, '\n'), 0o600)
}

// remove takes away what lies around for the worker: record, socket and TMPDIR.
func (r *record) remove() {
	_ = os.Remove(r.file())
	_ = os.Remove(r.Socket)
	if r.Tmp != "" {
		_ = execenv.RemoveTmp(r.Tmp)
	}
}

// readRecords reads the records below <runtime>/w. A torn one, or one of another instance, is an error of its own and hides no
// other.
func readRecords(dir, instance, bootID string) (records []*record, errs []error) {
	files, _ := filepath.Glob(filepath.Join(dir, "*", "*.json"))
	for _, file := range files {
		r, err := readRecord(file)
		switch {
		case err != nil:
			errs = append(errs, fmt.Errorf("worker record %s: %w", file, err))
		case r.Version != recordVersion || r.Instance != instance:
			errs = append(errs, fmt.Errorf("worker record %s: version %d of instance %s, not version %d of %s", file, r.Version, r.Instance, recordVersion, instance))
		case r.file() != file:
			errs = append(errs, fmt.Errorf("worker record %s: names another file, %s", file, r.file()))
		case r.BootID == bootID: // what an earlier boot left is no process of today
			records = append(records, r)
		}
	}
	return records, errs
}

func readRecord(file string) (*record, error) {
	fd, err := unix.Open(file, unix.O_RDONLY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, err
	}
	f := os.NewFile(uintptr(fd), file)
	defer func() { _ = f.Close() }()
	r := new(record)
	if err := json.NewDecoder(f).Decode(r); err != nil {
		return nil, err
	}
	return r, nil
}
