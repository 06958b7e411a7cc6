package execenv

import (
	"slices"
	"strings"

	"workerd/manifest"
)

// ownFlags are options of docker run and podman run that would take a container out of workerd's hands.
var ownFlags = map[string]string{
	"--rm":      "how a worker ended, and its last words, are read before workerd removes the container",
	"--restart": "workerd restarts workers, and would never know of one that the engine restarts",
	"--name":    "workerd finds its containers by their names",
	"--detach":  "containers run detached",
	"-d":        "containers run detached",
	"--cidfile": "workerd finds its containers by their names",
	"--pull":    "env.pull says it",
}

// checkExtraArgs refuses options of extra_args that are workerd's own.
func checkExtraArgs(m *manifest.Manifest) error {
	for _, a := range m.Env.ExtraArgs {
		name, _, _ := strings.Cut(a, "=")
		if why, ok := ownFlags[name]; ok {
			return permanent("env.extra_args", "%s cannot be used: %s", name, why)
		}
	}
	if sharesIPC(m) && m.Limits.ShmSize != manifest.DefaultShmSize {
		return permanent("limits.shm_size", "cannot be had with --ipc=host in env.extra_args, which shows the worker the host's /dev/shm: keep one of the two")
	}
	return nil
}

// sharesIPC says whether the manifest gives the worker the host's /dev/shm, which then has its own size.
func sharesIPC(m *manifest.Manifest) bool {
	args := m.Env.ExtraArgs
	i := slices.Index(args, "--ipc")
	return slices.Contains(args, "--ipc=host") || i >= 0 && i+1 < len(args) && args[i+1] == "host"
}
