package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// moduleSystem makes a module system with the module cuda/12.1 and returns its home.
func (l *live) moduleSystem() string {
	l.t.Helper()
	home := filepath.Join(l.dir, "modules")
	require.NoError(l.t, os.MkdirAll(filepath.Join(home, "init"), 0o755))
	require.NoError(l.t, os.WriteFile(filepath.Join(home, "init/bash"), []byte(`
module() {
  [[ $2 == cuda/12.1 ]] || { echo "unable to locate a modulefile for '$2'" >&2; return 1; }
  export CUDA_HOME=/opt/cuda-12.1 LOADEDMODULES=cuda/12.1
}
`), 0o644))
	return home
}

// Case 83 and what setup and modules do: their variables are the worker's, in each kind; one that hangs or fails is bounded, and
// said.
func TestLiveCase83SetupReachesTheWorker(t *testing.T) {
	eachKind(t, allKinds, func(t *testing.T, l *live) {
		l.env["MODULESHOME"] = l.moduleSystem()
		l.env["WORKERD_ENGINE_TIMEOUT"] = "5s"
		file := func(name, text string) string {
			path := filepath.Join(l.dir, name)
			require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
			return path
		}
		odd := "line 1\nline 2 $(id) \"q\" 'r' \\"
		setup := file("setup.sh", "export FROM_SETUP=yes OVERRIDDEN=setup\nexport ODD='line 1\nline 2 $(id) \"q\" '\\''r'\\'' \\'\nexport LD_LIBRARY_PATH=/opt/setup${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\n")
		l.add("x", fmt.Sprintf("[env]\nsetup = %q\nmodules = [\"cuda/12.1\"]\n[env.variables]\nOVERRIDDEN = \"manifest\"\n", setup))
		l.add("hangs", fmt.Sprintf("[env]\nsetup = %q\n", file("hangs.sh", "sleep 600\n")))
		l.add("fails", fmt.Sprintf("[env]\nsetup = %q\n", file("fails.sh", "echo 'no licence server' >&2\nfalse\n")))
		l.add("unknown", "[env]\nmodules = [\"cuda/99\"]\n")
		begin := time.Now()
		l.start()
		env := l.environmentOf("x")
		require.Equal(t, "yes", env["FROM_SETUP"])
		require.Equal(t, odd, env["ODD"])
		require.Equal(t, "manifest", env["OVERRIDDEN"])
		require.Equal(t, "/opt/cuda-12.1", env["CUDA_HOME"])
		require.Contains(t, env["LD_LIBRARY_PATH"], "/opt/setup")
		for slug, want := range map[string]string{"fails": "no licence server", "unknown": "unable to locate a modulefile for 'cuda/99'", "hangs": "5s"} {
			var reason string
			l.until(slug+" is reported with its reason", func() bool { reason = l.status(slug).Reason; return strings.Contains(reason, want) })
			t.Logf("%s after %s: %s", slug, time.Since(begin).Round(100*time.Millisecond), reason)
		}
		require.Equal(t, 1, l.calls("x"))
	})
}

// Case 83: a conda prefix has its activation variables.
func TestLiveCase83CondaPrefix(t *testing.T) {
	l := newLive(t, manifest.Venv)
	prefix := filepath.Join(l.dir, "conda env")
	for _, dir := range []string{"bin", "conda-meta", "etc/conda/activate.d"} {
		require.NoError(t, os.MkdirAll(filepath.Join(prefix, dir), 0o755))
	}
	require.NoError(t, os.Symlink(interpreter(t), filepath.Join(prefix, "bin/python")))
	require.NoError(t, os.WriteFile(filepath.Join(prefix, "etc/conda/activate.d/x.sh"), []byte("export FOO=bar LD_LIBRARY_PATH=$CONDA_PREFIX/lib\n"), 0o644))
	require.NoError(t, os.WriteFile(filepath.Join(prefix, "etc/conda/activate.d/y.sh"), []byte("false\n"), 0o644))
	l.write("x", "live.py", l.manifest(`worker = "live.py"`, fmt.Sprintf("python = %q", prefix), ""))
	l.start()
	env := l.environmentOf("x")
	require.Equal(t, "bar", env["FOO"])
	require.Equal(t, prefix, env["CONDA_PREFIX"])
	require.Equal(t, prefix+"/lib", env["LD_LIBRARY_PATH"])
	require.Equal(t, filepath.Join(prefix, "bin"), filepath.SplitList(env["PATH"])[0])
	require.Contains(t, fmt.Sprint(l.status("x").Warnings), "y.sh")
}
