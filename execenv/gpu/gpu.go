// Package gpu knows the machine's GPUs.
//
// An Inventory says in a Snapshot which devices there are, how much memory each has, how much of it is used and by which
// processes, and which devices are ill. Machine is the real one. It asks, in this order and each within a bound:
//
//   - NVML, the library of the NVIDIA driver (nvml.go; needs cgo),
//   - nvidia-smi, where NVML is missing, does not fit the driver, or hangs (smi.go),
//   - what was known last, the setting gpu_devices, and /proc/driver/nvidia, which know no figures or old ones (nvidia.go),
//   - sysfs, for AMD (amd.go).
//
// Then it takes away what lies outside the allocation that workerd itself runs in (visible.go). Nothing of this stops or
// blocks the process: calls that may never return run on a lane of their own (lane.go), and the Snapshot says in Problem
// what could not be found out.
//
// The package decides nothing about who gets a device; that is placement, in supervisor.
package gpu

import (
	"context"
	"time"
)

// Vendor is who made a device.
type Vendor string

// The vendors that are known.
const (
	NVIDIA Vendor = "nvidia"
	AMD    Vendor = "amd"
)

// Device is one card, or one MIG device of a card.
type Device struct {
	// Index is the place of the card as NVML counts them, which is the order of PCI addresses; AMD cards are counted by
	// themselves, in the same order. A MIG device has that of its card. -1: unknown, where only the setting names it.
	Index int
	// UUID is what a worker is given: GPU-... or MIG-... It is the index, "0", where nothing knows the UUID; then
	// CUDA_DEVICE_ORDER=PCI_BUS_ID has to be given along, since CUDA counts the fastest first else.
	UUID   string
	Name   string
	Vendor Vendor
	// Card is, of a MIG device, the UUID of its card; "" for a card.
	Card string
	// Split is a card in MIG mode: no candidate itself, its MIG devices are.
	Split bool
	// Total is the memory that can be allocated, in bytes: what the driver keeps for itself is not in it. 0: unknown.
	Total int64
	Used  int64 // bytes
	// Processes are those that hold memory of it, by PID.
	Processes []Process
	// ProcessesKnown is false where the source cannot tell which they are.
	ProcessesKnown bool
	// Ill is why it should not be used (lost, uncorrectable ECC errors, an XID error); "" for a sound one.
	Ill string
	// Render is, of an AMD card, its device node: /dev/dri/renderD128.
	Render string
}

// Process holds memory of a device.
type Process struct {
	PID    int
	Memory int64 // bytes; -1: unknown
}

// Snapshot is what is known of the GPUs at one time. Who gets one may change it: nothing is shared.
type Snapshot struct {
	// Devices are ordered by vendor and index, the MIG devices of a card behind it.
	Devices []Device
	// Hidden are devices outside the allocation that workerd runs in. No worker gets them.
	Hidden []Device
	// Driver is the version of the driver.
	Driver string
	// Source is who was asked: "nvml", "nvidia-smi", "proc" (/proc/driver/nvidia), "sysfs" (AMD), "setting", several
	// joined with "+"; "" where there is no GPU.
	Source string
	// Problem is why figures are missing or old; "" where all is well.
	Problem string
	// Time is when the figures were true.
	Time time.Time
}

// Inventory lists the devices that workers may be placed on.
type Inventory interface {
	// Snapshot looks at the devices now. It fails where nothing at all can be said, as when NVML hangs and nothing else answers.
	Snapshot(ctx context.Context) (Snapshot, error)
}

// None is the inventory of a machine without GPUs.
type None struct{}

var _ Inventory = None{}

// Snapshot has no device.
func (None) Snapshot(context.Context) (Snapshot, error) { return Snapshot{Time: time.Now()}, nil }
