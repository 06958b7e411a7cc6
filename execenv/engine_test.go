package execenv

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// fakeBin puts scripts on a PATH of their own, which has nothing else but what scripts need. Each logs its arguments, one
// call a line, to calls.
type fakeBin struct {
	dir   string
	calls string
}

func newFakeBin(t *testing.T, scripts map[string]string) *fakeBin {
	t.Helper()
	b := &fakeBin{dir: t.TempDir()}
	b.calls = filepath.Join(b.dir, "calls")
	for name, script := range scripts {
		b.put(t, name, script)
	}
	return b
}

func (b *fakeBin) put(t *testing.T, name, script string) {
	t.Helper()
	text := "#!/bin/sh\necho \"${0##*/} $*\" >>" + b.calls + "\n" + script + "\n"
	tmp := filepath.Join(b.dir, "."+name)
	require.NoError(t, os.WriteFile(tmp, []byte(text), 0o755))
	require.NoError(t, os.Rename(tmp, filepath.Join(b.dir, name)))
}

func (b *fakeBin) called(t *testing.T) []string {
	t.Helper()
	data, err := os.ReadFile(b.calls)
	if os.IsNotExist(err) {
		return nil
	}
	require.NoError(t, err)
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// host returns a host that finds the fakes only.
func (b *fakeBin) host(t *testing.T) Host {
	h := testHost(t, "PATH="+b.dir, "HOME=/nonexistent")
	h.ID.Name, h.ID.Groups = "alice", []int{4321}
	return h
}

const (
	dockerInfoJSON  = `{"ServerVersion":"20.10.24","CgroupVersion":"1","DefaultRuntime":"runc","MemoryLimit":true,"CpuCfsQuota":true,"PidsLimit":true,"SecurityOptions":["name=seccomp,profile=default"%s]}`
	podmanInfoJSON  = `{"host":{"cgroupVersion":"%s","cgroupControllers":["cpu","memory","pids"],"ociRuntime":{"name":"%s"},"security":{"rootless":%s}},"version":{"Version":"4.3.1"}}`
	imageJSON       = `[{"Id":"sha256:0123","Os":"linux","Config":{"Env":["PATH=/usr/bin"]}}]`
	fakeEngineShape = `case "$1 $2" in
"--version ") echo '%s' ;;
"info --format") echo '%s' ;;
"image inspect") echo '` + imageJSON + `' ;;
*) echo "unexpected $*" >&2; exit 125 ;;
esac`
)

func fakeEngine(version, info string) string { return fmt.Sprintf(fakeEngineShape, version, info) }

func fakeDocker(more string) string {
	return fakeEngine("Docker version 28.2.2, build e6534b4", fmt.Sprintf(dockerInfoJSON, more))
}

func fakePodman(cgroups, runtime, rootless string) string {
	return fakeEngine("podman version 4.3.1", fmt.Sprintf(podmanInfoJSON, cgroups, runtime, rootless))
}

// planOn plans a provider of a kind on fakes.
func planOn(t *testing.T, h Host, kind string, change func(m *manifest.Manifest)) (*Plan, error) {
	t.Helper()
	buildAllKinds(t)
	m := containerManifest(t, kind)
	if change != nil {
		change(m)
	}
	return testPlanner(h).Plan(t.Context(), m)
}

func containerManifest(t *testing.T, kind string) *manifest.Manifest {
	t.Helper()
	m := testManifest(t, "")
	m.Env.Kind, m.Env.ContainerPython, m.Env.Network, m.Env.Image, m.Env.Pull = kind, "python3", "none", "lab/x:1", "never"
	m.Env.SELinux, m.Env.Entrypoint = manifest.DefaultSELinux, manifest.DefaultEntrypoint
	if kind == manifest.Apptainer {
		m.Env.SIF = filepath.Join(m.Dir, "x.sif")
		require.NoError(t, os.WriteFile(m.Env.SIF, []byte("sif"), 0o644))
	}
	return m
}

// Case 6: rootless podman maps uid 0 to the caller, so only keep-id makes the worker the caller; and podman comes under docker's
// name too.
func TestCase6PodmanByItsVersion(t *testing.T) {
	b := newFakeBin(t, map[string]string{"docker": fakePodman("v2", "crun", "true"), "podman": fakePodman("v2", "runc", "true")})
	h := b.host(t)
	pl, err := planOn(t, h, manifest.Docker, nil)
	require.NoError(t, err)
	assert.Equal(t, manifest.Docker, pl.Kind)
	assert.Equal(t, manifest.Podman, pl.Engine)
	assert.Equal(t, filepath.Join(b.dir, "docker"), pl.Argv[0])
	user := fmt.Sprintf("%d:%d", h.ID.UID, h.ID.GID)
	assert.True(t, hasArgs(pl.Argv, "--userns=keep-id", "--user", user, "--group-add", "keep-groups"), "%q", pl.Argv)
	assert.Empty(t, pl.Warnings)

	pl, err = planOn(t, h, manifest.Podman, nil)
	require.NoError(t, err)
	assert.NotContains(t, pl.Argv, "--group-add")
	assert.Contains(t, strings.Join(pl.Warnings, "\n"), "loses supplementary groups with the runtime runc")

	b.put(t, "docker", fakeDocker(""))
	pl, err = planOn(t, h, manifest.Docker, nil)
	require.NoError(t, err)
	assert.Equal(t, manifest.Docker, pl.Engine)
	assert.NotContains(t, pl.Argv, "--userns=keep-id")
	assert.True(t, hasArgs(pl.Argv, "--user", user, "--group-add", "4321"))
	for _, call := range b.called(t) {
		assert.Regexp(t, `^(docker|podman) (--version|info|image inspect) ?`, call, "planning starts nothing")
	}
}

func TestDockerModes(t *testing.T) {
	b := newFakeBin(t, map[string]string{"docker": fakeDocker(`,"name=userns"`)})
	h := b.host(t)
	pl, err := planOn(t, h, manifest.Docker, nil)
	require.NoError(t, err)
	assert.Contains(t, pl.Argv, "--userns=host")

	h.ID.UID = 4242 // nobody who could own the socket below
	socket := filepath.Join(b.dir, "docker.sock")
	require.NoError(t, os.WriteFile(socket, nil, 0o600))
	rootless := strings.Replace(fakeDocker(`,"name=rootless"`), `"image inspect")`, `"context inspect") echo "$FAKE_CONTEXT" ;;`+"\n"+`"image inspect")`, 1)
	for context, want := range map[string]string{
		"unix://" + socket:                    fmt.Sprintf("belongs to uid %d, so files would not belong to uid 4242", os.Getuid()),
		"tcp://elsewhere:2376":                "belongs to another user",
		"unix://" + filepath.Join(b.dir, "x"): "belongs to another user",
	} {
		b.put(t, "docker", "FAKE_CONTEXT='"+context+"'\n"+rootless)
		_, err = planOn(t, h, manifest.Docker, nil)
		assert.ErrorContains(t, err, want)
	}
	if h.ID.UID = os.Getuid(); h.ID.UID == 0 {
		return // and root has no rootless docker
	}
	b.put(t, "docker", "FAKE_CONTEXT='unix://"+socket+"'\n"+rootless)
	pl, err = planOn(t, h, manifest.Docker, nil)
	require.NoError(t, err)
	assert.True(t, hasArgs(pl.Argv, "--user", "0:0"))
	assert.Contains(t, strings.Join(pl.Warnings, "\n"), "rootless docker loses supplementary groups")
}

// Limits that a rootless podman on cgroups v1 would ignore are left out, and said.
func TestLimitsThatCannotBeHad(t *testing.T) {
	b := newFakeBin(t, map[string]string{"podman": fakePodman("v1", "runc", "true")})
	pl, err := planOn(t, b.host(t), manifest.Podman, func(m *manifest.Manifest) { m.Limits.Memory, m.Limits.CPUs = 1<<30, 2 })
	require.NoError(t, err)
	assert.NotContains(t, pl.Argv, "--memory")
	assert.Contains(t, strings.Join(pl.Warnings, "\n"), "limits.memory, limits.cpus cannot be enforced by podman here (a rootless engine needs cgroups v2)")
}

func TestWhatAnEngineSaysBadly(t *testing.T) {
	for name, c := range map[string]struct {
		script string
		kind   ErrorKind
		text   string
	}{
		"daemon down": {`case $1 in --version) echo Docker version 28;; *) echo 'Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?' >&2; exit 1;; esac`,
			EngineUnavailable, "start the docker daemon"},
		"daemon down, said with status 0": {fakeEngine("Docker version 20", `{"ServerErrors":["Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?"]}`),
			EngineUnavailable, "start the docker daemon"},
		"no permission": {`case $1 in --version) echo Docker version 28;; *) echo 'permission denied while trying to connect to the Docker daemon socket' >&2; exit 1;; esac`,
			EngineUnavailable, "group docker"},
		"cannot be executed":      {"", EngineUnavailable, "not installed"},
		"image answer unreadable": {strings.Replace(fakeDocker(""), imageJSON, "what", 1), Permanent, "cannot be read"},
	} {
		b := newFakeBin(t, map[string]string{"docker": c.script})
		if c.script == "" {
			require.NoError(t, os.WriteFile(filepath.Join(b.dir, "docker"), []byte("#!/no/such/shell\n"), 0o755))
		}
		_, err := planOn(t, b.host(t), manifest.Docker, nil)
		var e *Error
		require.ErrorAs(t, err, &e, name)
		assert.Equal(t, c.kind, e.Kind, "%s: %v", name, err)
		assert.ErrorContains(t, err, c.text, name)
	}
	b := newFakeBin(t, map[string]string{"docker": fakeEngine("Docker version 99", "something new")})
	pl, err := planOn(t, b.host(t), manifest.Docker, nil)
	require.NoError(t, err)
	assert.Contains(t, strings.Join(pl.Warnings, "\n"), "info said nothing that can be read", "not silently")
}

// Never a fallback: a kind whose engine is not there is refused, whatever else is.
func TestNoFallback(t *testing.T) {
	b := newFakeBin(t, map[string]string{"podman": fakePodman("v2", "crun", "true")})
	for _, kind := range []string{manifest.Docker, manifest.Apptainer} {
		_, err := planOn(t, b.host(t), kind, nil)
		assert.True(t, IsEngineError(err, EngineNotInstalled), "%v", err)
		assert.ErrorContains(t, err, "choose another env.kind")
		var e *Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, EngineUnavailable, e.Kind)
	}
	assert.Empty(t, b.called(t))
}

