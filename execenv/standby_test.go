package execenv

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// A warm standby is told by a variable that it is one; the others see it empty, or not at all, and their version is the same: the
// standby can take their place, and an edit of serve.standby reloads no model.
func TestStandbyVariable(t *testing.T) {
	for _, kind := range []string{manifest.Docker, manifest.Podman, manifest.Apptainer} {
		h, m, f := fixedContainer(kind)
		p := NewPlanner(h, nil)
		prints := map[string]bool{}
		for _, standby := range []string{"none", "hot", "warm"} {
			m.Serve.Standby = standby
			pl := runtimes[kind].Plan(h, m, f)
			prints[fingerprint(h, m, pl, f)] = true
			for _, warm := range []bool{false, standby == "warm"} {
				c, err := p.Command(pl, WorkerParams{N: 1, Socket: "/s", Tmp: "/nowhere", Warm: warm})
				require.NoError(t, err)
				name := map[string]string{manifest.Apptainer: "APPTAINERENV_"}[kind] + StandbyVar
				switch {
				case warm:
					assert.Contains(t, c.Env, name+"=warm", kind)
				case standby == "warm":
					assert.Contains(t, c.Env, name+"=", kind)
				default:
					assert.NotContains(t, strings.Join(c.Env, "\n"), StandbyVar, kind)
				}
				named := strings.Contains(strings.Join(c.Argv, "\n"), "--env\n"+StandbyVar+"\n")
				assert.Equal(t, standby == "warm" && kind != manifest.Apptainer, named, "%s, %s", kind, standby)
			}
		}
		assert.Len(t, prints, 1, kind)
	}
}

func TestStandbyVariableInAVenv(t *testing.T) {
	h := testHost(t)
	p := testPlanner(h)
	m := hostPython(t, "")
	prints := map[string]bool{}
	for _, standby := range []string{"none", "hot", "warm"} {
		m.Serve.Standby = standby
		pl, err := p.Plan(context.Background(), m)
		require.NoError(t, err)
		prints[pl.Fingerprint] = true
		c, err := p.Command(pl, WorkerParams{N: 1, Socket: "/run/s", Tmp: "/tmp/t", Warm: standby == "warm"})
		require.NoError(t, err)
		assert.Equal(t, standby == "warm", strings.Contains(strings.Join(c.Env, "\n")+"\n", StandbyVar+"=warm\n"), standby)
	}
	assert.Len(t, prints, 1)
	m.Env.Variables = map[string]string{StandbyVar: "warm"}
	_, err := p.Plan(context.Background(), m)
	assert.ErrorContains(t, err, "workerd sets this variable itself")
}
