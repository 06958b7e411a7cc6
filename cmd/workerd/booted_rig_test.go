package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The tests with Booted in their name have the systemd of a user run the real binary. They use the user's own unit and
// directories, so they run only where WORKERD_TEST_SYSTEMD says that these are theirs: .ci/systemd boots a container for them.

// booted is a workerd that systemd runs, with the directories that a user has.
type booted struct {
	*e2e
	home  string
	begin time.Time
}

func newBooted(t *testing.T) *booted {
	t.Helper()
	long(t)
	t.Setenv("XDG_RUNTIME_DIR", session["XDG_RUNTIME_DIR"])
	needs(t, "systemd", func() error {
		if os.Getenv("WORKERD_TEST_SYSTEMD") == "" {
			return errors.New("WORKERD_TEST_SYSTEMD does not give this user's systemd to the tests: make systemd")
		}
		out, err := exec.Command("systemctl", "--user", "show", "--property=Version").CombinedOutput()
		if err != nil {
			return fmt.Errorf("%w: %s", err, out)
		}
		return nil
	}())
	dir, err := os.MkdirTemp("/tmp", "wb")
	require.NoError(t, err)
	b := &booted{begin: time.Now(), home: os.Getenv("HOME"), e2e: &e2e{t: t, dir: dir, log: new(lockedBuffer), env: map[string]string{
		"PATH": os.Getenv("PATH"), "HOME": os.Getenv("HOME"), "XDG_RUNTIME_DIR": os.Getenv("XDG_RUNTIME_DIR"),
	}}}
	for name, to := range map[string]string{
		"run": os.Getenv("XDG_RUNTIME_DIR"), "config": b.home + "/.config", "state": b.home + "/.local/state", "cache": b.home + "/.cache",
	} {
		require.NoError(t, os.MkdirAll(to, 0o700))
		require.NoError(t, os.Symlink(to, filepath.Join(dir, name)))
	}
	b.clear()
	b.does("set-environment", "GORACE=atexit_sleep_ms=0")
	require.NoError(t, os.MkdirAll(b.manifests(), 0o700))
	t.Cleanup(func() {
		if t.Failed() {
			for line := range strings.Lines(b.journal()) {
				if strings.Contains(line, "systemd[") || strings.Contains(line, "msg=") { // not the goroutines of one that hung
					t.Log(strings.TrimSpace(line))
				}
			}
		}
		_, _ = b.systemctl("kill", "--signal=KILL", "workerd") // with its workers, where a test went wrong
		_, _ = b.systemctl("disable", "--now", "workerd")
		_, _ = b.systemctl("reset-failed", "workerd")
		b.clear()
		_, _ = b.systemctl("daemon-reload")
		require.NoError(t, os.RemoveAll(dir))
	})
	return b
}

// clear removes what a workerd of this user has, and its unit.
func (b *booted) clear() {
	b.t.Helper()
	for _, path := range []string{
		".config/workerd", ".config/systemd/user/workerd.service", ".config/systemd/user/workerd.service.d", ".local/state/workerd", ".cache/workerd",
	} {
		require.NoError(b.t, os.RemoveAll(filepath.Join(b.home, path)))
	}
	require.NoError(b.t, os.RemoveAll(b.runtimeDir()))
}

func (b *booted) systemctl(args ...string) (string, error) {
	out, err := exec.Command("systemctl", append([]string{"--user"}, args...)...).CombinedOutput()
	return strings.TrimSpace(string(out)), err
}

// does runs systemctl, which must succeed.
func (b *booted) does(args ...string) {
	b.t.Helper()
	out, err := b.systemctl(args...)
	require.NoError(b.t, err, "systemctl %v: %s", args, out)
}

// is returns a property of the unit.
func (b *booted) is(property string) string {
	b.t.Helper()
	out, err := b.systemctl("show", "workerd", "--property="+property, "--value")
	require.NoError(b.t, err, out)
	return out
}

func (b *booted) main() int {
	b.t.Helper()
	pid, err := strconv.Atoi(b.is("MainPID"))
	require.NoError(b.t, err)
	return pid
}

// override writes a drop-in for [Service], as `systemctl --user edit` does, for the next daemon-reload.
func (b *booted) override(lines string) {
	b.t.Helper()
	dir := filepath.Join(b.home, ".config/systemd/user/workerd.service.d")
	require.NoError(b.t, os.MkdirAll(dir, 0o755))
	require.NoError(b.t, os.WriteFile(filepath.Join(dir, "override.conf"), []byte("[Service]\n"+lines), 0o644))
}

// journal returns what the unit wrote, and systemd of it, in this test.
func (b *booted) journal() string {
	out, err := exec.Command("journalctl", "--user-unit=workerd.service", "--no-pager", "--output=short-precise",
		fmt.Sprintf("--since=@%d", b.begin.Unix())).CombinedOutput()
	if err != nil {
		return err.Error() + ": " + string(out)
	}
	return string(out)
}

// said waits until the journal, which takes entries in its own time, has one.
func (b *booted) said(what string) {
	b.t.Helper()
	b.until("the journal has "+what, func() bool { return strings.Contains(b.journal(), what) })
}

// counter writes a provider whose worker counts its calls.
func (b *booted) counter(slug, toml string) {
	b.t.Helper()
	python := fmt.Sprintf("python = %q", interpreter(b.t))
	b.write(slug, "live.py", b.manifest(`worker = "live.py"`, python, toml))
}

// count has a provider's worker count, and returns how far it is.
func (b *booted) count(slug string) string {
	b.t.Helper()
	m, err := b.dial(slug).try("count", "{}")
	require.NoError(b.t, err)
	require.Nil(b.t, m.Error)
	return string(m.Result)
}

// restarted waits until systemd has started workerd again by itself, n times in all.
func (b *booted) restarted(n int) {
	b.t.Helper()
	b.until(fmt.Sprintf("systemd has started it again, %d times", n), func() bool {
		return b.is("NRestarts") == strconv.Itoa(n) && b.is("ActiveState") == "active"
	})
}

// stopped stops the unit and checks that nothing is left.
func (b *booted) stopped() {
	b.t.Helper()
	b.does("stop", "workerd")
	b.leftNothing()
	require.Equal(b.t, "0", strconv.Itoa(b.main()))
}