func TestMissingImage(t *testing.T) {
	script := strings.Replace(fakeDocker(""), "echo '"+imageJSON+"'", "echo 'Error response from daemon: No such image: lab/x:1' >&2; exit 1", 1)
	b := newFakeBin(t, map[string]string{"docker": script})
	for pull, want := range map[string]ErrorKind{"never": Permanent, "missing": Transient, "always": Transient} {
		_, err := planOn(t, b.host(t), manifest.Docker, func(m *manifest.Manifest) { m.Env.Pull = pull })
		var e *Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, want, e.Kind, pull)
		assert.Equal(t, "env.image", e.Key)
		assert.True(t, IsEngineError(err, EngineImageMissing))
	}
	arm := strings.Replace(fakeDocker(""), `"Os":"linux"`, `"Architecture":"s390x"`, 1)
	b.put(t, "docker", arm)
	if !foreignFormats() {
		_, err := planOn(t, b.host(t), manifest.Docker, nil)
		assert.ErrorContains(t, err, "is an image for s390x")
	}
}

// Case 24: an engine that hangs holds nobody up for longer than its deadline, however many ask.
func TestCase24HangingEngine(t *testing.T) {
	b := newFakeBin(t, map[string]string{"docker": "sleep 600 & wait"})
	h := b.host(t)
	h.Environ = append(h.Environ, "PATH="+b.dir+":/usr/bin:/bin")
	h.EngineTimeout = 300 * time.Millisecond
	p := testPlanner(h)
	buildAllKinds(t)
	began := time.Now()
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		m := containerManifest(t, manifest.Docker)
		wg.Go(func() { _, errs[i] = p.Plan(t.Context(), m) })
	}
	wg.Wait()
	assert.Less(t, time.Since(began), 5*time.Second)
	for _, err := range errs {
		assert.True(t, IsEngineError(err, EngineTimeout), "%v", err)
		var e *Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, EngineUnavailable, e.Kind)
		assert.ErrorContains(t, err, "no end within 300ms")
	}
	assert.Len(t, b.called(t), 1, "one asked for all")

	// One that is back is seen at the next try.
	b.put(t, "docker", fakeDocker(""))
	eventually(t, func() bool {
		_, err := p.Plan(t.Context(), containerManifest(t, manifest.Docker))
		return err == nil
	}, "the engine is back")
}

