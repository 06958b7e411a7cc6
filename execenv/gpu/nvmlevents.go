//go:build linux && cgo

package gpu

import (
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	eventWait = 250 * time.Millisecond // of one call, so that stop need not wait longer
	eventRest = time.Second            // after an error
)

// faults are what XID errors said of cards. The goroutine of events writes, looks read.
type faults struct {
	mu  sync.Mutex
	ill map[fault]string
}

// fault is where an error happened: in an instance of a card in MIG mode, or, -1, in the card as a whole.
type fault struct {
	card     string
	instance int
}

func (f *faults) add(at fault, text string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.ill == nil {
		f.ill = map[fault]string{}
	}
	f.ill[at] = text
}

// of is what is wrong in an instance of a card, or with the card as a whole.
func (f *faults) of(card string, instance int) string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return orElse(f.ill[fault{card, -1}], f.ill[fault{card, instance}])
}

func (f *faults) forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.ill = nil
}

// events waits for XID errors, in a goroutine that its stop ends.
type events struct {
	quit, done chan struct{}
}

// stop ends the goroutine, and tells whether that worked: a wait of NVML may hang as any of its calls. nil has ended.
func (e *events) stop() bool {
	if e == nil {
		return true
	}
	close(e.quit)
	patience := time.NewTimer(stopWait)
	defer patience.Stop()
	select {
	case <-e.done:
		return true
	case <-patience.C:
		return false
	}
}

// listen registers for the errors of all cards that tell them, and begins to wait; nil where none does.
func (l *nvmlLibrary) listen() *events {
	var set nvml.EventSet
	ret := l.call(func() (ret nvml.Return) { set, ret = l.lib.EventSetCreate(); return }, "nvmlEventSetCreate")
	if ret != nvml.SUCCESS || set == nil {
		return nil
	}
	free := func() nvml.Return { return set.Free() }
	for _, names := range [][]string{{"nvmlEventSetWait_v2", "nvmlEventSetWait"}, {"nvmlEventSetFree"}} {
		if !anyOf(names, l.lib.Extensions().LookupSymbol) {
			return nil
		}
	}
	cards := l.register(set)
	if len(cards) == 0 {
		_ = guarded(l.log, free)
		return nil
	}
	e := &events{make(chan struct{}), make(chan struct{})}
	go func() {
		defer close(e.done)
		defer func() { _ = guarded(l.log, free) }()
		l.wait(e.quit, set, cards)
	}()
	return e
}

// register returns the UUIDs of the cards whose events the set gets.
func (l *nvmlLibrary) register(set nvml.EventSet) map[nvml.Device]string {
	cards := map[nvml.Device]string{}
	var n int
	_ = l.call(func() (ret nvml.Return) { n, ret = l.lib.DeviceGetCount(); return }, "nvmlDeviceGetCount_v2", "nvmlDeviceGetCount")
	for i := range n {
		var dev nvml.Device
		var uuid string
		var types uint64
		ret := l.call(func() (ret nvml.Return) { dev, ret = l.lib.DeviceGetHandleByIndex(i); return }, "nvmlDeviceGetHandleByIndex_v2", "nvmlDeviceGetHandleByIndex")
		if ret == nvml.SUCCESS {
			ret = l.call(func() (ret nvml.Return) { uuid, ret = dev.GetUUID(); return }, "nvmlDeviceGetUUID")
		}
		if ret == nvml.SUCCESS {
			ret = l.call(func() (ret nvml.Return) { types, ret = dev.GetSupportedEventTypes(); return }, "nvmlDeviceGetSupportedEventTypes")
		}
		if ret == nvml.SUCCESS && types&nvml.EventTypeXidCriticalError == 0 {
			ret = nvml.ERROR_NOT_SUPPORTED
		}
		if ret == nvml.SUCCESS {
			ret = l.call(func() nvml.Return { return dev.RegisterEvents(nvml.EventTypeXidCriticalError, set) }, "nvmlDeviceRegisterEvents")
		}
		if ret != nvml.SUCCESS {
			l.log.Debug("GPU tells no XID errors", "index", i, "reason", returnText(ret))
			continue
		}
		cards[dev] = uuid
	}
	return cards
}

// wait notes errors until quit. It uses nothing of l that the lane owns.
func (l *nvmlLibrary) wait(quit <-chan struct{}, set nvml.EventSet, cards map[nvml.Device]string) {
	for {
		select {
		case <-quit:
			return
		default:
		}
		var e nvml.EventData
		ret := guarded(l.log, func() (ret nvml.Return) { e, ret = set.Wait(uint32(eventWait.Milliseconds())); return })
		switch ret {
		case nvml.SUCCESS:
			l.note(e, cards)
		case nvml.ERROR_TIMEOUT:
		default:
			// A lost card makes every wait fail; the others' errors may come through again.
			rest := time.NewTimer(eventRest)
			select {
			case <-quit:
			case <-rest.C:
			}
			rest.Stop()
		}
	}
}

func (l *nvmlLibrary) note(e nvml.EventData, cards map[nvml.Device]string) {
	uuid, ok := cards[e.Device]
	if e.EventType != nvml.EventTypeXidCriticalError || !ok {
		return
	}
	text := xidIll(e.EventData)
	l.log.Warn("GPU error", "gpu", uuid, "xid", e.EventData, "ill", text != "")
	if text == "" {
		return
	}
	at := fault{uuid, -1}
	if e.GpuInstanceId != 0xffffffff {
		at.instance = int(e.GpuInstanceId)
	}
	l.faults.add(at, text)
}
