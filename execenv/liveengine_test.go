package execenv

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

var engineKinds = []string{manifest.Docker, manifest.Podman}

// worker makes the worker a program of its own.
func (r *rig) worker(code string) {
	r.t.Helper()
	require.NoError(r.t, os.WriteFile(r.m.Worker, []byte(code), 0o644))
}

const readyAndSleep = "import time\nprint('ready', flush=True)\ntime.sleep(600)\n"

// printed waits until a container has printed a text.
func (r *rig) printed(id, text string) {
	r.t.Helper()
	eventually(r.t, func() bool {
		var log bytes.Buffer
		require.NoError(r.t, r.engine().Logs(r.t.Context(), id, LogOptions{}, &log))
		return strings.Contains(log.String(), text)
	}, "the worker prints %q", text)
}

func TestLiveLifeOfAContainer(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		ctx, e := t.Context(), r.engine()
		r.worker(readyAndSleep)
		pl := r.plan()
		id, w := r.start(pl)
		r.printed(id, "ready")
		spec := r.p.Container(pl, w)
		assert.Equal(t, "workerd-"+r.h.Instance+"-ocr-1", spec.Name)

		c, err := e.Inspect(ctx, spec.Name)
		require.NoError(t, err)
		assert.Equal(t, id, c.ID)
		assert.Equal(t, spec.Name, c.Name)
		assert.Equal(t, pl.ImageID, c.Image)
		assert.Equal(t, ContainerRunning, c.State)
		assert.Nil(t, c.ExitCode, "a running container has no exit code")
		assert.NotZero(t, c.PID)
		assert.True(t, c.Finished.IsZero())
		assert.WithinDuration(t, time.Now(), c.Started, time.Minute)
		assert.WithinDuration(t, time.Now(), c.Created, time.Minute)
		for name, value := range spec.Labels {
			assert.Equal(t, value, c.Labels[name], name)
		}
		slug, n, ok := c.Worker(r.h.Instance)
		assert.True(t, ok)
		assert.Equal(t, "ocr", slug)
		assert.Equal(t, int64(1), n)

		list, err := e.List(ctx, map[string]string{LabelInstance: r.h.Instance})
		require.NoError(t, err)
		require.Len(t, list, 1)
		assert.Equal(t, c, list[0])
		list, err = e.List(ctx, map[string]string{LabelInstance: r.h.Instance[:4]})
		require.NoError(t, err)
		assert.Empty(t, list)

		// The name is taken: the container that has it is left alone.
		cmd, err := r.p.Command(pl, w)
		require.NoError(t, err)
		_, err = e.Run(ctx, cmd)
		require.True(t, IsEngineError(err, EngineNameTaken), "%v", err)

		began := time.Now()
		require.NoError(t, e.Stop(ctx, id, 30*time.Second))
		assert.Less(t, time.Since(began), 20*time.Second, "a worker without a handler ends long before the grace of 30 s")
		c, err = e.Inspect(ctx, id)
		require.NoError(t, err)
		assert.Equal(t, ContainerExited, c.State)
		require.NotNil(t, c.ExitCode)
		assert.Equal(t, 143, *c.ExitCode)
		assert.False(t, c.OOMKilled)
		assert.Zero(t, c.PID)
		assert.WithinDuration(t, time.Now(), c.Finished, time.Minute)

		require.NoError(t, e.Stop(ctx, id, 0), "it has stopped")
		require.NoError(t, e.Kill(ctx, id, "TERM"))
		require.NoError(t, e.Remove(ctx, id))
		require.NoError(t, e.Remove(ctx, id), "it is gone")
		require.NoError(t, e.Stop(ctx, id, 0))
		require.NoError(t, e.Kill(ctx, id, "KILL"))
		_, err = e.Inspect(ctx, id)
		assert.True(t, IsEngineError(err, EngineNoContainer), "%v", err)
		err = e.Logs(ctx, id, LogOptions{}, &bytes.Buffer{})
		assert.True(t, IsEngineError(err, EngineNoContainer), "%v", err)
	}, engineKinds...)
}

