package gpu

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"time"
)

// Options are what a Machine is told.
type Options struct {
	// Devices is the setting gpu_devices; see ParseDevices.
	Devices []string
	// Environ is workerd's own environment: CUDA_VISIBLE_DEVICES, SLURM_JOB_GPUS and their like in it restrict which devices
	// there are. nil: none.
	Environ []string
	Health  bool          // the setting gpu_health_check: ask for ECC counters and listen for XID errors
	Timeout time.Duration // of one look; 0: 5 s
	Root    string        // where proc, sys and dev are looked for; "": "/"
	// Fork starts nvidia-smi and returns what waits for it; nil: cmd.Start and cmd.Wait. A process that reaps what others orphan has to
	// know its own children.
	Fork func(cmd *exec.Cmd) (wait func() error, err error)
	SMI  string       // the program to ask where there is no NVML; "": nvidia-smi from PATH
	Log  *slog.Logger // nil: none
}

const defaultTimeout = 5 * time.Second

// Machine is the inventory of this machine. It may be used concurrently; looks happen one at a time, and one look answers all
// who asked before it began.
type Machine struct {
	o       Options
	invalid error // what is wrong with the setting
	nvidia  *nvidia
	amd     lane
	told    string // the problem logged last; of the look in progress

	mu      sync.Mutex
	next    *flight // the look that has not begun; nil where nobody waits for one
	looking bool
	closed  bool
	looks   sync.WaitGroup
	ctx     context.Context // ends with Close
	cancel  context.CancelFunc
}

var _ Inventory = (*Machine)(nil)

// flight is one look and who waits for it.
type flight struct {
	done chan struct{}
	snap Snapshot
	err  error
}

// ErrClosed is the error of a Machine after Close.
var ErrClosed = errors.New("the GPU inventory is closed")

// Open makes the inventory. It starts nothing until first asked. A process has one: go-nvml keeps what it loads in variables.
func Open(o Options) *Machine {
	return open(o, "libnvidia-ml.so.1")
}

func open(o Options, library string) *Machine {
	o.Timeout = cmp.Or(o.Timeout, defaultTimeout)
	o.Root = orElse(o.Root, "/")
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	setting, invalid := ParseDevices(o.Devices)
	if invalid != nil {
		invalid = fmt.Errorf("gpu_devices: %w", invalid)
	}
	m := &Machine{o: o, invalid: invalid, amd: lane{name: "sysfs of AMD"}}
	m.nvidia = &nvidia{
		root: o.Root, setting: setting, library: newLibrary(library, o.Health, o.Log), lane: lane{name: "NVML"}, smi: newSMI(o.SMI, o.Health, o.Fork),
		bound: o.Timeout * 3 / 5,
	}
	m.ctx, m.cancel = context.WithCancel(context.Background()) // of the Machine, not of a caller: a look may answer several
	return m
}

// Snapshot looks at the devices now, and answers within Options.Timeout. What it returns belongs to the caller.
func (m *Machine) Snapshot(ctx context.Context) (Snapshot, error) {
	if err := ctx.Err(); err != nil {
		return Snapshot{}, err
	}
	m.mu.Lock()
	if m.closed {
		m.mu.Unlock()
		return Snapshot{}, ErrClosed
	}
	if m.next == nil {
		m.next = &flight{done: make(chan struct{})}
	}
	f := m.next
	if !m.looking {
		m.looking = true
		m.looks.Go(m.fly)
	}
	m.mu.Unlock()
	select {
	case <-f.done:
	case <-ctx.Done():
		return Snapshot{}, ctx.Err()
	}
	s := f.snap
	s.Devices, s.Hidden = cloned(s.Devices), cloned(s.Hidden)
	return s, f.err
}

