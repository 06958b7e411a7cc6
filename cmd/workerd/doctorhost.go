package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"workerd/execenv"
	"workerd/execenv/gpu"
)

// hostChecks are those of the machine itself.
func hostChecks(uid int, gpus gpu.Inventory) []check {
	return []check{
		one("cgroup", func() finding { return checkCgroup("/", uid) }),
		{"GPUs", func(ctx context.Context) []finding { return checkGPUs(ctx, gpus, "/") }},
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

// checkCgroup says whether workers that are processes of the host can have cgroups of their own, and with what limits. Files are
// those below root.
func checkCgroup(root string, uid int) finding {
	const check = "cgroup"
	s := execenv.FindCgroups(root, uid)
	switch {
	case s.Dir == "":
		return finding{check, findNote, s.Why + ": where this runs, venv and Apptainer workers have no limits, and are told from others by process group, parents and environment; " +
			"rootless engines may have none either", s.Do}
	case s.Why != "":
		return finding{check, findNote, s.Dir + " is delegated, and each venv or Apptainer worker gets a cgroup of its own below it, but not with all limits: " + s.Why, s.Do}
	}
	return ok(check, "version 2; %s is delegated with memory, cpu, pids", s.Dir)
}

// checkGPUs says which GPUs there are, and what keeps workers from them. Files are those below root.
func checkGPUs(ctx context.Context, inventory gpu.Inventory, root string) []finding {
	const check = "GPUs"
	snap, err := inventory.Snapshot(ctx)
	if err != nil {
		return []finding{{check, findWarning, err.Error(), gpuAdvice}}
	}
	var all []finding
	if snap.Problem != "" {
		all = append(all, finding{check, findWarning, snap.Problem, gpuAdvice})
	}
	var sound []string
	for _, d := range snap.Devices {
		switch {
		case d.Ill != "":
			all = append(all, finding{check, findWarning, d.UUID + ": " + d.Ill, "no worker is placed on it; a reset or a reboot may help, else replace it"})
		case !d.Split:
			sound = append(sound, fmt.Sprintf("%s, %s\n", d.Name, size(d.Total)))
		}
	}
	if len(sound) > 0 {
		driver := ""
		if snap.Driver != "" {
			driver = ", driver " + snap.Driver
		}
		all = append(all, ok(check, "%s%s (by %s)", countLines(strings.Join(sound, "")), driver, snap.Source))
	}
	if len(snap.Hidden) > 0 {
		all = append(all, finding{check, findNote, fmt.Sprintf("%d more are outside of the allocation that this runs in", len(snap.Hidden)), ""})
	}
	if kfd := filepath.Join(root, "dev/kfd"); exists(kfd) {
		if err := readWritable(kfd); err != nil {
			all = append(all, finding{check, findWarning, "AMD: /dev/kfd may not be used by this user: " + err.Error(), "join the groups that own it: usermod -aG render,video USER, and log in anew"})
		}
	}
	if len(all) == 0 {
		all = append(all, ok(check, "none found"))
	}
	return all
}

const gpuAdvice = "providers that name gpu.devices run, without a look at their memory; see docs/gpus.md"

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
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
	if f := lingering(ctx, uid); f.Status != "" {
		all = append(all, f)
	}
	unit, err := ask(ctx, "systemctl", "--user", "show", "workerd.service", "--property=LoadState", "--value")
	switch {
	case err != nil: // no systemd for this user
	case unit == "loaded":
		all = append(all, ok("systemd", "workerd.service is installed"))
	default:
		all = append(all, finding{"systemd", findNote, "there is no user unit workerd.service: workerd runs only as long as it is started by hand", "`workerd install --now`"})
	}
	return all
}

// lingering says what the end of the last session does to a user service; nothing where systemd does not say.
func lingering(ctx context.Context, uid int) finding {
	linger, err := ask(ctx, "loginctl", "show-user", strconv.Itoa(uid), "--property=Linger", "--value")
	switch {
	case err != nil: // no loginctl, or no session of this user: nothing ends with one
		return finding{}
	case linger == "no" && uid != 0:
		return finding{"logout", findWarning, "Linger=no: at the last logout systemd removes /run/user/" + strconv.Itoa(uid) + " with the sockets, and ends user services",
			"loginctl enable-linger"}
	}
	return ok("logout", "Linger=%s", linger)
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
