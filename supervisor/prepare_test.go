package supervisor

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
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

// One weights.prepare runs at a time, the one that the newest planning wants.
func TestPreparationsDoNotOverlap(t *testing.T) {
	var q preparation
	type entered struct {
		ctx   context.Context
		leave func()
		err   error
	}
	enter := func(ctx context.Context, n int, edition string) chan entered {
		ch := make(chan entered, 1)
		go func() {
			ctx, leave, err := q.enter(ctx, n, edition)
			ch <- entered{ctx, leave, err}
		}()
		return ch
	}
	first := <-enter(t.Context(), 1, "a")
	require.NoError(t, first.err)
	ctx, cancel := context.WithCancel(t.Context())
	given := enter(ctx, 2, "a")
	same := enter(t.Context(), 3, "a")
	cancel()
	require.ErrorIs(t, (<-given).err, context.Canceled)
	require.Empty(t, same)
	require.NoError(t, first.ctx.Err(), "what is wanted still is not ended")
	first.leave()
	second := <-same
	require.NoError(t, second.err)
	other := enter(t.Context(), 4, "b")
	<-second.ctx.Done()
	require.ErrorIs(t, (<-enter(t.Context(), 3, "a")).err, errSuperseded)
	require.Empty(t, other, "it has not ended yet")
	second.leave()
	third := <-other
	require.NoError(t, third.err)
	none := enter(t.Context(), 5, "")
	<-third.ctx.Done()
	third.leave()
	(<-none).leave()
}

// An edit while the weights are fetched starts no second script beside the first.
func TestEditWhilePreparing(t *testing.T) {
	python, err := exec.LookPath("python3")
	require.NoError(t, err)
	r := newRig(t)
	weights, free := filepath.Join(r.dir, "weights"), filepath.Join(r.dir, "free")
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "fetch.py"), []byte(`
import os, sys, time
with open(os.environ["WORKERD_WEIGHTS"] + "/runs", "a") as f: f.write("run\n")
while not os.path.exists(sys.argv[1]): time.sleep(0.01)
`), 0o600))
	save := func(env string) {
		table := fmt.Sprintf("[weights]\nroot = %q\nprepare = [\"fetch.py\", %q]\n[env]\npython = %q\n", weights, free, python)
		m := strings.Replace(helperManifest("", env), "[env]\n", table, 1)
		require.NoError(t, os.WriteFile(filepath.Join(r.dir, "w.toml"), []byte(m), 0o600))
		r.set = manifest.LoadDirs([]string{r.dir}, r.set, r.opt)
		r.sup.Apply(r.set)
	}
	runs := func() []string { return lines(filepath.Join(weights, "runs")) }
	save("V=1")
	eventually(t, func() bool { return len(runs()) == 1 }, func() string { return "the script runs" })
	save("V=2")
	<-time.After(300 * time.Millisecond) // for one that should not come
	require.NoError(t, os.WriteFile(free, nil, 0o600))
	require.Equal(t, `"2"`, string(r.dial("w").call("env", `{"text":"V"}`).Result))
	require.Equal(t, []string{"run"}, runs())
}

// A manifest that goes while it is planned takes the planning along, and is served at once when it is back.
func TestRemovedWhilePlanning(t *testing.T) {
	r := newRig(t)
	text := helperManifest(quick)
	save := func(text string) {
		require.NoError(t, os.WriteFile(filepath.Join(r.dir, "m.toml"), []byte(text), 0o600))
		r.set = manifest.LoadDirs([]string{r.dir}, r.set, r.opt)
		r.sup.Apply(r.set)
	}
	probing := filepath.Join(t.TempDir(), "probing")
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "setup.sh"), []byte("echo >"+probing+"\nsleep 600\n"), 0o600))
	save(strings.Replace(text, "kind = \"venv\"", "kind = \"venv\"\nsetup = \"setup.sh\"", 1))
	eventually(t, func() bool { _, err := os.Stat(probing); return err == nil }, func() string { return "the probe runs" })
	require.NoError(t, os.Remove(filepath.Join(r.dir, "m.toml")))
	r.set = manifest.LoadDirs([]string{r.dir}, r.set, r.opt)
	r.sup.Apply(r.set)
	save(text)
	r.state("m", "ready")
	require.Nil(t, r.dial("m").call("echo", `{}`).Error)
}
