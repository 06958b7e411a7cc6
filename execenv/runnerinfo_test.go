package execenv

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

const singularityHelp = `case "$1 $2" in
"--version ") echo "$VERSION" ;;
"exec --help") echo "  -e, --cleanenv   clean environment
      --pwd string  initial directory $MORE" ;;
"-q exec") printf 'PATH=/image/bin\0PYTHONPATH=\0' ;;
*) exit 1 ;;
esac`

// Case 43: the names of Apptainer and of SingularityCE.
func TestCase43Names(t *testing.T) {
	fake := func(version, more string) string {
		return "VERSION='" + version + "' MORE='" + more + "'\n" + singularityHelp
	}
	ce := fake("singularity-ce version 4.1.0-1", "")
	full := "\n      --no-eval   x\n      --cwd string  x"
	for name, c := range map[string]struct {
		scripts map[string]string
		bin     string
		prefix  string
		has     []string
	}{
		"only singularity":         {map[string]string{"singularity": ce}, "singularity", "SINGULARITYENV_", []string{"--pwd"}},
		"both":                     {map[string]string{"singularity": ce, "apptainer": fake("apptainer version 1.4.5", full)}, "apptainer", "APPTAINERENV_", []string{"--no-eval", "--cwd"}},
		"apptainer as singularity": {map[string]string{"singularity": fake("apptainer version 1.3.0", full)}, "singularity", "APPTAINERENV_", []string{"--no-eval", "--cwd"}},
	} {
		b := newFakeBin(t, c.scripts)
		h := b.host(t)
		p := testPlanner(h)
		m := containerManifest(t, manifest.Apptainer)
		m.Env.Variables = map[string]string{"A": "x"}
		pl, err := p.Plan(t.Context(), m)
		require.NoError(t, err, name)
		assert.Equal(t, filepath.Join(b.dir, c.bin), pl.Argv[0], name)
		for _, flag := range c.has {
			assert.Contains(t, pl.Argv, flag, name)
		}
		cmd, err := p.Command(pl, WorkerParams{N: 1, Socket: "/s", Tmp: "/t"})
		require.NoError(t, err)
		assert.Contains(t, cmd.Env, c.prefix+"A=x", name)
		for _, call := range b.called(t) {
			assert.True(t, strings.HasPrefix(call, c.bin+" "), "%s: %s", name, call)
		}
		_, err = p.Plan(t.Context(), m)
		require.NoError(t, err)
		assert.Len(t, b.called(t), 3, "%s: asked once", name)

		m.Env.Variables["B"] = "$(id)"
		_, err = p.Plan(t.Context(), m)
		if name == "only singularity" {
			assert.ErrorContains(t, err, "env.variables.B: singularity 4.1.0-1 runs values of variables as shell code")
		} else {
			assert.NoError(t, err)
		}
	}
}

// Case 39: user namespaces are off. It is no use to try again.
func TestCase39UserNamespacesOff(t *testing.T) {
	for _, words := range []string{"ERROR  : Failed to create user namespace: user namespace disabled", "setgroups: Permission denied"} {
		b := newFakeBin(t, map[string]string{"apptainer": `case "$1 $2" in
"--version ") echo apptainer version 1.4.5 ;;
"exec --help") echo " --no-eval --cwd " ;;
*) echo '` + words + `' >&2; exit 255 ;;
esac`})
		_, err := planOn(t, b.host(t), manifest.Apptainer, nil)
		assert.True(t, IsEngineError(err, EngineUserNamespacesOff), "%v", err)
		assert.ErrorContains(t, err, "kernel.unprivileged_userns_clone")
		var e *Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, Permanent, e.Kind)
	}
}

func TestApptainerNetworks(t *testing.T) {
	b := newFakeBin(t, map[string]string{"apptainer": `case "$1 $2" in "--version ") echo apptainer version 1.4.5 ;; "exec --help") echo " --no-eval --cwd " ;; esac`})
	h := b.host(t)
	for _, uid := range []int{0, 1001} {
		h.ID.UID = uid
		_, err := planOn(t, h, manifest.Apptainer, func(m *manifest.Manifest) { m.Env.Network = "bridge" })
		if uid == 0 {
			assert.NoError(t, err)
		} else {
			assert.ErrorContains(t, err, `env.network: apptainer gives users other than root only "none" and "host", not "bridge"`)
		}
	}
	h.CacheDir = h.CacheDir + ":x"
	_, err := planOn(t, h, manifest.Apptainer, nil)
	assert.ErrorContains(t, err, "choose another cache_dir")
}

func TestApptainerWarnsOfLimits(t *testing.T) {
	h, m := fixedHost(), fixedManifest()
	assert.Empty(t, apptainer{}.Check(h, m))
	m.Limits.Memory, m.Limits.ShmSize = 1, 1
	got := apptainer{}.Check(h, m)
	require.Len(t, got, 2)
	assert.Contains(t, got[0], "limits.memory cannot be enforced where this runs")
	assert.Contains(t, got[1], "limits.shm_size")
}
