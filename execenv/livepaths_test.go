package execenv

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// oddNames are names of folders that engines were seen to split, change or take for options.
var oddNames = []string{
	"run_12:34", "a,b", `c"d`, "e f ", " g", "h$HOME", `i\j`, "~", "%h", "*", "q'q", "[z]", "Zürich", "a=b", "tab\tx", "{x}", "-dash", "`id`", "semi;x",
	"#h", "<n>", "x,source=/var/run/docker.sock,target=", "x,readonly=false", "\u3000wide", "\x01ctl", "$(id)", "..dots", "dst=x", strings.Repeat("long", 50),
}

// Cases 13 to 15 and 29: paths that split a mount, inject another one, or are "normalised".
func TestLiveCase13PathsMeanTheSame(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		base := t.TempDir()
		r.h.ScratchDir, r.h.RuntimeDir = r.h.ScratchDir+`:,"$x`, r.h.RuntimeDir+`:,"$x y`
		r.replan()
		var dirs []string
		for i, name := range oddNames {
			dir := filepath.Join(base, name)
			require.NoError(t, os.MkdirAll(dir, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "marker"), []byte(name), 0o644))
			mode := []string{ro, rw}[i%2]
			r.m.Paths.Binds = append(r.m.Paths.Binds, manifest.Bind{Path: dir, Mode: mode})
			dirs = append(dirs, dir)
		}
		r.m.Args = dirs
		r.m.Weights.Root = base + "//" + oddNames[0] + "/../" + oddNames[1] // the same as a bind, by another text
		v := r.look(`
extra["weights"] = os.environ["WORKERD_WEIGHTS"]
extra["markers"] = [attempt(lambda: open(d + "/marker").read()) for d in sys.argv[1:]]
extra["written"] = [attempt(lambda: open(d + "/new", "w").write("x")) for d in sys.argv[1:]]
extra["tmp"] = attempt(lambda: open(os.environ["TMPDIR"] + "/new", "w").write("x"))
extra["socket"] = attempt(lambda: __import__("socket").socket(1).bind(os.environ["WORKERD_SOCKET"]))
extra["mounts"] = open("/proc/self/mountinfo").read()
`)
		markers, written := v.Extra["markers"].([]any), v.Extra["written"].([]any)
		for i, name := range oddNames {
			assert.Equal(t, name, markers[i])
			if i%2 == 1 {
				assert.Equal(t, float64(1), written[i], name)
				assert.FileExists(t, filepath.Join(dirs[i], "new"))
			} else {
				assert.Contains(t, written[i], "Read-only file system", name)
			}
		}
		assert.Equal(t, float64(1), v.Extra["tmp"])
		assert.Nil(t, v.Extra["socket"])
		assert.NotContains(t, v.Extra["mounts"], "docker.sock /")
		assert.Equal(t, dirs, v.Argv[1:])
		assert.Equal(t, dirs[1], v.Extra["weights"])
	})
}

// A path of the manifest that leads through a symlink is there under both names, the working directory too (case 34), and a
// folder that may be written lies in one that may not.
func TestLiveCase34Symlinks(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		base := t.TempDir()
		require.NoError(t, os.MkdirAll(filepath.Join(base, "real", "data", "out"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(base, "real", "data", "file"), []byte("here"), 0o644))
		require.NoError(t, os.Symlink("real", filepath.Join(base, "link")))
		require.NoError(t, os.Symlink(filepath.Join(base, "real", "data", "file"), filepath.Join(base, "lone")))
		named, real := filepath.Join(base, "link", "data"), filepath.Join(base, "real", "data")
		r.m.Weights.Root = named
		r.m.Paths.Binds = []manifest.Bind{{Path: filepath.Join(named, "out"), Mode: rw}, {Path: filepath.Join(base, "lone"), Mode: ro}}
		r.m.Paths.Cwd = named
		r.m.Args = []string{named, real, base}
		v := r.look(`
named, real, base = sys.argv[1:]
extra["files"] = [attempt(lambda: open(p).read()) for p in (named + "/file", real + "/file", base + "/lone", "file")]
extra["real"] = os.path.realpath(named)
extra["weights"] = attempt(lambda: open(real + "/new", "w"))
extra["out"] = [attempt(lambda: open(p, "w").write("x")) for p in (named + "/out/a", real + "/out/b")]
`)
		assert.Equal(t, named, v.Cwd)
		assert.Equal(t, []any{"here", "here", "here", "here"}, v.Extra["files"])
		assert.Contains(t, v.Extra["weights"], "Read-only file system")
		assert.Equal(t, []any{float64(1), float64(1)}, v.Extra["out"])
		assert.FileExists(t, filepath.Join(real, "out", "a"))
		assert.FileExists(t, filepath.Join(real, "out", "b"))
	})
}

// Case 10: a bind that does not exist is made by the engine, as root. Nothing is run, and nothing made.
func TestLiveCase10MissingBind(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		missing := filepath.Join(t.TempDir(), "nope")
		r.m.Paths.Binds = []manifest.Bind{{Path: missing, Mode: rw}}
		_, err := r.p.Plan(t.Context(), r.m)
		require.ErrorIs(t, err, os.ErrNotExist)
		var e *Error
		require.True(t, errors.As(err, &e))
		assert.Equal(t, "paths.binds", e.Key)
		assert.Equal(t, Permanent, e.Kind)
		assert.NoFileExists(t, missing)

		r.m.Paths.Binds[0].Create = true
		r.m.Args = []string{missing}
		v := r.look(`extra["made"] = attempt(lambda: open(sys.argv[1] + "/new", "w").write("x"))`)
		assert.Equal(t, float64(1), v.Extra["made"])
		fi, err := os.Stat(missing)
		require.NoError(t, err)
		assert.Equal(t, os.FileMode(0o700), fi.Mode().Perm())
		assert.Empty(t, strangersFiles(t, missing))
	})
}

// Single files can be bound, and a secret's file is not seen.
func TestLiveFileBind(t *testing.T) {
	eachKind(t, func(t *testing.T, r *rig) {
		dir := t.TempDir()
		file := filepath.Join(dir, "ref.txt")
		require.NoError(t, os.WriteFile(file, []byte("ref"), 0o644))
		r.m.Paths.Binds = []manifest.Bind{{Path: file, Mode: ro}}
		r.m.Args = []string{file}
		v := r.look(`extra["ref"] = attempt(lambda: open(sys.argv[1]).read()); extra["beside"] = attempt(lambda: os.listdir(os.path.dirname(sys.argv[1])))`)
		assert.Equal(t, "ref", v.Extra["ref"])
		assert.Equal(t, []any{"ref.txt"}, v.Extra["beside"])
	})
}
