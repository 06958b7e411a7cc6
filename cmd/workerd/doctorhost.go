package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// hostChecks are those of the machine itself.
func hostChecks(uid int) []check {
	return []check{
		one("cgroup", func() finding { return checkCgroup("/") }),
		{"GPUs", func(ctx context.Context) []finding { return checkGPUs(ctx, "/") }},
		one("security modules", func() finding { return checkSecurity("/") }),
		one("kernel", checkKernel), one("pidfd", checkPidfd), one("inotify", checkInotify), one("open files", checkFiles),
		{"logout", func(ctx context.Context) []finding { return checkSession(ctx, uid) }},
	}
}

func access(path string) error { return unix.Access(path, unix.W_OK|unix.X_OK) }

// kernelVersion returns the running kernel's major and minor number and its whole release.
func kernelVersion() (major, minor int, release string) {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return 0, 0, "unknown"
	}
	release = unix.ByteSliceToString(u.Release[:])
	fmt.Sscanf(release, "%d.%d", &major, &minor)
	return major, minor, release
}

func checkKernel() finding {
	major, minor, release := kernelVersion()
	if major < 5 || major == 5 && minor < 4 {
		return finding{"kernel", findProblem, "Linux " + release + " is older than 5.4", "use a newer kernel"}
	}
	return ok("kernel", "Linux %s", release)
}

func checkPidfd() finding {
	fd, err := unix.PidfdOpen(os.Getpid(), 0)
	if err != nil {
		return finding{"pidfd", findNote, fmt.Sprintf("not available (%v): one thread a worker waits for its end", err), ""}
	}
	unix.Close(fd)
	return ok("pidfd", "available")
}

// inotify limits below these are met by a few dozen providers, or by an editor that runs beside.
const (
	fewWatches   = 8192
	fewInstances = 64
)

func checkInotify() finding {
	watches, err := readInt("/proc/sys/fs/inotify/max_user_watches")
	instances, err2 := readInt("/proc/sys/fs/inotify/max_user_instances")
	if err := errors.Join(err, err2); err != nil {
		return finding{"inotify", findNote, err.Error(), "edits are seen within 30 s, by reading the directories again"}
	}
	text := fmt.Sprintf("%d watches, %d instances", watches, instances)
	if watches < fewWatches || instances < fewInstances {
		return finding{"inotify", findNote, text + ": where they run out, edits are seen only within 30 s", "sysctl fs.inotify.max_user_watches=65536 fs.inotify.max_user_instances=512"}
	}
	return ok("inotify", "%s", text)
}

func readInt(file string) (int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(data)))
}

func checkFiles() finding {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return finding{"open files", findNote, err.Error(), ""}
	}
	if l.Max < 4096 {
		return finding{"open files", findWarning, fmt.Sprintf("the limit is %d: every client and worker takes some", l.Max), "raise it (ulimit -Hn, LimitNOFILE=)"}
	}
	return ok("open files", "at most %d", l.Max)
}

// checkCgroup says which version of cgroups there is, and whether workers can have some of their own: below a cgroup that this
// process may write, with the controllers that limits need. Files are those below root.
func checkCgroup(root string) finding {
	const check = "cgroup"
	data, err := os.ReadFile(filepath.Join(root, "proc/self/cgroup"))
	if err != nil {
		return finding{check, findNote, err.Error(), ""}
	}
	own := ""
	for line := range strings.Lines(string(data)) {
		if p, found := strings.CutPrefix(strings.TrimSpace(line), "0::"); found {
			own = filepath.Join(root, "sys/fs/cgroup", p)
		}
	}
	if _, err := os.Stat(filepath.Join(root, "sys/fs/cgroup/cgroup.controllers")); err != nil || own == "" {
		text := "cgroup version 1"
		if _, err := os.Stat(filepath.Join(root, "sys/fs/cgroup/unified")); err == nil {
			text += " with a version 2 that has no controllers"
		}
		return finding{check, findNote, text + ": limits are those of docker with a daemon of root; rootless engines, Apptainer and venv workers have none",
			"boot with cgroups v2 alone (systemd.unified_cgroup_hierarchy=1)"}
	}
	if unix.Access(filepath.Join(own, "cgroup.procs"), unix.W_OK) != nil || access(own) != nil {
		return finding{check, findNote, "version 2; " + own + " is not delegated to this user", "run workerd as a systemd service with Delegate=yes"}
	}
	has, err := os.ReadFile(filepath.Join(own, "cgroup.controllers"))
	if err != nil {
		return finding{check, findNote, err.Error(), ""}
	}
	controllers := strings.Fields(string(has))
	var missing []string
	for _, c := range []string{"cpu", "memory", "pids"} {
		if !slices.Contains(controllers, c) {
			missing = append(missing, c)
		}
	}
	if len(missing) > 0 {
		return finding{check, findNote, fmt.Sprintf("version 2; %s is delegated without %s", own, strings.Join(missing, ", ")),
			"systemctl edit user@.service: [Service] Delegate=cpu cpuset io memory pids"}
	}
	return ok(check, "version 2; %s is delegated with cpu, memory, pids", own)
}

