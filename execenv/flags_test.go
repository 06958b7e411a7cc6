package execenv

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"workerd/identity"
	"workerd/manifest"
)

type world = func(h *Host, m *manifest.Manifest, f *facts)

// Every decision about a flag.
func TestFlags(t *testing.T) {
	root := func(h *Host, _ *manifest.Manifest, _ *facts) {
		h.ID = identity.Identity{Name: "root", Home: "/root"}
	}
	both := []string{manifest.Docker, manifest.Podman}
	docker, podman, apptainerOnly := []string{manifest.Docker}, []string{manifest.Podman}, []string{manifest.Apptainer}
	none := func(*Host, *manifest.Manifest, *facts) {}
	for _, c := range []struct {
		name    string
		kinds   []string
		change  world
		has     [][]string
		hasNone []string
	}{
		{"always", both, none, [][]string{
			{"run", "--detach"}, {"--pull=never"}, {"--init"}, {"--stop-signal", "SIGTERM"}, {"--no-healthcheck"}, {"--cap-drop=ALL"}, {"--security-opt=no-new-privileges"},
			{"--network", "none"}, {"--workdir", "/etc/workerd/providers/ocr"}, {"--env-file", "/dev/stdin"}, {"--env", "OMP_NUM_THREADS"}, {"--env", "HF_TOKEN"},
			{"--entrypoint", "python3"}, {"--hostname", "ocr", "lab/ocr:1.2", "/etc/workerd/providers/ocr/ocr_worker.py", "--lang", "eng"},
			{"--shm-size", "8589934592"}, {"--memory", "34359738368", "--memory-swap", "34359738368"}, {"--cpus", "8"}, {"--pids-limit", "4096"}, {"--user", "1001:100"},
			{"--label", "workerd.worker=<n>"}, {"--name", "workerd-0a1b2c3d-ocr-<n>"},
		}, []string{"--rm", "--gpus", "--privileged", "-v", "--volume", "label=disable", "DAC_OVERRIDE", "--cap-add"}},
		{"case 5: supplementary groups by number", docker, none, [][]string{{"--group-add", "4321"}}, []string{"--userns=keep-id", "100", "keep-groups"}},
		{"case 6: rootless podman is the caller only with keep-id", podman, none, [][]string{{"--userns=keep-id", "--user", "1001:100"}, {"--group-add", "keep-groups"}}, []string{"4321"}},
		{"runc cannot keep groups", podman, func(_ *Host, _ *manifest.Manifest, f *facts) { f.ctr.engine.Runtime = "runc" }, nil, []string{"--group-add"}},
		{"no groups to keep", podman, func(h *Host, _ *manifest.Manifest, _ *facts) { h.ID.Groups = nil }, nil, []string{"--group-add"}},
		{"podman as root", podman, func(h *Host, m *manifest.Manifest, f *facts) { root(h, m, f); f.ctr.engine.Rootless = false }, [][]string{{"--user", "0:0"}, {"--cap-add", "DAC_OVERRIDE"}}, []string{"--userns=keep-id"}},
		{"podman under docker's name", docker, func(_ *Host, _ *manifest.Manifest, f *facts) {
			f.ctr.engine = EngineInfo{Engine: manifest.Podman, Bin: "/usr/bin/docker", Rootless: true, Runtime: "crun"}
		}, [][]string{{"/usr/bin/docker", "run"}, {"--userns=keep-id"}, {"--log-driver", "k8s-file"}, {"--http-proxy=false"}}, nil},
		{"root keeps what lets it read", docker, root, [][]string{{"--user", "0:0"}, {"--cap-drop=ALL", "--cap-add", "DAC_OVERRIDE"}}, []string{"--group-add"}},
		{"userns-remap is left", docker, func(_ *Host, _ *manifest.Manifest, f *facts) { f.ctr.engine.Remapped = true }, [][]string{{"--userns=host", "--user", "1001:100"}}, nil},
		{"rootless docker: root inside is the caller", docker, func(_ *Host, _ *manifest.Manifest, f *facts) {
			f.ctr.engine.Rootless, f.ctr.engine.OwnerUID = true, 1001
		}, [][]string{{"--user", "0:0"}}, []string{"--group-add", "DAC_OVERRIDE", "--userns=keep-id"}},
		{"logs are bounded", docker, func(h *Host, _ *manifest.Manifest, _ *facts) { h.LogMaxSize = 5 }, [][]string{{"--log-driver", "local", "--log-opt", "max-size=5"}}, nil},
		{"logs of podman", podman, none, [][]string{{"--log-driver", "k8s-file", "--log-opt", "max-size=10485760"}}, nil},
		{"limits that cannot be had are left out", both, func(_ *Host, _ *manifest.Manifest, f *facts) {
			f.ctr.engine.Memory, f.ctr.engine.CPUs, f.ctr.engine.Pids = false, false, false
		}, [][]string{{"--shm-size", "8589934592"}}, []string{"--memory", "--memory-swap", "--cpus", "--pids-limit"}},
		{"an engine that cannot limit swap", both, func(_ *Host, _ *manifest.Manifest, f *facts) { f.ctr.engine.Swap = false }, [][]string{{"--memory", "34359738368"}}, []string{"--memory-swap"}},
		{"more cpus than there are", both, func(_ *Host, _ *manifest.Manifest, f *facts) { f.ctr.engine.Processors = 4 }, [][]string{{"--cpus", "4"}}, []string{"8"}},
		{"cpus that nobody has counted", both, func(_ *Host, _ *manifest.Manifest, f *facts) { f.ctr.engine.Processors = 0 }, [][]string{{"--cpus", "8"}}, nil},
		{"case 23: the host's /dev/shm", both, func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.ExtraArgs = []string{"--ipc", "host"} }, nil, []string{"--shm-size"}},
		{"no limit of pids", both, func(_ *Host, m *manifest.Manifest, _ *facts) { m.Limits.Pids = 0 }, [][]string{{"--pids-limit", "-1"}}, nil},
		{"a part of a cpu", both, func(_ *Host, m *manifest.Manifest, _ *facts) { m.Limits.CPUs = 0.5 }, [][]string{{"--cpus", "0.5"}}, nil},
		{"network host", both, func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.Network = "host" }, [][]string{{"--network", "host"}}, nil},
		{"network named", both, func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.Network = "lab" }, [][]string{{"--network", "lab"}}, nil},
		{"network bridge", docker, func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.Network = "bridge" }, [][]string{{"--network", "bridge"}}, nil},
		{"network to the outside, rootless", podman, func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.Network = "bridge" }, [][]string{{"--network", "slirp4netns"}}, nil},
		{"the same, podman 5", podman, func(_ *Host, m *manifest.Manifest, f *facts) {
			m.Env.Network, f.ctr.engine.Version = "bridge", "5.2.0"
		}, [][]string{{"--network", "pasta"}}, nil},
		{"the same as root", podman, func(_ *Host, m *manifest.Manifest, f *facts) {
			m.Env.Network, f.ctr.engine.Rootless = "bridge", false
		}, [][]string{{"--network", "bridge"}}, nil},
		{"the image's entrypoint", both, func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.Entrypoint = "image" },
			[][]string{{"lab/ocr:1.2", "python3", "/etc/workerd/providers/ocr/ocr_worker.py"}}, []string{"--entrypoint"}},
		{"a command", both, func(_ *Host, m *manifest.Manifest, f *facts) {
			m.Worker, m.Command, f.program = "", []string{"server", "--flag"}, "server"
		}, [][]string{{"--entrypoint", "server"}, {"lab/ocr:1.2", "--flag"}}, []string{"python3"}},
		{"case 11: SELinux enforces", both, func(_ *Host, _ *manifest.Manifest, f *facts) { f.ctr.selinux = true }, [][]string{{"--security-opt", "label=disable"}}, nil},
		{"case 11: none", both, func(_ *Host, m *manifest.Manifest, f *facts) { f.ctr.selinux, m.Env.SELinux = true, "none" }, nil, []string{"label=disable"}},
		{"case 11: shared, docker", docker, func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.SELinux = "shared" },
			[][]string{{"--volume", "/data/ocr:/data/ocr:z"}, {"--volume", "/refdata:/refdata:ro,z"}}, []string{"label=disable", "--mount"}},
		{"case 11: private, docker", docker, func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.SELinux = "private" },
			[][]string{{"--volume", "/data/ocr:/data/ocr:Z"}, {"--volume", "/lab/hf:/lab/hf:z"}}, []string{"--mount"}},
		{"case 11: shared, podman", podman, func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.SELinux = "shared" },
			[][]string{{"--mount", "type=bind,source=/refdata,target=/refdata,readonly,relabel=shared"}}, []string{"--volume"}},
		{"case 11: private, podman", podman, func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.SELinux = "private" },
			[][]string{{"--mount", "type=bind,source=/data/ocr,target=/data/ocr,relabel=private"}, {"--mount", "type=bind,source=/lab/hf,target=/lab/hf,relabel=shared"}}, nil},
		{"umask, podman", podman, func(_ *Host, _ *manifest.Manifest, f *facts) { f.ctr.umask = 0o27 }, [][]string{{"--umask", "0027"}, {"--entrypoint", "python3"}}, []string{"-c"}},
		{"umask, docker", docker, func(_ *Host, _ *manifest.Manifest, f *facts) { f.ctr.umask = 0o27 },
			[][]string{{"lab/ocr:1.2", "-ISc", "import os, sys; os.umask(0o27); os.execvp(sys.argv[1], sys.argv[1:])", "python3", "/etc/workerd/providers/ocr/ocr_worker.py"}}, []string{"--umask"}},
		{"umask, docker, a command", docker, func(_ *Host, m *manifest.Manifest, f *facts) {
			m.Worker, m.Command, f.program, f.ctr.umask = "", []string{"server", "x y"}, "server", 0o77
		}, [][]string{{"--entrypoint", "/bin/sh"}, {"lab/ocr:1.2", "-c", `umask 0077 && exec "$0" "$@"`, "server", "x y"}}, nil},
		{"proxies of the client's configuration", docker, func(_ *Host, m *manifest.Manifest, f *facts) {
			f.ctr.engine.ProxyConfig, m.Env.Variables = true, map[string]string{"http_proxy": "x"}
		}, [][]string{{"--env", "HTTP_PROXY"}, {"--env", "no_proxy"}}, []string{"http_proxy"}},
		{"proxies of the image", podman, func(_ *Host, _ *manifest.Manifest, f *facts) { f.ctr.image.Env = []string{"no_proxy=x"} }, [][]string{{"--unsetenv", "no_proxy"}}, []string{"NO_PROXY"}},
		{"case 12: devices are one CSV field", docker, gpus, [][]string{{"--gpus", `"device=<gpus>"`}}, nil},
		{"case 50: podman's devices", podman, gpus, [][]string{{"--device", "nvidia.com/gpu=<gpus>"}}, []string{"--gpus"}},
		{"apptainer", apptainerOnly, none, [][]string{
			{"/usr/bin/apptainer", "-q", "exec", "--cleanenv", "--containall", "--no-eval", "--cwd", "/etc/workerd/providers/ocr", "--net", "--network", "none"},
			{"--home", "/home/alice/.cache/workerd/providers/ocr/home:/home/alice/.cache/workerd/providers/ocr/home"},
			{"--mount", "type=bind,source=/refdata,destination=/refdata,ro"}, {"--mount", "type=bind,source=/refdata/cache,destination=/refdata/cache"},
			{"--workdir", "/scratch/alice/wd-0a1b2c3d-<n>"}, {"--hostname", "ocr", "/images/ocr.sif", "python3", "/etc/workerd/providers/ocr/ocr_worker.py", "--lang", "eng"},
		}, []string{"--env", "--bind", "-B", "--nv", "--rocm", "--no-privs", "--user"}},
		{"apptainer, host network", apptainerOnly, func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.Network = "host" }, nil, []string{"--net", "--network"}},
		{"apptainer as root", apptainerOnly, root, [][]string{{"--no-privs", "--add-caps", "CAP_DAC_OVERRIDE"}}, nil},
		{"apptainer, NVIDIA", apptainerOnly, gpus, [][]string{{"--nv"}}, []string{"--rocm"}},
		{"apptainer, AMD", apptainerOnly, func(h *Host, m *manifest.Manifest, f *facts) { gpus(h, m, f); f.ctr.rocm = true }, [][]string{{"--rocm"}}, []string{"--nv"}},
		{"case 43: flags that an old one has not", apptainerOnly, func(_ *Host, _ *manifest.Manifest, f *facts) {
			f.ctr.runner = runnerInfo{Bin: "/usr/bin/singularity", Name: "singularity"}
		}, [][]string{{"/usr/bin/singularity", "-q", "exec", "--cleanenv", "--containall", "--pwd"}}, []string{"--cwd", "--no-eval"}},
	} {
		for _, kind := range c.kinds {
			t.Run(kind+"/"+c.name, func(t *testing.T) {
				argv := argvOf(kind, c.change)
				for _, want := range c.has {
					assert.True(t, hasArgs(argv, want...), "%q in %q", want, argv)
				}
				for _, not := range c.hasNone {
					assert.NotContains(t, argv, not)
				}
				for i, a := range argv {
					if a == "--env" {
						assert.NotContains(t, argv[i+1], "=", "values never stand in argv")
					}
				}
			})
		}
	}
}

