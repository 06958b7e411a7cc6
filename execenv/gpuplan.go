package execenv

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"workerd/execenv/gpu"
	"workerd/manifest"
)

// namesInContainer returns what a container of docker or podman calls its GPUs: it holds these alone, so an index counts them anew.
func namesInContainer(gpus []string) []string {
	if !slices.ContainsFunc(gpus, func(name string) bool { _, err := strconv.Atoi(name); return err == nil }) {
		return gpus
	}
	names := make([]string, len(gpus))
	for i := range names {
		names[i] = strconv.Itoa(i)
	}
	return names
}

// askGPUs says what is asked of the GPUs, and what of that this machine cannot give. Which ones a worker gets is decided at its start,
// and so is whether there are any for "auto", unless it is certain now that there are none: then nothing has to be asked at any start.
func (p *Planner) askGPUs(ctx context.Context, m *manifest.Manifest, f *facts) {
	f.gpu = GPU{Policy: "none", Devices: []string{}, amd: exists(p.host.kfd)}
	if m.GPU.Policy == "none" {
		return
	}
	snap, err := p.host.GPUs.Snapshot(ctx)
	certain := err == nil && snap.Problem == ""
	if m.GPU.Policy == "auto" && certain && len(snap.Devices) == 0 {
		return
	}
	f.gpu = GPU{
		Policy: m.GPU.Policy, Count: m.GPU.Count, Memory: int64(m.GPU.Memory), Devices: append(f.gpu.Devices, m.GPU.Devices...),
		amd: f.gpu.amd || slices.ContainsFunc(snap.Devices, func(d gpu.Device) bool { return d.Vendor == gpu.AMD }),
	}
	if m.GPU.Policy != "auto" && certain && len(snap.Devices) == 0 {
		f.warnings = append(f.warnings, fmt.Sprintf("gpu.policy: no GPU is found here, so with %q requests are answered with no_gpu", m.GPU.Policy))
		return
	}
	for i, name := range m.GPU.Devices {
		if _, err := snap.Resolve(name); err != nil && certain {
			f.warnings = append(f.warnings, fmt.Sprintf("gpu.devices[%d]: %v", i, err))
		}
	}
}
