package execenv

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strconv"
)

// cdiNames are the names under which a worker's GPUs stand in the CDI specifications of this machine: the UUID where a
// specification has it. Older nvidia-ctk wrote indices only. Where there is no specification at all podman says so itself.
// https://github.com/cncf-tags/container-device-interface/blob/main/SPEC.md
func cdiNames(dirs []string, w WorkerParams) []string {
	var specs [][]byte
	for _, dir := range dirs {
		for _, pattern := range []string{"*.yaml", "*.yml", "*.json"} {
			files, _ := filepath.Glob(filepath.Join(dir, pattern))
			for _, file := range files {
				if data, err := os.ReadFile(file); err == nil && bytes.Contains(data, []byte("nvidia.com/gpu")) {
					specs = append(specs, data)
				}
			}
		}
	}
	names := slices.Clone(w.GPUs)
	for i, uuid := range names {
		known := slices.ContainsFunc(specs, func(data []byte) bool { return bytes.Contains(data, []byte(uuid)) })
		if len(specs) > 0 && !known && i < len(w.Indices) && w.Indices[i] >= 0 {
			names[i] = strconv.Itoa(w.Indices[i])
		}
	}
	return names
}
