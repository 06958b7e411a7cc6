package gpu

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// fakeLibrary is NVML told what to say. answer is called on the lane.
type fakeLibrary struct {
	answer func() (report, error)
	closed bool
}

func (f *fakeLibrary) look() (report, error) { return f.answer() }
func (f *fakeLibrary) close()                { f.closed = true }

func says(r report) func() (report, error)   { return func() (report, error) { return r, nil } }
func fails(err error) func() (report, error) { return func() (report, error) { return report{}, err } }

var (
	errAbsent   = &libraryError{text: "NVML: no library", absent: true}
	errUnloaded = &libraryError{text: "NVML: no driver", absent: true, unloaded: true}
	errMismatch = &libraryError{text: "NVML: mismatch"}
)

// world is a machine of which each source can be told.
type world struct {
	library *fakeLibrary
	n       *nvidia
}

func newWorld(t *testing.T, root, program string, setting ...string) *world {
	t.Helper()
	devices, err := ParseDevices(setting)
	require.NoError(t, err)
	if program == "" {
		program = filepath.Join(t.TempDir(), "none")
	}
	w := &world{library: &fakeLibrary{}}
	w.n = &nvidia{root: root, setting: devices, library: w.library, lane: lane{name: "NVML"}, smi: newSMI(program, true, nil), bound: 5 * time.Second}
	return w
}

func TestFallbacks(t *testing.T) {
	empty := t.TempDir()
	loaded := tree(t, map[string]string{
		"proc/driver/nvidia/version": procVersionText, "proc/driver/nvidia/gpus/0000:07:00.0/information": procInformation, "dev/nvidiactl": "", "dev/nvidia3": "",
	})
	contained := tree(t, map[string]string{"proc/driver/nvidia/version": procVersionText, "proc/driver/nvidia/gpus/0000:07:00.0/information": procInformation})
	bare := tree(t, map[string]string{"proc/driver/nvidia/version": procVersionText, "dev/nvidiactl": ""})
	onBus := tree(t, map[string]string{"sys/bus/pci/devices/a/vendor": "0x10de\n", "sys/bus/pci/devices/a/class": "0x030200\n"})
	smiWorks := program(t, answers(smiTwo, "", ""))
	smiMIG := program(t, answers(smiSplit, "", smiList))
	smiFails := program(t, "echo mismatch; exit 18")
	const procUUID = "GPU-5c1e9b8a-0d6f-4b7c-9f5e-2f1f4d1c7a60"
	good := report{devices: []Device{{UUID: "GPU-x", Total: 9}}, driver: "1", notes: []string{"note"}}
	for _, c := range []struct {
		name, root, smi string
		library         func() (report, error)
		setting         []string
		sources         []string
		uuids           []string
		problem         string
		err             string
	}{
		{name: "all is well", root: loaded, smi: smiFails, library: says(good), setting: []string{"0"}, sources: []string{"nvml"}, uuids: []string{"GPU-x"}, problem: "note"},
		{name: "NVML sees none", root: loaded, smi: smiWorks, library: says(report{}), setting: []string{"0"}},
		{name: "no GPU at all", root: empty, library: fails(errAbsent)},
		{name: "a driver's library, no driver, no GPU", root: empty, smi: smiFails, library: fails(errUnloaded)},
		{name: "a GPU without a driver", root: onBus, smi: smiFails, library: fails(errUnloaded), problem: "NVML: no driver"},
		{name: "no library, nvidia-smi fails", root: empty, smi: smiFails, library: fails(errAbsent), problem: "NVML: no library; nvidia-smi: exit status 18: mismatch"},
		{name: "no cgo", root: loaded, smi: smiWorks, library: fails(errAbsent), sources: []string{"nvidia-smi"}, uuids: []string{"GPU-5c1e", "GPU-77aa"}, problem: "NVML: no library"},
		{name: "mismatch", root: loaded, smi: smiWorks, library: fails(errMismatch), setting: []string{"1=8GiB"}, sources: []string{"nvidia-smi", "setting"}, uuids: []string{"GPU-5c1e", "GPU-77aa"}, problem: "NVML: mismatch"},
		{name: "MIG by nvidia-smi", root: empty, smi: smiMIG, library: fails(errAbsent), sources: []string{"nvidia-smi"}, uuids: []string{"GPU-5c1e", "GPU-77aa", "MIG-c6d4", "MIG-GPU-5c1e/1/0"}, problem: "nvidia-smi does not tell the memory of MIG devices; NVML: no library"},
		{name: "setting by index", root: loaded, smi: smiFails, library: fails(errMismatch), setting: []string{"0=24GiB", "GPU-y"}, sources: []string{"setting"}, uuids: []string{procUUID, "GPU-y"}, problem: "NVML: mismatch; nvidia-smi: exit status 18: mismatch"},
		{name: "setting alone", root: empty, library: fails(errAbsent), setting: []string{"0=24GiB"}, sources: []string{"setting"}, uuids: []string{"0"}, problem: "NVML: no library"},
		{name: "proc", root: loaded, library: fails(errMismatch), sources: []string{"proc"}, uuids: []string{procUUID}, problem: "NVML: mismatch; memory is unknown"},
		{name: "in a container without GPUs, on a machine with some", root: contained, library: fails(errAbsent), problem: "NVML: no library"},
		{name: "named all the same", root: contained, library: fails(errAbsent), setting: []string{"0"}, sources: []string{"setting"}, uuids: []string{procUUID}, problem: "NVML: no library"},
		{name: "nothing", root: bare, library: fails(errMismatch), err: "NVML: mismatch"},
		{name: "nothing, and no library", root: bare, smi: smiFails, library: fails(errAbsent), err: "NVML: no library; nvidia-smi: exit status 18: mismatch"},
		{name: "nothing, and no driver to see", root: empty, library: fails(errMismatch), err: "NVML: mismatch"},
	} {
		t.Run(c.name, func(t *testing.T) {
			w := newWorld(t, c.root, c.smi, c.setting...)
			w.library.answer = c.library
			for range 2 {
				p, err := w.n.look(t.Context())
				if c.err != "" {
					require.EqualError(t, err, c.err)
					continue
				}
				require.NoError(t, err)
				var uuids []string
				for _, d := range p.devices {
					uuids = append(uuids, d.UUID)
				}
				require.Equal(t, c.uuids, uuids)
				require.Equal(t, c.sources, p.sources)
				problem := ""
				for i, text := range p.problems {
					if i > 0 {
						problem += "; "
					}
					problem += text
				}
				require.Equal(t, c.problem, problem)
				require.WithinDuration(t, time.Now(), p.time, time.Minute)
			}
		})
	}
}

