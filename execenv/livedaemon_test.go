package execenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
	"workerd/protocol/prototest"
)

// startDocker starts a docker daemon of the test's own by argv, which is given the daemon's own flags, hands it the test image, and
// returns a rig that uses it.
func startDocker(t *testing.T, argv ...string) *rig {
	t.Helper()
	if testing.Short() {
		prototest.Needs(t, "long", "it starts a daemon")
	}
	r := newRig(t, manifest.Docker, "small")
	dir, err := os.MkdirTemp("/tmp", "wdd")
	require.NoError(t, err)
	require.NoError(t, os.Chmod(dir, 0o711)) // the remapped root passes
	host := "unix://" + filepath.Join(dir, "docker.sock")
	config := filepath.Join(dir, "daemon.json")
	require.NoError(t, os.WriteFile(config, []byte("{}"), 0o600))
	argv = append(argv, "--config-file", config, "-H", host, "--data-root", filepath.Join(dir, "data"), "--exec-root", filepath.Join(dir, "exec"),
		"--pidfile", filepath.Join(dir, "pid"), "--iptables=false", "--bridge=none", "--storage-driver=vfs")
	log, err := os.Create(filepath.Join(dir, "log"))
	require.NoError(t, err)
	cmd := exec.Command(argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+dir, "XDG_DATA_HOME="+dir)
	start(t, cmd)
	t.Cleanup(func() {
		pid := cmd.Process.Pid
		_ = cmd.Process.Signal(os.Interrupt)
		deadline := time.AfterFunc(20*time.Second, func() { _ = cmd.Process.Kill() })
		waitExit(pid)
		deadline.Stop()
		kids.KillTree(Tree{Session: pid, Root: pid}, Full)
		kids.Done(pid, func() { _ = cmd.Wait() })
		// What belongs to other ids of a user namespace goes by one that maps them.
		if os.RemoveAll(dir) != nil {
			_ = exec.Command("podman", "unshare", "rm", "-rf", dir).Run()
		}
		_ = log.Close()
	})
	answers := func() bool { return exec.Command("docker", "-H", host, "version").Run() == nil }
	ended := func() bool { st, err := ReadStat(cmd.Process.Pid); return err != nil || st.Dead() }
	require.Eventually(t, func() bool { return answers() || ended() }, time.Minute, 100*time.Millisecond, "the daemon answers")
	if ended() {
		data, _ := os.ReadFile(log.Name())
		prototest.Needs(t, "docker", "no such daemon can be had here"+lastLines(data))
	}
	copyImage := exec.Command("sh", "-c", `docker save "$1" | docker -H "$2" load`, "sh", r.m.Env.Image, host)
	output(t, copyImage)
	r.h.Environ = append(r.h.Environ, "DOCKER_HOST="+host)
	r.replan()
	return r
}

// isCaller runs a worker and checks that what it writes is the caller's, and that it can read what the caller can.
func (r *rig) isCaller() sight {
	r.t.Helper()
	v := r.look(`
open(os.environ["WORKERD_WORK_ROOT"] + "/out", "w").write("x")
open(os.path.expanduser("~/kept"), "w").write("x")
`)
	assert.Empty(r.t, strangersFiles(r.t, r.m.Paths.WorkRoot, r.h.CacheDir, r.h.RuntimeDir))
	assert.Equal(r.t, r.h.ID.Name, v.User)
	assert.Equal(r.t, r.h.ID.Name, v.Pwd[0])
	assert.Equal(r.t, providerHome(r.h, "ocr"), v.Home)
	assert.Equal(r.t, v.Home, v.Pwd[5])
	return v
}

// A daemon with userns-remap would make the worker somebody else.
func TestLiveUsernsRemap(t *testing.T) {
	if os.Getuid() != 0 {
		prototest.Needs(t, "root", "nobody else starts such a daemon")
	}
	ranges, _ := os.ReadFile("/etc/subuid")
	name, _, ok := strings.Cut(strings.TrimSpace(string(ranges)), ":")
	if !ok {
		prototest.Needs(t, "docker", "/etc/subuid has no ranges")
	}
	r := startDocker(t, "dockerd", "--userns-remap="+name)
	info, err := r.engine().Info(t.Context())
	require.NoError(t, err)
	require.True(t, info.Remapped)
	assert.Zero(t, r.isCaller().UID)
	assert.Contains(t, r.plan().Argv, "--userns=host")
}

// In a rootless daemon's containers root is the caller, and nobody else can be.
func TestLiveRootlessDocker(t *testing.T) {
	if os.Getuid() == 0 {
		prototest.Needs(t, "user", "root has no rootless docker")
	}
	if _, err := exec.LookPath("rootlesskit"); err != nil {
		prototest.Needs(t, "docker", "no rootlesskit: "+err.Error())
	}
	r := startDocker(t, "rootlesskit", "--net=host", "--copy-up=/etc", "--copy-up=/run", "--propagation=rslave",
		"sh", "-c", `rm -f /run/docker /run/containerd /run/xtables.lock; exec dockerd --rootless "$@"`, "sh")
	info, err := r.engine().Info(t.Context())
	require.NoError(t, err)
	require.True(t, info.Rootless)
	assert.Equal(t, os.Getuid(), info.OwnerUID)
	v := r.isCaller()
	assert.Zero(t, v.UID)
	assert.Equal(t, "0000000000000000", v.Caps)
	assert.Len(t, v.Passwd, 2)
	if len(r.h.ID.Groups) > 0 {
		assert.Contains(t, strings.Join(r.plan().Warnings, "\n"), "loses supplementary groups")
	}
}
