package gpu

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRestrict(t *testing.T) {
	nvidia := []Device{
		{Index: 0, UUID: "GPU-a1", Vendor: NVIDIA},
		{Index: 1, UUID: "GPU-a2", Vendor: NVIDIA},
		{Index: 2, UUID: "GPU-b3", Vendor: NVIDIA, Split: true},
		{Index: 2, UUID: "MIG-m1", Vendor: NVIDIA, Card: "GPU-b3"},
		{Index: 2, UUID: "MIG-m2", Vendor: NVIDIA, Card: "GPU-b3"},
		{Index: 3, UUID: "GPU-c4", Vendor: NVIDIA},
	}
	amd := []Device{{Index: 0, UUID: "GPU-00000000000000d1", Vendor: AMD}, {Index: 1, UUID: "GPU-00000000000000d2", Vendor: AMD}, {Index: 2, UUID: "GPU-00000000000000e3", Vendor: AMD}}
	both := append(append([]Device{}, nvidia...), amd...)
	const all, none = "a1 a2 b3 m1 m2 c4", ""
	for _, c := range []struct {
		devices []Device
		environ string
		want    string
		note    string
	}{
		{nvidia, "", all, ""},
		{nvidia, "CUDA_VISIBLE_DEVICES=", none, ""},
		{nvidia, "CUDA_VISIBLE_DEVICES=-1", none, ""},
		{nvidia, "CUDA_VISIBLE_DEVICES=NoDevFiles", none, ""},
		{nvidia, "CUDA_VISIBLE_DEVICES=0", "a1", ""},
		{nvidia, "CUDA_VISIBLE_DEVICES=3,1", "a2 c4", ""},
		{nvidia, "CUDA_VISIBLE_DEVICES=1,1", "a2", ""},
		{nvidia, "CUDA_VISIBLE_DEVICES=1,-1,3", "a2", ""},
		{nvidia, "CUDA_VISIBLE_DEVICES=1,,3", "a2", ""},
		{nvidia, "CUDA_VISIBLE_DEVICES=1,9,3", "a2", `CUDA_VISIBLE_DEVICES=1,9,3: "9" is none of the GPUs here, and ends the list`},
		{nvidia, "CUDA_VISIBLE_DEVICES=all", none, `CUDA_VISIBLE_DEVICES=all: "all" is none of the GPUs here, and ends the list`},
		{nvidia, "CUDA_VISIBLE_DEVICES=GPU-a1", "a1", ""},
		{nvidia, "CUDA_VISIBLE_DEVICES=GPU-c,GPU-a2", "a2 c4", ""},
		{nvidia, "CUDA_VISIBLE_DEVICES=GPU-c,GPU-a,0", "c4", `CUDA_VISIBLE_DEVICES=GPU-c,GPU-a,0: "GPU-a" is none of the GPUs here, and ends the list`},
		{nvidia, "CUDA_VISIBLE_DEVICES=2", "b3 m1 m2", ""},
		{nvidia, "CUDA_VISIBLE_DEVICES=MIG-m2", "b3 m2", ""},
		{nvidia, "CUDA_VISIBLE_DEVICES=MIG-m2,0", "a1 b3 m2", ""},
		{nvidia, "SLURM_JOB_GPUS=1,3", "a2 c4", ""},
		{nvidia, "SLURM_JOB_GPUS=0-1", "a1 a2", ""},
		{nvidia, "SLURM_JOB_GPUS=0,1 SLURM_STEP_GPUS=3", "c4", ""},
		{nvidia, "SLURM_JOB_GPUS=1 SLURM_STEP_GPUS=", "a2", ""},
		{nvidia, "SLURM_JOB_GPUS=1 CUDA_VISIBLE_DEVICES=0", "a1", ""},
		{nvidia, "SLURM_JOB_GPUS=1 CUDA_VISIBLE_DEVICES=", none, ""},
		{nvidia, "SLURM_JOB_GPUS=4-7", all, ""}, // a cgroup shows the four cards of the job, counted anew
		{nvidia, "SLURM_JOB_GPUS=7", none, `SLURM_JOB_GPUS=7: "7" is none of the GPUs here, and ends the list`},
		{nvidia, "CUDA_VISIBLE_DEVICES=0 CUDA_VISIBLE_DEVICES=1", "a2", ""},
		{nil, "CUDA_VISIBLE_DEVICES=0,1", none, ""},
		{amd, "", "d1 d2 e3", ""},
		{amd, "ROCR_VISIBLE_DEVICES=1,2", "d2 e3", ""},
		{amd, "ROCR_VISIBLE_DEVICES=GPU-00000000000000d1", "d1", ""},
		{amd, "HIP_VISIBLE_DEVICES=0", "d1", ""},
		{amd, "ROCR_VISIBLE_DEVICES=1,2 HIP_VISIBLE_DEVICES=1", "e3", ""},
		{amd, "ROCR_VISIBLE_DEVICES=1 CUDA_VISIBLE_DEVICES=0", "d2", ""},
		{amd, "CUDA_VISIBLE_DEVICES=2", "e3", ""},
		{amd, "ROCR_VISIBLE_DEVICES=", none, ""},
		{both, "CUDA_VISIBLE_DEVICES=0", "a1 d1 d2 e3", ""},
		{both, "CUDA_VISIBLE_DEVICES=0 ROCR_VISIBLE_DEVICES=2", "a1 e3", ""},
	} {
		visible, hidden, notes := restrict(c.devices, strings.Fields(c.environ))
		var names []string
		for _, d := range visible {
			names = append(names, d.UUID[len(d.UUID)-2:])
		}
		require.Equal(t, c.want, strings.Join(names, " "), c.environ)
		require.Len(t, hidden, len(c.devices)-len(visible))
		require.Equal(t, c.note, strings.Join(notes, "; "), c.environ)
	}
	visible, _, _ := restrict(nvidia, []string{"CUDA_VISIBLE_DEVICES= 1 ,3 "})
	require.Len(t, visible, 2)

	// Named by UUID alone in the setting, a card has no index: which one the list means cannot be told, so it is none.
	visible, hidden, notes := restrict([]Device{{Index: -1, UUID: "GPU-x", Vendor: NVIDIA}}, []string{"CUDA_VISIBLE_DEVICES=0"})
	require.Empty(t, visible)
	require.Len(t, hidden, 1)
	require.Len(t, notes, 1)
}

func FuzzRestrict(f *testing.F) {
	for _, s := range []string{"0,1", "GPU-a,MIG-m1", "-1", "", "0-9", "0-99999", "3-1", ",", "GPU-", "9999999999999999999"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, cuda, slurm string) {
		devices := []Device{{Index: 0, UUID: "GPU-a", Vendor: NVIDIA, Split: true}, {Index: 0, UUID: "MIG-m1", Vendor: NVIDIA, Card: "GPU-a"}, {Index: 1, UUID: "GPU-b", Vendor: NVIDIA}}
		for _, environ := range [][]string{{"CUDA_VISIBLE_DEVICES=" + cuda}, {"SLURM_JOB_GPUS=" + slurm}, {"ROCR_VISIBLE_DEVICES=" + cuda, "HIP_VISIBLE_DEVICES=" + slurm}} {
			visible, hidden, _ := restrict(devices, environ)
			require.Len(t, append(visible, hidden...), len(devices))
		}
	})
}
