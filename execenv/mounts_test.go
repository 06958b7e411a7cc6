package execenv

import (
	"encoding/csv"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// readMount reads a mount option as docker, podman and Apptainer do: one CSV record, each field cut at its first "=".
func readMount(t testing.TB, option string) map[string]string {
	fields, err := csv.NewReader(strings.NewReader(option)).Read()
	require.NoError(t, err, "%q", option)
	got := map[string]string{}
	for _, field := range fields {
		key, value, _ := strings.Cut(field, "=")
		_, twice := got[strings.ToLower(key)]
		require.False(t, twice, "%q says %s twice", option, key)
		got[strings.ToLower(key)] = value
	}
	return got
}

// A mount says what it is to say, whatever the path: no key gets in through one.
func FuzzMountOption(f *testing.F) {
	for _, name := range oddNames {
		f.Add("/"+name, "/t/"+name)
	}
	f.Add(`/"`, `/","source=/`)
	f.Fuzz(func(t *testing.T, source, target string) {
		if checkMountPath("", source) != nil || checkMountPath("", target) != nil {
			return // refused
		}
		for key, option := range map[string]string{
			"target":      mountOption(Bind{source, target, ro}, "target", "readonly"),
			"destination": mountOption(Bind{source, target, ro}, "destination", "ro"),
		} {
			got := readMount(t, option)
			assert.Len(t, got, 4)
			assert.Equal(t, "bind", got["type"])
			assert.Equal(t, source, got["source"])
			assert.Equal(t, target, got[key])
		}
	})
}

func TestMountOption(t *testing.T) {
	for path, want := range map[string]string{
		"/plain/path_1.2-x": "type=bind,source=/plain/path_1.2-x,target=/plain/path_1.2-x",
		"/run_12:34":        "type=bind,source=/run_12:34,target=/run_12:34",
		`/a,b "c"`:          `type=bind,"source=/a,b ""c""","target=/a,b ""c"""`,
		"/Zürich":           `type=bind,"source=/Zürich","target=/Zürich"`,
	} {
		assert.Equal(t, want, mountOption(Bind{path, path, rw}, "target"))
	}
}

func TestPathsThatNoEngineMounts(t *testing.T) {
	for _, path := range []string{"/", "/usr", "/bin", "/sbin", "/lib", "/lib64", "/etc", "/proc", "/sys", "/dev", "/usr/lib"} {
		assert.ErrorContains(t, checkMountPath("paths.binds", path), "would hide the image's own "+path)
	}
	for _, path := range []string{"/a\nb", "/a\rb", "/a\x00b", "/a\xff"} {
		err := checkMountPath("paths.binds", path)
		var e *Error
		require.ErrorAs(t, err, &e, "%q", path)
		assert.Equal(t, "paths.binds", e.Key)
		assert.Equal(t, Permanent, e.Kind)
	}
	for _, path := range []string{"/usr/share/data", "/etc/workerd", "/opt", "/home", "/library", "/data", "/tmp"} {
		assert.NoError(t, checkMountPath("", path))
	}
}

// A symlink to a system folder hides that as much as its own name does.
func TestMountThroughASymlinkToTheSystem(t *testing.T) {
	link := filepath.Join(t.TempDir(), "link")
	require.NoError(t, os.Symlink("/usr", link))
	assert.ErrorContains(t, checkMounts([]promise{{"weights.root", link, ro, 0}}), "weights.root: /usr would hide")
}

func TestContainerChecks(t *testing.T) {
	h := testHost(t)
	probe := func(change func(m *manifest.Manifest)) error {
		m := testManifest(t, "")
		m.Env.Kind = manifest.Docker
		change(m)
		f := &facts{promises: promises(h, m), content: map[string]string{}}
		return checkContainer(h, m, f)
	}
	require.NoError(t, probe(func(*manifest.Manifest) {}))
	outside := t.TempDir()
	err := probe(func(m *manifest.Manifest) { m.Paths.Cwd = outside })
	assert.ErrorContains(t, err, "paths.cwd: "+outside+" is not bound into the container")
	require.NoError(t, probe(func(m *manifest.Manifest) {
		m.Paths.Cwd, m.Paths.Binds = filepath.Join(outside, "below"), []manifest.Bind{{Path: outside, Mode: ro}}
	}))
	assert.ErrorContains(t, probe(func(m *manifest.Manifest) { m.Weights.Root = "/usr" }), "weights.root")

	// A command: of the image, or bound and then watched.
	m := testManifest(t, "")
	m.Command = []string{"/opt/server"}
	f := &facts{promises: promises(h, m), content: map[string]string{}}
	require.NoError(t, checkContainer(h, m, f))
	assert.Equal(t, "/opt/server", f.program)
	assert.Empty(t, f.content)
	m.Command = []string{"./server"}
	f = &facts{promises: promises(h, m), content: map[string]string{}}
	err = checkContainer(h, m, f)
	var e *Error
	require.True(t, errors.As(err, &e), "it is bound, and is not there: %v", err)
	assert.Equal(t, "command", e.Key)
	server := filepath.Join(m.Dir, "server")
	require.NoError(t, os.WriteFile(server, []byte("#!/bin/of/the/image\n"), 0o755))
	f = &facts{promises: promises(h, m), content: map[string]string{}}
	require.NoError(t, checkContainer(h, m, f), "its interpreter is the image's")
	assert.Contains(t, f.content, server)
	assert.Contains(t, f.watch, server)
}

func TestHomeOf(t *testing.T) {
	h, m := fixedHost(), fixedManifest()
	cache := providerHome(h, "ocr")
	binds := []Bind{{providerCache(h, "ocr"), providerCache(h, "ocr"), rw}, {"/data", "/data", rw}}
	for home, want := range map[string][2]string{
		cache:        {cache, cache},
		"/home/user": {cache, "/home/user"},
		"/data/home": {"/data/home", "/data/home"},
	} {
		source, target := homeOf(h, m, environ{"HOME": home}, binds)
		assert.Equal(t, want, [2]string{source, target})
	}
}

// A bind that has gone since the plan was made is told before an engine could make its source anew.
func TestBindThatHasGone(t *testing.T) {
	for _, kind := range []string{manifest.Docker, manifest.Podman, manifest.Apptainer, manifest.Venv} {
		b := newFakeBin(t, map[string]string{"docker": fakeDocker(""), "podman": fakePodman("v2", "crun", "true"), "apptainer": "echo apptainer version 1.4.5"})
		m := containerManifest(t, kind)
		m.Env.SELinux, m.Weights.Root = "shared", filepath.Join(t.TempDir(), "weights")
		if kind == manifest.Venv {
			m.Env.Python = hostPython(t, "").Env.Python
		}
		require.NoError(t, os.Mkdir(m.Weights.Root, 0o755))
		p := testPlanner(b.host(t))
		pl, err := p.Plan(t.Context(), m)
		require.NoError(t, err, kind)
		require.NoError(t, p.Prepare(pl), kind)
		require.NoError(t, os.Remove(m.Weights.Root))
		err = p.Prepare(pl)
		if kind == manifest.Venv {
			require.NoError(t, err, "its own matter")
			continue
		}
		var e *Error
		require.ErrorAs(t, err, &e, kind)
		assert.Equal(t, Transient, e.Kind)
		assert.True(t, IsEngineError(err, EngineUnseen), "%v", err)
		assert.ErrorContains(t, err, "a path is missing: bind source path "+m.Weights.Root+": no such file or directory")
		assert.NoDirExists(t, m.Weights.Root)
		require.NoError(t, os.Mkdir(m.Weights.Root, 0o755))
		assert.NoError(t, p.Prepare(pl), "it is back")
	}
}
