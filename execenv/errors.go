package execenv

import (
	"fmt"
	"strings"
)

// ErrorKind says what a failed Plan or start means for the next one.
type ErrorKind int

const (
	// Permanent fails again until the manifest or a file that it names changes: no restart helps.
	Permanent ErrorKind = iota
	// EngineUnavailable says that the container engine does not answer; the provider is not at fault.
	EngineUnavailable
	// Unsupported says that this version of workerd cannot do what the manifest asks for.
	Unsupported
	// Transient may go better the next time: a probe that reached its deadline, a folder that could not be made just now.
	Transient
)

// String returns the kind in words.
func (k ErrorKind) String() string {
	switch k {
	case EngineUnavailable:
		return "engine unavailable"
	case Unsupported:
		return "not supported by this version"
	case Transient:
		return "transient"
	default:
		return "permanent"
	}
}

// Error is why there is no Plan or no Command.
type Error struct {
	Kind ErrorKind
	Key  string // of the manifest; empty where none is to blame
	Msg  string
	Err  error // the cause; may be nil
	// Watch lists the files whose change may mend it.
	Watch []string
}

// Error returns "key: message: cause", less what is empty.
func (e *Error) Error() string {
	var parts []string
	for _, s := range []string{e.Key, e.Msg} {
		if s != "" {
			parts = append(parts, s)
		}
	}
	if e.Err != nil {
		parts = append(parts, e.Err.Error())
	}
	return strings.Join(parts, ": ")
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// permanent returns a Permanent error about a key of the manifest.
func permanent(key, format string, args ...any) *Error {
	return &Error{Key: key, Msg: fmt.Sprintf(format, args...)}
}
