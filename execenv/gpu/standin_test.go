//go:build linux && cgo

package gpu_test

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/execenv/gpu"
	"workerd/execenv/gpu/gputest"
)

// These tests go the whole way through dlopen and C. The loader reads where libraries lie when a process starts, so each test runs
// itself once more in a process of its own, which also bears it if it hangs or dies there.

// standIn returns the path of the script in that process. In the first one it returns "" when all is done.
func standIn(t *testing.T, library func(testing.TB) string) string {
	t.Helper()
	const variable = "GPU_TEST_CHILD"
	if os.Getenv(variable) == t.Name() {
		return os.Getenv(gputest.ScriptVariable)
	}
	dir := library(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$", "-test.count=1", "-test.timeout=50s", "-test.v")
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", variable+"="+t.Name(), gputest.LibraryVariable+"="+dir, gputest.ScriptVariable+"="+filepath.Join(t.TempDir(), "script"))
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "--- PASS: "+t.Name()+" ")
	return ""
}

const mib = 1 << 20

// quiet is a machine of which only NVML says anything.
func quiet(t *testing.T, o gpu.Options) *gpu.Machine {
	t.Helper()
	if o.Root == "" {
		o.Root = t.TempDir()
	}
	if o.SMI == "" {
		o.SMI = filepath.Join(t.TempDir(), "no-nvidia-smi")
	}
	m := gpu.Open(o)
	t.Cleanup(func() { _ = m.Close() })
	return m
}

func look(t *testing.T, m *gpu.Machine) gpu.Snapshot {
	t.Helper()
	s, err := m.Snapshot(t.Context())
	require.NoError(t, err)
	return s
}

func TestNVMLThroughTheLibrary(t *testing.T) {
	script := standIn(t, gputest.Library)
	if script == "" {
		return
	}
	gputest.Script{Driver: "550.54.15", Cards: []gputest.Card{
		{UUID: "GPU-aaaa", Name: "NVIDIA H100, 80GB", TotalMiB: 81559, ReservedMiB: 559, UsedMiB: 100, Processes: []gputest.Process{
			{PID: 30, MiB: 5}, {PID: 10, MiB: 7}, {PID: 10, MiB: 7, Kind: "graphics"}, {PID: 20, MiB: -1, Kind: "mps"},
		}},
		{UUID: "GPU-bbbb", TotalMiB: 1000, ECC: -1},
	}}.Write(t, script)
	m := quiet(t, gpu.Options{Health: true})
	s := look(t, m)
	require.Equal(t, []gpu.Device{
		{
			Index: 0, UUID: "GPU-aaaa", Name: "NVIDIA H100, 80GB", Vendor: gpu.NVIDIA, Total: 81000 * mib, Used: (100 + 5 + 7 + 7) * mib, ProcessesKnown: true,
			Processes: []gpu.Process{{PID: 10, Memory: 7 * mib}, {PID: 20, Memory: -1}, {PID: 30, Memory: 5 * mib}},
		},
		{Index: 1, UUID: "GPU-bbbb", Name: "NVIDIA Stand-In", Vendor: gpu.NVIDIA, Total: 1000 * mib, ProcessesKnown: true},
	}, s.Devices)
	require.Equal(t, []string{"550.54.15", "nvml", ""}, []string{s.Driver, s.Source, s.Problem})
	require.WithinDuration(t, time.Now(), s.Time, 10*time.Second)
	require.NoError(t, m.Close())
	_, err := m.Snapshot(t.Context())
	require.ErrorIs(t, err, gpu.ErrClosed)
}

func TestNVMLOfAnOldDriver(t *testing.T) {
	script := standIn(t, gputest.OldLibrary)
	if script == "" {
		return
	}
	gputest.Script{Driver: "390.1", Cards: []gputest.Card{{UUID: "GPU-aaaa", TotalMiB: 1000, ReservedMiB: 50, Processes: []gputest.Process{{PID: 10, MiB: 7}}}}}.Write(t, script)
	s := look(t, quiet(t, gpu.Options{Health: true}))
	require.Equal(t, []gpu.Device{{
		UUID: "GPU-aaaa", Name: "NVIDIA Stand-In", Vendor: gpu.NVIDIA, Total: 1000 * mib, Used: 57 * mib, ProcessesKnown: true,
		Processes: []gpu.Process{{PID: 10, Memory: 7 * mib}},
	}}, s.Devices)
	require.Empty(t, s.Problem)
}

