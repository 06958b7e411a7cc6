package supervisor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/execenv"
	"workerd/manifest"
	"workerd/protocol"
)

// A provider that could not be planned at first starts when it is mended: its seats have failed with it.
func TestPlannedAfterAll(t *testing.T) {
	r := newRig(t)
	setup := filepath.Join(r.dir, "setup.sh")
	require.NoError(t, os.WriteFile(setup, []byte("exit 3\n"), 0o600))
	text := strings.Replace(helperManifest(quick), "kind = \"venv\"", "kind = \"venv\"\nsetup = \"setup.sh\"", 1)
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "m.toml"), []byte(text), 0o600))
	r.load()
	require.Equal(t, "failed", r.status("m").State)
	require.Equal(t, protocol.ProviderFailed, r.dial("m").call("echo", `{}`).kind())
	require.NoError(t, os.WriteFile(setup, []byte("true\n"), 0o600))
	r.load()
	require.Nil(t, r.dial("m").call("echo", `{}`).Error)
}

// What start and restart are asked of a manifest that could not be planned, is planned again first: the reason may be gone without any
// file that is watched.
func TestOperatorPlansAgain(t *testing.T) {
	r := newRig(t)
	vars := filepath.Join(r.dir, "vars")
	write := func(file, text string) {
		require.NoError(t, os.WriteFile(filepath.Join(r.dir, file), []byte(text), 0o600))
	}
	write("setup.sh", ". "+vars+"\n")
	save := func(env ...string) {
		write("m.toml", strings.Replace(helperManifest(quick, env...), "kind = \"venv\"", "kind = \"venv\"\nsetup = \"setup.sh\"", 1))
		r.load()
	}
	write("vars", "return 3\n")
	save()
	for _, operation := range []func() error{
		func() error { return r.sup.Start(t.Context(), "m", true) },
		func() error { return r.sup.Restart(t.Context(), "m", true) },
	} {
		require.ErrorContains(t, operation(), "status 3")
	}
	write("vars", "true\n")
	require.NoError(t, r.sup.Start(t.Context(), "m", true))
	require.Nil(t, r.dial("m").call("echo", `{}`).Error)

	write("vars", "return 4\n")
	save("V=2")
	require.Contains(t, r.status("m").ManifestError[0].Message, "status 4")
	write("vars", "true\n")
	require.NoError(t, r.sup.Restart(t.Context(), "m", true))
	require.Equal(t, `"2"`, string(r.dial("m").call("env", `{"text":"V"}`).Result))
	require.Empty(t, r.status("m").ManifestError)
}

func TestMayPass(t *testing.T) {
	for _, c := range []struct {
		err  error
		want bool
	}{
		{&execenv.EngineError{Kind: execenv.EnginePullFailed}, true},
		{fmt.Errorf("more words: %w", &execenv.EngineError{Kind: execenv.EngineUnreachable}), true},
		{&execenv.EngineError{Kind: execenv.EngineNotInstalled}, true},
		{&execenv.EngineError{Kind: execenv.EngineUnreachable, Err: &execenv.Error{Kind: execenv.Permanent}}, true},
		{&execenv.EngineError{Kind: execenv.EngineImageMissing}, false},
		{&execenv.EngineError{Kind: execenv.EngineRefused}, false},
		{&execenv.Error{Kind: execenv.Transient}, true},
		{&execenv.Error{Kind: execenv.EngineUnavailable}, true},
		{&execenv.Error{Kind: execenv.Permanent}, false},
		{&execenv.Error{Kind: execenv.Unsupported}, false},
		{os.ErrNotExist, false},
	} {
		assert.Equal(t, c.want, mayPass(c.err), "%#v", c.err)
	}
}

