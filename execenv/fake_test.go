package execenv

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