func TestLibraryThatIsNotNVML(t *testing.T) {
	script := standIn(t, gputest.EmptyLibrary)
	if script == "" {
		return
	}
	m := quiet(t, gpu.Options{})
	for range 2 {
		_, err := m.Snapshot(t.Context())
		require.ErrorContains(t, err, "has no nvmlInit, so it is not NVIDIA's")
	}
}

func TestMIGThroughTheLibrary(t *testing.T) {
	script := standIn(t, gputest.Library)
	if script == "" {
		return
	}
	gputest.Script{Cards: []gputest.Card{
		{UUID: "GPU-aaaa", TotalMiB: 40000},
		{UUID: "GPU-bbbb", TotalMiB: 40000, UsedMiB: 3, Split: true, MIG: []gputest.MIG{
			{UUID: "MIG-b1", Name: "NVIDIA A100 MIG 1g.5gb", TotalMiB: 5000, Instance: 7, Processes: []gputest.Process{{PID: 10, MiB: 100}}},
			{},
			{UUID: "MIG-b3", TotalMiB: 10000, UsedMiB: 13, Instance: 8},
		}},
		{UUID: "GPU-cccc", TotalMiB: 40000, Split: true},
	}, XIDs: []gputest.XID{{Card: 1, Instance: 8, Code: 95}, {Card: 0, Instance: -1, Code: 31}, {Card: 0, Instance: -1, Code: 79}}}.Write(t, script)
	m := quiet(t, gpu.Options{Health: true})
	s := look(t, m)
	require.Len(t, s.Devices, 5)
	held := []gpu.Process{{PID: 10, Memory: 100 * mib}}
	require.Equal(t, gpu.Device{Index: 1, UUID: "GPU-bbbb", Name: "NVIDIA Stand-In", Vendor: gpu.NVIDIA, Split: true, Total: 40000 * mib, Used: 116 * mib, Processes: held, ProcessesKnown: true}, s.Devices[1])
	require.Equal(t, gpu.Device{Index: 1, UUID: "MIG-b1", Name: "NVIDIA A100 MIG 1g.5gb", Vendor: gpu.NVIDIA, Card: "GPU-bbbb", Total: 5000 * mib, Used: 100 * mib, Processes: held, ProcessesKnown: true}, s.Devices[2])
	require.Equal(t, "MIG-b3", s.Devices[3].UUID)
	require.EqualValues(t, 13*mib, s.Devices[3].Used)
	require.True(t, s.Devices[4].Split)

	// An error of one instance is nothing to the other one; one of the card concerns it all.
	require.Eventually(t, func() bool { s = look(t, m); return s.Devices[0].Ill != "" }, 10*time.Second, 10*time.Millisecond)
	require.Equal(t, "XID 79: the card has fallen off the bus", s.Devices[0].Ill)
	require.Equal(t, []string{"", "", "XID 95: uncontained ECC error", ""}, []string{s.Devices[1].Ill, s.Devices[2].Ill, s.Devices[3].Ill, s.Devices[4].Ill})
	require.NoError(t, m.Close())
}

func TestHealthThroughTheLibrary(t *testing.T) {
	script := standIn(t, gputest.Library)
	if script == "" {
		return
	}
	cards := []gputest.Card{{UUID: "GPU-aaaa", TotalMiB: 100, ECC: 2}, {UUID: "GPU-bbbb", TotalMiB: 100}, {UUID: "GPU-cccc", TotalMiB: 100}}
	gputest.Script{Cards: cards}.Write(t, script)
	m, careless := quiet(t, gpu.Options{Health: true}), quiet(t, gpu.Options{})
	s := look(t, m)
	require.Equal(t, "2 uncorrectable ECC errors since the driver was loaded", s.Devices[0].Ill)
	require.Empty(t, look(t, careless).Devices[0].Ill)

	cards[1].Lost, cards[2].Lost = 1, 2
	gputest.Script{Cards: cards}.Write(t, script)
	for _, m := range []*gpu.Machine{m, careless} {
		s = look(t, m)
		require.Len(t, s.Devices, 3)
		for _, d := range s.Devices[1:] {
			require.Equal(t, "the card is lost (it has fallen off the bus): reboot the machine", d.Ill)
			require.NotEmpty(t, d.UUID)
		}
	}
	// One that was lost before anyone knew it has no name.
	s = look(t, quiet(t, gpu.Options{}))
	require.Len(t, s.Devices, 1)
	require.Contains(t, s.Problem, "GPU 2: the card is lost")

	// A wait for events that hangs holds up neither looks nor, for long, Close.
	gputest.Script{Cards: cards, Hang: "nvmlEventSetWait_v2"}.Write(t, script)
	look(t, m)
	began := time.Now()
	require.NoError(t, m.Close())
	require.Less(t, time.Since(began), 10*time.Second)
}