// A pull that fails, since the registry or the daemon cannot be reached, is tried again without anybody's doing.
func TestFailedPullIsTriedAgain(t *testing.T) {
	bin := t.TempDir()
	calls := filepath.Join(bin, "calls")
	require.NoError(t, os.WriteFile(filepath.Join(bin, "docker"), []byte("#!/bin/sh\necho \"$1\" >>"+calls+"\necho 'no route to host' >&2\nexit 1\n"), 0o700))
	t.Setenv("PATH", bin)
	r := newRig(t)
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "m.toml"),
		[]byte("worker = \"w.py\"\n[env]\nkind = \"docker\"\nimage = \"lab/x:1\"\npull = \"always\"\n"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "w.py"), nil, 0o600))
	r.load()
	require.NotEmpty(t, r.status("m").ManifestError)
	eventually(t, func() bool {
		return len(slices.DeleteFunc(lines(calls), func(s string) bool { return s != "pull" })) > 1
	},
		func() string { return "another pull" })
}

// A first plan that is tried again by itself fails nothing: requests wait, or get what they may retry, and the workers that an earlier
// workerd left stay to be taken over.
func TestFirstPlanThatMayPass(t *testing.T) {
	r := newRig(t)
	r.provider("m", "[serve]\nreplicas = 2\n")
	m := manifest.LoadDirs([]string{r.dir}, nil, r.opt).Entries[0].Manifest
	require.NotNil(t, m)
	p := newProvider(r.sup, "m")
	p.front = &front{}
	left := []*record{{Slug: "m", N: 1}}
	fails := func(err error) *protocol.Error {
		p.left = left
		p.onPlanned(m, nil, err, nil, true)
		p.pool.mu.Lock()
		defer p.pool.mu.Unlock()
		return p.pool.refusal
	}
	waits := func() {
		t.Helper()
		require.Nil(t, p.failure)
		require.Equal(t, left, p.left)
		require.Len(t, p.seats(), 2)
		for _, w := range p.seats() {
			require.Equal(t, Backoff, w.state)
		}
		p.publish()
		require.Equal(t, "backoff", p.status().State)
	}
	later := &execenv.Error{Kind: execenv.Transient, Msg: "no such host"}
	require.Nil(t, fails(later), "requests wait")
	waits()
	require.False(t, p.seats()[0].retryAt.IsZero())
	words, _ := p.phase()
	require.Regexp(t, "^restarting in .* after: no such host$", words)

	for _, err := range []error{&execenv.EngineError{Kind: execenv.EngineUnreachable}, &execenv.EngineError{Kind: execenv.EnginePullFailed}} {
		e := fails(err)
		require.NotNil(t, e)
		require.Equal(t, protocol.EngineUnavailable, e.Data.Kind)
		waits()
	}
	require.Nil(t, fails(later))
	waits()

	left = nil
	e := fails(&execenv.Error{Kind: execenv.Permanent, Msg: "no such file"})
	require.Equal(t, protocol.ProviderFailed, e.Data.Kind)
	require.Equal(t, Failed, p.seats()[0].state)
	require.Nil(t, fails(later), "what had failed waits as well")
	waits()

	p.held = true
	p.refuseHeld()
	left = []*record{{Slug: "m", N: 1}}
	require.Equal(t, protocol.ProviderStopped, fails(&execenv.EngineError{Kind: execenv.EngineUnreachable}).Data.Kind)
	require.Nil(t, p.left, "who has stopped it wants no worker of an earlier workerd either")
	require.Equal(t, 1, p.ending)
	(<-p.inbox)()
	require.Zero(t, p.ending)
}

// A manifest that is being planned again after a failure is not planned beside that because some other manifest has changed.
func TestApplyDuringThePlanning(t *testing.T) {
	r := newRig(t)
	r.provider("m", "")
	m := manifest.LoadDirs([]string{r.dir}, nil, r.opt).Entries[0].Manifest
	p := newProvider(r.sup, "m")
	p.manifest, p.applied, p.stamp, p.planErr = m, m.Hash(), stampOf(m), os.ErrNotExist
	p.planning, p.planDone = 2, 1
	p.apply(m, nil)
	require.Equal(t, 2, p.planning)
}
