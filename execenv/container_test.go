package execenv

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// fixedContainer is a provider in a container, and what probes would say, as values alone.
func fixedContainer(kind string) (Host, *manifest.Manifest, *facts) {
	h, m := fixedHost(), fixedManifest()
	h.LogMaxSize = defaultLogMaxSize
	h.Environ = append(h.Environ, "DOCKER_HOST=unix:///run/user/1001/docker.sock", "http_proxy=http://lab:3128", "APPTAINER_BIND=/leak", "APPTAINER_CACHEDIR=/scratch/sif")
	m.Env.Kind, m.Env.Python, m.Env.ContainerPython = kind, "", "python3"
	m.Env.Pull, m.Env.Entrypoint, m.Env.Network, m.Env.SELinux = "missing", "replace", "none", "disable"
	m.Env.Image, m.Env.SIF = "lab/ocr:1.2", ""
	m.Env.ExtraArgs = []string{"--hostname", "ocr"}
	m.Limits.Memory, m.Limits.CPUs = 32<<30, 8
	f := fixedFacts(h, m)
	f.program, f.interp = "", interpreter{}
	f.setup = change{}
	f.promises = append(f.promises, ownPromises(h, m)...)
	f.binds = makeBinds(f.promises, func(p string) string { return strings.Replace(p, "/lab/", "/mnt/lab/", 1) })
	f.ctr = containerFacts{
		engine: EngineInfo{Engine: kind, Bin: "/usr/bin/" + kind, Version: "28.2.2", OwnerUID: -1, Runtime: "runc", CgroupVersion: 2, Memory: true, Swap: true, CPUs: true, Pids: true, Processors: 64},
		image:  Image{ID: "0123456789ab", Env: []string{"PATH=/opt/bin:/usr/bin", "PYTHONPATH=/opt/lib"}, Arch: "amd64"},
		umask:  0o22,
		own:    folders{h.SDKDir, socketDir(h, m.Slug), identityDir(h, "")},
		shared: folders{h.SDKDir, identityDir(h, ""), h.HFHome, "/home/alice/.cache/workerd/shared/torch"},
	}
	switch kind {
	case manifest.Podman:
		f.ctr.engine.Version, f.ctr.engine.Rootless, f.ctr.engine.Runtime = "4.3.1", true, "crun"
	case manifest.Apptainer:
		m.Env.Image, m.Env.SIF = "", "/images/ocr.sif"
		f.ctr.engine = EngineInfo{}
		f.ctr.stamp = "7 1024 1700000000"
		f.ctr.runner = runnerInfo{Bin: "/usr/bin/apptainer", Name: "apptainer", Version: "1.4.5", Flags: map[string]bool{"--no-eval": true, "--cwd": true}}
		return h, m, f
	}
	f.refreshIdentity(h)
	return h, m, f
}

// refreshIdentity writes the identity files anew after a change of the facts.
func (f *facts) refreshIdentity(h Host) {
	files, err := identityFiles(h, h.ID, providerHome(h, "ocr"), mappedRoot(h, f.ctr.engine))
	if err != nil {
		panic(err)
	}
	f.ctr.files = files
}

// The whole of a plan, and the command of one worker of it.
func TestContainerGolden(t *testing.T) {
	for _, kind := range []string{manifest.Docker, manifest.Podman, manifest.Apptainer} {
		t.Run(kind, func(t *testing.T) {
			h, m, f := fixedContainer(kind)
			pl := runtimes[kind].Plan(h, m, f)
			p := NewPlanner(h, nil)
			c, err := p.Command(pl, WorkerParams{N: 7, Socket: "/run/user/1001/workerd/w/ocr/7.sock", Tmp: "/nowhere/wd-0a1b2c3d-7", Attempt: "a1"})
			require.NoError(t, err)
			got, err := json.MarshalIndent(map[string]any{
				"plan":    pl,
				"command": map[string]any{"path": c.Path, "argv": c.Argv, "env": c.Env, "dir": c.Dir, "stdin": strings.Split(string(c.Stdin), "\n")},
			}, "", "  ")
			require.NoError(t, err)
			got = append(got, '\n')
			golden := filepath.Join("testdata", kind+".golden.json")
			if *update {
				require.NoError(t, os.WriteFile(golden, got, 0o644))
			}
			want, err := os.ReadFile(golden)
			require.NoError(t, err)
			assert.Equal(t, string(want), string(got))
		})
	}
}

