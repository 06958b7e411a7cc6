package execenv

import (
	"cmp"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// Cases 1 to 5: a uid that the image does not know, HOME baked into the image, caches that only root may write to, outputs
// that belong to root, supplementary groups that are lost.
func TestLiveCase1WorkerIsTheCaller(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		old := syscall.Umask(0o027)
		defer syscall.Umask(old)
		id := r.h.ID
		shared := t.TempDir()
		r.m.Paths.Binds = []manifest.Bind{{Path: shared, Mode: ro}}
		gid := labFile(t, filepath.Join(shared, "file"))
		r.m.Args = []string{shared}
		v := r.look(`
for name in "XDG_CACHE_HOME NUMBA_CACHE_DIR MPLCONFIGDIR TRITON_CACHE_DIR TORCHINDUCTOR_CACHE_DIR CUDA_CACHE_PATH JAX_COMPILATION_CACHE_DIR HF_HOME TORCH_HOME TMPDIR HOME".split():
    d = os.environ[name] + "/made/below"
    os.makedirs(d)
    open(d + "/file", "w").write(name)
open(os.environ["WORKERD_WORK_ROOT"] + "/out.txt", "w").write("result")
extra["shared"] = attempt(lambda: open(sys.argv[1] + "/file").read())
extra["group"] = attempt(lambda: [g.gr_gid for g in grp.getgrall()])
extra["readonly"] = attempt(lambda: open(os.environ["WORKERD_PROVIDER_DIR"] + "/new", "w"))
`)
		assert.Equal(t, id.UID, v.UID)
		assert.Equal(t, id.GID, v.GID)
		home := providerHome(r.h, r.m.Slug)
		assert.Equal(t, home, v.Home)
		assert.Equal(t, home, v.Expanded)
		require.Len(t, v.Pwd, 7)
		assert.Equal(t, id.Name, v.Pwd[0])
		assert.Equal(t, home, v.Pwd[5])
		assert.Equal(t, id.Name, v.User)
		assert.Equal(t, id.Name, v.Env["USER"])
		assert.Equal(t, id.Name, v.Env["LOGNAME"])
		if id.UID == 0 {
			assert.Len(t, v.Passwd, 1)
		} else {
			assert.Len(t, v.Passwd, 2)
		}
		assert.Equal(t, 0o027, v.Umask)
		assert.Equal(t, r.m.Paths.Cwd, v.Cwd)
		assert.Contains(t, v.Extra["readonly"], "Read-only file system")
		fi, err := os.Stat(filepath.Join(r.m.Paths.WorkRoot, "out.txt"))
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o640), fi.Mode().Perm())
		assert.Empty(t, strangersFiles(t, r.m.Paths.WorkRoot, r.h.CacheDir, r.h.RuntimeDir, r.m.Dir))
		if id.UID == 0 {
			assert.Equal(t, "0000000000000002", v.Caps, "DAC_OVERRIDE alone")
		} else {
			assert.Equal(t, "0000000000000000", v.Caps)
		}
		if gid < 0 {
			return
		}
		if r.kind == manifest.Podman && r.plan().Warnings != nil {
			assert.Contains(t, strings.Join(r.plan().Warnings, "\n"), "loses supplementary groups")
			assert.Contains(t, v.Extra["shared"], "PermissionError")
			return
		}
		assert.Equal(t, "lab", v.Extra["shared"])
		if r.kind != manifest.Apptainer { // whose user namespace shows them as nobody's, and honours them
			assert.True(t, slices.Contains(v.Groups, gid), "%v", v.Groups)
		}
		assert.Contains(t, v.Extra["group"], float64(gid))
	})
}

// Cases 2 and 21: an image that bakes in HOME, an entrypoint, a health check, a stop signal, proxies and a volume.
func TestLiveCase21OddImage(t *testing.T) {
	for _, kind := range []string{manifest.Docker, manifest.Podman} {
		t.Run(strings.ToUpper(kind[:1])+kind[1:], func(t *testing.T) {
			r := newRig(t, kind, "odd")
			r.m.Env.Variables = map[string]string{"PYTHONPATH": ""}
			v := r.look("")
			home := providerHome(r.h, r.m.Slug)
			assert.Equal(t, home, v.Home)
			assert.Equal(t, home, v.Pwd[5])
			assert.NotContains(t, v.Env, "http_proxy")
			assert.Equal(t, r.h.SDKDir+":/image/python", v.Env["PYTHONPATH"], "what the image puts there stays, behind the SDK")
			assert.Equal(t, r.m.Worker, v.Argv[0])

			r.m.Env.Entrypoint = "image"
			r.m.Env.Variables = map[string]string{"http_proxy": "http://lab:1"}
			code, out := r.run()
			assert.Zero(t, code)
			assert.Equal(t, "the entrypoint of the image python3 "+r.m.Worker+"\n", out)
			r.m.Env.Entrypoint = "replace"
			assert.Equal(t, "http://lab:1", r.look("").Env["http_proxy"])
		})
	}
}

// labFile makes a file that belongs to root and that only a supplementary group of ours may read, as a lab's shared data. Docker
// makes it; -1 where there is no such group.
func labFile(t *testing.T, file string) (gid int) {
	t.Helper()
	name := os.Getenv("WORKERD_TEST_GROUP")
	if name == "" {
		return -1
	}
	g, err := user.LookupGroup(name)
	require.NoError(t, err)
	dir := filepath.Dir(file)
	image := cmp.Or(os.Getenv("WORKERD_TEST_IMAGES"), "workerd-test") + ":small"
	output(t, exec.Command("docker", "run", "--rm", "--network", "none", "--user", "0:"+g.Gid, "--mount", "type=bind,source="+dir+",target=/d",
		image, "sh", "-c", "umask 027; printf lab >/d/"+filepath.Base(file)))
	gid, err = strconv.Atoi(g.Gid)
	require.NoError(t, err)
	return gid
}
