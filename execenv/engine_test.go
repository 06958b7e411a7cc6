package execenv

import (
	"context"
	"fmt"
	"io"
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

// What an engine says of swap space and processors is what it is told of limits, and a limit that is none is said.
func TestLimitsByWhatThereIs(t *testing.T) {
	docker := strings.Replace(fakeDocker(""), `"MemoryLimit":true`, `"MemoryLimit":true,"SwapLimit":true,"NCPU":4`, 1)
	podman := strings.Replace(fakePodman("v2", "crun", "true"), `"cgroupVersion"`, `"cpus":4,"cgroupVersion"`, 1)
	b := newFakeBin(t, map[string]string{"docker": docker, "podman": podman})
	for _, kind := range []string{manifest.Docker, manifest.Podman} {
		pl, err := planOn(t, b.host(t), kind, func(m *manifest.Manifest) { m.Limits.Memory, m.Limits.CPUs = 1<<30, 8 })
		require.NoError(t, err)
		assert.True(t, hasArgs(pl.Argv, "--memory", "1073741824", "--memory-swap", "1073741824", "--cpus", "4"), "%q", pl.Argv)
		assert.Contains(t, strings.Join(pl.Warnings, "\n"), "limits.cpus is 8, and "+kind+" has 4 processors here")
		pl, err = planOn(t, b.host(t), kind, func(m *manifest.Manifest) { m.Limits.CPUs = 4 })
		require.NoError(t, err)
		assert.NotContains(t, strings.Join(pl.Warnings, "\n"), "limits.cpus")
	}
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

// An answer without an end fills no memory: os/exec copies it as io.Copy does.
func TestAnswersAreBounded(t *testing.T) {
	var l limited
	_, err := io.Copy(&l, io.LimitReader(endless{}, answerLimit+1))
	require.ErrorContains(t, err, "too large")
	assert.LessOrEqual(t, len(l.Bytes()), answerLimit)

	var fits limited
	_, err = io.Copy(&fits, strings.NewReader("an answer"))
	require.NoError(t, err)
	assert.Equal(t, "an answer", fits.String())
}

type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

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
	h.EngineTimeout = 2 * time.Second
	p := testPlanner(h)
	began := time.Now()
	var wg sync.WaitGroup
	errs := make([]error, 20)
	for i := range errs {
		m := containerManifest(t, manifest.Docker)
		wg.Go(func() { _, errs[i] = p.Plan(t.Context(), m) })
	}
	wg.Wait()
	assert.Less(t, time.Since(began), 20*time.Second, "not each after the other")
	for _, err := range errs {
		assert.True(t, IsEngineError(err, EngineTimeout), "%v", err)
		var e *Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, EngineUnavailable, e.Kind)
		assert.ErrorContains(t, err, "no end within 2s")
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
	var wg sync.WaitGroup
	began := time.Now()
	for range 100 {
		m := containerManifest(t, manifest.Podman)
		wg.Go(func() {
			_, err := p.Plan(t.Context(), m)
			assert.NoError(t, err)
		})
	}
	wg.Wait()
	assert.LessOrEqual(t, len(b.called(t)), 4+int(time.Since(began)/imageHold), "version, info, image inspect (perhaps twice)")
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

// podman 3 removes nothing when it is told how long to wait; where the version is not known it is not told either.
func TestRemoveByVersion(t *testing.T) {
	four := strings.Replace(fakePodman("v2", "crun", "true"), "*) echo", `"rm --force") ;;`+"\n*) echo", 1)
	three := strings.Replace(four, `"Version":"4.3.1"`, `"Version":"3.4.4"`, 1)
	three = strings.Replace(three, `"rm --force") ;;`, `"rm --force") case "$*" in *--time*) echo 'Error: unknown flag: --time' >&2; exit 125;; esac ;;`, 1)
	mute := strings.Replace(three, `"info --format")`, `"info --format") exit 125;; "never ")`, 1)
	docker := strings.Replace(fakeDocker(""), "*) echo", `"rm --force") ;;`+"\n*) echo", 1)
	for name, c := range map[string]struct{ kind, script, call string }{
		"podman 4":                    {manifest.Podman, four, "podman rm --force --time 0 --volumes x"},
		"podman 3":                    {manifest.Podman, three, "podman rm --force --volumes x"},
		"podman that tells nothing":   {manifest.Podman, mute, "podman rm --force --volumes x"},
		"podman that talks otherwise": {manifest.Podman, strings.Replace(three, `{"host"`, `{"other"`, 1), "podman rm --force --volumes x"},
		"docker":                      {manifest.Docker, docker, "docker rm --force --volumes x"},
	} {
		b := newFakeBin(t, map[string]string{c.kind: c.script})
		e, err := testPlanner(b.host(t)).Engine(c.kind)
		require.NoError(t, err)
		require.NoError(t, e.Remove(t.Context(), "x"), name)
		assert.Contains(t, b.called(t), c.call, name)
	}
}

// Case 7: a home that the user namespace cannot pass, or one on NFS. It is no use to try again.
func TestCase7Storage(t *testing.T) {
	podman := strings.Replace(fakePodman("v2", "crun", "true"), `"version":{`, `"store":{"graphRoot":"/gpfs/u/storage"},"version":{`, 1)
	podman = strings.Replace(podman, "*) echo", `"run --detach") echo 'Error: crun: open executable: Permission denied: OCI permission denied' >&2; exit 126 ;;`+"\n*) echo", 1)
	b := newFakeBin(t, map[string]string{"podman": podman})
	p := testPlanner(b.host(t))
	pl, err := p.Plan(t.Context(), containerManifest(t, manifest.Podman))
	require.NoError(t, err)
	e, err := p.EngineOf(pl)
	require.NoError(t, err)
	c, err := p.Command(pl, WorkerParams{N: 1, Socket: "/s", Tmp: "/t"})
	require.NoError(t, err)
	_, err = e.Run(t.Context(), c)
	var ee *EngineError
	require.ErrorAs(t, err, &ee)
	assert.Equal(t, EngineStorage, ee.Kind)
	assert.Equal(t, Permanent, ee.Kind.Class())
	for _, want := range []string{"/gpfs/u/storage", "chmod o+x", "NFS"} {
		assert.ErrorContains(t, err, want)
	}
}