// What each worker has of its own takes the place of what explain shows, and nothing of a manifest is taken for such a place.
func TestCommandFillsIn(t *testing.T) {
	for _, kind := range []string{manifest.Docker, manifest.Podman, manifest.Apptainer} {
		h, m, f := fixedContainer(kind)
		gpus(nil, nil, f)
		m.Args = []string{"<n>", "<gpus>", "<attempt>"}
		pl := runtimes[kind].Plan(h, m, f)
		p := NewPlanner(h, nil)
		w := WorkerParams{N: 9, Socket: "/s", Tmp: "/nowhere/t,9", GPUs: []string{"GPU-a", "GPU-b"}, Attempt: "x"}
		c, err := p.Command(pl, w)
		require.NoError(t, err)
		assert.Equal(t, m.Args, c.Argv[len(c.Argv)-3:])
		assert.NotContains(t, strings.Join(c.Argv[:len(c.Argv)-3], " "), "<")
		switch kind {
		case manifest.Docker:
			assert.True(t, hasArgs(c.Argv, "--gpus", `"device=GPU-a,GPU-b"`))
			assert.True(t, hasArgs(c.Argv, "--mount", `type=bind,"source=/nowhere/t,9","target=/nowhere/t,9"`))
		case manifest.Podman:
			assert.True(t, hasArgs(c.Argv, "--device", "nvidia.com/gpu=GPU-a", "--device", "nvidia.com/gpu=GPU-b"))
		case manifest.Apptainer:
			assert.True(t, hasArgs(c.Argv, "--nv"))
			assert.True(t, hasArgs(c.Argv, "--workdir", "/nowhere/t,9", "--mount", `type=bind,"source=/nowhere/t,9","destination=/nowhere/t,9"`))
			assert.Contains(t, c.Env, "APPTAINERENV_CUDA_VISIBLE_DEVICES=GPU-a,GPU-b", "case 41")
			assert.NotContains(t, c.Env, "APPTAINERENV_HOME="+providerHome(h, "ocr"), "it is refused as a variable")
		}
		if kind != manifest.Apptainer {
			for name, value := range p.Container(pl, w).Labels {
				assert.True(t, hasArgs(c.Argv, "--label", name+"="+value), name)
			}
			assert.True(t, hasArgs(c.Argv, "--name", "workerd-0a1b2c3d-ocr-9"))
			assert.True(t, hasArgs(c.Argv, "--label", "workerd.gpus=GPU-a,GPU-b"))
			assert.Contains(t, c.Env, "CUDA_VISIBLE_DEVICES=GPU-a,GPU-b")
			assert.Contains(t, string(c.Stdin), MarkerVar+"=0a1b2c3d/ocr/9\n")
			assert.NotContains(t, strings.Join(c.Env, "\n"), MarkerVar+"=", "what the engine leaves running would pass for the worker's")
		}
		w.GPUs = nil
		c, err = p.Command(pl, w)
		require.NoError(t, err)
		for _, flag := range []string{"--gpus", "--device", "--nv"} {
			assert.NotContains(t, c.Argv, flag)
		}
	}
}

