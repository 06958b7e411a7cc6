package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"time"

	"workerd/execenv"
)

// systemd is what workerd asks of the service manager, by its command line: of the user's own, or of the system's.
type systemd struct {
	user bool
	// run runs systemctl and returns what it printed; the error has what it said on stderr.
	run func(ctx context.Context, args ...string) (string, error)
}

// systemctlWait bounds questions. What starts or stops something has no bound of its own: systemd has.
const systemctlWait = 10 * time.Second

func newSystemd(user bool) *systemd {
	return &systemd{user: user, run: func(ctx context.Context, args ...string) (string, error) {
		if user {
			args = append([]string{"--user"}, args...)
		}
		command := "systemctl " + strings.Join(args, " ")
		program, err := exec.LookPath("systemctl")
		if err != nil {
			return "", fmt.Errorf("%s: %w", command, err)
		}
		// Registered as every child: serve asks too, and would take an unknown one for an orphan.
		r, err := execenv.OSRunner{Children: &children}.Run(ctx, execenv.Probe{Argv: append([]string{program}, args...), Env: os.Environ()})
		if err == nil && r.Code != 0 {
			err = fmt.Errorf("exit status %d: %s", r.Code, bytes.TrimSpace(r.Stderr))
		}
		if err != nil {
			err = fmt.Errorf("%s: %w", command, err)
		}
		return string(bytes.TrimSpace(r.Stdout)), err
	}}
}

func (s *systemd) ask(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, systemctlWait)
	defer cancel()
	return s.run(ctx, args...)
}

var systemdVersion = regexp.MustCompile(`^systemd (\d+)`)

// version returns the version of systemd. It needs no bus.
func (s *systemd) version(ctx context.Context) (int, error) {
	out, err := s.ask(ctx, "--version")
	if errors.Is(err, exec.ErrNotFound) {
		return 0, &withHint{errors.New("this machine has no systemctl, and so no systemd to install a unit for"),
			"run `workerd serve` from what starts programs here, for instance `@reboot` of cron"}
	}
	if err != nil {
		return 0, err
	}
	m := systemdVersion.FindStringSubmatch(out)
	if m == nil {
		return 0, fmt.Errorf("systemctl --version: no version in %q", out)
	}
	return strconv.Atoi(m[1])
}

// property returns a property of a unit.
func (s *systemd) property(ctx context.Context, unit, name string) (string, error) {
	return s.ask(ctx, "show", unit, "--property="+name, "--value")
}

// job returns the type of the job that runs for a unit, "start", "stop" or "restart"; "" for none.
func (s *systemd) job(ctx context.Context, unit string) (string, error) {
	out, err := s.ask(ctx, "list-jobs", "--plain", "--no-legend", "--no-pager", unit)
	if err != nil {
		return "", err
	}
	return jobOf(out, unit), nil
}

// jobOf finds a unit's job in what list-jobs prints: number, unit, type, state.
func jobOf(list, unit string) string {
	for line := range strings.Lines(list) {
		if f := strings.Fields(line); len(f) >= 3 && f[1] == unit {
			return f[2]
		}
	}
	return ""
}

// ownService returns the service that this process belongs to, and its manager; "" for none.
func ownService() (unit string, sd *systemd, err error) {
	cgroups, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return "", nil, err
	}
	unit, user := ownUnit(string(cgroups))
	return unit, newSystemd(user), nil
}

// ownUnit finds the service that a process of these cgroups (the text of /proc/PID/cgroup) belongs to, and whether it is one of
// a user's service manager; "" for none. A service may have made cgroups below its own.
func ownUnit(cgroups string) (unit string, user bool) {
	for line := range strings.Lines(cgroups) {
		// Version 2 is "0::/path"; with version 1 alone systemd keeps its own in a hierarchy named so.
		parts := strings.SplitN(strings.TrimSuffix(line, "\n"), ":", 3)
		if len(parts) != 3 || parts[1] != "" && parts[1] != "name=systemd" {
			continue
		}
		user = false
		found := ""
		for name := range strings.SplitSeq(parts[2], "/") {
			switch {
			case strings.HasPrefix(name, "user@") && strings.HasSuffix(name, ".service"):
				user, found = true, ""
			case strings.HasSuffix(name, ".service") && found == "":
				found = name
			}
		}
		if found != "" {
			return found, user
		}
	}
	return "", false
}
