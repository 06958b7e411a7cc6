package gpu

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestResolve(t *testing.T) {
	s := Snapshot{
		Devices: []Device{
			{Index: 0, UUID: "GPU-aa11", Vendor: NVIDIA},
			{Index: 1, UUID: "GPU-aa22", Vendor: NVIDIA},
			{Index: 2, UUID: "GPU-aa", Vendor: NVIDIA, Split: true},
			{Index: 2, UUID: "MIG-c1", Vendor: NVIDIA, Card: "GPU-aa"},
			{Index: 2, UUID: "MIG-c2", Vendor: NVIDIA, Card: "GPU-aa"},
			{Index: 3, UUID: "GPU-dd", Vendor: NVIDIA, Split: true},
			{Index: -1, UUID: "GPU-ee", Vendor: NVIDIA},
			{Index: 1, UUID: "GPU-4b9a3a4f7a3c5b1c", Vendor: AMD},
		},
		Hidden: []Device{{Index: 7, UUID: "GPU-ff77", Vendor: NVIDIA}, {Index: 7, UUID: "MIG-ff", Card: "GPU-ff77", Vendor: NVIDIA}},
	}
	for name, uuid := range map[string]string{"0": "GPU-aa11", "GPU-aa11": "GPU-aa11", "gpu-AA2": "GPU-aa22", "MIG-c2": "MIG-c2", "GPU-e": "GPU-ee", "GPU-4": "GPU-4b9a3a4f7a3c5b1c"} {
		d, err := s.Resolve(name)
		require.NoError(t, err, name)
		require.Equal(t, uuid, d.UUID, name)
	}
	for name, want := range map[string]string{
		"1":        "1: is ambiguous: 1 (GPU-aa22), 1 (GPU-4b9a3a4f7a3c5b1c)",
		"GPU-aa1x": "GPU-aa1x: no such GPU; there is 0 (GPU-aa11), 1 (GPU-aa22), MIG-c1, MIG-c2, GPU-ee, 1 (GPU-4b9a3a4f7a3c5b1c)",
		"GPU-a":    "GPU-a: is ambiguous: 0 (GPU-aa11), 1 (GPU-aa22), 2 (GPU-aa)",
		"MIG-":     "MIG-: is ambiguous: MIG-c1, MIG-c2",
		"2":        "2: 2 (GPU-aa) is in MIG mode; name one of its MIG devices: MIG-c1, MIG-c2",
		"GPU-aa":   "GPU-aa: 2 (GPU-aa) is in MIG mode; name one of its MIG devices: MIG-c1, MIG-c2",
		"3":        "3: 3 (GPU-dd) is in MIG mode and has no MIG device to use",
		"7":        "7: 7 (GPU-ff77) is outside of the allocation that workerd runs in, which has 0 (GPU-aa11), 1 (GPU-aa22), MIG-c1, MIG-c2, GPU-ee, 1 (GPU-4b9a3a4f7a3c5b1c)",
		"MIG-ff":   "MIG-ff: MIG-ff is outside of the allocation that workerd runs in, which has 0 (GPU-aa11), 1 (GPU-aa22), MIG-c1, MIG-c2, GPU-ee, 1 (GPU-4b9a3a4f7a3c5b1c)",
		"-1":       "-1: no such GPU; there is 0 (GPU-aa11), 1 (GPU-aa22), MIG-c1, MIG-c2, GPU-ee, 1 (GPU-4b9a3a4f7a3c5b1c)",
		"":         ": no such GPU; there is 0 (GPU-aa11), 1 (GPU-aa22), MIG-c1, MIG-c2, GPU-ee, 1 (GPU-4b9a3a4f7a3c5b1c)",
	} {
		_, err := s.Resolve(name)
		require.EqualError(t, err, want)
	}
	_, err := Snapshot{}.Resolve("0")
	require.EqualError(t, err, "0: no such GPU; there is none")
	byIndex := Snapshot{Devices: []Device{{Index: 0, UUID: "0"}}}
	d, err := byIndex.Resolve("0")
	require.NoError(t, err)
	require.Equal(t, "0", d.UUID)
	_, err = byIndex.Resolve("1")
	require.EqualError(t, err, "1: no such GPU; there is 0")
}
