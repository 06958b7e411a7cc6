//go:build linux && cgo

package gpu

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxa100"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/gpus"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/stretchr/testify/require"
)

// mocked is NVML by one of go-nvml's mock servers.
func mocked(t *testing.T, lib nvml.Interface) *nvmlLibrary {
	t.Helper()
	l := newNVML(lib, true, slog.New(slog.DiscardHandler))
	t.Cleanup(l.close)
	return l
}

func TestMockServers(t *testing.T) {
	mixed, err := server.New(server.WithGPUs(gpus.A100_SXM4_40GB, gpus.H100_SXM5_80GB, gpus.A30_PCIE_24GB), server.WithDriverVersion("1.2"))
	require.NoError(t, err)
	for _, s := range []*server.Server{dgxa100.New(), dgxh200.New(), mixed} {
		r, err := mocked(t, s).look()
		require.NoError(t, err)
		require.Equal(t, s.DriverVersion, r.driver)
		require.Len(t, r.devices, len(s.Devices))
		require.Empty(t, r.notes)
		// The servers know nothing of processes.
		for i, d := range r.devices {
			m := s.Devices[i].(*server.Device)
			require.Equal(t, Device{
				Index: i, UUID: m.UUID, Name: m.Config.Name, Vendor: NVIDIA, Total: int64(m.Config.MemoryMB) << 20,
			}, d)
		}
	}
}

func TestMockServerWithFigures(t *testing.T) {
	s := dgxa100.New()
	card := s.Devices[3].(*server.Device)
	card.GetMemoryInfo_v2Func = func() (nvml.Memory_v2, nvml.Return) {
		return nvml.Memory_v2{Total: 1000, Reserved: 100, Used: 300, Free: 600}, nvml.SUCCESS
	}
	card.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 9, UsedGpuMemory: 5}, {Pid: 3, UsedGpuMemory: valueNotAvailable}}, nvml.SUCCESS
	}
	card.GetGraphicsRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 9, UsedGpuMemory: 6}}, nvml.SUCCESS
	}
	card.GetTotalEccErrorsFunc = func(nvml.MemoryErrorType, nvml.EccCounterType) (uint64, nvml.Return) { return 1, nvml.SUCCESS }
	r, err := mocked(t, s).look()
	require.NoError(t, err)
	d := r.devices[3]
	require.Equal(t, []int64{900, 300}, []int64{d.Total, d.Used})
	require.Equal(t, []Process{{3, -1}, {9, 6}}, d.Processes)
	require.Equal(t, "1 uncorrectable ECC errors since the driver was loaded", d.Ill)
}

func TestMockServerInMIGMode(t *testing.T) {
	s := dgxa100.New()
	card := s.Devices[1].(*server.Device)
	card.MigMode = nvml.DEVICE_MIG_ENABLE
	card.GetMaxMigDeviceCountFunc = func() (int, nvml.Return) { return 7, nvml.SUCCESS }
	card.GetMigDeviceHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		if i != 2 {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return &mock.Device{
			GetUUIDFunc:       func() (string, nvml.Return) { return "MIG-x", nvml.SUCCESS },
			GetNameFunc:       func() (string, nvml.Return) { return "slice", nvml.SUCCESS },
			GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) { return nvml.Memory{Total: 10, Used: 4}, nvml.SUCCESS },
		}, nvml.SUCCESS
	}
	r, err := mocked(t, s).look()
	require.NoError(t, err)
	require.Len(t, r.devices, 9)
	require.True(t, r.devices[1].Split)
	require.Equal(t, Device{Index: 1, UUID: "MIG-x", Name: "slice", Vendor: NVIDIA, Card: card.UUID, Total: 10, Used: 4}, r.devices[2])
}

func TestMockServerThatBreaks(t *testing.T) {
	s := dgxa100.New()
	inits := 0
	var initial nvml.Return
	s.InitFunc = func() nvml.Return { inits++; return initial }
	l := mocked(t, s)

	initial = nvml.ERROR_LIB_RM_VERSION_MISMATCH
	began := time.Now()
	for range 3 {
		_, err := l.look()
		require.ErrorContains(t, err, "reboot or reload the module")
	}
	if time.Since(began) < initRest {
		require.Equal(t, 1, inits, "it is not tried at each look")
	}
	inits = 1
	initial = nvml.SUCCESS
	l.tried = time.Now().Add(-initRest)
	_, err := l.look()
	require.NoError(t, err)
	require.Equal(t, 2, inits)

	// Uninitialised under our hands: once more, at once.
	count := s.DeviceGetCountFunc
	s.DeviceGetCountFunc = func() (int, nvml.Return) {
		if inits == 2 {
			return 0, nvml.ERROR_UNINITIALIZED
		}
		return count()
	}
	l.tried = time.Now().Add(-initRest)
	_, err = l.look()
	require.NoError(t, err)
	require.Equal(t, 3, inits)

	// A lost card may come back with a new session, but not soon.
	card := s.Devices[0].(*server.Device)
	uuid := card.GetUUIDFunc
	card.GetUUIDFunc = func() (string, nvml.Return) {
		if inits == 3 {
			return "", nvml.ERROR_GPU_IS_LOST
		}
		return uuid()
	}
	r, err := l.look()
	require.NoError(t, err)
	require.Equal(t, illLost, r.devices[0].Ill)
	require.Equal(t, card.UUID, r.devices[0].UUID)
	l.tried = time.Now().Add(-lostRest)
	r, err = l.look()
	require.NoError(t, err)
	require.Empty(t, r.devices[0].Ill)
	require.Equal(t, 4, inits)

	// What panics has failed, no more.
	card.GetMemoryInfoFunc = func() (nvml.Memory, nvml.Return) { panic("index out of range") }
	r, err = l.look()
	require.NoError(t, err)
	require.Equal(t, []string{"GPU 0: memory: unknown error (error 999)"}, r.notes)
	s.DeviceGetHandleByIndexFunc = func(i int) (nvml.Device, nvml.Return) {
		return s.Devices[i], map[int]nvml.Return{1: nvml.ERROR_NO_PERMISSION, 2: nvml.ERROR_UNKNOWN}[i]
	}
	r, err = l.look()
	require.NoError(t, err)
	require.Len(t, r.devices, 6, "a card that a cgroup hides is not there, one that is broken is told")
	require.Contains(t, r.notes, "GPU 2: unknown error (error 999)")
}

func TestMissingFunctions(t *testing.T) {
	s := dgxa100.New()
	s.LookupSymbolFunc = func(string) error { return errors.New("undefined symbol") }
	s.DeviceGetCountFunc = func() (int, nvml.Return) { t.Error("called"); return 0, nvml.ERROR_UNKNOWN }
	_, err := mocked(t, s).look()
	require.EqualError(t, err, "NVML: not known to this driver (error 13)")
}

func TestFaults(t *testing.T) {
	var f faults
	require.Empty(t, f.of("GPU-a", -1))
	f.add(fault{"GPU-a", 3}, "part")
	require.Empty(t, f.of("GPU-a", -1))
	require.Equal(t, "part", f.of("GPU-a", 3))
	f.add(fault{"GPU-a", -1}, "whole")
	require.Equal(t, "whole", f.of("GPU-a", 3))
	f.forget()
	require.Empty(t, f.of("GPU-a", 3))
}
