package execenv

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
)

// Stat is what /proc/<pid>/stat says of a process. A pid together with Start names one process for good.
type Stat struct {
	PID     int
	Comm    string
	State   byte // R, S, D, T, Z, ...
	PPID    int
	PGRP    int
	Session int
	Threads int
	Start   uint64 // clock ticks after boot
	Kernel  bool   // a kernel thread
	// NoEnv says that the process was executed with an empty environment. That of a process in the middle of exec reads as
	// empty too, and this as false.
	NoEnv bool
}

// Dead says that the process has ended and waits to be reaped. A process whose first thread alone has ended is not dead.
func (s Stat) Dead() bool { return s.State == 'X' || s.State == 'Z' && s.Threads <= 1 }

// ErrNoProcess says that a process is gone.
var ErrNoProcess = errors.New("no such process")

// ReadStat reads /proc/<pid>/stat; ErrNoProcess where there is none.
func ReadStat(pid int) (Stat, error) {
	data, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if err != nil {
		return Stat{}, noProcess(err)
	}
	st, err := parseStat(data)
	if err != nil {
		return Stat{}, fmt.Errorf("/proc/%d/stat: %w", pid, err)
	}
	return st, nil
}

// noProcess maps the two ways in which /proc says that a process is gone: the folder is missing, or (ESRCH) it went while
// its file was open.
func noProcess(err error) error {
	if errors.Is(err, os.ErrNotExist) || strings.Contains(err.Error(), "no such process") {
		return ErrNoProcess
	}
	return err
}

// parseStat takes the name between the first "(" and the last ")": it may hold spaces, parentheses and newlines.
func parseStat(data []byte) (Stat, error) {
	open, end := bytes.IndexByte(data, '('), bytes.LastIndexByte(data, ')')
	if open < 1 || end < open {
		return Stat{}, errors.New("unknown format")
	}
	f := strings.Fields(string(data[end+1:]))
	if len(f) < 49 || len(f[0]) != 1 {
		return Stat{}, errors.New("unknown format")
	}
	st := Stat{Comm: string(data[open+1 : end]), State: f[0][0]}
	var err error
	num := func(s string) int {
		n, e := strconv.Atoi(s)
		err = errors.Join(err, e)
		return n
	}
	st.PID = num(strings.TrimSpace(string(data[:open])))
	st.PPID, st.PGRP, st.Session, st.Threads = num(f[1]), num(f[2]), num(f[3]), num(f[17])
	const kthread = 0x00200000 // PF_KTHREAD
	st.Kernel = num(f[6])&kthread != 0
	start, e := strconv.ParseUint(f[19], 10, 64)
	st.Start = start
	st.NoEnv = f[47] == f[48] && f[48] != "0" // begin and end of the environment in memory, which exec sets last
	return st, errors.Join(err, e)
}

// hasChildrenFiles says whether this kernel has /proc/<pid>/task/<tid>/children.
var hasChildrenFiles = sync.OnceValue(func() bool {
	_, err := os.Stat(fmt.Sprintf("/proc/self/task/%d/children", os.Getpid()))
	return err == nil
})

// ChildPIDs returns the children of a process, zombies included; none where the process is gone.
func ChildPIDs(pid int) []int {
	if !hasChildrenFiles() {
		return childrenByScan(pid)
	}
	tasks := "/proc/" + strconv.Itoa(pid) + "/task"
	var out []int
	for _, tid := range numbers(tasks) {
		data, err := os.ReadFile(tasks + "/" + strconv.Itoa(tid) + "/children")
		if err != nil {
			continue // the thread has ended; the kernel has handed its children to another
		}
		for _, s := range strings.Fields(string(data)) {
			if n, err := strconv.Atoi(s); err == nil {
				out = append(out, n)
			}
		}
	}
	return out
}

func childrenByScan(pid int) []int {
	var out []int
	for _, p := range allPIDs() {
		if st, err := ReadStat(p); err == nil && st.PPID == pid {
			out = append(out, p)
		}
	}
	return out
}

// allPIDs lists every process that /proc shows.
func allPIDs() []int { return numbers("/proc") }

// numbers lists the entries of a folder of /proc that are numbers.
func numbers(dir string) []int {
	d, err := os.Open(dir)
	if err != nil {
		return nil
	}
	defer d.Close()
	names, _ := d.Readdirnames(-1)
	out := make([]int, 0, len(names))
	for _, n := range names {
		if pid, err := strconv.Atoi(n); err == nil {
			out = append(out, pid)
		}
	}
	return out
}

// markerVars are the names under which a process carries its marker: Apptainer is given it to hand it on.
var markerVars = [][]byte{[]byte(MarkerVar + "="), []byte("APPTAINERENV_" + MarkerVar + "="), []byte("SINGULARITYENV_" + MarkerVar + "=")}

// Apptainer's runner has the marker in its configuration only, from early on until it has started the worker: the variables that
// hold that are named ENGINE_CONFIG and a number.
var (
	runnerConfig = []byte("ENGINE_CONFIG")
	configMarker = []byte(`"` + MarkerVar + `":"`)
)

// markerIn returns the marker that an entry of an environment holds; "" for another entry.
func markerIn(entry []byte) string {
	for _, name := range markerVars {
		if value, ok := bytes.CutPrefix(entry, name); ok {
			return string(value)
		}
	}
	if bytes.HasPrefix(entry, runnerConfig) {
		_, rest, _ := bytes.Cut(entry, configMarker)
		value, _, _ := bytes.Cut(rest, []byte{'"'}) // a marker has no byte that JSON would escape
		return string(value)
	}
	return ""
}

// HasMarker says whether a process descends from the worker with this marker. blank says that its environment read as empty, as that
// of a process in the middle of exec does. One that may not be read has nothing.
func HasMarker(pid int, marker string) (has, blank bool) {
	data, err := readEnv(pid)
	if err != nil {
		return false, false
	}
	for v := range bytes.SplitSeq(data, []byte{0}) {
		if markerIn(v) == marker {
			return true, false
		}
	}
	return false, len(data) == 0
}

// MarkerOf returns the marker of the worker that a process descends from, of whatever instance; "" where it has none, or may not be
// read. blank is as HasMarker's.
func MarkerOf(pid int) (marker string, blank bool) {
	data, err := readEnv(pid)
	if err != nil {
		return "", false
	}
	for v := range bytes.SplitSeq(data, []byte{0}) {
		if marker := markerIn(v); marker != "" {
			return marker, false
		}
	}
	return "", len(data) == 0
}

// readEnv reads the environment that a process was executed with.
func readEnv(pid int) ([]byte, error) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/environ")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	const most = 4 << 20 // a stack of the usual 8 MiB takes a quarter of it; this is more
	data, err := io.ReadAll(io.LimitReader(f, most))
	return bytes.TrimSuffix(data, []byte{0}), err
}

// BootID returns the kernel's identifier of this boot.
func BootID() (string, error) {
	data, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(data)), err
}
