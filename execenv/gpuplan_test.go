package execenv

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/execenv/gpu"
	"workerd/execenv/gpu/gputest"
)

// A worker sees no card that it was not given, whatever workerd was told of AMD's.
func TestAMDCardsOfOthers(t *testing.T) {
	inv := &gputest.Fake{}
	h := testHost(t, "PATH=/usr/bin:/bin", "HIP_VISIBLE_DEVICES=2,3", "ROCR_VISIBLE_DEVICES=1,2,3,4", "GPU_DEVICE_ORDINAL=2")
	h.GPUs = inv
	m := hostPython(t, "")
	amd := func(w WorkerParams) (rocr string, set bool) {
		t.Helper()
		pl, err := testPlanner(h).Plan(t.Context(), m)
		require.NoError(t, err)
		env := parseEnviron(workerCommand(t, h, pl, w).Env)
		assert.NotContains(t, env, "HIP_VISIBLE_DEVICES")
		assert.NotContains(t, env, "GPU_DEVICE_ORDINAL")
		rocr, set = env["ROCR_VISIBLE_DEVICES"]
		return rocr, set
	}
	m.GPU.Policy = "none"
	_, set := amd(WorkerParams{})
	assert.False(t, set, "nothing of AMD is here")
	require.NoError(t, os.WriteFile(h.kfd, nil, 0o600))
	inv.Set(gpu.Snapshot{Devices: []gpu.Device{{UUID: "GPU-b", Vendor: gpu.AMD, Render: "/dev/dri/renderD128"}}})
	given := WorkerParams{GPUs: []string{"GPU-b"}, Nodes: []string{"/dev/dri/renderD128"}}
	for _, policy := range []string{"none", "auto", "shared"} {
		m.GPU.Policy = policy
		rocr, set := amd(WorkerParams{})
		assert.True(t, set, policy)
		assert.Empty(t, rocr, "no device, for ROCr")
		rocr, _ = amd(given)
		if policy != "none" {
			assert.Equal(t, "GPU-b", rocr)
		}
	}
	inv.Set(gpu.Snapshot{}) // all of them are kept from workerd
	m.GPU.Policy = "auto"
	rocr, set := amd(WorkerParams{})
	assert.True(t, set)
	assert.Empty(t, rocr)
}

// Case 44: the manifest's own value of each of them wins, placed or not.
func TestVariablesOfGPUsThatAManifestSets(t *testing.T) {
	h := testHost(t)
	require.NoError(t, os.WriteFile(h.kfd, nil, 0o600))
	h.GPUs = &gputest.Fake{}
	h.GPUs.(*gputest.Fake).Set(gpu.Snapshot{Devices: []gpu.Device{{UUID: "GPU-b", Vendor: gpu.AMD, Render: "/dev/dri/renderD128"}}})
	m := hostPython(t, "")
	m.GPU.Policy, m.GPU.Count = "shared", 1
	m.Env.Variables = map[string]string{"CUDA_DEVICE_ORDER": "FASTEST_FIRST", "ROCR_VISIBLE_DEVICES": "7", "CUDA_VISIBLE_DEVICES": "6"}
	pl, err := testPlanner(h).Plan(t.Context(), m)
	require.NoError(t, err)
	for _, w := range []WorkerParams{{}, {GPUs: []string{"GPU-b"}, Nodes: []string{"/dev/dri/renderD128"}}, {GPUs: []string{"GPU-c"}}} {
		env := parseEnviron(workerCommand(t, h, pl, w).Env)
		for name, want := range m.Env.Variables {
			assert.Equal(t, want, pl.Env[name], name)
			assert.Equal(t, want, env[name], name)
		}
	}
}
