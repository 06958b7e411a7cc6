package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// Cases 13, 14, 15 and 29: a path with any bytes is the same path inside, and smuggles nothing in.
func TestLiveCase13OddPaths(t *testing.T) {
	names := []string{
		"run_12:34", "a,b", `say "hi"`, " spaces ", "q$HOME", "${HOME}", `ws\back`, "~", "%h", "*", "Größe", "-v", "a=b", "#", "'", "`id`", "$(id)", ";",
		"x,source=etc,target=", "x,readonly", `x","source=`, "a:ro", ":rw", "src:dst:ro,z", "tab\there",
	}
	eachKind(t, containers, func(t *testing.T, l *live) {
		outside := filepath.Join(l.dir, "outside")
		require.NoError(t, os.Mkdir(outside, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(outside, "marker"), []byte("outside"), 0o644))
		binds := ""
		paths := []string{}
		for i, name := range names {
			path := filepath.Join(l.dir, "odd", name)
			require.NoError(t, os.MkdirAll(path, 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(path, "marker"), fmt.Appendf(nil, "%d", i), 0o644))
			binds += "{ path = " + tomlBasic(path) + ", mode = \"rw\" },"
			paths = append(paths, path)
		}
		smuggle := filepath.Join(l.dir, "s,source="+outside+",target=/smuggled")
		require.NoError(t, os.MkdirAll(smuggle, 0o755))
		binds += tomlBasic(smuggle)
		work, weights := filepath.Join(l.dir, `work: "1", $x \`), filepath.Join(l.dir, "weights ,:")
		require.NoError(t, os.MkdirAll(weights, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(weights, "marker"), []byte("weights"), 0o644))
		l.add("x", fmt.Sprintf("[paths]\nwork_root = %s\nbinds = [%s]\n[weights]\nroot = %s\n", tomlBasic(work), binds, tomlBasic(weights)))
		l.start()
		type mount struct {
			Markers []string
			Env     []string
			Smuggle bool
		}
		got := run[mount](l, "x", `
import os
def marker(path):
    try:
        text = open(path + "/marker").read()
        open(path + "/written", "w").write(text)
        return text
    except OSError as e:
        return repr(e)
env = [os.environ["WORKERD_WORK_ROOT"], os.environ["WORKERD_WEIGHTS"]]
open(env[0] + "/out", "w").write("out")
answer = {"Markers": [marker(p) for p in paths], "Env": env + [open(env[1] + "/marker").read()],
          "Smuggle": os.path.exists("/smuggled") or os.path.exists(outside)}
`, map[string]any{"paths": paths, "outside": outside})
		for i, path := range paths {
			require.Equal(t, fmt.Sprint(i), got.Markers[i], path)
			require.Equal(t, fmt.Sprint(i), string(mustRead(t, filepath.Join(path, "written"))))
		}
		require.Equal(t, []string{work, weights, "weights"}, got.Env)
		require.Equal(t, "out", string(mustRead(t, filepath.Join(work, "out"))))
		require.False(t, got.Smuggle, "a mount was injected")
	})
}

// What no engine can express is refused, by validate as well, with the key and a reason.
func TestLivePathsThatAreRefused(t *testing.T) {
	eachKind(t, containers, func(t *testing.T, l *live) {
		newline := filepath.Join(l.dir, "new\nline")
		require.NoError(t, os.Mkdir(newline, 0o755))
		missing := filepath.Join(l.dir, "no/such/folder")
		for _, path := range []string{newline, "/usr", "/etc", "/", missing} {
			l.add("x", fmt.Sprintf("[paths]\nbinds = [%s]\n", tomlBasic(path)))
			out := l.cli("validate", filepath.Join(l.manifests(), "x"))
			require.Equal(t, exitFailed, out.code, "%s: %s %s", path, out.out, out.err)
			require.Contains(t, out.out+out.err, "paths.binds", path)
		}
		// Case 10: refused before any engine call, and not made by the engine.
		l.start()
		l.until("it is refused", func() bool { s := l.status("x").State; return s == "invalid" || s == "failed" })
		require.NoDirExists(t, missing)
		require.Empty(t, l.owned())
		p, err := json.Marshal(l.status("x"))
		require.NoError(t, err)
		require.Contains(t, string(p), "no/such/folder")
	})
}

// A path that the manifest names through a symlink is there under both its names.
func TestLiveSymlinksAreSeenUnderBothNames(t *testing.T) {
	eachKind(t, allKinds, func(t *testing.T, l *live) {
		real := filepath.Join(l.dir, "real/data")
		require.NoError(t, os.MkdirAll(filepath.Join(real, "work"), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(real, "marker"), []byte("here"), 0o644))
		link := filepath.Join(l.dir, "link")
		require.NoError(t, os.Symlink(filepath.Dir(real), link))
		named := filepath.Join(link, "data")
		l.add("x", fmt.Sprintf("[paths]\nwork_root = %q\nbinds = [%q]\ncwd = %q\n", filepath.Join(named, "work"), named, named))
		l.start()
		got := run[[]string](l, "x", `
import os
open(os.environ["WORKERD_WORK_ROOT"] + "/out", "w").write("out")
answer = [open(p + "/marker").read() for p in paths] + [open(p + "/work/out").read() for p in paths] + [os.environ["WORKERD_WORK_ROOT"], os.environ.get("PWD", "")]
`, map[string]any{"paths": []string{named, real}})
		require.Equal(t, []string{"here", "here", "out", "out", filepath.Join(named, "work")}, got[:5])
		if l.kind == manifest.Venv {
			require.Equal(t, named, got[5])
		}
		require.Equal(t, "out", string(mustRead(t, filepath.Join(real, "work/out"))))
	})
}
