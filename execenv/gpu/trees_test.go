package gpu

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// tree makes files below a folder.
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for path, text := range files {
		path = filepath.Join(root, path)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	}
	return root
}

func link(t *testing.T, root, target, path string) {
	t.Helper()
	path = filepath.Join(root, path)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.Symlink(target, path))
}

const procInformation = "Model: \t\t NVIDIA A100-SXM4-40GB\nIRQ:   \t\t 123\nGPU UUID: \t GPU-5c1e9b8a-0d6f-4b7c-9f5e-2f1f4d1c7a60\nBus Location: \t 0000:07:00.0\nDevice Minor: \t 3\nGPU Excluded:\t No\n"

const procVersionText = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n"

func TestProc(t *testing.T) {
	root := t.TempDir()
	require.False(t, driverLoaded(root))
	all, here := procCards(root)
	require.Empty(t, all)
	require.Empty(t, here)
	require.Empty(t, procVersion(root))

	root = tree(t, map[string]string{
		"proc/driver/nvidia/version":                       procVersionText,
		"proc/driver/nvidia/gpus/0000:07:00.0/information": procInformation,
		"proc/driver/nvidia/gpus/0000:0b:00.0/information": "Model: NVIDIA A30\nGPU UUID: GPU-xxxx\nGPU Excluded: Yes\n",
		"proc/driver/nvidia/gpus/0000:8b:00.0/information": "Model: NVIDIA A30\nGPU UUID: GPU-????????-????-????-????-????????????\nDevice Minor: 1\n",
		"dev/nvidia1": "",
	})
	require.True(t, driverLoaded(root))
	require.False(t, driverReachable(root))
	all, here = procCards(root)
	require.Equal(t, "550.54.15", procVersion(root))
	require.Equal(t, []Device{
		{Index: 0, UUID: "GPU-5c1e9b8a-0d6f-4b7c-9f5e-2f1f4d1c7a60", Name: "NVIDIA A100-SXM4-40GB", Vendor: NVIDIA},
		{Index: 1, UUID: "1", Name: "NVIDIA A30", Vendor: NVIDIA},
	}, all)
	require.Equal(t, all[1:], here)
}

func TestNVIDIAOnBus(t *testing.T) {
	require.False(t, nvidiaOnBus(t.TempDir()))
	require.False(t, nvidiaOnBus(tree(t, map[string]string{"sys/bus/pci/devices/a/vendor": "0x8086\n", "sys/bus/pci/devices/a/class": "0x030000\n"})))
	require.False(t, nvidiaOnBus(tree(t, map[string]string{"sys/bus/pci/devices/a/vendor": "0x10de\n", "sys/bus/pci/devices/a/class": "0x040300\n"})), "its sound")
	require.True(t, nvidiaOnBus(tree(t, map[string]string{"sys/bus/pci/devices/a/vendor": "0x10de\n", "sys/bus/pci/devices/a/class": "0x030200\n"})))
}

// amdTree has two cards, in another order by name than by address, one of Intel, and connectors.
func amdTree(t *testing.T) string {
	t.Helper()
	const devices = "sys/devices/pci0000:00/"
	root := tree(t, map[string]string{
		"dev/kfd":                                    "",
		"sys/module/amdgpu/version":                  "6.7.0\n",
		devices + "0000:83:00.0/vendor":              "0x1002\n",
		devices + "0000:83:00.0/device":              "0x740f\n",
		devices + "0000:83:00.0/unique_id":           "4b9a3a4f7a3c5b1c\n",
		devices + "0000:83:00.0/mem_info_vram_total": "68702699520\n",
		devices + "0000:83:00.0/mem_info_vram_used":  "10960896\n",
		devices + "0000:83:00.0/drm/card0/dev":       "226:0\n",
		devices + "0000:83:00.0/drm/renderD129/dev":  "226:129\n",
		devices + "0000:03:00.0/vendor":              "0x1002\n",
		devices + "0000:03:00.0/unique_id":           "0\n",
		devices + "0000:03:00.0/product_name":        "AMD Instinct MI210\n",
		devices + "0000:03:00.0/mem_info_vram_total": "1000\n",
		devices + "0000:03:00.0/mem_info_vram_used":  "10\n",
		devices + "0000:03:00.0/drm/renderD128/dev":  "226:128\n",
		devices + "0000:00:02.0/vendor":              "0x8086\n",
		devices + "0000:05:00.0/vendor":              "0x1002\n", // radeon: no such files
		"sys/class/drm/card0-HDMI-A-1/device/vendor": "0x1002\n",
		"sys/class/drm/version":                      "drm 1.1.0\n",
		"sys/class/drm/renderD128/device/vendor":     "0x1002\n",
	})
	for card, address := range map[string]string{"card0": "0000:83:00.0", "card1": "0000:03:00.0", "card2": "0000:00:02.0", "card3": "0000:05:00.0"} {
		link(t, root, filepath.Join(root, devices, address), "sys/class/drm/"+card+"/device")
	}
	return root
}

func TestAMD(t *testing.T) {
	root := amdTree(t)
	devices, notes := amdCards(root)
	require.Empty(t, notes)
	require.Equal(t, []Device{
		{Index: 0, UUID: "0", Name: "AMD Instinct MI210", Vendor: AMD, Total: 1000, Used: 10, Render: "/dev/dri/renderD128"},
		{Index: 1, UUID: "GPU-4b9a3a4f7a3c5b1c", Name: "AMD 740f", Vendor: AMD, Total: 68702699520, Used: 10960896, Render: "/dev/dri/renderD129"},
	}, devices)
	p := lookAMD(root)
	require.Equal(t, []string{"6.7.0", "sysfs"}, []string{p.driver, p.sources[0]})

	require.NoError(t, os.WriteFile(filepath.Join(root, "sys/class/drm/card0/device/mem_info_vram_used"), []byte("-5\n"), 0o644))
	devices, notes = amdCards(root)
	require.Len(t, devices, 2)
	require.Zero(t, devices[1].Total)
	require.Len(t, notes, 1)
	require.Contains(t, notes[0], "mem_info_vram_used")

	require.NoError(t, os.Remove(filepath.Join(root, "dev/kfd")))
	require.Empty(t, lookAMD(root).devices, "nothing computes there")
}

func TestAMDUUID(t *testing.T) {
	for id, want := range map[string]string{"": "", "0": "", "x": "", "1": "GPU-0000000000000001", "0xABC": "GPU-0000000000000abc", "ffffffffffffffff": "GPU-ffffffffffffffff"} {
		require.Equal(t, want, amdUUID(id), id)
	}
}