// A container of docker or podman has only the cards that it is given, and counts them from 0. Apptainer's has all of them.
func TestGPUsKnownByIndexInContainers(t *testing.T) {
	amd := []string{"/dev/dri/renderD129", "/dev/dri/renderD130"}
	for _, kind := range []string{manifest.Docker, manifest.Podman, manifest.Apptainer} {
		h, m, f := fixedContainer(kind)
		gpus(nil, nil, f)
		f.gpu.amd = true
		p, pl := NewPlanner(h, nil), runtimes[kind].Plan(h, m, f)
		for _, c := range []struct {
			gpus, nodes       []string
			inside, elsewhere string
		}{
			{[]string{"1", "3"}, nil, "0,1", "1,3"},
			{[]string{"3", "GPU-a"}, nil, "0,1", "3,GPU-a"},
			{[]string{"GPU-b", "GPU-a"}, nil, "GPU-b,GPU-a", "GPU-b,GPU-a"},
			{[]string{"1", "2"}, amd, "0,1", "1,2"},
		} {
			cmd, err := p.Command(pl, WorkerParams{N: 9, Socket: "/s", Tmp: "/nowhere/t", GPUs: c.gpus, Nodes: c.nodes})
			require.NoError(t, err)
			want, prefix := c.inside, ""
			if kind == manifest.Apptainer {
				want, prefix = c.elsewhere, "APPTAINERENV_"
			}
			cuda, rocr := want, ""
			if c.nodes != nil {
				cuda, rocr = "", want
			}
			env := parseEnviron(cmd.Env)
			assert.Equal(t, cuda, env[prefix+"CUDA_VISIBLE_DEVICES"], "%s %v", kind, c)
			assert.Equal(t, rocr, env[prefix+"ROCR_VISIBLE_DEVICES"], "%s %v", kind, c)
			assert.Equal(t, strings.Join(c.gpus, ","), p.Container(pl, WorkerParams{GPUs: c.gpus}).Labels[LabelGPUs])
			if kind == manifest.Apptainer {
				assert.Equal(t, strings.Join(c.gpus, ","), env[prefix+"WORKERD_GPUS"])
			} else {
				assert.Contains(t, string(cmd.Stdin)+strings.Join(cmd.Env, "\n")+"\n", "WORKERD_GPUS="+strings.Join(c.gpus, ",")+"\n")
			}
			if kind == manifest.Docker && c.nodes == nil {
				assert.True(t, hasArgs(cmd.Argv, "--gpus", `"device=`+strings.Join(c.gpus, ",")+`"`))
			}
		}
	}
}

// Secrets are in the Command alone, by name in argv, and values that the client would take for its own go by its stdin.
func TestSecretsOfContainers(t *testing.T) {
	for _, kind := range []string{manifest.Docker, manifest.Podman, manifest.Apptainer} {
		h, m, f := fixedContainer(kind)
		h.Environ = append(h.Environ, "LAB_PROXY=http://u:p4ss@lab")
		m.Env.Secrets["https_proxy"] = manifest.Secret{Env: "LAB_PROXY"}
		pl := runtimes[kind].Plan(h, m, f)
		data, err := json.Marshal(pl)
		require.NoError(t, err)
		c, err := NewPlanner(h, nil).Command(pl, WorkerParams{N: 1, Socket: "/s", Tmp: "/nowhere"})
		require.NoError(t, err)
		for _, value := range []string{"hidden", "p4ss"} {
			assert.NotContains(t, string(data), value)
			assert.NotContains(t, strings.Join(c.Argv, " "), value)
		}
		if kind == manifest.Apptainer {
			assert.Contains(t, c.Env, "APPTAINERENV_HF_TOKEN=hidden")
			assert.Contains(t, c.Env, "APPTAINERENV_https_proxy=http://u:p4ss@lab")
			assert.Empty(t, c.Stdin)
		} else {
			assert.Contains(t, c.Env, "HF_TOKEN=hidden")
			assert.Contains(t, string(c.Stdin), "https_proxy=http://u:p4ss@lab\n")
		}

		for name, bad := range map[string]string{"a line break": "a\nb", "a quote": `"x`, "too much": strings.Repeat("x", envLineLimit)} {
			h.Environ = append(h.Environ, "LAB_PROXY="+bad)
			_, err = NewPlanner(h, nil).Command(pl, WorkerParams{N: 1, Socket: "/s", Tmp: "/nowhere"})
			if kind == manifest.Apptainer {
				assert.NoError(t, err, name)
			} else {
				assert.ErrorContains(t, err, "https_proxy", name)
				assert.NotContains(t, err.Error(), bad)
			}
		}
	}
}

