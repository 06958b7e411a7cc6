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
	return e
}
