package gpu

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	smiTwo = "0, GPU-5c1e, 40960, 1024, 39000, 550.54.15, Disabled, 0, NVIDIA A100-SXM4-40GB\n" +
		"1, GPU-77aa, [N/A], [N/A], [N/A], 550.54.15, [N/A], [N/A], NVIDIA GB10, with a comma\n"
	smiApps1 = "GPU-5c1e, 4242, 900\nGPU-5c1e, 77, [N/A]\nGPU-5c1e, 4242, 100\nGPU-gone, 5, 6\n"
	smiSplit = "0, GPU-5c1e, 40960, 0, 40000, 550.54.15, Enabled, 3, NVIDIA A100-SXM4-40GB\n1, GPU-77aa, 10, 0, 10, 550.54.15, Disabled, 0, NVIDIA A30\n"
	smiList  = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5c1e)\n  MIG 3g.20gb     Device  0: (UUID: MIG-c6d4)\n  MIG 1g.5gb+me   Device  1: (UUID: MIG-GPU-5c1e/1/0)\nGPU 1: NVIDIA A30 (UUID: GPU-77aa)\n"
)

func TestParseCards(t *testing.T) {
	devices, driver, err := parseCards(smiTwo, true, true)
	require.NoError(t, err)
	require.Equal(t, "550.54.15", driver)
	require.Equal(t, []Device{
		{Index: 0, UUID: "GPU-5c1e", Name: "NVIDIA A100-SXM4-40GB", Vendor: NVIDIA, Total: 40024 << 20, Used: 1024 << 20},
		{Index: 1, UUID: "GPU-77aa", Name: "NVIDIA GB10, with a comma", Vendor: NVIDIA},
	}, devices)
	require.NoError(t, parseApps(smiApps1, devices))
	require.Equal(t, []Process{{77, -1}, {4242, 900 << 20}}, devices[0].Processes)
	require.True(t, devices[1].ProcessesKnown)
	require.Empty(t, devices[1].Processes)

	devices, _, err = parseCards("3, GPU-5c1e, 100, 40, [N/A], 390.1, Tesla K80\r\n", false, true)
	require.NoError(t, err)
	require.Equal(t, []Device{{Index: 3, UUID: "GPU-5c1e", Name: "Tesla K80", Vendor: NVIDIA, Total: 100 << 20, Used: 40 << 20}}, devices)
	devices, _, err = parseCards("0, GPU-5c1e, [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost], [GPU is lost]\n", true, false)
	require.NoError(t, err)
	require.Equal(t, illLost, devices[0].Ill)
	devices, _, err = parseCards("0, GPU-5c1e, [GPU requires reset], , , 5, , , x\n", true, false)
	require.ErrorContains(t, err, "is no number")
	require.Empty(t, devices)

	for out, says := range map[string]string{
		"Failed to initialize NVML: Driver/library version mismatch\n": "there must be 9 fields",
		"\n": "there must be 9 fields",
		"x, GPU-5c1e, 1, 1, 1, 5, Disabled, 0, n\n":                                    "index or UUID",
		"-1, GPU-5c1e, 1, 1, 1, 5, Disabled, 0, n\n":                                   "index or UUID",
		"0, 5c1e, 1, 1, 1, 5, Disabled, 0, n\n":                                        "is no UUID",
		"0, MIG-5c1e, 1, 1, 1, 5, Disabled, 0, n\n":                                    "is no UUID",
		"0, GPU-5c1e, 1 MiB, 1, 1, 5, Disabled, 0, n\n":                                "memory.total",
		"0, GPU-5c1e, 1, -1, 1, 5, Disabled, 0, n\n":                                   "memory.used",
		"0, GPU-5c1e, 1, 1, 99999999999, 5, Disabled, 0, n\n":                          "memory.free",
		"0, GPU-a, 1, 1, 1, 5, Disabled, 0, n\n0, GPU-b, 1, 1, 1, 5, Disabled, 0, n\n": "there twice",
		"0, GPU-a, 1, 1, 1, 5, Disabled, 0, n\n1, GPU-a, 1, 1, 1, 5, Disabled, 0, n\n": "there twice",
		"0, GPU-a, 1, 1, 1, 5, Disabled, 0, n\n" + strings.Repeat("x", 1000) + "\n":    "...",
	} {
		_, _, err := parseCards(out, true, true)
		require.ErrorContains(t, err, says, out)
		require.Less(t, len(err.Error()), 400)
	}
	for _, out := range []string{"GPU-a, 1\n", "GPU-a, x, 1\n", "GPU-a, -1, 1\n", "GPU-a, 1, x\n", "No running processes found\n"} {
		require.Error(t, parseApps(out, nil), out)
	}
}