// The environment of the client, or the runner, is its own.
func TestClientEnvironment(t *testing.T) {
	environ := []string{
		"PATH=/usr/bin", "HOME=/home/alice", "DOCKER_HOST=tcp://d:1", "DOCKER_CONTEXT=lab", "CONTAINER_HOST=unix:///p", "CONTAINERS_CONF=/c", "http_proxy=x", "HTTPS_PROXY=y",
		"PYTHONPATH=/leak", "LD_PRELOAD=/leak", "CONDA_PREFIX=/leak", "SECRET=s", "TERM=xterm", "WORKERD_X=1", "NOTIFY_SOCKET=/n", "XDG_RUNTIME_DIR=/run/user/1001",
		"APPTAINER_BIND=/leak", "SINGULARITY_BIND=/leak", "APPTAINERENV_X=leak", "APPTAINER_CACHEDIR=/c", "APPTAINER_TMPDIR=/t", "SINGULARITY_CONFIGDIR=/s",
	}
	want := map[string][]string{
		manifest.Docker:    {"CONTAINERS_CONF", "CONTAINER_HOST", "DOCKER_CONTEXT", "DOCKER_HOST", "HOME", "PATH", "XDG_RUNTIME_DIR"},
		manifest.Podman:    {"CONTAINERS_CONF", "CONTAINER_HOST", "DOCKER_HOST", "HOME", "PATH", "XDG_RUNTIME_DIR"},
		manifest.Apptainer: {"APPTAINER_CACHEDIR", "APPTAINER_CONFIGDIR", "APPTAINER_TMPDIR", "HOME", "PATH", "SINGULARITY_CONFIGDIR", "XDG_RUNTIME_DIR"},
	}
	for kind, names := range want {
		h, m, f := fixedContainer(kind)
		h.Environ = environ
		m.Env.Secrets = nil
		carry := runtimes[kind].Plan(h, m, f).carry
		assert.Equal(t, names, sortedKeys(carry.env), kind)
	}
	h := fixedHost()
	h.Environ = environ
	assert.Equal(t, "x", clientEnv(h, manifest.Podman)["http_proxy"], "a pull needs the way to the registry")
	h.Environ = nil
	assert.Equal(t, environ2(defaultPath, "/home/alice"), clientEnv(h, manifest.Docker))
}

func environ2(path, home string) environ { return environ{"PATH": path, "HOME": home} }

