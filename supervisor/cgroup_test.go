package supervisor

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"workerd/execenv"
	"workerd/protocol"
	"workerd/protocol/prototest"
)

// delegatedCgroup makes a cgroup, as an administrator would delegate it, moves the test into it, and has it removed in the end.
// It skips the test where the machine lets it have none, or where one of the controllers is missing.
func delegatedCgroup(t *testing.T, controllers ...string) (*execenv.Cgroups, execenv.CgroupState) {
	t.Helper()
	var mount string
	data, err := os.ReadFile("/proc/self/mountinfo")
	require.NoError(t, err)
	for line := range strings.Lines(string(data)) {
		if before, after, _ := strings.Cut(line, " - "); strings.HasPrefix(after, "cgroup2 ") {
			mount = strings.Fields(before)[4]
		}
	}
	own, err := os.ReadFile("/proc/self/cgroup")
	require.NoError(t, err)
	_, path, _ := strings.Cut("\n"+string(own), "\n0::")
	home := filepath.Join(mount, strings.TrimSpace(path), "cgroup.procs")
	dir, err := os.MkdirTemp(mount, "wdtest-")
	if mount == "" || err != nil {
		prototest.Needs(t, "cgroup2", fmt.Sprint("none can be made here: ", err))
	}
	back := func() { _ = os.WriteFile(home, []byte(strconv.Itoa(os.Getpid())), 0) }
	t.Cleanup(func() {
		back()
		left, _ := filepath.Glob(filepath.Join(dir, "*", "cgroup.procs"))
		require.Len(t, left, 1, "the worker's cgroups are gone: %v", left)
		require.NoError(t, os.Remove(filepath.Join(dir, "workerd")))
		require.NoError(t, os.Remove(dir))
	})
	for _, c := range controllers { // the root hands them on first
		if err := os.WriteFile(filepath.Join(mount, "cgroup.subtree_control"), []byte("+"+c), 0); err != nil {
			require.NoError(t, os.Mkdir(filepath.Join(dir, "workerd"), 0o755)) // for the clean-up
			prototest.Needs(t, "cgroup2", "no controller "+c+": "+err.Error())
		}
	}
	require.NoError(t, unix.Setxattr(dir, "user.delegate", []byte("1"), 0))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0))
	found := execenv.FindCgroups("/", os.Geteuid())
	require.Equal(t, dir, found.Dir, found.Why)
	c, s := execenv.EnterCgroups(found)
	require.NotNil(t, c, s.Why)
	again := execenv.FindCgroups("/", os.Geteuid())
	require.Equal(t, dir, again.Dir, "found from the leaf too: "+again.Why)
	return c, s
}

func cgroupOf(t *testing.T, pid int) string {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/cgroup", pid))
	require.NoError(t, err)
	_, path, _ := strings.Cut("\n"+string(data), "\n0::")
	return strings.TrimSpace(path)
}

// 61: everything that a worker forked dies with it, also what cleared its environment and made a session of its own: it cannot
// leave its cgroup by that.
func TestCase61CgroupOfAWorker(t *testing.T) {
	c, s := delegatedCgroup(t)
	r := newRigBelow(t, c)
	r.serve("echo", quick+"[serve]\nreplicas = 2\n")
	r.state("echo", "ready")
	file := filepath.Join(t.TempDir(), "children")
	client := r.dial("echo")
	dead := map[int]bool{0: true}
	for _, end := range []string{"die", "stop", "kill"} {
		st := r.until("echo", "two new ones are ready", func(s protocol.ProviderStatus) bool {
			return len(s.Workers) == 2 && s.Workers[0].State == "ready" && s.Workers[1].State == "ready" &&
				!dead[s.Workers[0].PID] && !dead[s.Workers[1].PID]
		})
		for _, w := range st.Workers {
			dead[w.PID] = true // in the end
			require.Equal(t, "/"+filepath.Base(s.Dir)+"/"+execenv.ContainerName(r.sup.cfg.Instance, "echo", number(t, w.ID)), cgroupOf(t, w.PID))
		}
		require.NoError(t, os.WriteFile(file, nil, 0o600))
		require.Equal(t, "true", string(client.call("hide", fmt.Sprintf(`{"file":%q}`, file)).Result))
		eventually(t, func() bool { return len(lines(file)) == 1 }, func() string { return "the hidden child runs" })
		child, err := strconv.Atoi(lines(file)[0])
		require.NoError(t, err)
		require.Contains(t, cgroupOf(t, child), "-echo-")
		switch end {
		case "die":
			for _, w := range st.Workers {
				require.NoError(t, syscall.Kill(w.PID, syscall.SIGKILL))
			}
		case "stop":
			require.NoError(t, r.sup.Stop(t.Context(), "echo", true))
			require.False(t, alive(child), "gone when stop returns")
			require.NoError(t, r.sup.Start(t.Context(), "echo", false))
		case "kill": // at the end of stop_timeout, and with it all
			r.stop()
		}
		eventually(t, func() bool { return !alive(child) }, func() string { return "the hidden child is gone: " + end })
	}
}

