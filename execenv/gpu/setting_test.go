package gpu

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestParseDevices(t *testing.T) {
	devices, err := ParseDevices([]string{"0", "1=24GiB", "GPU-5c1e9b8a-0d6f=1.5GiB", "MIG-c6d4=10GB", "MIG-GPU-5c1e/1/0", "GPU-ff"})
	require.NoError(t, err)
	require.Equal(t, []Device{
		{Index: 0, UUID: "0", Vendor: NVIDIA},
		{Index: 1, UUID: "1", Vendor: NVIDIA, Total: 24 << 30},
		{Index: -1, UUID: "GPU-5c1e9b8a-0d6f", Vendor: NVIDIA, Total: 3 << 29},
		{Index: -1, UUID: "MIG-c6d4", Vendor: NVIDIA, Total: 10e9},
		{Index: -1, UUID: "MIG-GPU-5c1e/1/0", Vendor: NVIDIA},
		{Index: -1, UUID: "GPU-ff", Vendor: NVIDIA},
	}, devices)
	devices, err = ParseDevices(nil)
	require.NoError(t, err)
	require.Empty(t, devices)

	for entry, says := range map[string]string{
		"":              "write an index or a whole UUID",
		"-1":            "write an index or a whole UUID",
		"+1":            "write an index or a whole UUID",
		"99999":         "write an index or a whole UUID",
		"H100":          "write an index or a whole UUID",
		"GPU-":          "write an index or a whole UUID",
		"GPU-a b":       "write an index or a whole UUID",
		"gpu-aa":        "write an index or a whole UUID",
		"=24GiB":        "write an index or a whole UUID",
		"0=":            `"" is not a size`,
		"0=24":          `"24" is not a size`,
		"0=24G":         `"24G" is not a size`,
		"0=-1GiB":       "is not a size",
		"0=0GiB":        "is not a size that a GPU can have",
		"0=9999999TiB":  "is not a size that a GPU can have",
		"0=0.0001KiB":   "is not a size that a GPU can have",
		"0=24GiB=24GiB": "is not a size",
	} {
		devices, err = ParseDevices([]string{entry, "7"})
		require.ErrorContains(t, err, says, entry)
		require.Len(t, devices, 1, "the others count")
	}
	_, err = ParseDevices([]string{"GPU-aa", "GPU-AA=1GiB", "0", "00=1GiB"})
	require.EqualError(t, err, "GPU-AA: is named twice\n0: is named twice")
}

func TestSettingCompletesFigures(t *testing.T) {
	setting, err := ParseDevices([]string{"1=24GiB", "MIG-a=5GiB", "GPU-known=1GiB"})
	require.NoError(t, err)
	devices := []Device{{Index: 1, UUID: "GPU-b"}, {Index: 1, UUID: "MIG-a", Card: "GPU-b"}, {Index: 2, UUID: "GPU-known", Total: 7}, {Index: 1, UUID: "MIG-c", Card: "GPU-b"}}
	require.True(t, complete(devices, setting))
	require.Equal(t, []int64{24 << 30, 5 << 30, 7, 0}, []int64{devices[0].Total, devices[1].Total, devices[2].Total, devices[3].Total})
	require.False(t, complete(devices, setting))
}

func FuzzParseDevices(f *testing.F) {
	for _, s := range []string{"0", "1=24GiB", "GPU-5c1e=1.5TiB", "MIG-GPU-5c1e/1/0", "=", "0=999999999TB", "GPU-a\n0"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		entries := strings.Split(text, "\n")
		devices, err := ParseDevices(entries)
		require.LessOrEqual(t, len(devices), len(entries))
		require.Equal(t, err == nil, len(devices) == len(entries))
		for _, d := range devices {
			require.NotEmpty(t, d.UUID)
			require.GreaterOrEqual(t, d.Total, int64(0))
			got, err := Snapshot{Devices: devices}.Resolve(d.UUID)
			require.NoError(t, err)
			require.Equal(t, d, got)
		}
	})
}
