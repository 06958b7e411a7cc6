package supervisor

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// fakeDocker puts a docker on PATH that has every image and runs nothing, since its daemon does not answer.
func fakeDocker(t *testing.T) {
	bin := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(bin, "docker"), []byte(`#!/bin/sh
case "$1 $2" in
"--version ") echo 'Docker version 28.2.2, build e6534b4' ;;
"info --format") echo '{"ServerVersion":"28.2.2","CgroupVersion":"2","DefaultRuntime":"runc","SecurityOptions":["name=seccomp,profile=default"]}' ;;
"image inspect") echo '[{"Id":"sha256:0123","Os":"linux","Config":{"Env":["PATH=/usr/bin"]}}]' ;;
*) echo 'Cannot connect to the Docker daemon at unix:///x. Is the docker daemon running?' >&2; exit 125 ;;
esac
`), 0o700))
	t.Setenv("PATH", bin)
}

// A worker that is not restarted for want of a GPU or of its engine is not at fault: who waits may ask again.
func TestNeverAndWhatIsMissing(t *testing.T) {
	fakeDocker(t)
	r := newRig(t)
	const never = "[restart]\npolicy = \"never\"\n[start]\nwhen = \"request\"\n"
	r.provider("gpu", never+"[gpu]\npolicy = \"shared\"\n")
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "w.py"), nil, 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "engine.toml"),
		[]byte("worker = \"w.py\"\n"+never+"[env]\nkind = \"docker\"\nimage = \"lab/x:1\"\npull = \"never\"\n"), 0o600))
	r.load()
	for slug, kind := range map[string]protocol.Kind{"gpu": protocol.NoGPU, "engine": protocol.EngineUnavailable} {
		require.Empty(t, r.status(slug).ManifestError, slug)
		for range 2 { // and the next one is tried
			a := r.dial(slug).call("echo", `{}`)
			require.Equal(t, kind, a.kind(), "%+v", a.Error)
			require.True(t, a.Error.Data.Retryable)
		}
		r.state(slug, "stopped")
	}
	require.Equal(t, protocol.NoGPU, protocol.KindOf(r.sup.Start(t.Context(), "gpu", true)))
}
