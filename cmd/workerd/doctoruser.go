package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"workerd/identity"
)

// tryUserNamespace makes a user namespace as rootless engines do: with a mount namespace, which some systems forbid while they
// let the first one pass.
func tryUserNamespace(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "true")
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Geteuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{ContainerID: 0, HostID: os.Getegid(), Size: 1}},
	}
	cmd.WaitDelay = time.Second
	return cmd.Run()
}

// userSysctls are what closes user namespaces, and what opens them again.
var userSysctls = []struct {
	name   string
	closed func(value int) bool
	open   string
}{
	{"kernel.unprivileged_userns_clone", func(v int) bool { return v == 0 }, "1"},
	{"user.max_user_namespaces", func(v int) bool { return v == 0 }, "65536"},
	{"kernel.apparmor_restrict_unprivileged_userns", func(v int) bool { return v != 0 }, "0"},
}

// checkUserNamespaces says whether the caller may make user namespaces, which rootless podman, and Apptainer without setuid,
// are made of: tried is what came of trying. Files are those below root.
func checkUserNamespaces(root string, uid int, tried error, needed bool) finding {
	const name = "user namespaces"
	var values, open []string
	restricted := false
	for _, s := range userSysctls {
		v, err := readInt(filepath.Join(root, "proc/sys", strings.ReplaceAll(s.name, ".", "/")))
		if err != nil {
			continue // this kernel does not have it
		}
		values = append(values, fmt.Sprintf("%s=%d", s.name, v))
		if s.closed(v) {
			open = append(open, s.name+"="+s.open)
			restricted = restricted || strings.Contains(s.name, "apparmor")
		}
	}
	text := strings.Join(values, ", ")
	switch {
	case tried == nil:
		return ok(name, "can be made (%s)", text)
	case errors.Is(tried, exec.ErrNotFound):
		return finding{name, findNote, "not tried: " + tried.Error(), ""}
	}
	do := "they may be forbidden by the container or the sandbox that workerd runs in"
	if len(open) > 0 {
		do = "sysctl " + strings.Join(open, " ")
	}
	if restricted && len(open) == 1 {
		return finding{name, findNote, "AppArmor allows them only to programs that have a profile for it, as the distribution's own podman and apptainer do (" + text + ")", "where those fail: " + do}
	}
	status := findNote
	if needed && uid != 0 {
		status = findProblem
	}
	return finding{name, status, fmt.Sprintf("cannot be made by this user (%v; %s): rootless podman, and Apptainer unless it is setuid, do not work", tried, text), do}
}

// enoughSubIDs is what an image may use: 0 to 65535, less the caller's own.
const enoughSubIDs = 65535

// checkSubIDs says whether the caller has the further ids that rootless podman and docker map users of an image to.
func checkSubIDs(ctx context.Context, root string, id identity.Identity, needed bool) []finding {
	const name = "subordinate ids"
	if id.UID == 0 {
		return nil
	}
	status := findNote
	if needed {
		status = findProblem
	}
	var texts []string
	for _, ids := range []struct {
		file string
		args []string // of getsubids
	}{{"subuid", []string{id.Name}}, {"subgid", []string{"-g", id.Name}}} {
		n, err := subIDs(filepath.Join(root, "etc", ids.file), id)
		if n == 0 {
			n = askSubIDs(ctx, ids.args...)
		}
		switch {
		case n == 0 && err != nil && !errors.Is(err, os.ErrNotExist):
			return []finding{{name, findNote, err.Error(), ""}}
		case n < enoughSubIDs:
			return []finding{{name, status, fmt.Sprintf("%s has %d ids in /etc/%s: rootless podman and docker need 65536", id.Name, n, ids.file),
				fmt.Sprintf("usermod --add-subuids 100000-165535 --add-subgids 100000-165535 %s (a range that nobody else has), then podman system migrate", id.Name)}}
		}
		texts = append(texts, fmt.Sprintf("%d in /etc/%s", n, ids.file))
	}
	for _, program := range []string{"newuidmap", "newgidmap"} {
		if _, err := exec.LookPath(program); err != nil {
			return []finding{{name, status, program + " is not installed: rootless podman and docker cannot map users", "Debian: apt-get install uidmap"}}
		}
	}
	return []finding{ok(name, "%s; newuidmap is there", strings.Join(texts, ", "))}
}

// subIDs adds up a user's ranges in /etc/subuid or /etc/subgid, where he stands by name or number.
func subIDs(file string, id identity.Identity) (int, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	total := 0
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) == 3 && (f[0] == id.Name || f[0] == strconv.Itoa(id.UID)) {
			if n, err := strconv.Atoi(f[2]); err == nil {
				total += n
			}
		}
	}
	return total, nil
}

// askSubIDs asks getsubids, which knows directory services too: "0: alice 100000 65536", one line a range.
func askSubIDs(ctx context.Context, args ...string) int {
	out, err := ask(ctx, "getsubids", args...)
	if err != nil {
		return 0
	}
	total := 0
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 4 {
			n, _ := strconv.Atoi(f[3])
			total += n
		}
	}
	return total
}