func TestContainerFingerprint(t *testing.T) {
	sum := func(kind string, change world) string {
		h, m, f := fixedContainer(kind)
		change(&h, m, f)
		if kind != manifest.Apptainer {
			f.refreshIdentity(h)
		}
		return runtimes[kind].Plan(h, m, f).Fingerprint
	}
	for _, kind := range []string{manifest.Docker, manifest.Podman, manifest.Apptainer} {
		base := sum(kind, func(*Host, *manifest.Manifest, *facts) {})
		same := map[string]world{
			"inherited environment": func(h *Host, _ *manifest.Manifest, _ *facts) {
				h.Environ = append(h.Environ, "TERM=x", "DOCKER_HOST=y")
			},
			"where the engine is": func(_ *Host, _ *manifest.Manifest, f *facts) {
				f.ctr.engine.Bin, f.ctr.runner.Bin, f.ctr.engine.Version = "/usr/local/bin/x", "/opt/apptainer", "28.3"
			},
			"SDK": func(h *Host, m *manifest.Manifest, f *facts) {
				h.SDKDir = "/home/alice/.cache/workerd/sdk/2"
				f.ctr.own = append(f.ctr.own, h.SDKDir)
				f.binds = append(f.binds, Bind{h.SDKDir, h.SDKDir, ro})
			},
			"umask": func(_ *Host, _ *manifest.Manifest, f *facts) { f.ctr.umask = 0o77 },
			"name":  func(h *Host, _ *manifest.Manifest, f *facts) { h.ID.Name = "al" },
		}
		if kind == manifest.Apptainer {
			delete(same, "name") // it is no part of its plan, but of USER
		}
		for name, change := range same {
			assert.Equal(t, base, sum(kind, change), "%s: %s", kind, name)
		}
		other := map[string]world{
			"args":       func(_ *Host, m *manifest.Manifest, _ *facts) { m.Args = nil },
			"cwd":        func(_ *Host, m *manifest.Manifest, _ *facts) { m.Paths.Cwd = "/data/ocr" },
			"bind":       func(_ *Host, _ *manifest.Manifest, f *facts) { f.binds = append(f.binds, Bind{"/x", "/x", ro}) },
			"variable":   func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.Variables["A"] = "1" },
			"pass_env":   func(h *Host, _ *manifest.Manifest, _ *facts) { h.Environ = append(h.Environ, "LAB=y") },
			"secret":     func(_ *Host, _ *manifest.Manifest, f *facts) { f.secrets = map[string]string{"HF_TOKEN": "other"} },
			"worker":     func(_ *Host, m *manifest.Manifest, f *facts) { f.content = map[string]string{m.Worker: "x"} },
			"network":    func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.Network = "host" },
			"extra_args": func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.ExtraArgs = nil },
			"image":      func(_ *Host, _ *manifest.Manifest, f *facts) { f.ctr.image.ID, f.ctr.stamp = "ff", "8 1 1" },
			"python":     func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.ContainerPython = "python3.12" },
			"setup":      func(_ *Host, _ *manifest.Manifest, f *facts) { f.setup = change{Set: map[string]string{"A": "1"}} },
		}
		if kind != manifest.Apptainer {
			other["memory"] = func(_ *Host, m *manifest.Manifest, _ *facts) { m.Limits.Memory = 1 << 30 }
			other["groups"] = func(h *Host, _ *manifest.Manifest, _ *facts) { h.ID.Groups = nil }
		}
		for _, name := range slices.Sorted(maps.Keys(other)) {
			assert.NotEqual(t, base, sum(kind, other[name]), "%s: %s", kind, name)
		}
	}
}

func TestContainerEnvironment(t *testing.T) {
	env := func(change world) environ {
		h, m, f := fixedContainer(manifest.Docker)
		change(&h, m, f)
		return containerEnv(h, m, f)
	}
	base := env(func(*Host, *manifest.Manifest, *facts) {})
	assert.Equal(t, "x", base["LAB"], "pass_env")
	assert.Equal(t, "/home/alice/.cache/workerd/sdk/1:/opt/lib", base["PYTHONPATH"])
	assert.NotContains(t, base, "PATH", "it is the image's")
	assert.NotContains(t, base, "LANG")
	assert.Equal(t, "1", base["HF_HUB_OFFLINE"])
	for name, c := range map[string]struct {
		change      world
		name, value string
	}{
		"the manifest's PYTHONPATH replaces the image's": {func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.Variables["PYTHONPATH"] = "/mine" }, "PYTHONPATH", "/home/alice/.cache/workerd/sdk/1:/mine"},
		"the manifest wins over caches":                  {func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.Variables["NUMBA_CACHE_DIR"] = "/n" }, "NUMBA_CACHE_DIR", "/n"},
		"and over offline":                               {func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.Variables["HF_HUB_OFFLINE"] = "0" }, "HF_HUB_OFFLINE", "0"},
		"and over the setup": {func(_ *Host, m *manifest.Manifest, f *facts) {
			m.Env.Variables["A"], f.setup = "1", change{Set: map[string]string{"A": "2"}}
		}, "A", "1"},
		"a glob only adds":              {func(h *Host, m *manifest.Manifest, _ *facts) { m.Env.PassEnv = []string{"*"} }, "HOME", "/home/alice/.cache/workerd/providers/ocr/home"},
		"a name overrides":              {func(h *Host, m *manifest.Manifest, _ *facts) { m.Env.PassEnv = []string{"HOME"} }, "HOME", "/home/alice"},
		"workerd's own cannot be taken": {func(h *Host, m *manifest.Manifest, _ *facts) { m.Env.PassEnv = []string{"WORKERD_*"} }, "WORKERD_PROVIDER", "ocr"},
	} {
		assert.Equal(t, c.value, env(c.change)[c.name], name)
	}
	assert.NotContains(t, env(func(h *Host, m *manifest.Manifest, _ *facts) {
		h.Environ, m.Env.PassEnv = append(h.Environ, "BASH_FUNC_x%%=() { :; }", "a.b=c"), []string{"*"}
	}), "BASH_FUNC_x%%")
	assert.NotContains(t, env(func(_ *Host, m *manifest.Manifest, _ *facts) { m.Env.Network = "host" }), "HF_HUB_OFFLINE")
}