// fly looks as long as somebody waits.
func (m *Machine) fly() {
	for {
		m.mu.Lock()
		f := m.next
		m.next = nil
		m.looking = f != nil
		m.mu.Unlock()
		if f == nil {
			return
		}
		f.snap, f.err = m.look(m.ctx)
		close(f.done)
	}
}

// look asks for the devices of both vendors at once.
func (m *Machine) look(ctx context.Context) (Snapshot, error) {
	if ctx.Err() != nil {
		return Snapshot{}, ErrClosed
	}
	ctx, cancel := context.WithTimeout(ctx, m.o.Timeout)
	defer cancel()
	type answer struct {
		part part
		err  error
	}
	amd := make(chan answer, 1)
	go func() {
		p, err := m.lookAMD(ctx)
		amd <- answer{p, err}
	}()
	nvidia, err := m.nvidia.look(ctx)
	other := <-amd
	if m.ctx.Err() != nil {
		return Snapshot{}, ErrClosed
	}
	return m.merge(nvidia, err, other.part, other.err)
}

func (m *Machine) lookAMD(ctx context.Context) (part, error) {
	ctx, cancel := context.WithTimeout(ctx, m.nvidia.bound)
	defer cancel()
	p := part{}
	if err := m.amd.run(ctx, func() { p = lookAMD(m.o.Root) }); err != nil {
		return part{}, err
	}
	return p, nil
}

func lookAMD(root string) part {
	devices, notes := amdCards(root)
	p := part{devices: devices, problems: notes, time: time.Now()}
	if len(devices) > 0 {
		p.sources, p.driver = []string{"sysfs"}, amdVersion(root)
	}
	return p
}

// merge makes a Snapshot of what is known of each vendor. It fails where nothing is known of one, and the other has no device.
func (m *Machine) merge(nvidia part, nvidiaErr error, amd part, amdErr error) (Snapshot, error) {
	devices := append(nvidia.devices, amd.devices...)
	if err := errors.Join(nvidiaErr, amdErr); err != nil && len(devices) == 0 {
		return Snapshot{}, err
	}
	problems := append(slices.Clone(nvidia.problems), amd.problems...)
	for _, err := range []error{nvidiaErr, amdErr, m.invalid} {
		if err != nil {
			problems = append(problems, strings.ReplaceAll(err.Error(), "\n", "; "))
		}
	}
	slices.SortStableFunc(devices, func(a, b Device) int {
		return cmp.Or(-cmp.Compare(a.Vendor, b.Vendor), cmp.Compare(a.Index, b.Index), cmp.Compare(digit(a.Card != ""), digit(b.Card != "")))
	})
	s := Snapshot{Driver: orElse(nvidia.driver, amd.driver), Time: nvidia.time}
	if s.Time.IsZero() {
		s.Time = amd.time
	}
	s.Source = strings.Join(append(slices.Clone(nvidia.sources), amd.sources...), "+")
	var notes []string
	s.Devices, s.Hidden, notes = restrict(devices, m.o.Environ)
	s.Problem = strings.Join(append(problems, notes...), "; ")
	m.tell(s.Problem)
	return s, nil
}

// tell logs a problem when it begins, changes and ends.
func (m *Machine) tell(problem string) {
	switch {
	case problem == m.told:
	case problem == "":
		m.o.Log.Info("GPU inventory is well again")
	default:
		m.o.Log.Warn("GPU inventory", "problem", problem)
	}
	m.told = problem
}

func digit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// Close ends what runs for the inventory and waits for it. A call into the driver that hangs cannot be ended: after a moment
// Close gives up on it, and says so.
func (m *Machine) Close() error {
	m.mu.Lock()
	again := m.closed
	m.closed = true
	m.mu.Unlock()
	if again {
		return nil
	}
	m.cancel()
	m.looks.Wait()
	ctx, cancel := context.WithTimeout(context.Background(), 2*stopWait) // not of m: that has ended
	defer cancel()
	return errors.Join(m.nvidia.close(ctx), m.amd.wait(ctx))
}
