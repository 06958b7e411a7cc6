//go:build linux && cgo

package gpu

import (
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/dl"
	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// How soon NVML is initialised again after that failed, and while a card is lost: it may have come back.
const (
	initRest = time.Second
	lostRest = 30 * time.Second
)

// nvmlLibrary is NVML by its C interface. All is owned by the lane that its methods are called on, but for what events has.
//
// go-nvml calls functions that the loader looks for at the first call; one that the library does not have ends the process. So
// no function is called before has said that it is there. Nor is the library ever unloaded: the process would go on calling
// where its functions were.
type nvmlLibrary struct {
	lib    nvml.Interface
	open   func() error // loads the library
	health bool
	log    *slog.Logger

	opened  bool
	ready   bool      // initialised
	tried   time.Time // when it was initialised last, or that failed
	failed  error     // how
	events  *events   // nil: none are listened for
	faults  faults    // outlive the events, since they end with each initialisation
	symbols map[string]bool
	known   map[int]Device // the cards seen, by index: a lost one cannot be asked who it is
}

func newLibrary(name string, health bool, log *slog.Logger) library {
	l := newNVML(nvml.New(nvml.WithLibraryPath(name)), health, log)
	l.open = func() error { return load(name) }
	return l
}

func newNVML(lib nvml.Interface, health bool, log *slog.Logger) *nvmlLibrary {
	return &nvmlLibrary{lib: lib, health: health, log: log, symbols: map[string]bool{}, known: map[int]Device{}}
}

// load loads the library for good and checks that it is NVML. go-nvml loads it once more, and hides why that fails.
func load(name string) error {
	l := dl.New(name, dl.RTLD_LAZY|dl.RTLD_GLOBAL)
	if err := l.Open(); err != nil {
		text := err.Error()
		return &libraryError{text: "NVML: " + text, absent: strings.Contains(text, "cannot open shared object file: No such file")}
	}
	for _, names := range [][]string{{"nvmlInit_v2", "nvmlInit"}, {"nvmlShutdown"}, {"nvmlErrorString"}} {
		if !anyOf(names, l.Lookup) {
			_ = l.Close() // nothing of it was called
			return &libraryError{text: fmt.Sprintf("NVML: %s has no %s, so it is not NVIDIA's", name, names[len(names)-1])}
		}
	}
	return nil
}

func anyOf(names []string, lookup func(string) error) bool {
	for _, name := range names {
		if lookup(name) == nil {
			return true
		}
	}
	return false
}

// look implements library.
func (l *nvmlLibrary) look() (report, error) {
	if l.ready {
		r, ret := l.read()
		if ret == nvml.SUCCESS && (len(l.lost(r)) == 0 || time.Since(l.tried) < lostRest) {
			return r, nil
		}
		l.shutdown()
		l.failed = failure(ret)
	}
	if time.Since(l.tried) < initRest && l.failed != nil {
		return report{}, l.failed
	}
	if l.failed = l.init(); l.failed != nil {
		return report{}, l.failed
	}
	r, ret := l.read()
	if ret != nvml.SUCCESS {
		l.shutdown()
		l.failed = failure(ret)
		return report{}, l.failed
	}
	return r, nil
}

func (l *nvmlLibrary) lost(r report) []Device {
	var lost []Device
	for _, d := range r.devices {
		if d.Ill == illLost {
			lost = append(lost, d)
		}
	}
	return lost
}

func (l *nvmlLibrary) init() error {
	l.tried = time.Now()
	if !l.opened && l.open != nil {
		if err := l.open(); err != nil {
			return err
		}
	}
	l.opened = true
	if ret := guarded(l.log, l.lib.Init); ret != nvml.SUCCESS {
		if ret == nvml.ERROR_DRIVER_NOT_LOADED || ret == nvml.ERROR_LIB_RM_VERSION_MISMATCH {
			// The cards are set up anew with the driver.
			l.faults.forget()
			clear(l.known)
		}
		return failure(ret)
	}
	l.ready = true
	clear(l.symbols)
	if l.health {
		l.events = l.listen()
	}
	return nil
}

// shutdown ends the session. Events that are waited for in vain have to end first; if they do not, the session stays.
func (l *nvmlLibrary) shutdown() {
	l.ready = false
	if l.events.stop() {
		_ = guarded(l.log, l.lib.Shutdown)
	}
	l.events = nil
}

// close implements library.
func (l *nvmlLibrary) close() {
	if l.ready {
		l.shutdown()
	}
}

// call calls a function of NVML that goes by one of the names, its versions.
func (l *nvmlLibrary) call(f func() nvml.Return, names ...string) nvml.Return {
	have, known := l.symbols[names[0]]
	if !known {
		have = anyOf(names, l.lib.Extensions().LookupSymbol)
		l.symbols[names[0]] = have
	}
	if !have {
		return nvml.ERROR_FUNCTION_NOT_FOUND
	}
	return guarded(l.log, f)
}

// guarded calls f. go-nvml trusts what the library returns; where that makes it panic, the call has failed.
func guarded(log *slog.Logger, f func() nvml.Return) (ret nvml.Return) {
	defer func() {
		if p := recover(); p != nil {
			log.Warn("NVML call", "panic", fmt.Sprint(p))
			ret = nvml.ERROR_UNKNOWN
		}
	}()
	return f()
}

// failure says what NVML returned.
func failure(ret nvml.Return) error {
	e := &libraryError{text: "NVML: " + returnText(ret)}
	switch ret {
	case nvml.SUCCESS:
		e.text = "NVML: a card is lost"
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		e.absent = true
	case nvml.ERROR_DRIVER_NOT_LOADED:
		e.absent, e.unloaded = true, true
	}
	return e
}

// returnText does without nvmlErrorString, which is one more call that may hang.
func returnText(ret nvml.Return) string {
	switch ret {
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "versions of driver and library differ (error 18): the driver was updated: reboot or reload the module; if it was reloaded already, restart workerd, which has the older library loaded"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "the NVIDIA driver is not loaded (error 9)"
	case nvml.ERROR_NO_PERMISSION:
		return "no permission to talk to the driver (error 4): see /dev/nvidia*"
	case nvml.ERROR_GPU_IS_LOST:
		return illLost
	case nvml.ERROR_RESET_REQUIRED:
		return illReset
	}
	words := map[nvml.Return]string{
		nvml.ERROR_UNINITIALIZED: "not initialised", nvml.ERROR_INVALID_ARGUMENT: "invalid argument", nvml.ERROR_NOT_SUPPORTED: "not supported",
		nvml.ERROR_NOT_FOUND: "not found", nvml.ERROR_TIMEOUT: "timeout", nvml.ERROR_IRQ_ISSUE: "interrupt trouble", nvml.ERROR_LIBRARY_NOT_FOUND: "library not found",
		nvml.ERROR_FUNCTION_NOT_FOUND: "not known to this driver", nvml.ERROR_OPERATING_SYSTEM: "the operating system blocked it", nvml.ERROR_IN_USE: "in use",
		nvml.ERROR_MEMORY: "out of memory", nvml.ERROR_UNKNOWN: "unknown error",
	}
	text, ok := words[ret]
	if !ok {
		return fmt.Sprintf("error %d", ret)
	}
	return fmt.Sprintf("%s (error %d)", text, ret)
}
