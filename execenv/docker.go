package execenv

import (
	"fmt"
	"strconv"
	"strings"

	"workerd/manifest"
)

// dockerDialect is docker's command line.
type dockerDialect struct{}

func (dockerDialect) identity(h Host, f *facts) (flags, warnings []string, err error) {
	info := f.ctr.engine
	switch {
	case info.Rootless && info.OwnerUID != h.ID.UID:
		who := "another user"
		if info.OwnerUID >= 0 {
			who = "uid " + strconv.Itoa(info.OwnerUID)
		}
		return nil, nil, permanent("env.kind", "this docker is rootless and belongs to %s, so files would not belong to uid %d: use a daemon of your own (DOCKER_HOST)", who, h.ID.UID)
	case mappedRoot(h, info):
		// Root in there is the caller out here, and no other id is. The caller's other groups cannot be had.
		if len(h.ID.Groups) > 0 {
			warnings = append(warnings, "env.kind: rootless docker loses supplementary groups, so what only they may read is closed to the worker")
		}
		return []string{"--user", "0:0"}, warnings, nil
	}
	if info.Remapped {
		flags = append(flags, "--userns=host") // else the worker would be somebody else outside
	}
	return append(flags, userFlags(h)...), nil, nil
}

// userFlags are numbers: names are the image's.
func userFlags(h Host) []string {
	flags := []string{"--user", fmt.Sprintf("%d:%d", h.ID.UID, h.ID.GID)}
	for _, g := range h.ID.Groups {
		flags = append(flags, "--group-add", strconv.Itoa(g))
	}
	return flags
}

// gpus: the flag is one CSV record, so the quotes belong to the argument.
func (dockerDialect) gpus(_ Host, w WorkerParams) []string {
	switch {
	case len(w.Nodes) > 0:
		return amdFlags(w.Nodes)
	case len(w.GPUs) == 0:
		return nil
	}
	return []string{"--gpus", `"device=` + strings.Join(w.GPUs, ",") + `"`}
}

// amdFlags hand AMD cards on: their nodes, and that of the driver. Who may use them the caller's groups say.
func amdFlags(nodes []string) []string {
	out := []string{"--device", "/dev/kfd"}
	for _, n := range nodes {
		out = append(out, "--device", n)
	}
	return out
}

func (dockerDialect) network(name string, _ EngineInfo) string { return name }

func (dockerDialect) log(maxSize int64) []string {
	return []string{"--log-driver", "local", "--log-opt", "max-size=" + strconv.FormatInt(maxSize, 10)}
}

func (dockerDialect) umask(int) ([]string, bool) { return nil, false }

// bind: only --volume can label, and it has no escape for a colon.
func (dockerDialect) bind(b Bind, label string) []string {
	if label != "" {
		if b.Mode == ro {
			label = "ro," + label
		}
		return []string{"--volume", b.Source + ":" + b.Target + ":" + label}
	}
	if b.Mode == ro {
		return []string{"--mount", mountOption(b, "target", "readonly")}
	}
	return []string{"--mount", mountOption(b, "target")}
}

// unset: a name without a value in the client's environment.
func (dockerDialect) unset(name string, _ EngineInfo) []string { return []string{"--env", name} }

func (dockerDialect) more(*facts) []string { return nil }

func (dockerDialect) check(m *manifest.Manifest, f *facts) error {
	if m.Env.SELinux != "shared" && m.Env.SELinux != "private" {
		return nil
	}
	for _, b := range f.binds {
		if strings.Contains(b.Source, ":") {
			return permanent("env.selinux", "docker can label %s only by --volume, which cannot carry its ':': use selinux = \"disable\"", b.Source)
		}
	}
	return nil
}
