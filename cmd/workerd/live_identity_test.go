package main

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// whoCode has a worker say who it is and what it may do.
const whoCode = `
import getpass, grp, os, pwd, tempfile
def attempt(f, *args):
    try:
        return str(f(*args))
    except BaseException as e:
        return repr(e)
def fill(folder):
    with tempfile.NamedTemporaryFile(dir=folder) as f:
        for _ in range(200):
            f.write(b"x" * (1 << 20))
        f.flush()
        return os.fstat(f.fileno()).st_size
me = pwd.getpwuid(os.getuid())
answer = {
    "UID": os.getuid(), "GID": os.getgid(), "Groups": os.getgroups(), "Name": me.pw_name, "PwdHome": me.pw_dir, "User": getpass.getuser(),
    "Env": [os.environ.get(n, "") for n in ("USER", "LOGNAME", "HOME")], "Tilde": os.path.expanduser("~"),
    "Passwd": open("/etc/passwd").read().split("\n")[:-1], "GroupName": attempt(lambda: grp.getgrgid(os.getgid()).gr_name),
    "LabName": attempt(lambda: grp.getgrgid(gid).gr_name), "Shared": attempt(lambda: open(shared).read()),
    "Weights": attempt(lambda: open(weights + "/model").read()), "NewWeights": attempt(open, weights + "/new", "w"),
    "OldWeights": attempt(open, weights + "/model", "a"),
    "Tmp": attempt(fill, tempfile.gettempdir()), "SlashTmp": attempt(fill, "/tmp"), "Home": attempt(fill, os.path.expanduser("~")),
}
`

type who struct {
	UID, GID                   int
	Groups                     []int
	Name, PwdHome, User        string
	Env                        []string
	Tilde                      string
	Passwd                     []string
	GroupName, LabName, Shared string
	Weights, NewWeights        string
	OldWeights                 string
	Tmp, SlashTmp, Home        string
}

// Cases 1, 2, 5 and 33: inside a worker is the caller, by name and number, with a home and room in it, and the groups count.
func TestLiveCase1TheWorkerIsTheCaller(t *testing.T) {
	me, err := user.Current()
	require.NoError(t, err)
	eachKind(t, containers, func(t *testing.T, l *live) {
		shared, gid := l.labFile()
		weights := filepath.Join(l.dir, "weights")
		require.NoError(t, os.Mkdir(weights, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(weights, "model"), []byte("weights"), 0o666))
		toml := fmt.Sprintf("[weights]\nroot = %q\n[paths]\nbinds = [%q]\n", weights, filepath.Dir(shared))
		images := []string{"small"}
		l.add("small", toml)
		if l.kind != manifest.Apptainer {
			l.has("odd") // ENV HOME=/root, and no such user
			l.write("odd", "live.py", l.text(`worker = "live.py"`, "odd", toml))
			images = append(images, "odd")
		}
		l.start()
		for _, slug := range images {
			w := run[who](l, slug, whoCode, map[string]any{"shared": shared, "gid": gid, "weights": weights})
			home := filepath.Join(l.dir, "cache/workerd/providers", slug, "home")
			require.Equal(t, os.Getuid(), w.UID)
			require.Equal(t, os.Getgid(), w.GID)
			require.Equal(t, me.Username, w.Name)
			require.Equal(t, me.Username, w.User)
			require.Equal(t, []string{me.Username, me.Username, home}, w.Env)
			require.Equal(t, home, w.PwdHome)
			require.Equal(t, home, w.Tilde)
			require.Len(t, w.Passwd, 2, "%v", w.Passwd)
			require.True(t, strings.HasPrefix(w.Passwd[0], "root:"))
			require.NotContains(t, w.GroupName, "KeyError")
			require.Equal(t, "weights", w.Weights)
			require.Contains(t, w.NewWeights, "OSError(30")
			require.Contains(t, w.OldWeights, "OSError(30")
			for _, size := range []string{w.Tmp, w.SlashTmp, w.Home} {
				require.Equal(t, strconv.Itoa(200<<20), size)
			}
			if gid < 0 {
				continue
			}
			loses := strings.Contains(strings.Join(l.status(slug).Warnings, "\n"), "loses supplementary groups")
			require.Equal(t, loses, strings.Contains(l.ok("validate", filepath.Join(l.manifests(), slug)), "loses supplementary groups"))
			if loses {
				require.Equal(t, manifest.Podman, l.kind)
				require.Contains(t, w.Shared, "PermissionError")
				continue
			}
			require.Equal(t, "lab", w.Shared)
			require.Equal(t, os.Getenv("WORKERD_TEST_GROUP"), w.LabName)
			if l.kind == manifest.Docker {
				require.True(t, slices.Contains(w.Groups, gid), "%v", w.Groups)
			}
		}
	})
}

