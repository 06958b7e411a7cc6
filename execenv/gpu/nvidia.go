package gpu

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"
)

// How old figures may be that are given in the place of new ones. What devices there are is remembered for longer.
const oldest = time.Minute

// nvidia knows the NVIDIA devices, by whoever answers. One look uses it at a time.
type nvidia struct {
	root    string
	setting []Device // gpu_devices
	library library
	lane    lane // of library
	smi     *smi
	bound   time.Duration // of library: the first call may take long, where nothing else keeps the cards initialised

	last *part // the last that was found by asking
}

// part is what is known of the devices of one vendor.
type part struct {
	devices  []Device
	driver   string
	sources  []string
	problems []string
	time     time.Time
}

// look asks NVML, then nvidia-smi, then takes what is known without asking. It fails where there are GPUs and nothing is known.
func (n *nvidia) look(ctx context.Context) (part, error) {
	p, libraryErr := n.askLibrary(ctx)
	if libraryErr == nil {
		n.last = n.remember(p)
		return n.withSetting(p), nil
	}
	var why *libraryError
	absent := errors.As(libraryErr, &why) && why.absent
	loaded := driverLoaded(n.root)
	p, smiErr := part{}, errNoSMI
	if !absent || !why.unloaded || loaded { // nvidia-smi would say the same
		p, smiErr = n.askSMI(ctx)
	}
	if smiErr == nil {
		if len(p.devices) > 0 || loaded {
			p.problems = append(p.problems, libraryErr.Error())
		}
		n.last = n.remember(p)
		return n.withSetting(p), nil
	}
	problem := libraryErr.Error()
	if !errors.Is(smiErr, errNoSMI) {
		problem += "; " + smiErr.Error()
	}
	if p, ok := n.unasked(problem); ok {
		return p, nil
	}
	switch {
	case !absent || driverReachable(n.root):
		return part{}, errors.New(problem)
	case loaded || !errors.Is(smiErr, errNoSMI) || why.unloaded && nvidiaOnBus(n.root):
		return part{problems: []string{problem}, time: time.Now()}, nil // none that can be used
	}
	return part{time: time.Now()}, nil // there is no NVIDIA GPU
}

func (n *nvidia) askLibrary(ctx context.Context) (part, error) {
	ctx, cancel := context.WithTimeout(ctx, n.bound)
	defer cancel()
	var r report
	var failed error
	if err := n.lane.run(ctx, func() { r, failed = n.library.look() }); err != nil {
		return part{}, err
	}
	if failed != nil {
		return part{}, failed
	}
	p := part{devices: r.devices, driver: r.driver, problems: r.notes, time: time.Now()}
	if len(r.devices) > 0 {
		p.sources = []string{"nvml"}
	}
	return p, nil
}

// askSMI has what is left of the time, but for a moment in which a program that hangs is killed.
func (n *nvidia) askSMI(ctx context.Context) (part, error) {
	limit := n.bound
	if deadline, ok := ctx.Deadline(); ok {
		left := time.Until(deadline)
		limit = left - min(killGrace, left/4)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	devices, driver, err := n.smi.look(ctx)
	if err != nil {
		return part{}, err
	}
	p := part{devices: devices, driver: driver, time: time.Now()}
	if len(devices) > 0 {
		p.sources = []string{"nvidia-smi"}
	}
	for _, d := range devices {
		if d.Card != "" {
			p.problems = append(p.problems, "nvidia-smi does not tell the memory of MIG devices")
			break
		}
	}
	return p, nil
}

// remember keeps a copy: what is handed out belongs to who gets it.
func (n *nvidia) remember(p part) *part {
	p.devices = cloned(p.devices)
	p.problems = nil
	return &p
}

func cloned(devices []Device) []Device {
	devices = slices.Clone(devices)
	for i := range devices {
		devices[i].Processes = slices.Clone(devices[i].Processes)
	}
	return devices
}

// unasked has what is known though nobody answers: what was found last, the setting, or what the driver lists below /proc.
func (n *nvidia) unasked(problem string) (part, bool) {
	p := part{problems: []string{problem}, time: time.Now()}
	cards, here := procCards(n.root)
	switch {
	case n.last != nil && len(n.last.devices) > 0:
		p = *n.last
		p.devices = cloned(p.devices)
		if time.Since(p.time) < oldest {
			problem = fmt.Sprintf("%s; figures are those of %s", problem, p.time.Format(time.TimeOnly))
		} else {
			forget(p.devices)
			problem += "; memory is unknown"
			p.time = time.Now()
		}
		p.problems = []string{problem}
	case len(n.setting) > 0:
		p.devices = slices.Clone(n.setting)
		p.sources = []string{"setting"}
		p.driver = procVersion(n.root)
		identify(p.devices, cards)
	case len(here) > 0:
		p.devices = here
		p.sources = []string{"proc"}
		p.driver = procVersion(n.root)
		p.problems = []string{problem + "; memory is unknown"}
	default:
		return part{}, false
	}
	return n.withSetting(p), true
}

// forget takes away what changes with time.
func forget(devices []Device) {
	for i := range devices {
		d := &devices[i]
		d.Total, d.Used, d.Processes, d.ProcessesKnown = 0, 0, nil, false
	}
}

// identify completes devices that the setting names by index or by UUID with what the driver lists.
func identify(devices, cards []Device) {
	for i := range devices {
		d := &devices[i]
		for _, c := range cards {
			if d.UUID == c.UUID || d.Index >= 0 && d.Index == c.Index {
				d.Index, d.UUID, d.Name = c.Index, c.UUID, c.Name
			}
		}
	}
}

// withSetting fills in memory that only the setting knows.
func (n *nvidia) withSetting(p part) part {
	if complete(p.devices, n.setting) && !slices.Contains(p.sources, "setting") {
		p.sources = append(slices.Clone(p.sources), "setting")
	}
	return p
}

// close waits, within the bound of ctx, for calls in progress, and ends the library.
func (n *nvidia) close(ctx context.Context) error {
	err := n.lane.wait(ctx)
	if err == nil {
		err = n.lane.run(ctx, n.library.close)
	}
	return errors.Join(err, n.smi.lane.wait(ctx))
}
