package execenv

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// hardValues are what engines, shells and file formats were seen to change.
var hardValues = map[string]string{
	"LINES_": "l1\nl2=x,y \"q\" 'r'", "KEY_": "-----BEGIN KEY-----\nabc\n-----END KEY-----\n", "SHELL_": "$(id) `id` ${HOME} $HOME $$",
	"BACKSLASH": `a\b\\`, "TRAILING": `c:\`, "COMMAS": "A=x,B=y", "XLA_FLAGS": "--a=1,--b=2", "EMPTY": "", "SPACES": "  a  b  ",
	"QUOTED": `"whole"`, "JSON": `{"a": ["b", 'c']}`, "HASH": "#no comment", "EQUALS": "==", "TAB": "a\tb", "UNICODE": "Zürich 東京",
	"CARRIAGE": "a\rb", "PERCENT": "%h %s", "TILDE": "~/x", "GLOB": "*", "BANG": "!x", "SEMICOLON": "a; touch /tmp/injected",
	"LARGE": strings.Repeat("0123456789", 10_000),
	// Those that clients of engines use themselves.
	"NO_PROXY": "a,b=c", "https_proxy": "http://user:pass@proxy:1", "SSL_CERT_FILE": "/lab/ca.pem", "LD_PRELOAD": "", "GODEBUG": "x=$(id)",
	"DOCKER_HOST": "tcp://nowhere:1", "CONTAINER_HOST": "unix:///nowhere", "XDG_DATA_HOME": "/lab/data home", "TZ": "Europe/Zurich", "CONTAINERS_CONF": "/nowhere",
}

// Cases 16, 17 and 27: values are truncated, split, unquoted or run as code; secrets stand in argv.
func TestLiveCase16ValuesArriveAsTheyAre(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		secret := "s3cr3t-" + tag(t) + "\n$(id)\"'`\\"
		file := filepath.Join(t.TempDir(), "token")
		require.NoError(t, os.WriteFile(file, []byte(secret+"\n"), 0o600))
		r.m.Env.Variables = hardValues
		r.m.Env.Secrets = map[string]manifest.Secret{"TOKEN": {File: file}, "http_proxy": {Env: "LAB_PROXY"}}
		r.h.Environ = append(r.h.Environ, "LAB_PROXY=http://u:"+tag(t)+"@lab")
		r.replan()
		pl := r.plan()
		w := r.params()
		c, err := r.p.Command(pl, w)
		require.NoError(t, err)
		for _, a := range c.Argv {
			assert.NotContains(t, a, "s3cr3t")
			assert.NotContains(t, a, "http://u:")
			for name, v := range hardValues {
				if len(v) > 3 {
					assert.NotContains(t, a, v, name)
				}
			}
		}
		v := r.look("")
		for name, want := range hardValues {
			assert.Equal(t, want, v.Env[name], name)
		}
		assert.Equal(t, secret, v.Env["TOKEN"])
		assert.True(t, strings.HasPrefix(v.Env["http_proxy"], "http://u:"))
		assert.NoFileExists(t, "/tmp/injected")
	})
}

// Cases 30, 32 and 41: what is in workerd's own environment changes the worker; what workerd sets does not arrive.
func TestLiveCase30NothingLeaksIn(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		stray := []string{
			"PYTHONPATH=/leak", "PYTHONHOME=/bad", "CONDA_PREFIX=/conda", "LD_PRELOAD=/leak.so", "LD_LIBRARY_PATH=/leak/lib", "TERM=leak", "MALLOC_ARENA_MAX=7",
			"APPTAINER_BIND=/root", "SINGULARITY_BIND=/root", "APPTAINERENV_LEAK=1", "SINGULARITYENV_LEAK=1", "APPTAINER_CLEANENV=0", "APPTAINER_HOME=/leak",
			"APPTAINER_WORKDIR=/leak", "APPTAINER_NV=1", "HTTP_PROXY=http://leak", "no_proxy=leak", "ALL_PROXY=leak", "CUDA_VISIBLE_DEVICES=3", "NVIDIA_VISIBLE_DEVICES=all",
			"NOTIFY_SOCKET=/leak", "WORKERD_X=1", "SLURM_JOB_ID=12", "SLURM_NTASKS=1", "LAB=x", "BASH_FUNC_x%%=() { :; }", "DOCKER_DEFAULT_PLATFORM=linux/amd64",
		}
		r.h.Environ = append(r.h.Environ, stray...)
		r.m.Env.PassEnv = []string{"SLURM_*", "BASH_*"}
		r.replan()
		v := r.look("extra['paths'] = sys.path; import site; extra['site'] = site.ENABLE_USER_SITE")
		for name, value := range parseEnviron(stray) {
			if strings.HasPrefix(name, "SLURM_") {
				assert.Equal(t, value, v.Env[name])
			} else {
				assert.NotEqual(t, value, v.Env[name], name)
			}
		}
		assert.NotContains(t, v.Env, "LEAK")
		assert.Equal(t, r.h.SDKDir, v.Env["PYTHONPATH"])
		assert.Equal(t, false, v.Extra["site"])
		cuda, set := v.Env["CUDA_VISIBLE_DEVICES"]
		assert.True(t, set, "empty means none, unset would mean all")
		assert.Empty(t, cuda)
		for name, want := range map[string]string{
			"WORKERD_PROVIDER": "ocr", "WORKERD_PROVIDER_DIR": r.m.Dir, "WORKERD_WORK_ROOT": r.m.Paths.WorkRoot, "WORKERD_GPUS": "", "WORKERD_WEIGHTS": "",
			"WORKERD_WORKER": Marker(r.h.Instance, "ocr", r.n), "PYTHONNOUSERSITE": "1", "PYTHONUNBUFFERED": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1",
		} {
			assert.Equal(t, want, v.Env[name], name)
		}
		assert.Equal(t, []string{"lo"}, v.Interfaces, "network none")
	})
}

