//go:build !linux || !cgo

package gpu

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestWithoutCgo(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none")
	root := tree(t, map[string]string{"proc/driver/nvidia/version": procVersionText, "dev/nvidiactl": ""})
	_, err := Open(Options{Root: root, SMI: none}).Snapshot(t.Context())
	require.EqualError(t, err, "this workerd was built without cgo, so it cannot ask NVML")
	s, err := Open(Options{Root: root, SMI: program(t, answers(smiTwo, "", ""))}).Snapshot(t.Context())
	require.NoError(t, err)
	require.Len(t, s.Devices, 2)
	require.Equal(t, "this workerd was built without cgo, so it cannot ask NVML", s.Problem)
	s, err = Open(Options{Root: t.TempDir(), SMI: none}).Snapshot(t.Context())
	require.NoError(t, err)
	require.Empty(t, s.Problem, "there is no GPU")
}
