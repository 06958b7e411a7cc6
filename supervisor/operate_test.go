package supervisor

import (
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// A start that comes while it is being found out which workers of an earlier workerd go on waits for that.
func TestStartWaitsForAdoption(t *testing.T) {
	r := newRig(t)
	r.provider("m", "")
	p := newProvider(r.sup, "m")
	p.front = &front{}
	p.manifest = manifest.LoadDirs([]string{r.dir}, nil, r.opt).Entries[0].Manifest
	p.spec = &spec{manifest: p.manifest}
	p.resize()
	p.adopting = true
	p.startSeats(1, "started by the operator", false)
	require.Equal(t, 1, p.wanted)
	err, over := p.arrived(0, 0)
	require.False(t, over, "%v", err)
	p.adopting = false
	_, over = p.arrived(0, 0)
	require.True(t, over)
}
