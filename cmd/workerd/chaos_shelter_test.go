package main

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// The surroundings of a chaos run: a disk that can be filled, a cgroup of workerd's own, and memory that ends. Root can make them
// on a machine that lets it; the run says what there is.

// shelter makes the surroundings.
func (c *chaos) shelter() {
	c.smallDisk()
	if os.Geteuid() != 0 || len(c.kinds) > 1 {
		return
	}
	dir, err := c.delegated()
	if err != nil {
		c.t.Logf("no cgroups in this run: %v", err)
		return
	}
	if has, _ := os.ReadFile(filepath.Join(dir, "cgroup.controllers")); strings.Contains(string(has), "memory") {
		c.ends[manifest.Venv] = true
		return
	}
	c.smallMemory()
}

// limits are those of a kind of environment beyond which the kernel kills; "" where nothing holds it.
func (c *chaos) limits(kind string) string {
	if !c.ends[kind] || c.memory != "" {
		return ""
	}
	return "[limits]\nmemory = \"200MiB\"\n"
}

// smallMemory puts workerd and its workers into a cgroup of version 1 which is to them what a machine's memory is: beyond it the
// kernel kills the largest process, which must not be workerd.
func (c *chaos) smallMemory() {
	dir, err := os.MkdirTemp("/sys/fs/cgroup/memory", "wdtest-")
	if err != nil {
		c.t.Logf("nothing runs out of memory in this run: %v", err)
		return
	}
	c.t.Cleanup(func() {
		c.end()
		c.until("the memory cgroup is empty", func() bool { return os.Remove(dir) == nil })
	})
	require.NoError(c.t, os.WriteFile(filepath.Join(dir, "memory.limit_in_bytes"), []byte(strconv.Itoa(1<<30)), 0))
	c.memory, c.ends[manifest.Venv] = dir, true
	c.joins = append(c.joins, filepath.Join(dir, "cgroup.procs"))
}

// outOfMemory is how many processes the kernel has killed for their memory, as far as that can be told.
func (c *chaos) outOfMemory() (n int) {
	data, _ := os.ReadFile(filepath.Join(c.memory, "memory.oom_control"))
	if _, after, ok := strings.Cut(string(data), "oom_kill "); ok {
		n, _ = strconv.Atoi(strings.Fields(after)[0])
	}
	return n + strings.Count(c.log.String(), "out of memory (limits.memory)")
}

// smallDisk puts logs and state on a file system of their own that can be filled: one that WORKERD_TEST_SMALL_DISK names, or one
// that root makes.
func (c *chaos) smallDisk() {
	state := filepath.Join(c.dir, "state")
	c.env["WORKERD_LOG_MAX_SIZE"], c.env["WORKERD_LOG_MAX_FILES"] = "2MiB", "3"
	if disk := os.Getenv("WORKERD_TEST_SMALL_DISK"); disk != "" {
		require.NoError(c.t, os.Symlink(disk, state))
		c.disk = disk
		return
	}
	if os.Geteuid() != 0 {
		return
	}
	require.NoError(c.t, os.MkdirAll(state, 0o700))
	if err := syscall.Mount("none", state, "tmpfs", 0, "size=128m,mode=700"); err != nil {
		c.t.Logf("no full disk in this run: %v", err)
		return
	}
	c.disk = state
	c.t.Cleanup(func() { // by then workerd has ended, and the folder is about to be removed
		_ = syscall.Unmount(state, syscall.MNT_DETACH)
	})
}
