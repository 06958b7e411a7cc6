package pysdk

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// pythons returns the interpreters to test with: python3, and those that WORKERD_TEST_PYTHONS names (a list split at colons).
func pythons(t *testing.T) []string {
	t.Helper()
	python, err := exec.LookPath("python3")
	require.NoError(t, err, "the SDK is tested with python3")
	all := []string{python}
	for _, p := range filepath.SplitList(os.Getenv("WORKERD_TEST_PYTHONS")) {
		if p != "" {
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

func TestSourceIsTheFile(t *testing.T) {
	text, err := os.ReadFile(Filename)
	require.NoError(t, err)
	require.Equal(t, string(text), string(Source))
}