func gpus(_ *Host, _ *manifest.Manifest, f *facts) { f.gpu = GPU{Policy: "shared", Count: 2} }

// argvOf makes the plan of a changed provider and returns its arguments.
func argvOf(kind string, change func(h *Host, m *manifest.Manifest, f *facts)) []string {
	h, m, f := fixedContainer(kind)
	change(&h, m, f)
	if kind != manifest.Apptainer {
		f.refreshIdentity(h)
	}
	return runtimes[kind].Plan(h, m, f).Argv
}

// hasArgs says whether some arguments stand one after the other.
func hasArgs(argv []string, want ...string) bool {
	for i := range argv {
		if i+len(want) <= len(argv) && slices.Equal(argv[i:i+len(want)], want) {
			return true
		}
	}
	return false
}

func TestExtraArgs(t *testing.T) {
	for flag := range ownFlags {
		for _, arg := range []string{flag, flag + "=x"} {
			m := fixedManifest()
			m.Env.ExtraArgs = []string{"--hostname", "x", arg}
			assert.ErrorContains(t, checkExtraArgs(m), "env.extra_args: "+flag+" cannot be used")
		}
	}
	m := fixedManifest()
	m.Env.ExtraArgs = []string{"--device", "/dev/kfd", "--ulimit", "nofile=1024", "-v", "x:y"}
	assert.NoError(t, checkExtraArgs(m))
	m.Env.ExtraArgs = []string{"--ipc=host"}
	assert.NoError(t, checkExtraArgs(m))
	m.Limits.ShmSize = 2 << 30
	assert.ErrorContains(t, checkExtraArgs(m), "limits.shm_size")
}
