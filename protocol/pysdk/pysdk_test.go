package pysdk

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// pythons returns the interpreters to test with: python3, and those that WORKERD_TEST_PYTHONS names (a list split at colons).
func pythons(t *testing.T) []string {
	t.Helper()
	python, err := exec.LookPath("python3")
	require.NoError(t, err, "the SDK is tested with python3")
	all := []string{python}
	for _, p := range filepath.SplitList(os.Getenv("WORKERD_TEST_PYTHONS")) {
		if p != "" && !slices.Contains(all, p) {
			all = append(all, p)
		}
	}
	return all
}

func TestPythonUnitTests(t *testing.T) {
	for _, python := range pythons(t) {
		t.Run(python, func(t *testing.T) {
			t.Parallel()
			cmd := exec.Command(python, "-W", "error::SyntaxWarning", "-m", "unittest", "discover", "-s", "tests")
			cmd.Env = append(os.Environ(), "PYTHONDONTWRITEBYTECODE=1")
			out, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", out)
			lines := strings.Split(strings.TrimSpace(string(out)), "\n")
			require.Regexp(t, "^OK", lines[len(lines)-1], "%s", out)
			t.Logf("%s, %s", lines[len(lines)-3], lines[len(lines)-1])
		})
	}
}

// TestSyntaxOfPython37 lets a newer Python judge what the oldest one can parse.
func TestSyntaxOfPython37(t *testing.T) {
	const check = `import ast, sys
if sys.version_info >= (3, 8):
    ast.parse(sys.stdin.read(), feature_version=(3, 7))
else:
    ast.parse(sys.stdin.read())`
	cmd := exec.Command("python3", "-c", check)
	cmd.Stdin = strings.NewReader(string(Source))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestRuntimeDir compares where callers look for a provider with where workerd puts it.
func TestRuntimeDir(t *testing.T) {
	open := t.TempDir()
	require.NoError(t, os.Chmod(open, 0o777))
	private := t.TempDir()
	require.NoError(t, os.Chmod(private, 0o700))
	file := filepath.Join(private, "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	long := filepath.Join(private, strings.Repeat("x", 90))
	require.NoError(t, os.Mkdir(long, 0o700))

	for _, env := range []map[string]string{
		{},
		{"WORKERD_RUNTIME_DIR": "/w"},
		{"WORKERD_RUNTIME_DIR": "/w", "XDG_RUNTIME_DIR": private, "SLURM_JOB_ID": "7"},
		{"XDG_RUNTIME_DIR": private},
		{"XDG_RUNTIME_DIR": private + "/"},
		{"XDG_RUNTIME_DIR": private, "SLURM_JOB_ID": "42_7"},
		{"XDG_RUNTIME_DIR": private, "SLURM_JOB_ID": "../x"},
		{"XDG_RUNTIME_DIR": private, "SLURM_JOB_ID": strings.Repeat("1", 33)},
		{"SLURM_JOB_ID": "42"},
		{"XDG_RUNTIME_DIR": open},
		{"XDG_RUNTIME_DIR": file},
		{"XDG_RUNTIME_DIR": long},
		{"XDG_RUNTIME_DIR": "/proc"}, // not ours, unless we are root
		{"XDG_RUNTIME_DIR": filepath.Join(private, "missing"), "SLURM_JOB_ID": "42"},
		{"XDG_RUNTIME_DIR": "relative"},
	} {
		want, _ := protocol.RuntimeDir(func(name string) string { return env[name] })
		cmd := exec.Command("python3", "-c", "import workerd, sys; sys.stdout.write(workerd._runtime_dir())")
		cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "PYTHONPATH=.", "PYTHONDONTWRITEBYTECODE=1"}
		for name, value := range env {
			cmd.Env = append(cmd.Env, name+"="+value)
		}
		out, err := cmd.Output()
		require.NoError(t, err)
		require.Equal(t, want, string(out), "%v", env)
	}
}
