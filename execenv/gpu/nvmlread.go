//go:build linux && cgo

package gpu

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// valueNotAvailable is what NVML says instead of memory that it does not know.
const valueNotAvailable = ^uint64(0)

// read asks for all devices. It fails where NVML as a whole does, not where one device does.
func (l *nvmlLibrary) read() (r report, ret nvml.Return) {
	var n int
	ret = l.call(func() (ret nvml.Return) { n, ret = l.lib.DeviceGetCount(); return }, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")
	if ret != nvml.SUCCESS {
		return r, ret
	}
	ret = l.call(func() (ret nvml.Return) { r.driver, ret = l.lib.SystemGetDriverVersion(); return }, "nvmlSystemGetDriverVersion")
	if fatal(ret) {
		return r, ret
	}
	r.driver = string([]byte(r.driver))
	for i := range n {
		var dev nvml.Device
		ret := l.call(func() (ret nvml.Return) { dev, ret = l.lib.DeviceGetHandleByIndex(i); return }, "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")
		if ret == nvml.ERROR_NO_PERMISSION {
			continue // a cgroup keeps it from this process
		}
		if fatal(ret) {
			return r, ret
		}
		if ret = l.card(&r, i, dev, ret); fatal(ret) {
			return r, ret
		}
	}
	return r, nvml.SUCCESS
}

// fatal tells errors after which no call works until NVML is initialised again.
func fatal(ret nvml.Return) bool {
	return ret == nvml.ERROR_UNINITIALIZED || ret == nvml.ERROR_DRIVER_NOT_LOADED || ret == nvml.ERROR_LIB_RM_VERSION_MISMATCH
}

// card adds one card, and its MIG devices, to r. ret is how it was found.
func (l *nvmlLibrary) card(r *report, index int, dev nvml.Device, ret nvml.Return) nvml.Return {
	d := Device{Index: index, Vendor: NVIDIA}
	if ret == nvml.SUCCESS {
		ret = l.call(func() (ret nvml.Return) { d.UUID, ret = dev.GetUUID(); return }, "nvmlDeviceGetUUID")
	}
	if ret != nvml.SUCCESS || d.UUID == "" {
		return l.unreachable(r, index, ret)
	}
	_ = l.call(func() (ret nvml.Return) { d.Name, ret = dev.GetName(); return }, "nvmlDeviceGetName")
	ret = l.figures(&d, dev)
	if ret != nvml.SUCCESS && d.Ill == "" {
		r.notes = append(r.notes, fmt.Sprintf("GPU %d: memory: %s", index, returnText(ret)))
	}
	d.Ill = orElse(d.Ill, l.faults.of(d.UUID, -1))
	if l.health && d.Ill == "" {
		d.Ill = l.ecc(dev)
	}
	var mode int
	ret = l.call(func() (ret nvml.Return) { mode, _, ret = dev.GetMigMode(); return }, "nvmlDeviceGetMigMode")
	if fatal(ret) {
		return ret
	}
	d.Split = ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
	l.known[index] = Device{Index: index, UUID: d.UUID, Name: d.Name, Vendor: NVIDIA, Split: d.Split, Total: d.Total}
	r.devices = append(r.devices, d)
	if d.Split {
		return l.parts(r, d, dev)
	}
	return ret
}

// unreachable adds a card that says nothing: as ill, where it is known who it is.
func (l *nvmlLibrary) unreachable(r *report, index int, ret nvml.Return) nvml.Return {
	if d, ok := l.known[index]; ok && ill(ret) != "" {
		d.Ill = ill(ret)
		r.devices = append(r.devices, d)
		return ret
	}
	r.notes = append(r.notes, fmt.Sprintf("GPU %d: %s", index, returnText(ret)))
	return ret
}

// ill is the illness that an error means, "" where it means none.
func ill(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST:
		return illLost
	case nvml.ERROR_RESET_REQUIRED:
		return illReset
	}
	return ""
}

