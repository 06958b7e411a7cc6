package gputest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/execenv/gpu"
)

func TestFake(t *testing.T) {
	var f Fake
	s, err := f.Snapshot(t.Context())
	require.NoError(t, err)
	require.Empty(t, s.Devices)
	require.NotZero(t, s.Time)

	given := gpu.Snapshot{Devices: []gpu.Device{{UUID: "GPU-a", Processes: []gpu.Process{{PID: 1, Memory: 2}}}}}
	f.Set(given)
	given.Devices[0].Processes[0].PID = 9
	s, err = f.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, 1, s.Devices[0].Processes[0].PID, "what was given is not shared")
	s.Devices[0].UUID = "GPU-x"
	f.Update(func(s *gpu.Snapshot) { s.Devices[0].Used = 5 })
	s, err = f.Snapshot(t.Context())
	require.NoError(t, err)
	require.Equal(t, "GPU-a", s.Devices[0].UUID, "what was answered is not shared")
	require.EqualValues(t, 5, s.Devices[0].Used)

	f.Fail(errors.New("hangs"))
	_, err = f.Snapshot(t.Context())
	require.EqualError(t, err, "hangs")
	f.Fail(nil)
	_, err = f.Snapshot(t.Context())
	require.NoError(t, err)

	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = f.Snapshot(gone)
	require.ErrorIs(t, err, context.Canceled)
	require.Equal(t, 6, f.Asked())
}

func TestFakeIsForSeveralAtOnce(t *testing.T) {
	var f Fake
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() {
			f.Set(gpu.Snapshot{Devices: []gpu.Device{{UUID: "GPU-a"}}})
			f.Fail(nil)
			_, err := f.Snapshot(t.Context())
			assert.NoError(t, err)
		})
	}
	all.Wait()
}
