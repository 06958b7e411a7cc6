package gpu

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// machine is one whose NVML is fake.
func machine(t *testing.T, o Options, answer func() (report, error)) *Machine {
	t.Helper()
	if o.Root == "" {
		o.Root = t.TempDir()
	}
	if o.SMI == "" {
		o.SMI = filepath.Join(t.TempDir(), "none")
	}
	m := Open(o)
	m.nvidia.library = &fakeLibrary{answer: answer}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func TestMachineWithoutGPU(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := open(Options{Root: t.TempDir(), SMI: filepath.Join(t.TempDir(), "none"), Health: true}, "libnvidia-ml-none.so.1")
	for range 3 {
		s, err := m.Snapshot(t.Context())
		require.NoError(t, err)
		require.WithinDuration(t, time.Now(), s.Time, 10*time.Second)
		s.Time = time.Time{}
		require.Equal(t, Snapshot{}, s)
	}
	require.NoError(t, m.Close())
	require.NoError(t, m.Close())
	_, err := m.Snapshot(t.Context())
	require.ErrorIs(t, err, ErrClosed)
	require.NoError(t, Open(Options{}).Close(), "never asked")

	s, err := None{}.Snapshot(t.Context())
	require.NoError(t, err)
	require.Empty(t, s.Devices)
}

func TestMachineOfBothVendors(t *testing.T) {
	m := machine(t, Options{
		Root: amdTree(t), Devices: []string{"nonsense", "0=5GiB", "1=x"},
		Environ: []string{"CUDA_VISIBLE_DEVICES=MIG-b2", "ROCR_VISIBLE_DEVICES=1"},
	}, says(report{driver: "550", notes: []string{"note"}, devices: []Device{
		{Index: 1, UUID: "GPU-b", Vendor: NVIDIA, Split: true, Total: 1},
		{Index: 1, UUID: "MIG-b2", Vendor: NVIDIA, Card: "GPU-b", Total: 1},
		{Index: 1, UUID: "MIG-b1", Vendor: NVIDIA, Card: "GPU-b", Total: 1},
		{Index: 0, UUID: "GPU-a", Vendor: NVIDIA},
	}}))
	s, err := m.Snapshot(t.Context())
	require.NoError(t, err)
	uuids := func(devices []Device) (all []string) {
		for _, d := range devices {
			all = append(all, d.UUID)
		}
		return all
	}
	require.Equal(t, []string{"GPU-b", "MIG-b2", "GPU-4b9a3a4f7a3c5b1c"}, uuids(s.Devices))
	require.Equal(t, []string{"GPU-a", "MIG-b1", "0"}, uuids(s.Hidden))
	require.EqualValues(t, 5<<30, s.Hidden[0].Total)
	require.Equal(t, []string{"550", "nvml+setting+sysfs"}, []string{s.Driver, s.Source})
	require.Equal(t, `note; gpu_devices: "nonsense": write an index or a whole UUID, GPU-... or MIG-..., and =SIZE if its memory is known, such as "0=24GiB"; `+
		`"1=x": "x" is not a size: write a number with a unit, such as 24GiB`, s.Problem)
}

func TestMachineWithTroubleOfOneVendor(t *testing.T) {
	s, err := machine(t, Options{Root: amdTree(t)}, fails(errMismatch)).Snapshot(t.Context())
	require.NoError(t, err)
	require.Len(t, s.Devices, 2)
	require.Equal(t, []string{"NVML: mismatch", "sysfs", "6.7.0"}, []string{s.Problem, s.Source, s.Driver})
	require.NotZero(t, s.Time)

	_, err = machine(t, Options{}, fails(errMismatch)).Snapshot(t.Context())
	require.EqualError(t, err, "NVML: mismatch")
}

func TestOneLookAnswersAll(t *testing.T) {
	defer goleak.VerifyNone(t)
	var looks, at atomic.Int32
	begun, release := make(chan struct{}, 100), make(chan struct{})
	m := machine(t, Options{Timeout: time.Minute}, func() (report, error) {
		n := looks.Add(1)
		assert.EqualValues(t, 1, at.Add(1), "one at a time")
		defer at.Add(-1)
		begun <- struct{}{}
		<-release
		return report{devices: []Device{{UUID: "GPU-a", Vendor: NVIDIA, Used: int64(n), Processes: []Process{{PID: int(n)}}}}}, nil
	})
	first := make(chan Snapshot, 1)
	go func() {
		s, err := m.Snapshot(t.Context())
		assert.NoError(t, err)
		first <- s
	}()
	<-begun
	// These ask after the first look began: they must not get what it found before.
	var all sync.WaitGroup
	got := make(chan Snapshot, 20)
	gone, cancel := context.WithCancel(t.Context())
	for range 20 {
		all.Go(func() {
			s, err := m.Snapshot(t.Context())
			assert.NoError(t, err)
			got <- s
		})
	}
	left := make(chan struct{})
	all.Go(func() {
		defer close(left)
		_, err := m.Snapshot(gone)
		assert.ErrorIs(t, err, context.Canceled, "who gives up waits no longer")
	})
	require.Eventually(t, func() bool { m.mu.Lock(); defer m.mu.Unlock(); return m.next != nil }, 10*time.Second, time.Millisecond)
	cancel()
	<-left // while the look goes on
	close(release)
	all.Wait()
	require.EqualValues(t, 1, (<-first).Devices[0].Used)
	for range 20 {
		s := <-got
		require.Greater(t, s.Devices[0].Used, int64(1))
		s.Devices[0].Processes[0].PID = -1 // its own
	}
	_, err := m.Snapshot(gone)
	require.ErrorIs(t, err, context.Canceled)
	require.NoError(t, m.Close())
	require.True(t, m.nvidia.library.(*fakeLibrary).closed)
}

func TestCloseEndsALook(t *testing.T) {
	defer goleak.VerifyNone(t)
	pids := filepath.Join(t.TempDir(), "pid")
	m := machine(t, Options{SMI: program(t, "echo $$ >"+pids+"; sleep 1000"), Timeout: time.Hour}, fails(errMismatch))
	done := make(chan error, 1)
	go func() {
		_, err := m.Snapshot(t.Context())
		done <- err
	}()
	require.Eventually(t, func() bool { text, err := os.ReadFile(pids); return err == nil && len(text) > 0 }, 20*time.Second, time.Millisecond)
	require.NoError(t, m.Close())
	require.ErrorIs(t, <-done, ErrClosed)
}

func TestProblemsAreLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	var notes []string
	m := machine(t, Options{Log: slog.New(slog.NewTextHandler(&log, nil))}, func() (report, error) { return report{notes: notes}, nil })
	for _, notes = range [][]string{{"a"}, {"a"}, {"b"}, nil, nil} {
		_, err := m.Snapshot(t.Context())
		require.NoError(t, err)
	}
	require.Equal(t, 3, strings.Count(log.String(), "\n"), log.String())
	require.Contains(t, log.String(), "problem=b")
}

func TestMachineAsItIs(t *testing.T) {
	// With its defaults, on whatever machine this is: it answers, or says why not.
	m := Open(Options{Environ: os.Environ(), Health: true})
	_, err := m.Snapshot(t.Context())
	require.False(t, errors.Is(err, context.DeadlineExceeded))
	require.NoError(t, m.Close())
}
