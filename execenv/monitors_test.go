package execenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// What a monitor of ours watches is ended, and the monitor; one of another instance, or of nobody's, is not in the list.
func TestMonitors(t *testing.T) {
	conmon := filepath.Join(t.TempDir(), "conmon")
	require.NoError(t, os.Symlink("/bin/sh", conmon))
	tg := tag(t)
	monitor := func(name, script string) *exec.Cmd {
		return start(t, &exec.Cmd{Path: conmon, Args: []string{"conmon", "-c", script, "--api-version", "1", "-n", name, tg}})
	}
	watching := monitor("workerd-"+instance+"-ocr-7", `sleep $4 & wait`)
	idle := monitor("workerd-"+instance+"-ocr-8", `while :; do read x </dev/zero; done`)
	strange := monitor("workerd-not"+instance+"-ocr-7", `sleep $4 & wait`)
	names := func() (all []string) {
		for _, m := range Monitors(instance) {
			all = append(all, m.Name)
		}
		return all
	}
	eventually(t, func() bool { return len(names()) == 2 }, "both are there")
	assert.ElementsMatch(t, []string{"workerd-" + instance + "-ocr-7", "workerd-" + instance + "-ocr-8"}, names())
	eventually(t, func() bool {
		return len(ChildPIDs(watching.Process.Pid)) == 1 && len(ChildPIDs(strange.Process.Pid)) == 1
	}, "they watch")
	for _, m := range Monitors(instance) {
		m.End()
	}
	kids.Done(watching.Process.Pid, func() { assert.NoError(t, watching.Wait(), "it ended by itself") })
	kids.Done(idle.Process.Pid, func() { assert.Error(t, idle.Wait()) })
	assert.Empty(t, names())
	assert.Len(t, ChildPIDs(strange.Process.Pid), 1)
}
