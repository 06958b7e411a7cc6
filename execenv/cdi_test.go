package execenv

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// Case 50: podman is told the UUID where the specification has it, else the index.
func TestCase50CDINames(t *testing.T) {
	spec := func(text string) []string {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "nvidia.yaml"), []byte("cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n"+text), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "other.json"), []byte(`{"kind":"vendor.com/net","devices":[{"name":"GPU-a"}]}`), 0o600))
		return []string{filepath.Join(dir, "missing"), dir}
	}
	w := WorkerParams{GPUs: []string{"GPU-a", "MIG-b"}, Indices: []int{3, -1}}
	assert.Equal(t, []string{"GPU-a", "MIG-b"}, cdiNames(nil, w), "no specification: podman says so itself")
	assert.Equal(t, []string{"3", "MIG-b"}, cdiNames(spec("- name: \"0\"\n- name: \"3\"\n"), w))
	assert.Equal(t, []string{"GPU-a", "MIG-b"}, cdiNames(spec("- name: \"3\"\n- name: GPU-a\n"), w))
	assert.Equal(t, []string{"GPU-a"}, cdiNames(spec(""), WorkerParams{GPUs: []string{"GPU-a"}}), "nobody knows its index")
	h := Host{CDIDirs: spec("- name: \"3\"\n")}
	assert.Equal(t, []string{"--device", "nvidia.com/gpu=3"}, podmanDialect{}.gpus(h, WorkerParams{GPUs: []string{"GPU-a"}, Indices: []int{3}}))
}
