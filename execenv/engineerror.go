package execenv

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// EngineErrorKind says what went wrong with a container engine.
type EngineErrorKind int

// The ways in which engines fail.
const (
	// EngineRefused is any other refusal: of a flag, a mount, a network (exit 125; 255 of apptainer).
	EngineRefused EngineErrorKind = iota
	EngineNotInstalled
	EngineUnreachable // the daemon does not answer
	EnginePermission  // the caller may not talk to the daemon
	EngineTimeout     // the command did not finish and was killed
	EngineImageMissing
	EnginePullFailed
	EngineNameTaken // by a container that is not this worker's
	EngineNoContainer
	EngineNotExecutable // exit 126
	EngineNotFound      // exit 127: the program is not in the image
	EngineGPURuntimeMissing
	EngineCDIUnresolved
	EngineUserNamespacesOff
	EngineNoNetwork   // the network asked for is not there
	EngineUnseen      // a path that is to be bound is not there, or the daemon cannot see it
	EngineInterrupted // a process by which the container was to be started was killed
	EngineStorage     // the image's storage cannot be used, as with a closed home or a network file system
)

var engineErrorNames = map[EngineErrorKind]string{
	EngineRefused: "refused", EngineNotInstalled: "not installed", EngineUnreachable: "not reachable",
	EnginePermission: "permission denied", EngineTimeout: "does not answer", EngineImageMissing: "image missing",
	EnginePullFailed: "pull failed", EngineNameTaken: "name taken", EngineNoContainer: "no such container",
	EngineNotExecutable: "program not executable", EngineNotFound: "program not found in the image",
	EngineGPURuntimeMissing: "no GPU runtime", EngineCDIUnresolved: "CDI device unresolved",
	EngineUserNamespacesOff: "user namespaces are off", EngineNoNetwork: "no such network", EngineStorage: "storage cannot be used",
	EngineUnseen: "a path is missing", EngineInterrupted: "interrupted",
}

// String returns the kind in words.
func (k EngineErrorKind) String() string { return engineErrorNames[k] }

// Class says what the kind means for the next try.
func (k EngineErrorKind) Class() ErrorKind {
	switch k {
	case EngineNotInstalled, EngineUnreachable, EnginePermission, EngineTimeout:
		return EngineUnavailable
	case EnginePullFailed, EngineNameTaken, EngineNoContainer, EngineUnseen, EngineInterrupted:
		return Transient
	default:
		return Permanent
	}
}

// EngineError is a failed command of a container engine.
type EngineError struct {
	Kind   EngineErrorKind
	Engine string // docker, podman, apptainer, singularity
	Verb   string // run, inspect, ...
	Code   int    // exit status; 0 where there is none
	Msg    string // the end of what it printed
	Hint   string // what to do
	Err    error  // the cause, where the command did not run to its end
}

// Error says what was tried, what the engine said, and what to do.
func (e *EngineError) Error() string {
	s := e.Engine + " " + e.Verb + ": " + e.Kind.String()
	if e.Kind == EngineRefused && e.Code != 0 {
		s = fmt.Sprintf("%s %s: refused (exit %d)", e.Engine, e.Verb, e.Code)
	}
	if e.Msg != "" {
		s += ": " + e.Msg
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Hint != "" {
		s += "; " + e.Hint
	}
	return s
}

// Unwrap returns the cause.
func (e *EngineError) Unwrap() error { return e.Err }

// planError makes an Error of what an engine's verb returned.
func planError(key string, err error) error {
	var ee *EngineError
	if errors.As(err, &ee) {
		return &Error{Kind: ee.Kind.Class(), Key: key, Err: ee}
	}
	return err
}

// IsEngineError says whether err is an EngineError of that kind.
func IsEngineError(err error, kind EngineErrorKind) bool {
	var ee *EngineError
	return errors.As(err, &ee) && ee.Kind == kind
}

// exitRules are for what no text explains.
var exitRules = map[int]EngineErrorKind{126: EngineNotExecutable, 127: EngineNotFound}

const (
	hintNotFound      = "env.container_python, or the first word of command, must be a program of the image"
	hintNotExecutable = "the program of the image may not be executed by this user, or is for another machine"
	hintPull          = "see that the registry can be reached and that you are logged in, or load the image by hand and set env.pull = \"never\""
)

// engineError makes a typed error of a command of docker or podman that failed.
func engineError(engine, verb string, code int, output []byte) *EngineError {
	text := engineText(output)
	e := &EngineError{Engine: engine, Verb: verb, Code: code, Msg: message(text)}
	for _, r := range textRules { // of whole lines: long paths may leave little of them in the message
		if r.text.MatchString(text) {
			e.Kind, e.Hint = r.kind, r.hint
			break
		}
	}
	if verb == "pull" && e.Kind.Class() != EngineUnavailable && e.Kind != EngineStorage && e.Kind != EngineUserNamespacesOff {
		e.Kind, e.Hint = EnginePullFailed, hintPull
	}
	if verb == "run" && e.Kind == EngineRefused && e.Hint == "" {
		e.Kind = exitRules[code] // the zero value is EngineRefused
		switch e.Kind {
		case EngineNotFound:
			e.Hint = hintNotFound
		case EngineNotExecutable:
			e.Hint = hintNotExecutable
		}
	}
	return e
}

var (
	ansiColour = regexp.MustCompile("\x1b\\[[0-9;]*m")
	// engineNoise are lines that say nothing about what went wrong.
	engineNoise = regexp.MustCompile(`^(Run '.*--help'.*|See '.*--help'.*|Usage: .*|\[\]|)$`)
)

// engineText returns the last lines of what an engine printed, whole, without what is no message.
func engineText(output []byte) string {
	var kept []string
	for line := range strings.Lines(ansiColour.ReplaceAllString(string(output), "")) {
		if line = strings.TrimRight(line, " \r\n"); !engineNoise.MatchString(strings.TrimSpace(line)) {
			kept = append(kept, line)
		}
	}
	return strings.Join(kept[max(0, len(kept)-mostLines):], "\n")
}