// Case 20: a worker that ignores SIGTERM is gone after the grace, and what it forked with it.
func TestLiveCase20StubbornWorker(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		r.worker("import signal, os, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n" +
			"for i in range(50):\n  if os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n      time.sleep(600) if i == 0 else None\n    os._exit(0)\n" +
			"for i in range(50): os.wait()\n" +
			"time.sleep(0.5)\ndef zombies():\n  n = 0\n  for p in os.listdir('/proc'):\n" +
			"    try: n += p.isdigit() and ') Z ' in open('/proc/%s/stat' % p).read()\n    except OSError: pass\n  return n\n" +
			"while zombies(): time.sleep(0.05)\nprint('ready 0', flush=True)\ntime.sleep(600)\n")
		id, _ := r.start(r.plan())
		r.printed(id, "ready 0")
		began := time.Now()
		require.NoError(t, r.engine().Stop(t.Context(), id, time.Second))
		assert.Greater(t, time.Since(began), 900*time.Millisecond)
		assert.Less(t, time.Since(began), 10*time.Second, "less than what docker gives by itself")
		c, err := r.engine().Inspect(t.Context(), id)
		require.NoError(t, err)
		require.NotNil(t, c.ExitCode)
		assert.Equal(t, 137, *c.ExitCode)
	}, engineKinds...)
}

// A program that the image does not have, or that cannot be executed: the container runs for a moment, and its output tells.
func TestLiveRunFailure(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		for _, c := range []struct {
			python string
			kind   EngineErrorKind
		}{{"/no/such/python", EngineNotFound}, {"nosuchpython", EngineNotFound}, {"/etc/passwd", EngineNotExecutable}} {
			r.m.Env.ContainerPython = c.python
			code, out := r.run()
			assert.NotZero(t, code)
			e := r.plan().RunFailure(code, []byte(out))
			require.NotNil(t, e, "%d %s", code, out)
			assert.Equal(t, c.kind, e.Kind, e)
			assert.NotEmpty(t, e.Hint)
			assert.Equal(t, Permanent, e.Kind.Class())
		}
		r.m.Env.ContainerPython = "python3"
		for code, worker := range map[int]string{
			255: "import sys\nprint('Traceback: no')\nsys.exit(255)\n", 127: "import os\nos._exit(127)\n", 0: "", 1: "raise Exception('FATAL: not')\n",
			137: "import os\nos.kill(os.getpid(), 9)\n",
		} {
			r.worker(worker)
			got, out := r.run()
			assert.Equal(t, code, got)
			assert.Nil(t, r.plan().RunFailure(got, []byte(out)), "%d is the worker's own", code)
		}
	})
}

// A container that the engine could not start is there, was never started, and can be removed. Case 19: so it holds its name.
func TestLiveCreatedNeverStarted(t *testing.T) {
	r := newRig(t, manifest.Docker, "small")
	ctx, e := t.Context(), r.engine()
	r.m.Env.Network = "nosuchnetwork"
	pl := r.plan()
	w := r.params()
	cmd, err := r.p.Command(pl, w)
	require.NoError(t, err)
	_, err = e.Run(ctx, cmd)
	assert.True(t, IsEngineError(err, EngineNoNetwork), "%v", err)
	name := r.p.Container(pl, w).Name
	c, err := e.Inspect(ctx, name)
	require.NoError(t, err)
	assert.Equal(t, ContainerCreated, c.State)
	assert.Nil(t, c.ExitCode)
	assert.True(t, c.Started.IsZero())
	assert.True(t, c.Finished.IsZero())
	_, _, ours := c.Worker(r.h.Instance)
	assert.True(t, ours)
	_, err = e.Run(ctx, cmd)
	assert.True(t, IsEngineError(err, EngineNameTaken), "%v", err)
	require.NoError(t, e.Stop(ctx, name, 0))
	require.NoError(t, e.Remove(ctx, name))
	_, err = e.Inspect(ctx, name)
	assert.True(t, IsEngineError(err, EngineNoContainer), "%v", err)
}