// A hundred providers do not ask a hundred times.
func TestEngineIsAskedOnce(t *testing.T) {
	b := newFakeBin(t, map[string]string{"podman": fakePodman("v2", "crun", "true")})
	p := testPlanner(b.host(t))
	buildAllKinds(t)
	var wg sync.WaitGroup
	for range 100 {
		m := containerManifest(t, manifest.Podman)
		wg.Go(func() {
			_, err := p.Plan(t.Context(), m)
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, len(b.called(t)), 4, "version, info, image inspect (perhaps twice)")
}

// Who gives up waiting takes nobody else's answer along.
func TestFlightOutlivesAnAsker(t *testing.T) {
	f := newFlight[int]()
	began, proceed := make(chan struct{}), make(chan struct{})
	ctx, cancel := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := f.get(ctx, time.Hour, func(ctx context.Context) (int, error) {
			close(began)
			select {
			case <-ctx.Done():
				return 0, ctx.Err()
			case <-proceed:
				return 1, nil
			}
		})
		first <- err
	}()
	<-began
	second := make(chan int, 1)
	go func() {
		v, _ := f.get(t.Context(), time.Hour, func(context.Context) (int, error) { return 2, nil })
		second <- v
	}()
	cancel()
	require.ErrorIs(t, <-first, context.Canceled)
	assert.Equal(t, 2, <-second)
	v, err := f.get(t.Context(), time.Hour, func(context.Context) (int, error) { panic("it is known") })
	require.NoError(t, err)
	assert.Equal(t, 2, v)
	f.forget(t.Context())
	v, _ = f.get(t.Context(), time.Hour, func(context.Context) (int, error) { return 3, nil })
	assert.Equal(t, 3, v)
}

const singularityHelp = `case "$1 $2" in
"--version ") echo "$VERSION" ;;
"exec --help") echo "  -e, --cleanenv   clean environment
      --pwd string  initial directory $MORE" ;;
"-q exec") printf 'PATH=/image/bin\0PYTHONPATH=\0' ;;
*) exit 1 ;;
esac`

// Case 43: the names of Apptainer and of SingularityCE.
func TestCase43Names(t *testing.T) {
	fake := func(version, more string) string {
		return "VERSION='" + version + "' MORE='" + more + "'\n" + singularityHelp
	}
	ce := fake("singularity-ce version 4.1.0-1", "")
	full := "\n      --no-eval   x\n      --cwd string  x"
	for name, c := range map[string]struct {
		scripts map[string]string
		bin     string
		prefix  string
		has     []string
	}{
		"only singularity":         {map[string]string{"singularity": ce}, "singularity", "SINGULARITYENV_", []string{"--pwd"}},
		"both":                     {map[string]string{"singularity": ce, "apptainer": fake("apptainer version 1.4.5", full)}, "apptainer", "APPTAINERENV_", []string{"--no-eval", "--cwd"}},
		"apptainer as singularity": {map[string]string{"singularity": fake("apptainer version 1.3.0", full)}, "singularity", "APPTAINERENV_", []string{"--no-eval", "--cwd"}},
	} {
		b := newFakeBin(t, c.scripts)
		h := b.host(t)
		buildAllKinds(t)
		p := testPlanner(h)
		m := containerManifest(t, manifest.Apptainer)
		m.Env.Variables = map[string]string{"A": "x"}
		pl, err := p.Plan(t.Context(), m)
		require.NoError(t, err, name)
		assert.Equal(t, filepath.Join(b.dir, c.bin), pl.Argv[0], name)
		for _, flag := range c.has {
			assert.Contains(t, pl.Argv, flag, name)
		}
		cmd, err := p.Command(pl, WorkerParams{N: 1, Socket: "/s", Tmp: "/t"})
		require.NoError(t, err)
		assert.Contains(t, cmd.Env, c.prefix+"A=x", name)
		for _, call := range b.called(t) {
			assert.True(t, strings.HasPrefix(call, c.bin+" "), "%s: %s", name, call)
		}
		_, err = p.Plan(t.Context(), m)
		require.NoError(t, err)
		assert.Len(t, b.called(t), 3, "%s: asked once", name)

		m.Env.Variables["B"] = "$(id)"
		_, err = p.Plan(t.Context(), m)
		if name == "only singularity" {
			assert.ErrorContains(t, err, "env.variables.B: singularity 4.1.0-1 runs values of variables as shell code")
		} else {
			assert.NoError(t, err)
		}
	}
}

// Case 39: user namespaces are off. It is no use to try again.
func TestCase39UserNamespacesOff(t *testing.T) {
	b := newFakeBin(t, map[string]string{"apptainer": `case "$1 $2" in
"--version ") echo apptainer version 1.4.5 ;;
"exec --help") echo " --no-eval --cwd " ;;
*) echo 'ERROR  : Failed to create user namespace: user namespace disabled' >&2; exit 255 ;;
esac`})
	_, err := planOn(t, b.host(t), manifest.Apptainer, nil)
	assert.True(t, IsEngineError(err, EngineUserNamespacesOff), "%v", err)
	assert.ErrorContains(t, err, "kernel.unprivileged_userns_clone")
	var e *Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, Permanent, e.Kind)
}

