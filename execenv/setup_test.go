package execenv

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// setupManifest returns a provider whose setup file has this content.
func setupManifest(t *testing.T, content string) *manifest.Manifest {
	t.Helper()
	m := testManifest(t, "")
	m.Env.Python = pythonPath(t)
	m.Env.Setup = filepath.Join(m.Dir, "set up.sh")
	require.NoError(t, os.WriteFile(m.Env.Setup, []byte(content), 0o600))
	return m
}

func plainEnv(extra ...string) []string {
	return append([]string{"PATH=/usr/local/bin:/usr/bin:/bin", "HOME=/nonexistent"}, extra...)
}

func TestSetupChangesTheEnvironment(t *testing.T) {
	const odd = "l1\nl2=x,y \"q\" 'r' $HOME \\ \xff\xfe `id`"
	h := testHost(t, plainEnv("GONE=1", "STAYS=2", "ODD="+odd, "LD_LIBRARY_PATH=/old")...)
	m := setupManifest(t, strings.Join([]string{
		`export NEW="$ODD"`,
		`export MULTI=$'a\nb=c'`,
		`unset GONE; LOCAL=no; export STAYS`,
		`export LD_LIBRARY_PATH=/new:$LD_LIBRARY_PATH`,
		`export SEES=$WEIGHT`,
		`export ARGS="$#$*"`,
		`export EMPTY=`,
		`export TMPDIR=/somewhere WORKERD_SOCKET=/evil FIXED=by-setup`,
		`echo noise; echo noise >&2; set -euo pipefail`,
		`f() { :; }; export -f f`,
	}, "\n"))
	m.Env.Variables = map[string]string{"WEIGHT": "heavy", "FIXED": "by manifest"}
	pl, err := testPlanner(h).Plan(context.Background(), m)
	require.NoError(t, err)
	env := pl.Env
	assert.Equal(t, odd, env["NEW"])
	assert.Equal(t, "a\nb=c", env["MULTI"])
	assert.NotContains(t, env, "GONE")
	assert.NotContains(t, env, "LOCAL")
	assert.Equal(t, "2", env["STAYS"])
	assert.Equal(t, "/new:/old", env["LD_LIBRARY_PATH"])
	assert.Equal(t, "heavy", env["SEES"], "the manifest's variables are there for the setup")
	assert.Equal(t, "0", env["ARGS"])
	assert.Equal(t, "", env["EMPTY"])
	assert.Contains(t, env, "EMPTY")
	assert.Equal(t, "by manifest", env["FIXED"])
	assert.Contains(t, env["TMPDIR"], h.ScratchDir)
	assert.Contains(t, env["WORKERD_SOCKET"], h.RuntimeDir)
	assert.Contains(t, env, "BASH_FUNC_f%%")
	assert.Contains(t, pl.Watch, m.Env.Setup)
	for _, name := range []string{"_", "SHLVL", "OLDPWD"} {
		assert.NotContains(t, env, name)
	}
	assert.Equal(t, m.Dir, env["PWD"])
}

// Nothing of the user's shell is read: the probe is the same for everybody.
func TestSetupReadsNoRCFiles(t *testing.T) {
	home := t.TempDir()
	for _, f := range []string{".bashrc", ".bash_profile", ".profile", "env"} {
		require.NoError(t, os.WriteFile(filepath.Join(home, f), []byte("export LEAK="+f+"\n"), 0o600))
	}
	h := testHost(t, plainEnv("HOME="+home, "BASH_ENV="+home+"/env", "ENV="+home+"/env")...)
	pl, err := testPlanner(h).Plan(context.Background(), setupManifest(t, "export A=1\n"))
	require.NoError(t, err)
	assert.Equal(t, "1", pl.Env["A"])
	assert.NotContains(t, pl.Env, "LEAK")
}

func TestSetupThatFails(t *testing.T) {
	tests := []struct {
		name    string
		content string
		want    []string
	}{
		{"status", "echo 'module: not here' >&2\nfalse\n", []string{"env.setup: setup file ", "set up.sh ended with status 1", "module: not here"}},
		{"exit", "echo first >&2; exit 7\n", []string{"ended with status 7", "first"}},
		{"exit 0", "exit\n", []string{"ends the shell"}},
		{"exec", "exec true\n", []string{"ends the shell"}},
		{"errexit", "set -e\nls /nonexistent\ntrue\n", []string{"ended with status", "nonexistent"}},
		{"syntax", "if\n", []string{"ended with status", "syntax error"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := testPlanner(testHost(t, plainEnv()...)).Plan(context.Background(), setupManifest(t, tt.content))
			var e *Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, Permanent, e.Kind)
			for _, w := range tt.want {
				assert.ErrorContains(t, err, w)
			}
		})
	}
}