// What an engine refuses is told apart.
func TestLiveRefusals(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		ctx, e := t.Context(), r.engine()
		r.m.Env.Network = "nosuchnetwork"
		pl := r.plan()
		cmd, err := r.p.Command(pl, r.params())
		require.NoError(t, err)
		_, err = e.Run(ctx, cmd)
		assert.True(t, IsEngineError(err, EngineNoNetwork), "%v", err)
		assert.ErrorContains(t, err, "nosuchnetwork")
		require.NoError(t, e.Remove(ctx, r.p.Container(pl, WorkerParams{N: r.n}).Name))

		r.m.Env.Network = "none"
		r.m.Env.ExtraArgs = []string{"--no-such-flag"}
		cmd, err = r.p.Command(r.plan(), r.params())
		require.NoError(t, err)
		_, err = e.Run(ctx, cmd)
		assert.True(t, IsEngineError(err, EngineRefused), "%v", err)
		assert.ErrorContains(t, err, "no-such-flag")

		r.m.Env.ExtraArgs, r.m.Env.Image = nil, "workerd-test:nosuchtag"
		_, err = r.p.Plan(ctx, r.m)
		assert.ErrorContains(t, err, "no image workerd-test:nosuchtag")
		assert.True(t, IsEngineError(err, EngineImageMissing))

		r.m.Env.Pull, r.m.Env.Image = "missing", "127.0.0.1:1/nosuch:1"
		var lines []string
		err = e.Pull(ctx, r.m.Env.Image, time.Minute, func(line string) { lines = append(lines, line) })
		assert.True(t, IsEngineError(err, EnginePullFailed), "%v", err)
		assert.NotEmpty(t, lines)
		_, err = r.p.Plan(ctx, r.m)
		var pe *Error
		require.ErrorAs(t, err, &pe)
		assert.Equal(t, Transient, pe.Kind, "it may be pulled yet")
	}, engineKinds...)
}

// Case 23, limits, and the log: what the flags say is what the worker has.
func TestLiveCase23Limits(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		r.m.Limits.ShmSize = 256 << 20
		r.m.Limits.Memory, r.m.Limits.Pids, r.m.Limits.CPUs = 512<<20, 100, 1.5
		v := r.look(`
s = os.statvfs("/dev/shm")
extra["shm"] = s.f_blocks * s.f_frsize
open("/dev/shm/big", "wb").write(b"x" * (100 << 20))
`)
		assert.Equal(t, float64(256<<20), v.Extra["shm"])
		info, err := r.engine().Info(t.Context())
		require.NoError(t, err)
		warned := strings.Join(r.plan().Warnings, "\n")
		assert.Equal(t, !info.Memory, strings.Contains(warned, "limits.memory"))
		if !info.Memory {
			return
		}
		r.worker("import os, time\nprint('ready', flush=True)\nb = bytearray(700 << 20)\nfor i in range(0, len(b), 4096): b[i] = 1\ntime.sleep(600)\n")
		r.m.Limits.Memory = 64 << 20
		id, _ := r.start(r.plan())
		code, _ := r.finish(id)
		assert.Equal(t, 137, code)
		c, err := r.engine().Inspect(t.Context(), id)
		require.NoError(t, err)
		assert.True(t, c.OOMKilled)
	}, engineKinds...)
}

func TestLiveLogs(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		ctx, e := t.Context(), r.engine()
		r.worker("import sys, time\nfor i in range(200): print('out', i, flush=True); print('err', i, file=sys.stderr, flush=True)\nprint('x' * 1000)\nprint('end', flush=True)\ntime.sleep(1)\nprint('last')\n")
		id, _ := r.start(r.plan())
		r.printed(id, "end")
		var log bytes.Buffer
		require.NoError(t, e.Logs(ctx, id, LogOptions{Tail: 1}, &log))
		assert.Equal(t, 1, strings.Count(log.String(), "\n"), "which is the last is not certain of two streams: %q", log.String())
		log.Reset()
		require.NoError(t, e.Logs(ctx, id, LogOptions{Follow: true}, &log), "it ends with the container")
		for _, want := range []string{"out 0\n", "err 199\n", "last\n", strings.Repeat("x", 1000)} {
			assert.True(t, strings.Contains(log.String(), want), "%.20q in %d bytes", want, log.Len())
		}
		c, err := e.Inspect(ctx, id)
		require.NoError(t, err)
		assert.Equal(t, map[string]string{manifest.Docker: "local", manifest.Podman: "k8s-file"}[r.kind], c.LogDriver)

		r.worker(readyAndSleep)
		id, _ = r.start(r.plan())
		ctx, cancel := context.WithCancel(ctx)
		var follow syncBuffer
		done := make(chan error, 1)
		go func() { done <- e.Logs(ctx, id, LogOptions{Follow: true}, &follow) }()
		eventually(t, func() bool { return strings.Contains(follow.String(), "ready") }, "lines come as they are printed")
		cancel()
		require.ErrorIs(t, <-done, context.Canceled)
	}, engineKinds...)
}