func number(t *testing.T, id string) int64 {
	t.Helper()
	n, err := strconv.ParseInt(id[strings.LastIndexByte(id, '/')+1:], 10, 64)
	require.NoError(t, err, id)
	return n
}

func cgroupFile(t *testing.T, s execenv.CgroupState, file string) string {
	t.Helper()
	var files []string
	eventually(t, func() bool { // that of the worker before may be about to go
		files, _ = filepath.Glob(filepath.Join(s.Dir, "workerd-*", file))
		return len(files) == 1
	}, func() string { return fmt.Sprint("one ", file, " in ", files) })
	data, err := os.ReadFile(files[0])
	require.NoError(t, err)
	return string(bytes.TrimSpace(data))
}

// A worker beyond its memory is out_of_memory, told from one that somebody killed and from one whose child was too large.
func TestCgroupMemory(t *testing.T) {
	c, s := delegatedCgroup(t, "memory")
	r := newRigBelow(t, c)
	manifest := quick + "[limits]\nmemory = \"%dMiB\"\n"
	r.serve("echo", fmt.Sprintf(manifest, 64))
	r.state("echo", "ready")
	client := r.dial("echo")
	died := func(pid int) *protocol.Exit {
		t.Helper()
		st := r.until("echo", "another worker", func(s protocol.ProviderStatus) bool {
			return s.State == "ready" && s.Workers[0].PID != pid && s.Workers[0].LastExit != nil
		})
		return st.Workers[0].LastExit
	}
	pid := client.call("echo", `{}`).pid(t)
	require.Equal(t, protocol.WorkerCrashed, client.call("eat", `{"size":200}`).kind())
	x := died(pid)
	require.True(t, x.OOMKilled)
	require.Contains(t, x.Reason, "killed by SIGKILL: out of memory (limits.memory)")

	pid = client.call("echo", `{}`).pid(t)
	require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	x = died(pid)
	require.False(t, x.OOMKilled)
	require.Equal(t, "killed by SIGKILL", x.Reason)

	pid = client.call("echo", `{}`).pid(t)
	require.Equal(t, `"signal: killed"`, string(client.call("eat-child", `{"size":200}`).Result))
	require.Equal(t, pid, client.call("echo", `{}`).pid(t), "the worker lives")
	require.Equal(t, protocol.WorkerCrashed, client.call("crash", `{"code":3}`).kind())
	x = died(pid)
	require.True(t, x.OOMKilled)
	require.Contains(t, x.Reason, "exited with code 3; a process that it had started was killed for memory (limits.memory)")

	// An edit of the limits alone restarts nothing.
	pid = client.call("echo", `{}`).pid(t)
	require.Equal(t, "67108864", cgroupFile(t, s, "memory.max"))
	r.serve("echo", fmt.Sprintf(manifest, 400))
	eventually(t, func() bool { return cgroupFile(t, s, "memory.max") == "419430400" }, func() string { return "the edit is in force" })
	r.serve("echo", fmt.Sprintf(manifest, 64))
	eventually(t, func() bool { return cgroupFile(t, s, "memory.max") == "67108864" }, func() string { return "and back" })
	r.serve("echo", fmt.Sprintf(manifest, 400))
	eventually(t, func() bool { return cgroupFile(t, s, "memory.max") == "419430400" }, func() string { return "and again" })
	require.Equal(t, `"eaten"`, string(client.call("eat", `{"size":150}`).Result))
	require.Equal(t, pid, client.call("echo", `{}`).pid(t))
}

func TestCgroupPidsAndCPUs(t *testing.T) {
	c, s := delegatedCgroup(t, "pids", "cpu")
	r := newRigBelow(t, c)
	r.serve("echo", quick+"[limits]\npids = 40\ncpus = 0.5\n")
	r.state("echo", "ready")
	require.Equal(t, "50000 100000", cgroupFile(t, s, "cpu.max"))
	require.Equal(t, "40", cgroupFile(t, s, "pids.max"))
	client := r.dial("echo")
	n, err := strconv.Atoi(string(client.call("crowd", `{"size":200}`).Result))
	require.NoError(t, err)
	require.Less(t, n, 40)
	require.Greater(t, n, 10)
	require.Nil(t, client.call("echo", `{}`).Error, "the worker lives")
	procs, self := filepath.Join(s.Dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid()))
	require.ErrorIs(t, os.WriteFile(procs, self, 0), unix.EBUSY)
	require.NoError(t, execenv.LeaveCgroups(s), "a service manager could put a process in again")
	require.NoError(t, os.WriteFile(procs, self, 0))
	_, again := execenv.EnterCgroups(execenv.FindCgroups("/", os.Geteuid()))
	require.True(t, again.Pids && again.CPU, again.Why)
}
