package execenv

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"workerd/manifest"
)

// CgroupState says what of cgroups there is for the workers that are processes of the host (venv, apptainer).
type CgroupState struct {
	// Dir is the cgroup that is delegated to workerd; "" for none. Nothing outside it is ever written to.
	Dir string
	// Memory, CPU and Pids say which limits can be enforced below it.
	Memory, CPU, Pids bool
	// Why says in words what is missing, and Do what would change that; "" where all is there.
	Why, Do string
}

// controllers are those that limits need, by the names of the kernel.
var controllers = []string{"memory", "cpu", "pids"}

func (s *CgroupState) of(controller string) *bool {
	return map[string]*bool{"memory": &s.Memory, "cpu": &s.CPU, "pids": &s.Pids}[controller]
}

// controlCgroup is where systemd puts what a service with Delegate= runs besides its main process.
const controlCgroup = ".control"

const (
	doUnified  = "boot with cgroups v2 alone (systemd.unified_cgroup_hierarchy=1)"
	doDelegate = "run workerd as a systemd service with Delegate=yes"
)

// FindCgroups looks for a cgroup that is delegated to this process and reads what it offers. It changes nothing. Files are
// those below root, which is "/" but in tests.
func FindCgroups(root string, uid int) CgroupState {
	data, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return CgroupState{Why: err.Error()}
	}
	path, v1 := parseCgroups(data)
	mounts, err := os.ReadFile(filepath.Join(root, "proc/self/mountinfo"))
	if err != nil {
		return CgroupState{Why: err.Error()}
	}
	mount, inside := cgroupMount(mounts, path)
	switch {
	case mount == "" && len(v1) > 0:
		return CgroupState{Why: "cgroups are of version 1, which cannot be delegated", Do: doUnified}
	case mount == "":
		return CgroupState{Why: "no cgroup file system is mounted", Do: doUnified}
	}
	own := filepath.Join(root, mount, inside)
	dir, why := delegated(root, own, uid)
	if slices.ContainsFunc(controllers, func(c string) bool { return slices.Contains(v1, c) }) {
		why2 := "version 1 holds the controllers " + strings.Join(v1, ", ")
		if dir == "" {
			return CgroupState{Why: "cgroups are hybrid: " + why2, Do: doUnified}
		}
		s := offered(dir)
		s.Why, s.Do = "cgroups are hybrid: "+why2, doUnified
		return s
	}
	if dir == "" {
		return CgroupState{Why: why, Do: doDelegate}
	}
	return offered(dir)
}

// parseCgroups reads /proc/self/cgroup: the path in the hierarchy of version 2, and the controllers of version 1.
func parseCgroups(data []byte) (path string, v1 []string) {
	for line := range strings.Lines(string(data)) {
		f := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(f) != 3 {
			continue
		}
		if f[0] == "0" && f[1] == "" {
			path = f[2]
			continue
		}
		for c := range strings.SplitSeq(f[1], ",") {
			if slices.Contains(controllers, c) {
				v1 = append(v1, c)
			}
		}
	}
	slices.Sort(v1)
	return path, v1
}

// cgroupMount finds where a cgroup of version 2 can be seen: the mount, and the path inside it. "" where it cannot.
func cgroupMount(mountinfo []byte, path string) (mount, inside string) {
	for line := range strings.Lines(string(mountinfo)) {
		before, after, found := strings.Cut(line, " - ")
		f := strings.Fields(before)
		if !found || len(f) < 5 || !strings.HasPrefix(after, "cgroup2 ") {
			continue
		}
		rest, below := strings.CutPrefix(path, strings.TrimSuffix(unescapeMount(f[3]), "/"))
		if below && (rest == "" || rest[0] == '/') {
			mount, inside = unescapeMount(f[4]), rest // the last one hides those before
		}
	}
	return mount, inside
}

