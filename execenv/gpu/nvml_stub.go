//go:build !linux || !cgo

package gpu

import "log/slog"

// withoutCgo stands for NVML where nothing can be called by its C interface.
type withoutCgo struct{}

func newLibrary(string, bool, *slog.Logger) library { return withoutCgo{} }

func (withoutCgo) look() (report, error) {
	return report{}, &libraryError{text: "this workerd was built without cgo, so it cannot ask NVML", absent: true}
}

func (withoutCgo) close() {}
