package supervisor

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// weights.prepare runs once, before the first start, and not again until its content changes; a failure is shown and tried
// again, and the provider's requests hear of it.
func TestPrepareRunsOncePerContent(t *testing.T) {
	python, err := exec.LookPath("python3")
	require.NoError(t, err)
	r := newRig(t)
	weights := filepath.Join(r.dir, "weights")
	script := filepath.Join(r.dir, "fetch.py")
	write := func(text string) {
		require.NoError(t, os.WriteFile(script, []byte(fmt.Sprintf(`
import os, sys
assert sys.argv[1:] == ["--small"], sys.argv
print("fetching", flush=True)
with open(os.path.join(os.environ["WORKERD_WEIGHTS"], "runs"), "a") as f: f.write(%q + "\n")
`, text)), 0o600))
	}
	runs := filepath.Join(weights, "runs")
	save := func(env ...string) {
		table := fmt.Sprintf("[weights]\nroot = %q\nprepare = [%q, \"--small\"]\n[env]\npython = %q\n", weights, script, python)
		m := strings.Replace(helperManifest("", env...), "[env]\n", table, 1)
		require.NoError(t, os.WriteFile(filepath.Join(r.dir, "w.toml"), []byte(m), 0o600))
		r.load()
	}
	write("one")
	save()
	r.state("w", "ready")
	require.Equal(t, []string{"one"}, lines(runs))
	save("V=2")
	r.until("w", "second version", func(s protocol.ProviderStatus) bool { return s.State == "ready" && len(s.Workers) == 1 })
	require.Equal(t, []string{"one"}, lines(runs), "not again")
	write("two")
	r.load()
	require.Equal(t, []string{"one", "two"}, lines(runs))
	require.NoError(t, os.WriteFile(script, []byte("import sys; print('no such host'); sys.exit(3)"), 0o600))
	r.load()
	st := r.until("w", "failed prepare", func(s protocol.ProviderStatus) bool { return len(s.ManifestError) > 0 })
	require.Contains(t, st.ManifestError[0].Message, "code 3")
	require.Contains(t, st.ManifestError[0].Message, "no such host")
	require.Nil(t, r.dial("w").call("echo", `{}`).Error, "the version that runs goes on")
}
