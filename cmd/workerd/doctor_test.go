package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"workerd/execenv"
	"workerd/execenv/gpu"
	"workerd/execenv/gpu/gputest"
	"workerd/identity"
	"workerd/protocol/prototest"
)

// script writes a program that stands in for an engine's client.
func script(t *testing.T, dir, name, body string) {
	t.Helper()
	require.NoError(t, os.MkdirAll(dir, 0o755))
	writeProgram(t, filepath.Join(dir, name), "#!/bin/sh\n"+body+"\n")
}

// text joins findings, one line each.
func text(findings []finding) string {
	var lines []string
	for _, f := range findings {
		lines = append(lines, strings.Join([]string{f.Status, f.Check, f.Message, "-> " + f.Do}, " "))
	}
	return strings.Join(lines, "\n")
}

const (
	dockerInfo = `{"ServerVersion":"24.0.1","CgroupVersion":"2","DefaultRuntime":"runc","MemoryLimit":true,"CPUCfsQuota":true,"PidsLimit":true,"SecurityOptions":["name=seccomp"`
	podmanInfo = `{"host":{"cgroupVersion":"v2","cgroupControllers":["memory","pids"],"ociRuntime":{"name":"runc"},"security":{"rootless":true}},"version":{"Version":"4.9.1"}}`
)

func TestDoctorSaysWhatIsWrongWithEachEngine(t *testing.T) {
	answering := func(version, info string) string {
		return `case $1 in --version) echo "` + version + `" ;; info) cat <<'X'` + "\n" + info + "\nX\n" + `;; context) echo unix:///nonexistent ;; esac`
	}
	failing := func(message string) string {
		return `case $1 in --version) echo "Docker version 24" ;; *) echo "` + message + `" >&2; exit 1 ;; esac`
	}
	for _, tc := range []struct {
		name, kind, script string
		needed             int
		says               []string
	}{
		{"absent and not needed", "docker", "", 0, []string{"note docker not installed -> "}},
		{"absent and needed", "docker", "", 2, []string{"problem docker not installed (needed by 2 of the manifests) -> install docker"}},
		{"well", "docker", answering("Docker version 24", dockerInfo+"]}"), 0, []string{"ok docker docker 24.0.1, rootful, runtime runc, cgroup v2"}},
		{"daemon down", "docker", failing("Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"), 0,
			[]string{"warning docker not reachable: Cannot connect", "-> start the docker daemon"}},
		{"no permission", "docker", failing("permission denied while trying to connect to the Docker daemon socket"), 1,
			[]string{"problem docker permission denied (needed by 1 of the manifests): permission denied while"}},
		{"hangs", "docker", "exec sleep 100", 0, []string{"warning docker does not answer: no end within 300ms"}},
		{"remapped", "docker", answering("Docker version 24", dockerInfo+`,"name=userns"]}`), 0, []string{"docker 24.0.1, userns-remap", "note docker the daemon remaps users"}},
		{"another user's rootless daemon", "docker", answering("Docker version 24", dockerInfo+`,"name=rootless"]}`), 1,
			[]string{"problem docker this rootless daemon belongs to another user", "DOCKER_HOST"}},
		{"podman by docker's name", "docker", answering("podman version 4.9.1", podmanInfo), 0,
			[]string{"ok docker podman 4.9.1, rootless", "note docker the program is podman under another name"}},
		{"rootless podman", "podman", answering("podman version 4.9.1", podmanInfo), 0, []string{
			"ok podman podman 4.9.1, rootless, runtime runc, cgroup v2",
			"note podman limits.cpus cannot be enforced -> have systemd delegate",
			"warning podman with the runtime runc supplementary groups are lost",
			"warning podman catatonit", "note podman neither slirp4netns nor pasta",
		}},
		{"podman that refuses", "podman", `case $1 in --version) echo "podman version 4" ;; *) echo "Error: something new" >&2; exit 125 ;; esac`, 0,
			[]string{"warning podman `podman info` failed (exit 125): Error: something new"}},
		{"apptainer", "apptainer", `echo "apptainer version 1.4.5"`, 0, []string{"ok apptainer apptainer 1.4.5, needs user namespaces", "warning apptainer squashfuse is not installed"}},
		{"apptainer that hangs", "apptainer", "exec sleep 100", 1, []string{"problem apptainer does not answer (needed by 1"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			bin := t.TempDir()
			if tc.script != "" {
				script(t, bin, tc.kind, "PATH=/usr/bin:/bin\n"+tc.script)
			}
			h := execenv.Host{
				ID:      identity.Identity{UID: 1234, GID: 1234, Groups: []int{55}, Home: bin, Name: "nobody-here"},
				Environ: []string{"PATH=" + bin, "HOME=" + bin}, CacheDir: t.TempDir(), EngineTimeout: 300 * time.Millisecond,
			}
			if !strings.Contains(tc.name, "hangs") {
				h.EngineTimeout = time.Minute
			}
			e := &engineDoctor{
				planner: execenv.NewPlanner(h, execenv.OSRunner{Children: &children}), id: h.ID, environ: h.Environ,
				needed:   func() map[string]int { return map[string]int{tc.kind: tc.needed} },
				initDirs: []string{bin},
			}
			var found []finding
			if tc.kind == "apptainer" {
				found = e.apptainer(t.Context())
			} else {
				found = e.oci(t.Context(), tc.kind)
			}
			for _, says := range tc.says {
				require.Contains(t, text(found), says)
			}
		})
	}
}