func TestParseList(t *testing.T) {
	cards, _, err := parseCards(smiSplit, true, true)
	require.NoError(t, err)
	require.True(t, cards[0].Split)
	require.Equal(t, "3 uncorrectable ECC errors since the driver was loaded", cards[0].Ill)
	parts, err := parseList(smiList, cards)
	require.NoError(t, err)
	require.Equal(t, []Device{
		{Index: 0, UUID: "MIG-c6d4", Name: "NVIDIA A100-SXM4-40GB MIG 3g.20gb", Vendor: NVIDIA, Card: "GPU-5c1e", Ill: cards[0].Ill},
		{Index: 0, UUID: "MIG-GPU-5c1e/1/0", Name: "NVIDIA A100-SXM4-40GB MIG 1g.5gb+me", Vendor: NVIDIA, Card: "GPU-5c1e", Ill: cards[0].Ill},
	}, parts)
	for _, out := range []string{"nonsense\n", smiList + smiList, "  MIG 3g.20gb Device x: (UUID: MIG-c6d4)\n"} {
		_, err := parseList(out, cards)
		require.Error(t, err, out)
	}
	parts, err = parseList("  MIG 3g.20gb Device 0: (UUID: MIG-c6d4)\n", cards)
	require.NoError(t, err)
	require.Empty(t, parts, "of no card")
}

func FuzzParseSMI(f *testing.F) {
	f.Add(smiTwo, smiApps1, smiList)
	f.Add(smiSplit, "", smiList)
	f.Add("\x00, , ,", ", , ", "GPU 0: x (UUID: GPU-)")
	f.Fuzz(func(t *testing.T, cards, apps, list string) {
		for _, all := range []bool{true, false} {
			devices, _, err := parseCards(cards, all, true)
			if err != nil {
				require.Empty(t, devices)
				continue
			}
			_ = parseApps(apps, devices)
			parts, _ := parseList(list, devices)
			seen := map[string]bool{}
			for _, d := range append(devices, parts...) {
				require.False(t, seen[d.UUID])
				seen[d.UUID] = true
				require.Regexp(t, wholeUUID, d.UUID)
				require.True(t, d.Used >= 0 && d.Total >= d.Used, "%+v", d)
				for _, p := range d.Processes {
					require.True(t, p.PID >= 0 && p.Memory >= -1)
				}
			}
		}
	})
}

// program writes a stand-in of nvidia-smi.
func program(t *testing.T, script string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "nvidia-smi")
	writeProgram(t, path, script)
	return path
}

func writeProgram(t *testing.T, path, script string) {
	t.Helper()
	// A child that is forked meanwhile would hold the file open for writing until its own exec, and what is open so cannot be run.
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	require.NoError(t, os.WriteFile(path+".new", []byte("#!/bin/sh\n"+script), 0o755))
	require.NoError(t, os.Rename(path+".new", path))
}

// answers is a script that answers as nvidia-smi does.
func answers(cards, apps, list string) string {
	return fmt.Sprintf("case \"$1\" in\n--query-gpu=*) printf '%%s' '%s';;\n--query-compute-apps=*) printf '%%s' '%s';;\n-L) printf '%%s' '%s';;\n*) exit 2;;\nesac\n", cards, apps, list)
}