func TestSetupThatHangs(t *testing.T) {
	tg := tag(t)
	h := testHost(t, plainEnv()...)
	h.EngineTimeout = 3 * time.Second
	m := setupManifest(t, "echo waiting for the licence >&2\nsleep "+tg+" & setsid sleep "+tg+" & sleep "+tg+"\n")
	_, err := testPlanner(h).Plan(context.Background(), m)
	var e *Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, Transient, e.Kind)
	assert.Equal(t, "env.setup", e.Key)
	assert.ErrorContains(t, err, "did not finish within 3s and was killed: waiting for the licence")
	assert.Contains(t, e.Watch, m.Env.Setup)
	assert.Empty(t, sleeps(tg))
}

// moduleSystem makes one that knows the module cuda/12.1, in the way of the old ones: an unknown module is said on stderr
// only.
func moduleSystem(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "init"), 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "init", "bash"), []byte(`
module() {
  if [[ $1 == load && $2 == cuda/12.1 ]]; then
    export CUDA_HOME=/opt/cuda PATH=/opt/cuda/bin:$PATH LOADEDMODULES=${LOADEDMODULES:+$LOADEDMODULES:}$2
  else
    echo "ModuleCmd_Load.c: unable to locate a modulefile for '$2'" >&2
  fi
}
`), 0o600))
	return dir
}

func TestModules(t *testing.T) {
	home := moduleSystem(t)
	m := testManifest(t, "")
	m.Env.Python = pythonPath(t)
	m.Env.Modules = []string{"cuda/12.1"}
	for _, v := range []string{"MODULESHOME", "LMOD_PKG"} {
		pl, err := testPlanner(testHost(t, plainEnv(v+"="+home)...)).Plan(context.Background(), m)
		require.NoError(t, err)
		assert.Equal(t, "/opt/cuda", pl.Env["CUDA_HOME"])
		assert.Equal(t, "/opt/cuda/bin:/usr/local/bin:/usr/bin:/bin", pl.Env["PATH"])
	}

	// Loaded already in the shell that workerd was started from.
	pl, err := testPlanner(testHost(t, plainEnv("MODULESHOME="+home, "LOADEDMODULES=gcc:cuda/12.1")...)).Plan(context.Background(), m)
	require.NoError(t, err)
	assert.Contains(t, pl.Env["LOADEDMODULES"], "cuda/12.1")

	m.Env.Modules = []string{"cuda/12.1", "cuda/99 $(touch x)"}
	_, err = testPlanner(testHost(t, plainEnv("MODULESHOME="+home)...)).Plan(context.Background(), m)
	assert.ErrorContains(t, err, "env.modules: module load cuda/99 $(touch x) ended with status 1: ModuleCmd_Load.c: unable to locate")
}

func TestModulesWithoutAModuleSystem(t *testing.T) {
	usual := moduleInits
	moduleInits = []string{filepath.Join(t.TempDir(), "none")}
	defer func() { moduleInits = usual }()
	m := testManifest(t, "")
	m.Env.Python = pythonPath(t)
	m.Env.Modules = []string{"cuda/12.1"}
	_, err := testPlanner(testHost(t, plainEnv()...)).Plan(context.Background(), m)
	assert.ErrorContains(t, err, "env.modules: there is no module system")
}

func TestParseStepsOfATornStream(t *testing.T) {
	whole := "A=1\x00\x00@0\x00!0 3\x00@1\x00\x00A=2\x00B=\x00"
	got := parseSteps([]byte(whole))
	assert.True(t, got.complete)
	assert.Equal(t, []stepFailure{{0, 3}}, got.failed)
	assert.Equal(t, change{Set: map[string]string{"A": "2", "B": ""}}, diff(got.before, got.after))
	for i := range len("A=1\x00\x00@0\x00!0 3\x00@1\x00\x00") {
		got := parseSteps([]byte(whole[:i]))
		assert.False(t, got.complete)
		assert.Less(t, got.at, 2)
	}
}