func TestApptainerNetworks(t *testing.T) {
	b := newFakeBin(t, map[string]string{"apptainer": `case "$1 $2" in "--version ") echo apptainer version 1.4.5 ;; "exec --help") echo " --no-eval --cwd " ;; esac`})
	h := b.host(t)
	for _, uid := range []int{0, 1001} {
		h.ID.UID = uid
		_, err := planOn(t, h, manifest.Apptainer, func(m *manifest.Manifest) { m.Env.Network = "bridge" })
		if uid == 0 {
			assert.NoError(t, err)
		} else {
			assert.ErrorContains(t, err, `env.network: apptainer gives users other than root only "none" and "host", not "bridge"`)
		}
	}
	h.CacheDir = h.CacheDir + ":x"
	_, err := planOn(t, h, manifest.Apptainer, nil)
	assert.ErrorContains(t, err, "choose another cache_dir")
}

func TestApptainerWarnsOfLimits(t *testing.T) {
	h, m := fixedHost(), fixedManifest()
	assert.Empty(t, apptainer{}.Check(h, m))
	m.Limits.Memory, m.Limits.ShmSize = 1, 1
	assert.Contains(t, apptainer{}.Check(h, m)[0], "limits.memory, limits.shm_size: ")
}

func TestSELinuxChecks(t *testing.T) {
	b := newFakeBin(t, map[string]string{"docker": fakeDocker("")})
	colon := filepath.Join(t.TempDir(), "a:b")
	require.NoError(t, os.Mkdir(colon, 0o755))
	for _, selinux := range []string{"disable", "none", "shared"} {
		_, err := planOn(t, b.host(t), manifest.Docker, func(m *manifest.Manifest) {
			m.Env.SELinux, m.Paths.Binds = selinux, []manifest.Bind{{Path: colon, Mode: ro}}
		})
		if selinux == "shared" {
			assert.ErrorContains(t, err, "env.selinux: docker can label "+colon+" only by --volume")
		} else {
			assert.NoError(t, err)
		}
	}
	m := fixedManifest()
	m.Env.SELinux, m.Restart.OnChange, m.Serve.Replicas = "private", "rolling", 1
	assert.Contains(t, oci{manifest.Docker}.Check(fixedHost(), m)[0], "env.selinux")
	m.Restart.OnChange = "stop-first"
	assert.Empty(t, oci{manifest.Docker}.Check(fixedHost(), m))
}

