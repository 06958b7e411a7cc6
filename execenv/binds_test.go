package execenv

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
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
