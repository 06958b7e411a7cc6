package execenv

import (
	"fmt"
	"strconv"
	"strings"

	"workerd/manifest"
)

// podmanDialect is podman's command line.
type podmanDialect struct{}

func (podmanDialect) identity(h Host, f *facts) (flags, warnings []string, err error) {
	info := f.ctr.engine
	if !info.Rootless {
		return userFlags(h), nil, nil
	}
	flags = []string{"--userns=keep-id", "--user", fmt.Sprintf("%d:%d", h.ID.UID, h.ID.GID)}
	switch {
	case len(h.ID.Groups) == 0:
	case info.Runtime == "runc":
		warnings = append(warnings, "env.kind: rootless podman loses supplementary groups with the runtime runc, so what only they may read is closed to the worker: "+
			"set runtime = \"crun\" in containers.conf")
	default:
		flags = append(flags, "--group-add", "keep-groups")
	}
	return flags, warnings, nil
}

// gpus: podman takes --gpus and does nothing.
func (podmanDialect) gpus(h Host, w WorkerParams) []string {
	if len(w.Nodes) > 0 {
		return amdFlags(w.Nodes)
	}
	var out []string
	for _, name := range cdiNames(h.CDIDirs, w) {
		out = append(out, "--device", "nvidia.com/gpu="+name)
	}
	return out
}

// network: what a rootless podman calls bridge needs a second network besides; its own default is a network to the outside as well.
func (podmanDialect) network(name string, info EngineInfo) string {
	switch {
	case name != "bridge" || !info.Rootless:
		return name
	case info.AtLeast(5, 0):
		return "pasta"
	default:
		return "slirp4netns"
	}
}

func (podmanDialect) log(maxSize int64) []string {
	return []string{"--log-driver", "k8s-file", "--log-opt", "max-size=" + strconv.FormatInt(maxSize, 10)}
}

func (podmanDialect) umask(mask int) ([]string, bool) {
	return []string{"--umask", fmt.Sprintf("%04o", mask)}, true
}

func (podmanDialect) bind(b Bind, label string) []string {
	var extra []string
	if b.Mode == ro {
		extra = append(extra, "readonly")
	}
	switch label {
	case "z":
		extra = append(extra, "relabel=shared")
	case "Z":
		extra = append(extra, "relabel=private")
	}
	return []string{"--mount", mountOption(b, "target", extra...)}
}

func (podmanDialect) unset(name string, info EngineInfo) []string {
	if !info.AtLeast(4, 1) {
		return nil
	}
	return []string{"--unsetenv", name}
}

func (podmanDialect) more(*facts) []string { return []string{"--http-proxy=false"} }

func (podmanDialect) check(m *manifest.Manifest, f *facts) error {
	info := f.ctr.engine
	if !info.AtLeast(4, 1) && f.gpu.Count > 0 {
		return permanent("env.kind", "podman %s knows no CDI devices, so it cannot give a worker a GPU: podman 4.1 or newer is needed", info.Version)
	}
	if info.AtLeast(4, 1) {
		return nil
	}
	for _, b := range f.binds {
		if strings.ContainsAny(b.Source, `,"`) {
			return permanent("paths.binds", "podman %s cannot mount %s: it splits mounts at commas and knows no quotes; podman 4.1 or newer is needed", info.Version, b.Source)
		}
	}
	return nil
}