func within(t *testing.T, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestSMI(t *testing.T) {
	s := newSMI(program(t, answers(smiTwo, smiApps1, "")), true, nil)
	devices, driver, err := s.look(within(t, 10*time.Second))
	require.NoError(t, err)
	require.Equal(t, "550.54.15", driver)
	require.Len(t, devices, 2)
	require.Len(t, devices[0].Processes, 2)

	devices, _, err = newSMI(program(t, answers(smiSplit, "", smiList)), true, nil).look(within(t, 10*time.Second))
	require.NoError(t, err)
	require.Len(t, devices, 4)
	require.True(t, devices[1].ProcessesKnown)
	require.False(t, devices[2].ProcessesKnown)

	devices, _, err = newSMI(program(t, answers(smiTwo, "", "")+"echo 'WARNING: infoROM is corrupted at gpu 0000:3B:00.0'; exit 14"), true, nil).look(within(t, 10*time.Second))
	require.NoError(t, err)
	require.Len(t, devices, 2)

	devices, _, err = newSMI(program(t, "echo No devices were found; exit 6"), true, nil).look(within(t, 10*time.Second))
	require.NoError(t, err)
	require.Empty(t, devices)

	_, _, err = newSMI(filepath.Join(t.TempDir(), "none"), true, nil).look(t.Context())
	require.ErrorIs(t, err, errNoSMI)
}

func TestSMIOfAnOldDriver(t *testing.T) {
	old := newSMI(program(t, `case "$*" in
*mig.mode.current*) echo 'Field "mig.mode.current" is not a valid field to query.'; exit 2;;
--query-gpu=*) echo '0, GPU-5c1e, 100, 40, 60, 390.1, Tesla K80';;
*) echo 'no such option' >&2; exit 2;;
esac`), true, nil)
	for range 2 {
		devices, driver, err := old.look(within(t, 10*time.Second))
		require.NoError(t, err)
		require.Equal(t, "390.1", driver)
		require.False(t, devices[0].ProcessesKnown)
		require.EqualValues(t, 100<<20, devices[0].Total)
	}
	require.True(t, old.least)
}

func TestSMIThatFails(t *testing.T) {
	path := program(t, "echo 'Failed to initialize NVML: Driver/library version mismatch'; echo more >&2; exit 18")
	s := newSMI(path, true, nil)
	_, _, err := s.look(within(t, 10*time.Second))
	require.EqualError(t, err, "nvidia-smi: exit status 18: Failed to initialize NVML: Driver/library version mismatch more")
	writeProgram(t, path, answers(smiTwo, "", ""))
	require.True(t, s.rest.After(time.Now().Add(-time.Minute)))
	s.rest = time.Now().Add(time.Minute)
	_, _, again := s.look(within(t, 10*time.Second))
	require.Equal(t, err, again, "it is left alone for a while")
	s.rest = time.Now()
	_, _, err = s.look(within(t, 10*time.Second))
	require.NoError(t, err, "and asked again then")

	for script, says := range map[string]string{
		"echo garbage":              `nvidia-smi: line "garbage": there must be 9 fields`,
		"exit 3":                    "nvidia-smi: exit status 3",
		"kill -9 $$":                "nvidia-smi: signal: killed",
		answers(smiTwo, "?", ""):    "nvidia-smi: processes: line",
		answers(smiSplit, "", "?"):  "nvidia-smi -L: line",
		"head -c 3000000 /dev/zero": "there must be 9 fields",
	} {
		_, _, err := newSMI(program(t, script), true, nil).look(within(t, 10*time.Second))
		require.ErrorContains(t, err, says, script)
	}
}

func TestSMIThatHangs(t *testing.T) {
	for name, script := range map[string]string{
		"itself":                           "exec sleep 1000",
		"with a child that holds the pipe": "sleep 1000 & echo $! >\"$0.child\"; wait",
		"deaf, with a child":               "trap '' TERM INT; sleep 1000",
		"after all was said":               "echo said; sleep 1000",
	} {
		t.Run(name, func(t *testing.T) {
			s := newSMI(program(t, script), true, nil)
			began := time.Now()
			_, _, err := s.look(within(t, 300*time.Millisecond))
			require.ErrorContains(t, err, "nvidia-smi does not answer since ")
			require.Less(t, time.Since(began), 5*time.Second)
			_, _, again := s.look(t.Context())
			require.Equal(t, err, again, "it is left alone for a while")
			require.NoError(t, s.lane.wait(within(t, 10*time.Second)), "nothing is left")
		})
	}
}

func TestSMIWhoseChildStays(t *testing.T) {
	path := program(t, "sleep 1000 & echo $! >\"$0.child\"; "+answers(smiTwo, "", ""))
	began := time.Now()
	devices, _, err := newSMI(path, true, nil).look(within(t, 30*time.Second))
	require.NoError(t, err)
	require.Len(t, devices, 2)
	require.Less(t, time.Since(began), 10*time.Second)
	pid, err := os.ReadFile(path + ".child")
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		stat, err := os.ReadFile("/proc/" + strings.TrimSpace(string(pid)) + "/stat")
		return errors.Is(err, os.ErrNotExist) || strings.Contains(string(stat), ") Z ")
	}, 10*time.Second, 10*time.Millisecond, "the child was killed")
}
