package execenv

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"workerd/manifest"
	"workerd/protocol/prototest"
)

// cgroupHost writes the files by which a machine tells of its cgroups. Of files whose names end in "!" the folder is marked as
// delegated.
func cgroupHost(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		path := filepath.Join(root, strings.TrimSuffix(name, "!"))
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		if strings.HasSuffix(name, "!") {
			err := unix.Setxattr(filepath.Dir(path), "user.delegate", []byte("1"), 0)
			if errors.Is(err, unix.EOPNOTSUPP) {
				prototest.Needs(t, "xattr", "the file system of TMPDIR keeps no attributes of users: "+err.Error())
			}
			require.NoError(t, err)
		}
	}
	return root
}

const (
	unifiedMount = "30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
	hybridMount  = "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n42 24 0:26 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n"
	service      = "sys/fs/cgroup/user.slice/user-7.slice/user@7.service/app.slice/workerd.service/"
	servicePath  = "0::/user.slice/user-7.slice/user@7.service/app.slice/workerd.service"
)

func TestFindCgroups(t *testing.T) {
	host := func(cgroup, mounts string, more ...string) map[string]string {
		files := map[string]string{"proc/self/cgroup": cgroup, "proc/self/mountinfo": mounts}
		for i := 0; i+1 < len(more); i += 2 {
			files[more[i]] = more[i+1]
		}
		return files
	}
	all := "cpuset cpu io memory hugetlb pids\n"
	for _, c := range []struct {
		name  string
		files map[string]string
		dir   string // below the root; "" for none
		has   string
		why   string
		do    string
	}{
		{"a service with Delegate=yes", host(servicePath+"\n", unifiedMount, service+"cgroup.procs!", "", service+"cgroup.controllers", all),
			service, "memory cpu pids", "", ""},
		{"in its leaf already", host(servicePath+"/workerd\n", unifiedMount, service+"cgroup.procs!", "", service+"cgroup.controllers", all, service+"workerd/cgroup.procs", ""),
			service, "memory cpu pids", "", ""},
		{"a command after the end of the service", host(servicePath+"/.control\n", unifiedMount, service+"cgroup.procs!", "", service+"cgroup.controllers", all),
			service, "memory cpu pids", "", ""},
		{"not all controllers", host(servicePath+"\n", unifiedMount, service+"cgroup.procs!", "", service+"cgroup.controllers", "memory pids\n"),
			service, "memory pids", "is delegated without the controllers cpu", "systemctl edit user@.service"},
		{"a service without it", host(servicePath+"\n", unifiedMount, service+"cgroup.procs", "", service+"cgroup.type", "domain\n", service+"cgroup.controllers", all),
			"", "", "workerd.service, is not delegated to it", "Delegate=yes"},
		{"beside others below a delegated one", host(servicePath+"/other\n", unifiedMount, service+"cgroup.procs!", "", service+"other/cgroup.type", "domain\n", service+"other/cgroup.procs", ""),
			"", "", "workerd.service/other, is not delegated to it", "Delegate=yes"},
		{"in the root", host("0::/\n", unifiedMount, "sys/fs/cgroup/cgroup.procs", ""),
			"", "", "in the root cgroup, not in one of its own", "Delegate=yes"},
		{"version 1", host("4:memory:/\n2:cpu,cpuacct:/\n8:pids:/\n1:name=systemd:/\n", "31 24 0:27 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"),
			"", "", "of version 1", "systemd.unified_cgroup_hierarchy=1"},
		{"hybrid", host("4:memory:/\n8:pids:/\n0::/\n", hybridMount, "sys/fs/cgroup/unified/cgroup.procs", ""),
			"", "", "hybrid: version 1 holds the controllers memory, pids", "systemd.unified_cgroup_hierarchy=1"},
		{"hybrid and delegated", host("4:memory:/\n0::/w\n", hybridMount, "sys/fs/cgroup/unified/w/cgroup.procs!", "", "sys/fs/cgroup/unified/w/cgroup.controllers", "hugetlb\n"),
			"sys/fs/cgroup/unified/w", "", "hybrid: version 1 holds the controllers memory", "systemd.unified_cgroup_hierarchy=1"},
		{"a namespace of its own, mounted elsewhere", host("0::/x/w\n", "30 24 0:26 /x /cg\\040roups rw - cgroup2 none rw\n", "cg roups/w/cgroup.procs!", "", "cg roups/w/cgroup.controllers", all),
			"cg roups/w", "memory cpu pids", "", ""},
		{"outside what is mounted", host("0::/y/w\n", "30 24 0:26 /x /cg rw - cgroup2 none rw\n"),
			"", "", "no cgroup file system is mounted", ""},
		{"no cgroups", map[string]string{}, "", "", "no such file", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := cgroupHost(t, c.files)
			s := FindCgroups(root, 0)
			dir := ""
			if c.dir != "" {
				dir = filepath.Join(root, c.dir)
			}
			assert.Equal(t, dir, s.Dir)
			assert.Equal(t, CgroupState{Memory: strings.Contains(c.has, "memory"), CPU: strings.Contains(c.has, "cpu"), Pids: strings.Contains(c.has, "pids")},
				CgroupState{Memory: s.Memory, CPU: s.CPU, Pids: s.Pids})
			assert.Contains(t, s.Why, c.why)
			assert.Contains(t, s.Do, c.do)
			assert.Equal(t, c.why == "", s.Why == "", s.Why)
		})
	}
}

