package execenv

import (
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// What the end of a worker that left nothing costs: it lies on the way to the next start.
func BenchmarkKillTreeFastNothingLeft(b *testing.B) {
	cmd := exec.Command("/bin/true")
	pid, err := kids.Start(func() (int, error) {
		err := cmd.Start()
		if err != nil {
			return 0, err
		}
		return cmd.Process.Pid, nil
	})
	require.NoError(b, err)
	waitExit(pid)
	for b.Loop() {
		kids.KillTree(Tree{Marker: "0a1b2c3d/bench/1", Session: pid, Root: pid}, Fast)
	}
	kids.Done(pid, func() { _ = cmd.Wait() })
}