// unescapeMount undoes the octal escapes of /proc/self/mountinfo.
func unescapeMount(s string) string {
	return strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`).Replace(s)
}

// delegated returns the cgroup that was given to this process to do with as it likes: its own one, or the one above where it
// runs in a leaf already: workerd's (DelegateSubgroup=workerd), or that of a service's other commands. Else it says why there is none.
//
// systemd marks what it delegates. Without its mark (systemd before 251, or no systemd) a cgroup counts as delegated that
// belongs to the caller, below one that does not: what a user's systemd has not delegated belongs to the user as well, and is
// not to be written to. For root, whom all belongs to, only the mark counts.
func delegated(root, own string, uid int) (dir, why string) {
	for _, d := range []string{own, filepath.Dir(own)} {
		if base := filepath.Base(own); d != own && base != ownCgroup && base != controlCgroup {
			break // the cgroup above is somebody else's: the user's systemd is marked too
		}
		if marked(d) || uid != 0 && owner(d) == uid && owner(filepath.Dir(d)) != uid {
			if err := unix.Access(filepath.Join(d, "cgroup.procs"), unix.W_OK); err != nil {
				return "", fmt.Sprintf("%s is delegated, but not to this user", strings.TrimPrefix(d, strings.TrimSuffix(root, "/")))
			}
			return d, ""
		}
	}
	name := strings.TrimPrefix(own, strings.TrimSuffix(root, "/"))
	if _, err := os.Stat(filepath.Join(own, "cgroup.type")); errors.Is(err, fs.ErrNotExist) { // the root alone has no type
		return "", "workerd runs in the root cgroup, not in one of its own"
	}
	return "", fmt.Sprintf("the cgroup that workerd runs in, %s, is not delegated to it", name)
}

// marked says whether systemd has marked a cgroup as delegated.
func marked(dir string) bool {
	for _, name := range []string{"user.delegate", "trusted.delegate"} {
		var value [8]byte
		n, err := unix.Getxattr(dir, name, value[:])
		if err == nil && bytes.Equal(value[:n], []byte("1")) {
			return true
		}
	}
	return false
}

func owner(path string) int {
	var st unix.Stat_t
	if unix.Stat(path, &st) != nil {
		return -1
	}
	return int(st.Uid)
}

// offered reads which controllers a cgroup can hand on.
func offered(dir string) CgroupState {
	s := CgroupState{Dir: dir}
	data, err := os.ReadFile(filepath.Join(dir, "cgroup.controllers"))
	if err != nil {
		s.Why = err.Error()
		return s
	}
	has := strings.Fields(string(data))
	var missing []string
	for _, c := range controllers {
		if *s.of(c) = slices.Contains(has, c); !*s.of(c) {
			missing = append(missing, c)
		}
	}
	if missing != nil {
		s.Why = fmt.Sprintf("%s is delegated without the controllers %s", dir, strings.Join(missing, ", "))
		s.Do = "systemctl edit user@.service: [Service] Delegate=cpu cpuset io memory pids"
	}
	return s
}

// limitsLost names the limits of a manifest that cannot be enforced by cgroups here.
func (s CgroupState) limitsLost(l manifest.Limits) []string {
	var lost []string
	for _, limit := range []struct {
		key string
		set bool
	}{
		{"limits.memory", l.Memory != 0 && !s.Memory},
		{"limits.cpus", l.CPUs != 0 && !s.CPU},
		{"limits.pids", l.Pids != manifest.DefaultPids && l.Pids != 0 && !s.Pids},
	} {
		if limit.set {
			lost = append(lost, limit.key)
		}
	}
	return lost
}

// cgroupWarnings says which limits a worker that is a process of the host runs without, and why.
func cgroupWarnings(h Host, m *manifest.Manifest) []string {
	var out []string
	if lost := h.Cgroups.limitsLost(m.Limits); len(lost) > 0 {
		why := h.Cgroups.Why
		if why == "" {
			why = "no delegated cgroup was looked for"
		}
		text := fmt.Sprintf("%s cannot be enforced where this runs, since %s; the worker runs without", strings.Join(lost, ", "), why)
		if h.Cgroups.Do != "" {
			text += ". To have them: " + h.Cgroups.Do
		}
		out = append(out, text)
	}
	if m.Limits.ShmSize != manifest.DefaultShmSize {
		out = append(out, fmt.Sprintf("limits.shm_size is for containers of docker and podman, and has no effect with kind = %q", m.Env.Kind))
	}
	return out
}
