package execenv

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"time"

	"workerd/manifest"
)

// runnerHold is how long what a program printed as its version and help holds; the flight's key has its stamp.
const runnerHold = 10 * time.Minute

// optionalFlags are the options of exec that not every version has.
var optionalFlags = []string{"--no-eval", "--cwd"}

// runner finds Apptainer, or SingularityCE where only that is installed.
func (p *Planner) runner(ctx context.Context) (runnerInfo, error) {
	bin, err := findEngine(p.host, manifest.Apptainer, "apptainer", "singularity")
	if err != nil {
		return runnerInfo{}, err
	}
	return p.runners.of(bin+" "+stamp(bin)).get(ctx, runnerHold, func(ctx context.Context) (runnerInfo, error) {
		return p.probeRunner(ctx, bin)
	})
}

func (p *Planner) probeRunner(ctx context.Context, bin string) (runnerInfo, error) {
	r := runnerInfo{Bin: bin, Name: "apptainer", Flags: map[string]bool{}}
	if strings.Contains(bin[strings.LastIndexByte(bin, '/'):], "singularity") {
		r.Name = "singularity"
	}
	version, err := p.runnerProbe(ctx, r, "version", "--version")
	if err != nil {
		return r, err
	}
	r.Version = strings.TrimSpace(string(version))
	// Apptainer also installs itself as singularity.
	switch first, rest, _ := strings.Cut(r.Version, " version "); {
	case first == "apptainer":
		r.Name, r.Version = "apptainer", rest
	case strings.HasPrefix(first, "singularity"):
		r.Name, r.Version = "singularity", rest
	}
	help, err := p.runnerProbe(ctx, r, "help", "exec", "--help")
	if err != nil {
		return r, err
	}
	for _, flag := range optionalFlags {
		r.Flags[flag] = regexp.MustCompile(`(?m)(^|[ ,])` + flag + `\b`).Match(help)
	}
	return r, nil
}

// runnerProbe runs one short command of the runner and returns what it printed.
func (p *Planner) runnerProbe(ctx context.Context, r runnerInfo, verb string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, p.host.EngineTimeout, errProbeDeadline)
	defer cancel()
	var out limited
	probe := Probe{Argv: append([]string{r.Bin}, args...), Env: apptainer{}.runnerEnv(p.host, r).list(), Stdout: &out}
	res, err := p.run.Run(ctx, probe)
	switch {
	case errors.Is(err, errProbeDeadline):
		return nil, &EngineError{Kind: EngineTimeout, Engine: r.Name, Verb: verb, Hint: hintTimeout, Msg: fmt.Sprintf("no end within %s", p.host.EngineTimeout) + lastLines(res.Stderr)}
	case err != nil && ctx.Err() != nil:
		return nil, err
	case err != nil:
		return nil, notStarted(r.Name, verb, probe, err)
	case res.Code != 0:
		if e := runnerError(r.Name, res.Code, res.Stderr); e != nil {
			e.Verb = verb
			return nil, e
		}
		return nil, engineError(r.Name, verb, res.Code, res.Stderr)
	}
	return out.Bytes(), nil
}

// RunnerInfo says which Apptainer or SingularityCE there is.
func (p *Planner) RunnerInfo(ctx context.Context) (name, version, bin string, err error) {
	r, err := p.runner(ctx)
	return r.Name, r.Version, r.Bin, err
}

// imageVars are those of an image that a plan builds on.
var imageVars = []string{"PATH", "PYTHONPATH", "LD_LIBRARY_PATH"}

// imageEnv finds out the variables of an image by running a shell in it: they are set by scripts. This is also the first to
// notice that containers cannot be run at all. An image without a shell has none that are known.
func (p *Planner) imageEnv(ctx context.Context, r runnerInfo, sif, stamp string) ([]string, error) {
	key := strings.Join([]string{r.Bin, sif, stamp}, "\x00")
	return p.sifs.of(key).get(ctx, runnerHold, func(ctx context.Context) ([]string, error) {
		var script strings.Builder
		for _, name := range imageVars {
			fmt.Fprintf(&script, `printf '%s=%%s\0' "$%s";`, name, name)
		}
		args := append([]string{"-q", "exec"}, containFlags(p.host, r)...)
		out, err := p.runnerProbe(ctx, r, "exec", append(args, sif, "/bin/sh", "-c", script.String())...)
		if IsEngineError(err, EngineNotFound) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		var vars []string
		for v := range bytes.SplitSeq(out, []byte{0}) {
			if _, value, ok := strings.Cut(string(v), "="); ok && value != "" {
				vars = append(vars, string(v))
			}
		}
		return vars, nil
	})
}