// Anonymous volumes of an image go with the container.
func TestLiveRemoveTakesVolumesAlong(t *testing.T) {
	for _, kind := range engineKinds {
		t.Run(strings.ToUpper(kind[:1])+kind[1:], func(t *testing.T) {
			r := newRig(t, kind, "odd")
			r.worker(readyAndSleep)
			id, _ := r.start(r.plan())
			r.printed(id, "ready")
			name := strings.TrimSpace(output(t, exec.Command(r.engine().Bin(), "container", "inspect", "--format", "{{range .Mounts}}{{if eq .Type \"volume\"}}{{.Name}} {{end}}{{end}}", id)))
			require.NotEmpty(t, name, "the image has a volume")
			require.NoError(t, r.engine().Remove(t.Context(), id))
			assert.NotContains(t, output(t, exec.Command(r.engine().Bin(), "volume", "ls", "--quiet")), name)
		})
	}
}

// Case 12: the devices that docker was told. docker create needs no GPU.
func TestLiveCase12DeviceRequests(t *testing.T) {
	r := newRig(t, manifest.Docker, "small")
	f := r.facts()
	f.gpu = GPU{Policy: "shared", Count: 2}
	pl := oci{manifest.Docker}.Plan(r.h, r.m, f)
	require.NoError(t, r.p.Prepare(pl))
	for _, c := range []struct {
		gpus []string
		want string
	}{
		{[]string{"GPU-0aa", "GPU-1bb"}, "0 [GPU-0aa GPU-1bb]"},
		{[]string{"GPU-0aa"}, "0 [GPU-0aa]"},
		{nil, ""},
		{[]string{"GPU-0aa", "GPU-1bb", "GPU-2cc", "GPU-3dd"}, "0 [GPU-0aa GPU-1bb GPU-2cc GPU-3dd]"}, // all of a machine
	} {
		w := r.params()
		w.GPUs = c.gpus
		cmd, err := r.p.Command(pl, w)
		require.NoError(t, err)
		cmd.Argv[1] = "create"
		cmd.Argv = append(cmd.Argv[:2], cmd.Argv[3:]...) // without --detach
		create := toExec(cmd)
		create.Stdin = bytes.NewReader(cmd.Stdin)
		id := strings.TrimSpace(output(t, create))
		got := output(t, exec.Command(cmd.Path, "container", "inspect", "--format", "{{range .HostConfig.DeviceRequests}}{{.Count}} {{.DeviceIDs}}{{end}}", id))
		assert.Equal(t, c.want, strings.TrimSpace(got))
		require.NoError(t, r.engine().Remove(t.Context(), id))
	}
}

// Networks: none has only the loopback (seen elsewhere); host has the host's.
func TestLiveNetworkHost(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		r.m.Env.Network = "host"
		v := r.look("")
		assert.NotContains(t, v.Env, "HF_HUB_OFFLINE")
		dev, err := os.ReadFile("/proc/net/dev")
		require.NoError(t, err)
		for _, name := range v.Interfaces {
			assert.Contains(t, string(dev), name+":")
		}
		assert.Equal(t, strings.Count(string(dev), "\n")-2, len(v.Interfaces))
	})
}

// Case 6: podman installed under docker's name.
func TestLiveCase6PodmanAsDocker(t *testing.T) {
	podman := newRig(t, manifest.Podman, "small").engine().Bin()
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "docker"), []byte("#!/bin/sh\necho 'Emulate Docker CLI using podman.' >&2\nexec "+podman+" \"$@\"\n"), 0o755))
	r := newRig(t, manifest.Podman, "small")
	r.kind, r.m.Env.Kind = manifest.Docker, manifest.Docker
	r.h.Environ = append(r.h.Environ, "PATH="+dir+":/usr/bin:/bin")
	r.replan()
	v := r.look("")
	assert.Equal(t, r.h.ID.UID, v.UID)
	assert.Equal(t, manifest.Podman, r.plan().Engine)
	assert.Equal(t, manifest.Docker, r.plan().Kind)
}