// An engine is a problem only where a manifest names it.
func TestDoctorFailsWhereAManifestNeedsAnEngine(t *testing.T) {
	r := newRig(t)
	r.env["PATH"] = filepath.Join(r.dir, "bin")
	require.Contains(t, r.ok("doctor"), "not installed")
	file := r.provider("boxed", "")
	data := strings.Replace(string(mustRead(t, file)), `kind = "venv"`, "kind = \"docker\"\nimage = \"lab/x:1\"", 1)
	require.NoError(t, os.WriteFile(file, []byte(data), 0o644))
	require.Equal(t, exitFailed, r.run("doctor"))
	require.Regexp(t, `problem +docker +not installed \(needed by 1 of the manifests\)`, r.out.String())

	require.Equal(t, exitFailed, r.run("doctor", "--json"))
	var got struct{ Findings []finding }
	require.NoError(t, json.Unmarshal([]byte(r.out.String()), &got))
	checks := map[string]bool{}
	for _, f := range got.Findings {
		checks[f.Check] = true
		require.Contains(t, []string{findOK, findNote, findWarning, findProblem}, f.Status)
	}
	for _, check := range []string{"docker", "podman", "apptainer", "user namespaces", "cgroup", "GPUs", "security modules", "inotify"} {
		require.True(t, checks[check], check)
	}
}

func TestDoctorOutlivesACheckThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		release := make(chan struct{})
		begin := time.Now()
		found := runChecks(t.Context(), []check{
			one("first", func() finding { return ok("first", "well") }),
			{"stuck", func(context.Context) []finding { <-release; return nil }},
			{"slow", func(ctx context.Context) []finding { <-ctx.Done(); return []finding{ok("slow", "ended")} }},
			one("last", func() finding { return ok("last", "well") }),
		}, time.Minute)
		require.Less(t, time.Since(begin), 2*time.Minute)
		require.Equal(t, "ok first well -> \nwarning stuck nothing was found out within 1m0s: what it asks hangs -> \nok slow ended -> \nok last well -> ", text(found))
		close(release)
	})
}

// put writes files below a directory that stands for the root.
func put(t *testing.T, files map[string]string) (root string) {
	t.Helper()
	root = t.TempDir()
	for name, content := range files {
		path := filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(content), 0o644))
	}
	return root
}

func TestDoctorOnUserNamespaces(t *testing.T) {
	denied := errors.New("operation not permitted")
	for _, tc := range []struct {
		files  map[string]string
		tried  error
		needed bool
		says   string
	}{
		{map[string]string{"proc/sys/user/max_user_namespaces": "100\n"}, nil, true, "ok user namespaces can be made (user.max_user_namespaces=100)"},
		{map[string]string{"proc/sys/user/max_user_namespaces": "0\n"}, denied, false, "note user namespaces cannot be made by this user"},
		{map[string]string{"proc/sys/user/max_user_namespaces": "0\n", "proc/sys/kernel/unprivileged_userns_clone": "0"}, denied, true,
			"-> sysctl kernel.unprivileged_userns_clone=1 user.max_user_namespaces=65536"},
		{map[string]string{"proc/sys/kernel/apparmor_restrict_unprivileged_userns": "1"}, denied, true, "note user namespaces AppArmor allows them only to programs"},
		{nil, denied, true, "problem user namespaces cannot be made by this user"},
		{nil, denied, true, "sandbox"},
	} {
		require.Contains(t, text([]finding{checkUserNamespaces(put(t, tc.files), 1000, tc.tried, tc.needed)}), tc.says)
	}
}

func TestDoctorOnSubordinateIDs(t *testing.T) {
	id := identity.Identity{UID: 4321, Name: "nobody-here"}
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	check := func(files map[string]string, needed bool) string {
		return text(checkSubIDs(t.Context(), put(t, files), id, needed))
	}
	whole := map[string]string{"etc/subuid": "other:1:65536\nnobody-here:100000:65536\n", "etc/subgid": "4321:100000:65536\n"}
	require.Contains(t, check(whole, true), "problem subordinate ids newuidmap is not installed")
	script(t, bin, "newuidmap", "")
	script(t, bin, "newgidmap", "")
	require.Equal(t, "ok subordinate ids 65536 in /etc/subuid, 65536 in /etc/subgid; newuidmap is there -> ", check(whole, true))
	require.Contains(t, check(map[string]string{"etc/subuid": "other:1:65536\n"}, true), "problem subordinate ids nobody-here has 0 ids in /etc/subuid")
	require.Contains(t, check(map[string]string{"etc/subuid": "nobody-here:1:10\n"}, false), "note subordinate ids nobody-here has 10 ids")
	require.Contains(t, check(nil, false), "usermod --add-subuids")
	script(t, bin, "getsubids", `echo "0: nobody-here 100000 65536"`)
	require.Contains(t, check(nil, true), "ok subordinate ids 65536", "a directory service may have them")
	require.Empty(t, checkSubIDs(t.Context(), "/", identity.Identity{UID: 0, Name: "root"}, true), "root needs none")
}

