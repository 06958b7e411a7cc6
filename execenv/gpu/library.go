package gpu

import "time"

// stopWait is how long a call that was told to end is waited for.
const stopWait = 2 * time.Second

// library is NVML as the rest of the package sees it. Its methods are called on one lane, since each may hang.
type library interface {
	// look returns the devices and the version of the driver. It initialises the library where that is due.
	look() (report, error)
	// close ends what the library has running.
	close()
}

// report is what one look found. notes say which figures are missing.
type report struct {
	devices []Device
	driver  string
	notes   []string
}

// libraryError is why NVML says nothing.
type libraryError struct {
	text string
	// absent: there is no library, or no driver is loaded. That is no trouble on a machine without a GPU.
	absent bool
	// unloaded: the library is there and says that no driver is.
	unloaded bool
}

func (e *libraryError) Error() string { return e.text }