// Without a mark a cgroup is taken for delegated where it was given to the user by name, and by that alone: what lies below that
// belongs to the user too, and is their systemd's.
func TestFindCgroupsByOwner(t *testing.T) {
	if os.Geteuid() != 0 {
		prototest.Needs(t, "root", "to give folders away")
	}
	const uid = 64001
	root := cgroupHost(t, map[string]string{
		"proc/self/cgroup": "0::/given\n", "proc/self/mountinfo": unifiedMount,
		"sys/fs/cgroup/given/cgroup.procs": "", "sys/fs/cgroup/given/cgroup.type": "domain\n", "sys/fs/cgroup/given/cgroup.controllers": "memory\n",
		"sys/fs/cgroup/given/app.slice/cgroup.procs": "", "sys/fs/cgroup/given/app.slice/cgroup.type": "domain\n",
	})
	given := filepath.Join(root, "sys/fs/cgroup/given")
	assert.Empty(t, FindCgroups(root, uid).Dir)
	for _, d := range []string{given, filepath.Join(given, "app.slice")} {
		require.NoError(t, os.Chown(d, uid, -1))
	}
	assert.Equal(t, given, FindCgroups(root, uid).Dir)
	assert.Empty(t, FindCgroups(root, 0).Dir, "to root everything belongs")
	require.NoError(t, os.WriteFile(filepath.Join(root, "proc/self/cgroup"), []byte("0::/given/app.slice\n"), 0o644))
	assert.Empty(t, FindCgroups(root, uid).Dir)
}

func TestCgroupSettings(t *testing.T) {
	every := CgroupState{Memory: true, CPU: true, Pids: true}
	for _, c := range []struct {
		name string
		s    CgroupState
		l    manifest.Limits
		want [][2]string
	}{
		{"all", every, manifest.Limits{Memory: 1 << 30, CPUs: 2.5, Pids: 100},
			[][2]string{{"memory.max", "1073741824"}, {"memory.swap.max", "0"}, {"cpu.max", "250000 100000"}, {"pids.max", "100"}}},
		{"none, which takes back what was", every, manifest.Limits{},
			[][2]string{{"memory.max", "max"}, {"memory.swap.max", "max"}, {"cpu.max", "max 100000"}, {"pids.max", "max"}}},
		{"a crumb of a processor", CgroupState{CPU: true}, manifest.Limits{CPUs: 0.001, Pids: 5}, [][2]string{{"cpu.max", "1000 100000"}}},
		{"no controllers", CgroupState{}, manifest.Limits{Memory: 1, CPUs: 1, Pids: 1}, nil},
	} {
		assert.Equal(t, c.want, c.s.settings(c.l), c.name)
	}
}

func TestCgroupWarnings(t *testing.T) {
	m := fixedManifest()
	m.Limits = manifest.Limits{Memory: 1 << 30, CPUs: 1, Pids: 10, ShmSize: manifest.DefaultShmSize}
	h := testHost(t)
	h.Cgroups = CgroupState{Dir: "/cg", Memory: true, Why: "cpu and pids are missing", Do: "add them"}
	assert.Equal(t, []string{"limits.cpus, limits.pids cannot be enforced where this runs, since cpu and pids are missing; the worker runs without. To have them: add them"},
		cgroupWarnings(h, m))
	h.Cgroups = CgroupState{Dir: "/cg", Memory: true, CPU: true, Pids: true}
	assert.Empty(t, cgroupWarnings(h, m))
	m.Limits.ShmSize++
	assert.Contains(t, cgroupWarnings(h, m)[0], "limits.shm_size is for containers of docker and podman")
	m.Limits = manifest.Limits{Pids: manifest.DefaultPids, ShmSize: manifest.DefaultShmSize}
	assert.Empty(t, cgroupWarnings(Host{}, m), "a default is not asked for")
}

// What is not delegated is not touched.
func TestEnterNothing(t *testing.T) {
	c, s := EnterCgroups(CgroupState{Why: "why"})
	assert.Nil(t, c)
	assert.Equal(t, CgroupState{Why: "why"}, s)
	require.NoError(t, LeaveCgroups(s))

	dir := t.TempDir() // no cgroup at all: nobody can move into it
	c, s = EnterCgroups(CgroupState{Dir: dir, Memory: true})
	assert.Nil(t, c)
	assert.Empty(t, s.Dir)
	assert.False(t, s.Memory)
	assert.Contains(t, s.Why, "workerd cannot move into a leaf of its cgroup")
}

// systemd escapes a '-' in the name of a unit with a backslash, which a pattern takes for its own.
func TestSweepBelowAnEscapedName(t *testing.T) {
	dir := filepath.Join(t.TempDir(), `system-workerd\x2dlab.slice`, "[1]")
	for _, name := range []string{"workerd-0a1b-ocr-1", "workerd-0a1b-ocr-2", "workerd-0a1b-ocr-3", "workerd-ffff-ocr-1"} {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
	}
	require.NoError(t, os.WriteFile(filepath.Join(dir, "workerd-0a1b-ocr-1", "cgroup.events"), []byte("populated 1\n"), 0o644))
	c := &Cgroups{CgroupState{Dir: dir}}
	killed := c.Sweep("0a1b", func(dir string) bool { return strings.HasSuffix(dir, "-3") })
	assert.Equal(t, []string{"workerd-0a1b-ocr-1"}, killed)
	assert.NoDirExists(t, filepath.Join(dir, "workerd-0a1b-ocr-2"))
	assert.DirExists(t, filepath.Join(dir, "workerd-0a1b-ocr-3"))
	assert.DirExists(t, filepath.Join(dir, "workerd-ffff-ocr-1"))
}
