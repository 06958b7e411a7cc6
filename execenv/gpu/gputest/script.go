package gputest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Script is what the stand-in of Library says. It reads the file at each call, so a Write changes what is said next.
type Script struct {
	InitError int            // what nvmlInit returns: 18 where library and driver do not fit; 0: it works
	Hang      string         // the call that hangs until a Script without it is written: nvmlDeviceGetCount_v2
	Fail      map[string]int // what other calls return, by name: nvmlDeviceGetMemoryInfo_v2 -> 3
	Driver    string         // "": 550.54.15
	Cards     []Card
	XIDs      []XID // events; each set is told each once, so append only
}

// Card is one card of a Script. Its memory used is UsedMiB, that of its processes, of those registered, and of its MIG devices.
type Card struct {
	UUID        string
	Name        string // "": NVIDIA Stand-In
	TotalMiB    int    // what the driver keeps for itself included
	UsedMiB     int    // by nobody in particular
	ReservedMiB int    // by the driver
	ECC         int    // uncorrectable errors; -1: the card counts none
	Lost        int    // 1: its calls say that it is lost, 2: it has no handle either
	Split       bool   // in MIG mode
	Processes   []Process
	MIG         []MIG
}

// MIG is a MIG device. One without UUID is a hole in the numbering.
type MIG struct {
	UUID      string
	Name      string
	TotalMiB  int
	UsedMiB   int
	Instance  int // id of its GPU instance
	Processes []Process
}

// Process holds memory of a device.
type Process struct {
	PID        int
	MiB        int    // -1: NVML cannot say how much
	Kind       string // compute (the default), graphics or mps
	WhileAlive bool   // counts as long as there is such a process
}

// XID is an event.
type XID struct {
	Card     int // index
	Instance int // of MIG; -1: none
	Code     int
}

// Write replaces the file at path in one step, and makes the folder path+".d" that processes register in: a file there, named
// after a pid, with lines "UUID MiB [seconds]", counts to the device as long as that process lives, and seconds longer than a call
// first finds it dead. While it lives, it is one of the processes that NVML lists.
func (s Script) Write(t testing.TB, path string) {
	t.Helper()
	must(t, os.MkdirAll(path+".d", 0o755))
	replace(t, path, s.text())
}

func (s Script) text() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("driver %s", orElse(s.Driver, "550.54.15"))
	if s.InitError != 0 {
		line("init %d", s.InitError)
	}
	if s.Hang != "" {
		line("hang %s", s.Hang)
	}
	for call, code := range s.Fail {
		line("fail %s %d", call, code)
	}
	for _, c := range s.Cards {
		line("card %s %d %d %d %d %d %d %s", c.UUID, c.TotalMiB, c.UsedMiB, c.ReservedMiB, c.ECC, c.Lost, digit(c.Split), orElse(c.Name, "NVIDIA Stand-In"))
		processLines(line, c.Processes)
		for _, m := range c.MIG {
			line("mig %s %d %d %d %s", orElse(m.UUID, "-"), m.TotalMiB, m.UsedMiB, m.Instance, orElse(m.Name, "NVIDIA Stand-In MIG"))
			processLines(line, m.Processes)
		}
	}
	for _, x := range s.XIDs {
		line("xid %d %d %d", x.Card, x.Instance, x.Code)
	}
	return b.String()
}

func processLines(line func(string, ...any), processes []Process) {
	for _, p := range processes {
		line("process %d %d %s %d", p.PID, p.MiB, orElse(p.Kind, "compute")[:1], digit(p.WhileAlive))
	}
}

// Hold registers that a process holds memory of a device of the script at path, and, where linger is positive, that this is
// freed only so many seconds after its death. An empty uuid takes that back.
func Hold(t testing.TB, path string, pid int, uuid string, mib int, linger float64) {
	t.Helper()
	file := filepath.Join(path+".d", strconv.Itoa(pid))
	if uuid == "" {
		must(t, os.Remove(file))
		return
	}
	replace(t, file, fmt.Sprintf("%s %d %g\n", uuid, mib, linger))
}

// Python is source for workers: hold(uuid, mib, linger) registers the process that calls it, as Hold does. The variable
// ScriptVariable has to be in its environment.
const Python = `
import os
def hold(uuid, mib, linger=0):
    path = os.path.join(os.environ["` + ScriptVariable + `"] + ".d", str(os.getpid()))
    with open(path + ".new", "w") as f:
        f.write("%s %d %g\n" % (uuid, mib, linger))
    os.rename(path + ".new", path)
`

// replace writes a file that readers see whole or not at all.
func replace(t testing.TB, path, text string) {
	t.Helper()
	tmp := path + ".new"
	must(t, os.WriteFile(tmp, []byte(text), 0o644))
	must(t, os.Rename(tmp, path))
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

func digit(b bool) int {
	if b {
		return 1
	}
	return 0
}
