package execenv

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

func TestMakeBinds(t *testing.T) {
	same := func(p string) string { return p }
	bind := func(path, mode string) Bind { return Bind{path, path, mode} }
	tests := []struct {
		name    string
		in      []promise
		resolve func(string) string
		want    []Bind
	}{
		{"none", nil, same, []Bind{}},
		{"twice", []promise{{path: "/a", mode: ro}, {path: "/a", mode: ro}}, same, []Bind{bind("/a", ro)}},
		{"rw wins", []promise{{path: "/a", mode: rw}, {path: "/a", mode: ro}}, same, []Bind{bind("/a", rw)}},
		{"rw child of a ro parent stays", []promise{{path: "/a/b/c", mode: rw}, {path: "/a", mode: ro}}, same, []Bind{bind("/a", ro), bind("/a/b/c", rw)}},
		{"ro child of a rw parent stays", []promise{{path: "/a/b", mode: ro}, {path: "/a", mode: rw}}, same, []Bind{bind("/a", rw), bind("/a/b", ro)}},
		{"child that the parent shows", []promise{{path: "/a", mode: ro}, {path: "/a/b", mode: ro}}, same, []Bind{bind("/a", ro)}},
		{"name that begins alike", []promise{{path: "/a", mode: ro}, {path: "/ab", mode: ro}, {path: "/a-b/c", mode: ro}}, same,
			[]Bind{bind("/a", ro), bind("/a-b/c", ro), bind("/ab", ro)}},
		{"innermost parent counts", []promise{{path: "/a", mode: ro}, {path: "/a/b", mode: rw}, {path: "/a/b/c", mode: ro}, {path: "/a/b/c/d", mode: ro}}, same,
			[]Bind{bind("/a", ro), bind("/a/b", rw), bind("/a/b/c", ro)}},
		{"root", []promise{{path: "/", mode: ro}, {path: "/a", mode: ro}}, same, []Bind{bind("/", ro)}},
		{"resolved too", []promise{{path: "/link", mode: rw}}, func(string) string { return "/mnt/real" }, []Bind{bind("/link", rw), bind("/mnt/real", rw)}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { assert.Equal(t, tt.want, makeBinds(tt.in, tt.resolve)) })
	}
}

func TestResolvePath(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.Mkdir(filepath.Join(base, "real"), 0o700))
	link := filepath.Join(base, "link")
	require.NoError(t, os.Symlink("real", link))
	assert.Equal(t, base+"/real", resolvePath(link))
	assert.Equal(t, base+"/real/not/yet", resolvePath(link+"/not/yet"), "what is to be made resolves as it will")
	assert.Equal(t, "/", resolvePath("/"))
	assert.Equal(t, "/nonexistent/x", resolvePath("/nonexistent/x"))
}

func TestTidy(t *testing.T) {
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	require.NoError(t, os.MkdirAll(filepath.Join(base, "disk", "deep"), 0o700))
	require.NoError(t, os.Mkdir(filepath.Join(base, "out"), 0o700))
	require.NoError(t, os.Symlink("disk/deep", filepath.Join(base, "link")))
	require.NoError(t, os.Symlink(base, filepath.Join(base, "self")))
	for in, want := range map[string]string{
		"":                       "",
		"/":                      "/",
		"/data//x/./y/":          "/data/x/y",
		"/data/..dots/x":         "/data/..dots/x",
		"/nonexistent/../x":      "/x",
		"/..":                    "/",
		base + "/disk/../out":    base + "/out",
		base + "/disk/../new/x":  base + "/new/x",
		base + "/link/":          base + "/link", // its name is kept
		base + "/link/../out":    base + "/disk/out",
		base + "/link/../deep":   base + "/disk/deep",
		base + "/link/..":        base + "/disk",
		base + "/self/disk/..":   base + "/self", // the same folder, by the name that was written
		base + "/self/../new":    filepath.Dir(base) + "/new",
		base + "/out/../link/x/": base + "/link/x",
	} {
		assert.Equal(t, want, tidy(in), in)
	}
}

// docker cleans the targets of mounts, and refuses a container with two of one name.
func TestPathsThatAreNotClean(t *testing.T) {
	h := newFakeBin(t, map[string]string{"docker": fakeDocker("")}).host(t)
	base, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	for _, dir := range []string{"weights", "hf", "extra", "disk/deep"} {
		require.NoError(t, os.MkdirAll(filepath.Join(base, dir), 0o700))
	}
	require.NoError(t, os.Symlink("disk/deep", filepath.Join(base, "link")))
	h.HFHome = base + "/hf/"
	change := func(m *manifest.Manifest) {
		m.Weights.Root, m.Weights.Extra = base+"//weights/", []string{base + "/weights/../extra"}
		m.Paths.WorkRoot = base + "/link/../work"
		m.Paths.Binds = []manifest.Bind{{Path: base + "/extra/./new", Mode: rw, Create: true}}
		m.Paths.Cwd = base + "/disk//work"
	}
	pl, err := planOn(t, h, manifest.Docker, change)
	require.NoError(t, err)
	targets := map[string]int{}
	for _, b := range pl.Binds {
		targets[filepath.Clean(b.Target)]++
	}
	for target, n := range targets {
		assert.Equal(t, 1, n, target)
	}
	for _, want := range []Bind{
		{base + "/weights", base + "/weights", ro}, {base + "/extra", base + "/extra", ro}, {base + "/extra/new", base + "/extra/new", rw},
		{base + "/disk/work", base + "/disk/work", rw}, {base + "/hf", base + "/hf", rw},
	} {
		assert.Contains(t, pl.Binds, want)
		assert.Contains(t, pl.Argv, dockerDialect{}.bind(want, "")[1])
	}
	assert.Equal(t, base+"/weights", pl.Env["WORKERD_WEIGHTS"])
	assert.Equal(t, base+"/disk/work", pl.Env["WORKERD_WORK_ROOT"])
	assert.Equal(t, base+"/disk/work", pl.Cwd)

	_, err = planOn(t, h, manifest.Docker, func(m *manifest.Manifest) { m.Paths.Cwd = m.Dir + "/.." })
	assert.ErrorContains(t, err, "is not bound into the container", "it lies below the manifest's folder by its text only")
}