func TestInitErrors(t *testing.T) {
	script := standIn(t, gputest.Library)
	if script == "" {
		return
	}
	good := gputest.Script{Cards: []gputest.Card{{UUID: "GPU-aaaa", TotalMiB: 100}}}
	gputest.Script{InitError: 18}.Write(t, script)
	m := quiet(t, gpu.Options{})
	_, err := m.Snapshot(t.Context())
	require.ErrorContains(t, err, "the driver was updated: reboot or reload the module")

	// Not loaded, and no NVIDIA card on the bus: a machine without GPU that has the library installed.
	gputest.Script{InitError: 9}.Write(t, script)
	require.Equal(t, gpu.Snapshot{}, withoutTime(look(t, quiet(t, gpu.Options{}))))
	root := t.TempDir()
	put(t, root, "sys/bus/pci/devices/0000:3b:00.0/vendor", "0x10de\n")
	put(t, root, "sys/bus/pci/devices/0000:3b:00.0/class", "0x030200\n")
	s := look(t, quiet(t, gpu.Options{Root: root}))
	require.Empty(t, s.Devices)
	require.Equal(t, "NVML: the NVIDIA driver is not loaded (error 9)", s.Problem)
	s = look(t, quiet(t, gpu.Options{Devices: []string{"GPU-5c1e=24GiB"}}))
	require.Equal(t, "setting", s.Source)

	good.Write(t, script)
	require.Eventually(t, func() bool {
		s, err := m.Snapshot(t.Context())
		return err == nil && s.Source == "nvml" && len(s.Devices) == 1 && s.Problem == ""
	}, 10*time.Second, 50*time.Millisecond, "it recovers")

	// The driver goes away under it, and comes back.
	good.Fail = map[string]int{"nvmlDeviceGetCount_v2": 1}
	good.InitError = 9
	good.Write(t, script)
	s = look(t, m)
	require.Equal(t, "GPU-aaaa", s.Devices[0].UUID)
	require.Contains(t, s.Problem, "figures are those of ")
	good.Fail, good.InitError, good.Driver = nil, 0, "555.1"
	good.Write(t, script)
	require.Eventually(t, func() bool { s = look(t, m); return s.Problem == "" }, 10*time.Second, 50*time.Millisecond)
	require.Equal(t, "555.1", s.Driver)

	// One call that fails takes its figures away, no more.
	good.Fail = map[string]int{"nvmlDeviceGetMemoryInfo_v2": 25, "nvmlDeviceGetMemoryInfo": 3, "nvmlDeviceGetComputeRunningProcesses": 4}
	good.Write(t, script)
	s = look(t, m)
	require.Equal(t, "GPU 0: memory: not supported (error 3)", s.Problem)
	require.Equal(t, gpu.Device{UUID: "GPU-aaaa", Name: "NVIDIA Stand-In", Vendor: gpu.NVIDIA}, s.Devices[0])
	s = look(t, quiet(t, gpu.Options{Devices: []string{"0=24GiB"}}))
	require.EqualValues(t, 24<<30, s.Devices[0].Total)
	require.Equal(t, "nvml+setting", s.Source)
}