// Case 50: an old podman has no CDI, and splits mounts at commas (case 14).
func TestOldPodman(t *testing.T) {
	f := &facts{ctr: containerFacts{engine: EngineInfo{Engine: manifest.Podman, Version: "3.4.4"}}, gpu: GPU{Count: 1}}
	assert.ErrorContains(t, podmanDialect{}.check(&manifest.Manifest{}, f), "podman 4.1 or newer is needed")
	f.gpu.Count = 0
	assert.NoError(t, podmanDialect{}.check(&manifest.Manifest{}, f))
	f.binds = []Bind{{"/a,b", "/a,b", ro}}
	assert.ErrorContains(t, podmanDialect{}.check(&manifest.Manifest{}, f), "cannot mount /a,b")
	f.ctr.engine.Version = "4.3.1"
	assert.NoError(t, podmanDialect{}.check(&manifest.Manifest{}, f))
}

func TestParseContainers(t *testing.T) {
	const shape = `[{"Id":"abc","Name":"%s","Image":"sha256:0123","Created":"2026-11-30T10:22:36.123456789Z",` +
		`"Config":{"Labels":{"workerd.instance":"0a1b2c3d","workerd.slug":"ocr","workerd.worker":"7"}},"HostConfig":{"LogConfig":{"Type":"local"}},` +
		`"State":{"Status":"%s","Running":%v,"OOMKilled":false,"Pid":%d,"ExitCode":%d,"Error":"","StartedAt":"%s","FinishedAt":"%s"}}]`
	const never, then = "0001-01-01T00:00:00Z", "2026-11-30T10:22:40Z"
	code := func(n int) *int { return &n }
	for _, c := range []struct {
		status      string
		running     bool
		pid, exit   int
		start, stop string
		want        ContainerState
		code        *int
		started     bool
		finished    bool
	}{
		{"created", false, 0, 0, never, never, ContainerCreated, nil, false, false},
		{"created", false, 0, 127, never, never, ContainerCreated, nil, false, false},
		{"configured", false, 0, 0, never, never, ContainerCreated, nil, false, false},
		{"running", true, 42, 0, then, never, ContainerRunning, nil, true, false},
		{"running", true, 42, 137, then, then, ContainerRunning, nil, true, false}, // started again: what is left of the earlier run
		{"paused", true, 42, 0, then, never, ContainerRunning, nil, true, false},
		{"stopping", true, 42, 0, then, never, ContainerRunning, nil, true, false},
		{"exited", false, 0, 0, then, then, ContainerExited, code(0), true, true},
		{"exited", false, 0, 137, then, "nonsense", ContainerExited, code(137), true, false},
		{"stopped", false, 0, 143, then, then, ContainerExited, code(143), true, true},
		{"dead", false, 0, 1, then, then, ContainerExited, code(1), true, true},
		{"removing", false, 0, 1, then, then, ContainerExited, code(1), true, true},
	} {
		got, err := parseContainers(fmt.Appendf(nil, shape, "/workerd-0a1b2c3d-ocr-7", c.status, c.running, c.pid, c.exit, c.start, c.stop))
		require.NoError(t, err)
		require.Len(t, got, 1)
		assert.Equal(t, c.want, got[0].State, c.status)
		assert.Equal(t, c.code, got[0].ExitCode, c.status)
		assert.Equal(t, c.started, !got[0].Started.IsZero(), c.status)
		assert.Equal(t, c.finished, !got[0].Finished.IsZero(), c.status)
		assert.Equal(t, "0123", got[0].Image)
		slug, n, ok := got[0].Worker("0a1b2c3d")
		assert.True(t, ok)
		assert.Equal(t, "ocr7", fmt.Sprint(slug, n))
		_, _, ok = got[0].Worker("ffffffff")
		assert.False(t, ok)
		got[0].Name = "lab"
		_, _, ok = got[0].Worker("0a1b2c3d")
		assert.False(t, ok, "a stranger's, of an image that was made from a worker's container")
	}
	for _, bad := range []string{"", "{}", `[{"Id":""}]`, `[{"Id":"a","State":{}}]`, "[1]"} {
		_, err := parseContainers([]byte(bad))
		assert.Error(t, err, bad)
	}
}

func TestLineWriter(t *testing.T) {
	var got []string
	w := &lineWriter{take: func(s string) { got = append(got, s) }, tail: tail{limit: 8}}
	for _, s := range []string{"one\ntw", "o\r\n\x1b[32mthree\x1b[0m\rfour", "\n\n", "five"} {
		n, err := w.Write([]byte(s))
		require.NoError(t, err)
		assert.Equal(t, len(s), n)
	}
	w.flush()
	assert.Equal(t, []string{"one", "two", "three", "four", "five"}, got)
	assert.Equal(t, []byte("r\n\nfive")[0:7], w.bytes()[1:])
	got = nil
	_, _ = w.Write(bytes.Repeat([]byte("x"), 3*longestLine))
	w.flush()
	assert.Equal(t, 3*longestLine, len(strings.Join(got, "")))
}
