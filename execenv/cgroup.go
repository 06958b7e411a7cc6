package execenv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"workerd/manifest"
)

// ownCgroup is the leaf that workerd itself moves into: a cgroup whose children have controllers may hold no process.
const ownCgroup = "workerd"

// Cgroups is the delegated cgroup of a workerd that serves. Below it lie workerd's own leaf and one cgroup for each worker.
type Cgroups struct {
	state CgroupState
}

// EnterCgroups makes use of a delegated cgroup: this process moves into a leaf of it, and the controllers are handed on to the
// workers' cgroups. What cannot be had is said in State. Without a delegated cgroup it returns nil, and touches nothing.
func EnterCgroups(s CgroupState) (*Cgroups, CgroupState) {
	if s.Dir == "" {
		return nil, s
	}
	if err := s.enter(controllers); err != nil {
		if s.Memory, s.CPU, s.Pids = false, false, false; s.Why != "" {
			s.Why += "; "
		}
		s.Why += err.Error()
		if errors.Is(err, errNotMoved) {
			s.Dir = ""
			return nil, s
		}
	}
	return &Cgroups{s}, s
}

var errNotMoved = errors.New("workerd cannot move into a leaf of its cgroup")

// enter moves this process and hands on those of the controllers that there are.
func (s CgroupState) enter(controllers []string) error {
	leaf := filepath.Join(s.Dir, ownCgroup)
	err := os.Mkdir(leaf, 0o755)
	if err == nil || errors.Is(err, fs.ErrExist) {
		err = writeCgroup(leaf, "cgroup.procs", strconv.Itoa(os.Getpid()))
	}
	if err != nil {
		return fmt.Errorf("%w: %w", errNotMoved, err)
	}
	has, err := os.ReadFile(filepath.Join(s.Dir, "cgroup.controllers"))
	if err != nil {
		return err
	}
	var words []string
	for _, c := range controllers {
		if slices.Contains(strings.Fields(string(has)), c) {
			words = append(words, "+"+c)
		}
	}
	if words == nil {
		return nil
	}
	err = writeCgroup(s.Dir, "cgroup.subtree_control", strings.Join(words, " "))
	if errors.Is(err, unix.EBUSY) {
		procs, _ := os.ReadFile(filepath.Join(s.Dir, "cgroup.procs"))
		return fmt.Errorf("%s holds other processes (%s), so that its controllers cannot be handed on: give workerd a cgroup of its own",
			s.Dir, strings.Join(strings.Fields(string(procs)), ", "))
	}
	return err
}

// LeaveCgroups takes the controllers back from the children of a delegated cgroup, so that a process can be put into it again:
// a service manager that starts workerd anew, while workers of before live on, could not. The next EnterCgroups hands them on
// again.
func LeaveCgroups(s CgroupState) error {
	if s.Dir == "" {
		return nil
	}
	data, err := os.ReadFile(filepath.Join(s.Dir, "cgroup.subtree_control"))
	if err != nil {
		return err
	}
	var words []string
	for _, c := range strings.Fields(string(data)) {
		if slices.Contains(controllers, c) {
			words = append(words, "-"+c)
		}
	}
	if words == nil {
		return nil
	}
	return writeCgroup(s.Dir, "cgroup.subtree_control", strings.Join(words, " "))
}