func TestCallsThatHang(t *testing.T) {
	script := standIn(t, gputest.Library)
	if script == "" {
		return
	}
	good := gputest.Script{Cards: []gputest.Card{{UUID: "GPU-aaaa", TotalMiB: 100, UsedMiB: 10}}}
	for _, call := range []string{"nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetMemoryInfo_v2"} {
		t.Run(call, func(t *testing.T) {
			hanging := good
			hanging.Hang = call
			hanging.Write(t, script)
			const timeout = 500 * time.Millisecond
			m := quiet(t, gpu.Options{Timeout: timeout})
			began := time.Now()
			_, err := m.Snapshot(t.Context())
			require.ErrorContains(t, err, "NVML does not answer since ")
			require.Less(t, time.Since(began), timeout+5*time.Second)
			_, again := m.Snapshot(t.Context())
			first, _, _ := strings.Cut(err.Error(), "\n")
			require.ErrorContains(t, again, first, "no second call is begun")

			other := quiet(t, gpu.Options{Timeout: timeout, Devices: []string{"GPU-aaaa=1GiB"}})
			require.Equal(t, "setting", look(t, other).Source)

			good.Write(t, script)
			require.Eventually(t, func() bool { s, err := m.Snapshot(t.Context()); return err == nil && s.Source == "nvml" }, 10*time.Second, 20*time.Millisecond)
			hanging.Write(t, script)
			if call != "nvmlInit_v2" {
				s := look(t, m)
				require.EqualValues(t, 10*mib, s.Devices[0].Used, "what was known")
				require.Regexp(t, `^NVML does not answer since .*; figures are those of `, s.Problem)
				began = time.Now()
				require.ErrorContains(t, m.Close(), "NVML does not answer", "a call in C cannot be ended")
				require.Less(t, time.Since(began), 10*time.Second)
			}
			good.Write(t, script)
		})
	}
}

func TestMemoryFollowsProcesses(t *testing.T) {
	script := standIn(t, gputest.Library)
	if script == "" {
		return
	}
	holder := func() *exec.Cmd {
		cmd := exec.Command("sleep", "1000")
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		return cmd
	}
	stranger, brief, lasting := holder(), holder(), holder()
	gputest.Script{Cards: []gputest.Card{{UUID: "GPU-aaaa", TotalMiB: 24 << 10, UsedMiB: 1, Processes: []gputest.Process{
		{PID: stranger.Process.Pid, MiB: 1000, WhileAlive: true},
	}}}}.Write(t, script)
	gputest.Hold(t, script, brief.Process.Pid, "GPU-aaaa", 200, 0)
	gputest.Hold(t, script, lasting.Process.Pid, "GPU-aaaa", 30, 1.5)
	m := quiet(t, gpu.Options{})
	used := func() int64 { return look(t, m).Devices[0].Used / mib }
	require.EqualValues(t, 1231, used())
	require.Len(t, look(t, m).Devices[0].Processes, 3)

	kill := func(cmd *exec.Cmd) {
		require.NoError(t, cmd.Process.Kill())
		_ = cmd.Wait()
	}
	kill(brief)
	require.EqualValues(t, 1031, used(), "freed at once")
	kill(lasting)
	died := time.Now() // not before: the library counts from when it first sees that
	require.EqualValues(t, 1031, used(), "still held, by nobody")
	require.Len(t, look(t, m).Devices[0].Processes, 1)
	require.Eventually(t, func() bool { return used() == 1001 }, 10*time.Second, 10*time.Millisecond)
	require.GreaterOrEqual(t, time.Since(died), 1500*time.Millisecond)
	require.NoError(t, stranger.Process.Kill()) // a zombie holds nothing
	require.Eventually(t, func() bool { return used() == 1 }, 10*time.Second, 10*time.Millisecond)

	python, err := exec.LookPath("python3")
	if err != nil {
		return // the same file by hand
	}
	cmd := exec.Command(python, "-c", gputest.Python+"\nimport sys\nhold('GPU-aaaa', 512)\nprint('held', flush=True)\nsys.stdin.read()")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	text := make([]byte, 4)
	_, err = out.Read(text)
	require.NoError(t, err)
	require.EqualValues(t, 513, used())
	require.NoError(t, in.Close())
	require.NoError(t, cmd.Wait())
	require.EqualValues(t, 1, used())
}

func withoutTime(s gpu.Snapshot) gpu.Snapshot {
	s.Time = time.Time{}
	return s
}

func put(t *testing.T, root, path, text string) {
	t.Helper()
	path = filepath.Join(root, path)
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(strings.TrimPrefix(text, "\n")), 0o644))
}