// checkGPUs says which GPUs there are. Files are those below root.
func checkGPUs(ctx context.Context, root string) []finding {
	const check = "GPUs"
	const unused = "; this version of workerd gives workers none"
	var all []finding
	out, err := askWithin(ctx, 20*time.Second, "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader")
	_, statErr := os.Stat(filepath.Join(root, "dev/nvidiactl"))
	switch {
	case errors.Is(err, exec.ErrNotFound) && statErr == nil:
		all = append(all, finding{check, findNote, "there is /dev/nvidiactl but no nvidia-smi on PATH" + unused, ""})
	case errors.Is(err, exec.ErrNotFound):
	case err != nil:
		text := err.Error()
		if out != "" {
			text += ": " + out // it prints errors on stdout
		}
		all = append(all, finding{check, findWarning, "nvidia-smi: " + text, "after an update of the driver the machine has to be rebooted, or the module be loaded anew"})
	default:
		all = append(all, finding{check, findNote, "NVIDIA: " + countLines(out) + unused, ""})
	}
	if _, err := os.Stat(filepath.Join(root, "dev/kfd")); err == nil {
		text := "AMD: there is /dev/kfd"
		if err := readWritable(filepath.Join(root, "dev/kfd")); err != nil {
			text += ", which this user may not use (" + err.Error() + "; groups render, video)"
		}
		all = append(all, finding{check, findNote, text + unused, ""})
	}
	if len(all) == 0 {
		all = append(all, ok(check, "none found"))
	}
	return all
}

// countLines joins equal lines: "2 x NVIDIA H100, 550.54".
func countLines(text string) string {
	count := map[string]int{}
	var order []string
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" {
			continue
		}
		if count[line]++; count[line] == 1 {
			order = append(order, line)
		}
	}
	for i, line := range order {
		order[i] = fmt.Sprintf("%d x %s", count[line], line)
	}
	return strings.Join(order, "; ")
}

// checkSecurity says which security modules watch over containers. Files are those below root.
func checkSecurity(root string) finding {
	const check = "security modules"
	read := func(path string) string {
		data, _ := os.ReadFile(filepath.Join(root, path))
		return strings.TrimSpace(string(data))
	}
	apparmor := "AppArmor off"
	if read("sys/module/apparmor/parameters/enabled") == "Y" {
		apparmor = "AppArmor on"
	}
	switch read("sys/fs/selinux/enforce") {
	case "1":
		return finding{check, findNote, "SELinux enforces; " + apparmor + ": containers run with label=disable, or they could not use what is mounted (env.selinux)", ""}
	case "0":
		return ok(check, "SELinux permissive, %s", apparmor)
	}
	return ok(check, "SELinux off, %s", apparmor)
}

// checkSession says what becomes of workerd when the user logs out, as far as systemd tells.
func checkSession(ctx context.Context, uid int) []finding {
	var all []finding
	linger, err := ask(ctx, "loginctl", "show-user", strconv.Itoa(uid), "--property=Linger", "--value")
	switch {
	case err != nil: // no loginctl, or no session of this user: nothing ends with one
	case linger == "no" && uid != 0:
		all = append(all, finding{"logout", findWarning, "Linger=no: at the last logout systemd removes /run/user/" + strconv.Itoa(uid) + " with the sockets, and ends user services",
			"loginctl enable-linger"})
	default:
		all = append(all, ok("logout", "Linger=%s", linger))
	}
	unit, err := ask(ctx, "systemctl", "--user", "show", "workerd.service", "--property=LoadState", "--value")
	switch {
	case err != nil: // no systemd for this user
	case unit == "loaded":
		all = append(all, ok("systemd", "workerd.service is installed"))
	default:
		all = append(all, finding{"systemd", findNote, "there is no user unit workerd.service: workerd runs only as long as it is started by hand", ""})
	}
	return all
}

// ask runs a command that answers in one line.
func ask(ctx context.Context, name string, args ...string) (string, error) {
	return askWithin(ctx, 5*time.Second, name, args...)
}

// askWithin runs a command that has to answer within a time and returns what it printed.
func askWithin(ctx context.Context, d time.Duration, name string, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	if ctx.Err() == context.DeadlineExceeded {
		err = fmt.Errorf("no answer within %s", d)
	}
	return string(bytes.TrimSpace(out)), err
}
