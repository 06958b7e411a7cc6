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
)

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

// checkCgroup says whether workers can have cgroups of their own: below a cgroup that this process may write.
func checkCgroup() finding {
	const check = "cgroup"
	data, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return finding{check, findNote, err.Error(), ""}
	}
	path := ""
	for line := range strings.Lines(string(data)) {
		if p, found := strings.CutPrefix(strings.TrimSpace(line), "0::"); found {
			path = filepath.Join("/sys/fs/cgroup", p)
		}
	}
	const without = "limits.memory and limits.cpus cannot be enforced"
	if _, err := os.Stat("/sys/fs/cgroup/cgroup.controllers"); err != nil || path == "" {
		return finding{check, findNote, "cgroup v2 is not mounted: " + without, ""}
	}
	if unix.Access(filepath.Join(path, "cgroup.procs"), unix.W_OK) != nil || access(path) != nil {
		return finding{check, findNote, path + " is not delegated: " + without, "run workerd as a systemd service with Delegate=yes"}
	}
	return ok(check, "%s is delegated", path)
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
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.WaitDelay = time.Second
	out, err := cmd.Output()
	return string(bytes.TrimSpace(out)), err
}