// A setup file of a container's provider runs on the host: what the image and the worker say must not get at its programs.
func TestContainerSetupRunsAsTheHosts(t *testing.T) {
	h := testHost(t)
	m := containerManifest(t, manifest.Docker)
	m.Env.Setup = filepath.Join(m.Dir, "setup.sh")
	seen := filepath.Join(t.TempDir(), "seen")
	require.NoError(t, os.WriteFile(m.Env.Setup, []byte("env >"+quote(seen)+`
export PATH=/tool/bin:$PATH LD_LIBRARY_PATH=/tool/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} PYTHONPATH=$PYTHONPATH:/tool/py PLAIN=1 FIXED=/x
`), 0o600))
	m.Env.Variables = map[string]string{"LD_PRELOAD": "/data/evil.so", "LAB": "x"}
	f := &facts{content: map[string]string{}}
	f.ctr.image.Env = []string{"PATH=/image/bin:/usr/bin", "LD_PRELOAD=/image/evil.so", "BASH_ENV=/image/evil.sh", "PYTHONPATH=/image/py", "SHELLOPTS=xtrace"}
	c, err := probeContainerSetup(t.Context(), OSRunner{&kids}, h, m, f)
	require.NoError(t, err)
	assert.Equal(t, map[string]string{
		"PATH": "/tool/bin:/image/bin:/usr/bin", "LD_LIBRARY_PATH": "/tool/lib", "PYTHONPATH": "/image/py:/tool/py", "PLAIN": "1", "FIXED": "/x",
	}, c.Set)
	data, err := os.ReadFile(seen)
	require.NoError(t, err)
	env := parseEnviron(strings.Split(string(data), "\n"))
	assert.NotContains(t, string(data), "evil")
	assert.NotContains(t, env, "LD_PRELOAD")
	assert.Equal(t, parseEnviron(h.Environ)["PATH"], env["PATH"])
	assert.Equal(t, "x", env["LAB"])

	f.setup, m.Env.Variables["PATH"] = c, "/mine"
	assert.Equal(t, "/mine", containerEnv(h, m, f)["PATH"], "the manifest wins")
}

// A worker that replaced its home by a symlink would get another folder of the host mounted the next time.
func TestHomeThatIsASymlink(t *testing.T) {
	for _, kind := range []string{manifest.Docker, manifest.Apptainer} {
		_, m, f := fixedContainer(kind)
		h := testHost(t)
		pl := runtimes[kind].Plan(h, m, f)
		require.NoError(t, os.MkdirAll(providerCache(h, "ocr"), 0o700))
		require.NoError(t, os.Symlink("/root", providerHome(h, "ocr")))
		pl.secrets = nil
		_, err := NewPlanner(h, nil).Command(pl, WorkerParams{N: 1, Socket: "/s", Tmp: "/t"})
		assert.ErrorContains(t, err, "home is no folder")
	}
}
