package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

func TestPrintGPUs(t *testing.T) {
	r := newRig(t)
	a := r.app()
	now := time.Now()
	a.printGPUs(protocol.GPUs{}, now)
	require.Equal(t, "no GPUs\n", r.out.String())
	r.out.Reset()
	a.printGPUs(protocol.GPUs{
		Problem: "NVML: mismatch",
		Devices: []protocol.GPUStatus{
			{
				Index: 0, UUID: "GPU-a", Name: "H100", State: "usable", TotalBytes: 80 << 30, UsedBytes: 30 << 30, ReservedBytes: 40 << 30, FreeBytes: 30 << 30,
				Workers: []protocol.GPUWorker{{ID: "fold/3", ReservedBytes: 40 << 30, UsedBytes: 20 << 30, Idle: true, Pinned: true, Priority: 2}, {ID: "dock/1", UsedBytes: -1, Leaving: true}},
				Others:  []protocol.GPUProcess{{PID: 7, Name: "python", UsedBytes: 10 << 30}, {PID: 8, UsedBytes: -1, Worker: "fold/1"}},
			},
			{Index: 0, UUID: "MIG-b", Card: "GPU-c", Name: "slice", State: "cordoned", Reason: "3 faults"},
			{Index: -1, UUID: "GPU-d", State: "usable"},
		},
		Waiting: []protocol.GPUWait{{ID: "big/1", Count: 2, MemoryBytes: 70 << 30, Since: now.Add(-3 * time.Second), Reason: "waiting for GPU memory: held by fold/3"}},
	}, now)
	require.Equal(t, `warning: NVML: mismatch
GPU    NAME   USED    RESERVED  FREE     TOTAL    STATE     UUID
0      H100   30 GiB  40 GiB    30 GiB   80 GiB   usable    GPU-a
0 MIG  slice  0 B     0 B       unknown  unknown  cordoned  MIG-b
-             0 B     0 B       unknown  unknown  usable    GPU-d

GPU 0
  fold/3: 20 GiB used, 40 GiB reserved, pinned, idle, priority 2
  dock/1: unknown used, 0 B reserved, makes room
  pid 7 (python): 10 GiB used
  pid 8 (-): unknown used, left by fold/1

GPU 0 MIG
  cordoned: 3 faults

waiting
  big/1 for 3s: 2 GPU with 70 GiB; waiting for GPU memory: held by fold/3
`, r.out.String())
}

func TestGPUsCommand(t *testing.T) {
	r := newRig(t)
	r.serve(&fakeBackend{gpus: protocol.GPUs{Source: "nvml", Devices: []protocol.GPUStatus{{UUID: "GPU-a", Name: "H100", State: "usable"}}}})
	require.Contains(t, r.ok("gpus"), "H100")
	require.Contains(t, r.ok("gpus", "--json"), `"source": "nvml"`)
}