// parts adds the MIG devices of a card. Their numbers may have holes.
func (l *nvmlLibrary) parts(r *report, card Device, dev nvml.Device) nvml.Return {
	var n int
	ret := l.call(func() (ret nvml.Return) { n, ret = dev.GetMaxMigDeviceCount(); return }, "nvmlDeviceGetMaxMigDeviceCount")
	if ret != nvml.SUCCESS {
		r.notes = append(r.notes, fmt.Sprintf("GPU %d: MIG devices: %s", card.Index, returnText(ret)))
		return ret
	}
	for i := range n {
		d := Device{Index: card.Index, Vendor: NVIDIA, Card: card.UUID, Ill: card.Ill}
		var part nvml.Device
		ret := l.call(func() (ret nvml.Return) { part, ret = dev.GetMigDeviceHandleByIndex(i); return }, "nvmlDeviceGetMigDeviceHandleByIndex")
		if ret == nvml.SUCCESS {
			ret = l.call(func() (ret nvml.Return) { d.UUID, ret = part.GetUUID(); return }, "nvmlDeviceGetUUID")
		}
		if fatal(ret) {
			return ret
		}
		if ret != nvml.SUCCESS || d.UUID == "" {
			continue
		}
		_ = l.call(func() (ret nvml.Return) { d.Name, ret = part.GetName(); return }, "nvmlDeviceGetName")
		if ret = l.figures(&d, part); ret != nvml.SUCCESS && d.Ill == "" {
			r.notes = append(r.notes, fmt.Sprintf("%s: memory: %s", d.UUID, returnText(ret)))
		}
		instance := -1
		_ = l.call(func() (ret nvml.Return) { instance, ret = part.GetGpuInstanceId(); return }, "nvmlDeviceGetGpuInstanceId")
		d.Ill = orElse(d.Ill, l.faults.of(card.UUID, instance))
		r.devices = append(r.devices, d)
	}
	return nvml.SUCCESS
}

// figures fills in memory and processes. The second version of the call tells what the driver keeps for itself, which nobody can
// allocate, from what is used; the first counts both as used.
func (l *nvmlLibrary) figures(d *Device, dev nvml.Device) nvml.Return {
	var m nvml.Memory_v2
	ret := l.call(func() (ret nvml.Return) { m, ret = dev.GetMemoryInfo_v2(); return }, "nvmlDeviceGetMemoryInfo_v2")
	if ret != nvml.SUCCESS || m.Total == 0 {
		var first nvml.Memory
		ret = l.call(func() (ret nvml.Return) { first, ret = dev.GetMemoryInfo(); return }, "nvmlDeviceGetMemoryInfo")
		m = nvml.Memory_v2{Total: first.Total, Used: first.Used}
	}
	if ret == nvml.SUCCESS && m.Total >= m.Reserved && m.Total < 1<<62 && m.Used < 1<<62 {
		d.Total, d.Used = int64(m.Total-m.Reserved), int64(m.Used)
	}
	d.Ill = orElse(d.Ill, ill(ret))
	l.holders(d, dev)
	return ret
}

// holders fills in the processes. One that computes and draws is in both lists, with the same memory.
func (l *nvmlLibrary) holders(d *Device, dev nvml.Device) {
	found := map[string]map[int]int64{}
	for _, kind := range []struct {
		list func() ([]nvml.ProcessInfo, nvml.Return)
		name string
	}{
		{dev.GetComputeRunningProcesses, "nvmlDeviceGetComputeRunningProcesses"},
		{dev.GetGraphicsRunningProcesses, "nvmlDeviceGetGraphicsRunningProcesses"},
		{dev.GetMPSComputeRunningProcesses, "nvmlDeviceGetMPSComputeRunningProcesses"},
	} {
		var list []nvml.ProcessInfo
		ret := l.call(func() (ret nvml.Return) { list, ret = kind.list(); return }, kind.name, kind.name+"_v2", kind.name+"_v3")
		if ret != nvml.SUCCESS {
			continue
		}
		if kind.name == "nvmlDeviceGetComputeRunningProcesses" {
			d.ProcessesKnown = true
		}
		for _, p := range list {
			memory := int64(-1)
			if p.UsedGpuMemory != valueNotAvailable && p.UsedGpuMemory < 1<<62 {
				memory = int64(p.UsedGpuMemory)
			}
			hold(found, "", int(p.Pid), memory)
		}
	}
	d.Processes = processes(found[""])
}

// ecc is the illness that the counters of a card mean. Many cards have none.
func (l *nvmlLibrary) ecc(dev nvml.Device) string {
	var n uint64
	ret := l.call(func() (ret nvml.Return) {
		n, ret = dev.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
		return
	}, "nvmlDeviceGetTotalEccErrors")
	if ret == nvml.SUCCESS && n > 0 {
		return eccIll(n)
	}
	return ill(ret)
}