// labFile makes a file that belongs to root and that only a supplementary group may read, as a lab's data does. docker makes it;
// -1 where there is no such group.
func (l *live) labFile() (path string, gid int) {
	l.t.Helper()
	dir := filepath.Join(l.dir, "lab")
	require.NoError(l.t, os.Mkdir(dir, 0o755))
	path = filepath.Join(dir, "file")
	name := os.Getenv("WORKERD_TEST_GROUP")
	if name == "" {
		return path, -1
	}
	g, err := user.LookupGroup(name)
	require.NoError(l.t, err)
	gid, err = strconv.Atoi(g.Gid)
	require.NoError(l.t, err)
	docker := &live{e2e: l.e2e, kind: manifest.Docker}
	docker.engine("run", "--rm", "--network", "none", "--user", "0:"+g.Gid, "--mount", "type=bind,source="+dir+",target=/d",
		docker.image("small"), "sh", "-c", "umask 027; printf lab >/d/file")
	return path, gid
}

// Cases 30, 32 and 84: what stands in workerd's own environment changes no worker.
func TestLiveCase30NothingLeaksIn(t *testing.T) {
	eachKind(t, allKinds, func(t *testing.T, l *live) {
		clean := func() map[string]string {
			l.start()
			env := l.environmentOf("x")
			l.stop()
			for _, name := range []string{"WORKERD_WORKER", "WORKERD_SOCKET", "TMPDIR", "HOSTNAME", "APPTAINER_BIND", "SINGULARITY_BIND"} {
				delete(env, name)
			}
			return env
		}
		l.add("x", "[env]\npass_env = [\"SLURM_*\"]\n")
		want := clean()
		leak := filepath.Join(l.dir, "leak")
		require.NoError(t, os.MkdirAll(leak, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(leak, "sitecustomize.py"), []byte("import os\nos.environ['LEAKED'] = 'yes'\n"), 0o644))
		for name, value := range map[string]string{
			"APPTAINERENV_LEAKED": "yes", "SINGULARITYENV_LEAKED": "yes", "APPTAINER_BIND": leak + ":/leak", "SINGULARITY_BIND": leak + ":/leak",
			"APPTAINER_BINDPATH": leak + ":/leak", "APPTAINER_MOUNT": "type=bind,source=" + leak + ",destination=/leak", "APPTAINER_HOME": leak, "APPTAINER_NV": "1",
			"APPTAINER_WRITABLE_TMPFS": "1", "APPTAINERENV_PYTHONPATH": leak, "APPTAINERENV_PREPEND_PATH": leak, "APPTAINER_CLEANENV": "0", "APPTAINER_SHELL": "/bad",
			"APPTAINER_NO_MOUNT": "tmp", "APPTAINER_WORKDIR": leak, "APPTAINER_CWD": leak, "APPTAINER_NETWORK": "host",
			"PYTHONPATH": leak, "PYTHONHOME": "/bad", "PYTHONSTARTUP": "/bad", "PYTHONINSPECT": "1",
			"CONDA_PREFIX": "/bad", "CONDA_DEFAULT_ENV": "bad", "VIRTUAL_ENV": "/bad", "DOCKER_DEFAULT_PLATFORM": "linux/amd64",
			"WORKERD_SOCKET": "/bad", "http_proxy": "http://proxy.invalid:1", "HTTPS_PROXY": "http://proxy.invalid:1",
			"CUDA_VISIBLE_DEVICES": "3", "SLURM_JOB_NAME": "fold", "MALLOC_ARENA_MAX": "1",
		} {
			l.env[name] = value
		}
		if l.kind == manifest.Venv { // which inherits what its caller has, these apart
			for _, name := range []string{"http_proxy", "HTTPS_PROXY", "MALLOC_ARENA_MAX", "DOCKER_DEFAULT_PLATFORM"} {
				delete(l.env, name)
			}
		}
		want["SLURM_JOB_NAME"] = "fold"
		require.Equal(t, want, clean())
		l.env["LD_PRELOAD"] = filepath.Join(leak, "none.so") // the loader says so and goes on
		got := clean()
		require.Equal(t, want, got)
		l.start()
		require.Equal(t, false, run[bool](l, "x", "import os; answer = os.path.exists('/leak')", nil))
	})
}

// environmentOf returns the variables of a worker.
func (l *live) environmentOf(slug string) map[string]string {
	l.t.Helper()
	return run[map[string]string](l, slug, "import os; answer = dict(os.environ)", nil)
}