func TestWhatWasKnown(t *testing.T) {
	w := newWorld(t, t.TempDir(), "", "GPU-x=1GiB")
	found := []Device{{UUID: "GPU-x", Total: 9, Used: 5, Processes: []Process{{1, 2}}, ProcessesKnown: true}, {Index: 1, UUID: "GPU-y", Total: 9}}
	w.library.answer = says(report{devices: found, driver: "1"})
	_, err := w.n.look(t.Context())
	require.NoError(t, err)

	w.library.answer = fails(errMismatch)
	p, err := w.n.look(t.Context())
	require.NoError(t, err)
	require.Equal(t, found, p.devices)
	require.Equal(t, []string{"nvml"}, p.sources)
	require.Contains(t, p.problems[0], "NVML: mismatch; figures are those of ")
	p.devices[0].Processes[0].PID = 99

	w.n.last.time = time.Now().Add(-oldest)
	p, err = w.n.look(t.Context())
	require.NoError(t, err)
	require.Equal(t, []Device{{UUID: "GPU-x", Total: 1 << 30}, {Index: 1, UUID: "GPU-y"}}, p.devices)
	require.Equal(t, "NVML: mismatch; memory is unknown", p.problems[0])
	require.Equal(t, []string{"nvml", "setting"}, p.sources)
	require.EqualValues(t, 9, w.n.last.devices[0].Total, "what is remembered is not shared")
	require.Equal(t, 1, w.n.last.devices[0].Processes[0].PID)

	// A driver that went away leaves the cards known, too.
	w.library.answer = fails(errUnloaded)
	p, err = w.n.look(t.Context())
	require.NoError(t, err)
	require.Len(t, p.devices, 2)
}

func TestLibraryThatHangs(t *testing.T) {
	w := newWorld(t, t.TempDir(), program(t, answers(smiTwo, "", "")))
	w.n.bound = 200 * time.Millisecond
	release := make(chan struct{})
	w.library.answer = func() (report, error) { <-release; return report{}, errors.New("late") }
	w.n.smi.program = filepath.Join(t.TempDir(), "none")
	_, err := w.n.look(t.Context())
	require.ErrorContains(t, err, "NVML does not answer since ")
	w.n.smi.program = program(t, answers(smiTwo, "", ""))
	w.n.bound = 20 * time.Second
	began := time.Now()
	p, err := w.n.look(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"nvidia-smi"}, p.sources)
	require.Less(t, time.Since(began), 15*time.Second, "a call that is known to hang is not waited for")
	require.Regexp(t, "^NVML does not answer since ", p.problems[0])
	require.Error(t, w.n.close(within(t, 10*time.Millisecond)))
	require.False(t, w.library.closed)
	close(release)
	require.NoError(t, w.n.close(t.Context()))
	require.True(t, w.library.closed)
}