// What an engine leaves running must not pass for a part of the worker, and still know nothing of its secrets by argv.
func TestLiveMarkerIsTheWorkersAlone(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		require.NoError(t, os.WriteFile(r.m.Worker, []byte("import time\ntime.sleep(600)\n"), 0o644))
		id, _ := r.start(r.plan())
		c, err := r.engine().Inspect(t.Context(), id)
		require.NoError(t, err)
		assert.NotZero(t, c.PID)
		marker := Marker(r.h.Instance, "ocr", r.n)
		for _, pid := range allPIDs() {
			if has, _ := HasMarker(pid, marker); has {
				cmdline, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
				assert.NotContains(t, string(cmdline), "conmon")
				assert.NotContains(t, string(cmdline), "podman\x00run")
				assert.NotContains(t, string(cmdline), "docker\x00run")
			}
		}
	}, manifest.Docker, manifest.Podman)
}

// A setup file and modules change a container's variables as they do a venv's; PATH is the image's with what was put before it.
func TestLiveSetup(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		r.m.Env.Setup = filepath.Join(r.m.Dir, "setup.sh")
		require.NoError(t, os.WriteFile(r.m.Env.Setup, []byte("export FOO='a b' PATH=/opt/tool/bin:$PATH\nunset PYTHONUNBUFFERED\nexport PYTHONPATH=/setup\n"), 0o644))
		r.m.Env.Variables = map[string]string{"BAR": "1"}
		v := r.look("")
		assert.Equal(t, "a b", v.Env["FOO"])
		assert.Equal(t, "1", v.Env["BAR"])
		assert.Equal(t, "/opt/tool/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", v.Env["PATH"])
		assert.NotContains(t, v.Env, "PYTHONUNBUFFERED")
		assert.Equal(t, r.h.SDKDir+":/setup", v.Env["PYTHONPATH"])
	})
}

// Cases 26 and 33: HOME cannot be set as a variable, and /tmp and home are 64 MB of memory.
func TestLiveCase33RoomForFiles(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		fill := `
import tempfile
block = b"x" * (1 << 20)
def fill(d):
    with open(d + "/big", "wb") as f:
        for _ in range(200):
            f.write(block)
    os.remove(d + "/big")
    return "ok"
extra["room"] = {d: attempt(lambda: fill(d)) for d in ("/tmp", "/var/tmp", tempfile.gettempdir(), os.path.expanduser("~"))}
extra["tmp"] = tempfile.gettempdir()
`
		v := r.look(fill)
		for dir, got := range v.Extra["room"].(map[string]any) {
			assert.Equal(t, "ok", got, dir)
		}
		assert.True(t, within(r.h.ScratchDir, v.Extra["tmp"].(string)))
		assert.LessOrEqual(t, len(v.Extra["tmp"].(string)), TmpLimit)

		r.m.Env.Variables = map[string]string{"HOME": "/lab/home of mine"}
		v = r.look(`open(os.path.expanduser("~/kept"), "w").close()`)
		assert.Equal(t, "/lab/home of mine", v.Home)
		assert.Equal(t, "/lab/home of mine", v.Pwd[5])
		assert.FileExists(t, filepath.Join(providerHome(r.h, "ocr"), "kept"))

		bound := filepath.Join(t.TempDir(), "home")
		r.m.Paths.Binds = []manifest.Bind{{Path: bound, Mode: rw, Create: true}}
		r.m.Env.Variables = map[string]string{"HOME": bound}
		v = r.look(`open(os.path.expanduser("~/kept"), "w").close()`)
		assert.Equal(t, bound, v.Pwd[5])
		assert.FileExists(t, filepath.Join(bound, "kept"))
	})
}

// Case 42: the caller's own home is closed, or not there.
func TestLiveCase42ClosedHome(t *testing.T) {
	closed := filepath.Join(t.TempDir(), "home")
	require.NoError(t, os.Mkdir(closed, 0))
	eachKind(t, func(t *testing.T, r *rig) {
		r.h.Environ = append(r.h.Environ, "HOME="+closed)
		r.replan()
		assert.Equal(t, providerHome(r.h, "ocr"), r.look("").Home)
	}, manifest.Docker, manifest.Apptainer) // podman's images are in the home
}

// Case 40: a library path of the manifest hides the driver's libraries.
func TestLiveCase40DriverLibraries(t *testing.T) {
	r := newRig(t, manifest.Apptainer, "small")
	r.m.Env.Variables = map[string]string{"LD_LIBRARY_PATH": "/opt/x"}
	assert.Contains(t, r.look("").Env["LD_LIBRARY_PATH"], "/opt/x")
	f := r.facts()
	f.gpu = GPU{Policy: "shared", Count: 1}
	assert.Equal(t, "/.singularity.d/libs:/opt/x", apptainer{}.Plan(r.h, r.m, f).Env["LD_LIBRARY_PATH"])
}