func TestDoctorOnCgroups(t *testing.T) {
	const own = "sys/fs/cgroup/system.slice/w.service/"
	check := func(cgroup, controllers string, delegate bool) string {
		root := put(t, map[string]string{
			"proc/self/cgroup": cgroup, "proc/self/mountinfo": "30 24 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n",
			own + "cgroup.procs": "", own + "cgroup.type": "domain\n", own + "cgroup.controllers": controllers,
		})
		if delegate {
			err := unix.Setxattr(filepath.Join(root, own), "user.delegate", []byte("1"), 0)
			if errors.Is(err, unix.EOPNOTSUPP) {
				prototest.Needs(t, "xattr", "the file system of TMPDIR keeps no attributes of users: "+err.Error())
			}
			require.NoError(t, err)
		}
		return text([]finding{checkCgroup(root, 0)})
	}
	const service = "0::/system.slice/w.service\n"
	require.Contains(t, check(service, "cpuset cpu io memory pids\n", true), "w.service is delegated with memory, cpu, pids -> ")
	require.Contains(t, check(service, "memory pids\n", true), "but not with all limits: ")
	require.Contains(t, check(service, "memory pids\n", true), "without the controllers cpu -> systemctl edit user@.service")
	require.Contains(t, check(service, "memory pids\n", false), "is not delegated to it: where this runs, venv and Apptainer workers have no limits")
	require.Contains(t, check("3:memory:/\n"+service, "pids\n", false), "note cgroup cgroups are hybrid: version 1 holds the controllers memory: ")
}

func TestDoctorOnGPUsAndSecurityModules(t *testing.T) {
	bin := t.TempDir()
	t.Setenv("PATH", bin)
	gpus := func(s gpu.Snapshot) string {
		var f gputest.Fake
		f.Set(s)
		return text(checkGPUs(t.Context(), &f, t.TempDir()))
	}
	require.Equal(t, "ok GPUs none found -> ", gpus(gpu.Snapshot{}))
	h100 := gpu.Device{Name: "NVIDIA H100", UUID: "GPU-1", Total: 80 << 30}
	require.Contains(t, gpus(gpu.Snapshot{Driver: "550.54", Source: "nvml", Devices: []gpu.Device{h100, h100}}), "ok GPUs 2 x NVIDIA H100, 80 GiB, driver 550.54 (by nvml)")
	require.Contains(t, gpus(gpu.Snapshot{Problem: "NVML: mismatch"}), "warning GPUs NVML: mismatch -> providers that name gpu.devices run")
	ill := h100
	ill.Ill = "lost"
	require.Contains(t, gpus(gpu.Snapshot{Devices: []gpu.Device{ill}}), "warning GPUs GPU-1: lost -> no worker is placed on it")
	require.Contains(t, gpus(gpu.Snapshot{Devices: []gpu.Device{h100}, Hidden: []gpu.Device{h100}}), "note GPUs 1 more are outside of the allocation")
	var broken gputest.Fake
	broken.Fail(errors.New("NVML hangs"))
	require.Contains(t, text(checkGPUs(t.Context(), &broken, t.TempDir())), "warning GPUs NVML hangs")
	script(t, bin, "nvidia-smi", `echo "Failed to initialize NVML: Driver/library version mismatch"; exit 18`)
	require.Contains(t, text(checkGPUs(t.Context(), gpu.Open(gpu.Options{Root: put(t, map[string]string{"proc/driver/nvidia/version": ""})}), t.TempDir())), "warning GPUs ")

	require.Contains(t, text([]finding{checkSecurity(put(t, map[string]string{"sys/fs/selinux/enforce": "1"}))}), "note security modules SELinux enforces; AppArmor off")
	require.Contains(t, text([]finding{checkSecurity(put(t, map[string]string{"sys/module/apparmor/parameters/enabled": "Y\n"}))}), "ok security modules SELinux off, AppArmor on")
	require.Contains(t, text([]finding{checkSecurity(put(t, map[string]string{"sys/fs/selinux/enforce": "0"}))}), "SELinux permissive")
}

// writeProgram writes a script that can be executed at once. No fork may happen while it is open for writing: the child would hold
// it open until its own exec, and an exec of the script meanwhile fails with ETXTBSY.
func writeProgram(t testing.TB, path, text string) {
	t.Helper()
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	require.NoError(t, os.WriteFile(path, []byte(text), 0o755))
}