func writeCgroup(dir, file, value string) error {
	f, err := os.OpenFile(filepath.Join(dir, file), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

// Cgroup is that of one worker.
type Cgroup struct {
	dir   string
	state CgroupState
}

// New makes the cgroup of a worker, with its limits in force.
func (c *Cgroups) New(name string, l manifest.Limits) (*Cgroup, error) {
	g := &Cgroup{filepath.Join(c.state.Dir, name), c.state}
	if err := os.Mkdir(g.dir, 0o755); err != nil {
		return nil, err
	}
	if err := g.Limit(l); err != nil {
		_ = os.Remove(g.dir)
		return nil, err
	}
	return g, nil
}

// Find returns the cgroup of a worker of an earlier workerd; nil where dir is not the place that a worker of that name has
// below this delegated cgroup, or is not there any more. Names are used once, so what is in it is of that worker.
func (c *Cgroups) Find(dir, name string) *Cgroup {
	if info, err := os.Stat(dir); err != nil || !info.IsDir() || dir != filepath.Join(c.state.Dir, name) {
		return nil
	}
	return &Cgroup{dir, c.state}
}

// Sweep kills what is in the cgroups of an instance's workers that an earlier workerd left, but for those to keep, and removes
// them. It returns the names of those that held something.
func (c *Cgroups) Sweep(instance string, keep func(dir string) bool) (killed []string) {
	dirs, _ := filepath.Glob(filepath.Join(globQuote(c.state.Dir), "workerd-"+instance+"-*"))
	for _, dir := range dirs {
		if keep(dir) {
			continue
		}
		g := &Cgroup{dir, c.state}
		if g.populated() {
			killed = append(killed, filepath.Base(dir))
		}
		g.Kill()
		g.Remove()
	}
	return killed
}

// Dir is the cgroup's folder.
func (g *Cgroup) Dir() string { return g.dir }

// Open returns a descriptor of the cgroup, into which a process can be cloned.
func (g *Cgroup) Open() (*os.File, error) { return os.Open(g.dir) }

// cpuPeriod is the time in microseconds in which a worker may use its share of the processors.
const cpuPeriod = 100_000

// settings are the files of a cgroup by which limits are enforced, and what is written to them.
func (s CgroupState) settings(l manifest.Limits) [][2]string {
	limit := func(n int64) string {
		if n <= 0 {
			return "max"
		}
		return strconv.FormatInt(n, 10)
	}
	var out [][2]string
	if s.Memory {
		swap := "max"
		if l.Memory > 0 {
			swap = "0" // else what is beyond the limit would be swapped out, and the machine be slow for all
		}
		out = append(out, [2]string{"memory.max", limit(int64(l.Memory))}, [2]string{"memory.swap.max", swap})
	}
	if s.CPU {
		quota := int64(l.CPUs * cpuPeriod)
		if l.CPUs > 0 {
			quota = max(quota, 1000) // the kernel takes no less
		}
		out = append(out, [2]string{"cpu.max", limit(quota) + " " + strconv.Itoa(cpuPeriod)})
	}
	if s.Pids {
		out = append(out, [2]string{"pids.max", limit(int64(l.Pids))})
	}
	return out
}

// Limit brings limits into force, also for processes that are in the cgroup already.
func (g *Cgroup) Limit(l manifest.Limits) error {
	for _, set := range g.state.settings(l) {
		err := writeCgroup(g.dir, set[0], set[1])
		if errors.Is(err, fs.ErrNotExist) && set[0] == "memory.swap.max" { // a kernel without swap
			continue
		}
		if err != nil {
			return fmt.Errorf("limit %s to %s: %w", set[0], set[1], err)
		}
	}
	return nil
}

// KillNow kills all that is in the cgroup, at once, and does not wait until it has ended. A kernel before 5.14 cannot; there the
// caller looks for the processes himself.
func (g *Cgroup) KillNow() bool { return writeCgroup(g.dir, "cgroup.kill", "1") == nil }

// Kill is KillNow, and returns when all has ended, or after a bounded time.
func (g *Cgroup) Kill() {
	if !g.KillNow() {
		return
	}
	deadline := time.Now().Add(treeBudget)
	for pause := 50 * time.Microsecond; g.populated() && time.Now().Before(deadline); pause = min(2*pause, 10*time.Millisecond) {
		time.Sleep(pause)
	}
}

func (g *Cgroup) populated() bool { return g.count("cgroup.events", "populated") > 0 }

// OOMKills is how many processes of the cgroup the kernel has killed for memory.
func (g *Cgroup) OOMKills() int { return g.count("memory.events", "oom_kill") }

// count reads a figure from a file of names and figures; 0 where there is none.
func (g *Cgroup) count(file, name string) int {
	data, err := os.ReadFile(filepath.Join(g.dir, file))
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name {
			n, _ := strconv.Atoi(f[1])
			return n
		}
	}
	return 0
}

// Remove removes the cgroup, with those that the worker made below it. What is in one still is left, with it.
func (g *Cgroup) Remove() {
	var dirs []string
	_ = filepath.WalkDir(g.dir, func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return nil
	})
	for _, dir := range slices.Backward(dirs) {
		_ = os.Remove(dir)
	}
}
