package execenv

import (
	"regexp"
	"strings"

	"workerd/manifest"
)

// initFailures are the words of the inits of docker and podman for a program that they could not execute. The container has
// run then, for a moment.
var initFailures = regexp.MustCompile(`(?m)^\[FATAL tini \(\d+\)\] exec .* failed: .*$|^ERROR \(catatonit:\d+\): failed to exec pid1: .*$`)

// RunFailure says why a worker that ended at once was never run: what was between it and workerd, Apptainer or the init of its
// container, ended with code, and output has what it printed. It is nil where that was the worker's own end.
func (pl *Plan) RunFailure(code int, output []byte) *EngineError {
	switch {
	case pl.Kind == manifest.Apptainer:
		return runnerError(pl.Kind, code, output)
	case pl.Engine == "":
		return nil
	}
	text := engineText(output)
	found := initFailures.FindAllString(text, -1)
	if len(found) == 0 || !strings.HasSuffix(text, found[len(found)-1]) {
		return nil
	}
	e := &EngineError{Kind: EngineNotExecutable, Hint: hintNotExecutable, Engine: pl.Kind, Verb: "run", Code: code, Msg: found[len(found)-1]}
	if strings.HasSuffix(e.Msg, "No such file or directory") {
		e.Kind, e.Hint = EngineNotFound, hintNotFound
	}
	if strings.Contains(e.Msg, " exec "+umaskShell+" failed") {
		e.Hint = "a command in docker gets workerd's umask by a shell, which the image does not have: start workerd with umask 022"
	}
	return e
}

// runnerCode is the status by which Apptainer reports its own failure; its starter and the reader of its command line use 1.
// A worker may end with either: the output tells.
const runnerCode = 255

// How the lines of Apptainer, of its starter and of the reader of its command line begin. A worker that ends with the same status may
// well log "FATAL: " or "ERROR  : ", so of the starter's only what it says before there is a container counts.
var (
	runnerFatal  = regexp.MustCompile(`(?m)^FATAL: {3}`)
	starterError = regexp.MustCompile(`(?m)^ERROR {2}: (Failed to create user namespace|Could not write info to setgroups|Error while waiting event for user namespace|Requesting capability set)`)
	usageError   = regexp.MustCompile(`(?m)^Error for command "exec": .*$`)
)

// runnerError reads what Apptainer printed when it could not run something; nil where it ran.
func runnerError(name string, code int, output []byte) *EngineError {
	if code != runnerCode && code != 1 {
		return nil
	}
	text := engineText(output)
	usage := usageError.Find(output)
	fatal := runnerFatal.FindStringIndex(text)
	e := engineError(name, "exec", code, []byte(text))
	switch {
	case code == runnerCode && fatal != nil:
		e.Msg = message(text[fatal[1]:])
	case usage != nil: // the whole help follows
		e.Msg = message(string(usage))
	case starterError.MatchString(text):
	default:
		return nil
	}
	if e.Kind != EngineRefused || e.Hint != "" {
		return e
	}
	switch {
	case strings.HasPrefix(e.Msg, "stat /") && strings.HasSuffix(e.Msg, "no such file or directory"), strings.Contains(e.Msg, "executable file not found"):
		e.Kind, e.Hint = EngineNotFound, hintNotFound
	case e.Msg == "permission denied" || strings.HasPrefix(e.Msg, "exec ") && strings.HasSuffix(e.Msg, "permission denied"):
		e.Kind, e.Hint = EngineNotExecutable, hintNotExecutable
	}
	return e
}
