package execenv

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"workerd/manifest"
)

// change is what activation, modules and a setup file do to an environment.
type change struct {
	Set   map[string]string
	Unset []string // sorted
}

// step is one thing that the setup probe does.
type step struct {
	key  string // of the manifest
	what string // for messages
	code string // bash, which leaves its status in $?
	// lenient: a status that is not zero is a warning. conda itself ignores the status of activation scripts.
	lenient bool
}

// probeSetup finds out how a conda prefix, environment modules and a setup file change the environment, in the order in
// which a user would type them: modules, conda, setup. It is one bash without any rc file, which prints its environment
// before and after.
func probeSetup(ctx context.Context, run Runner, h Host, m *manifest.Manifest, f *facts, base []string) (change, error) {
	steps, err := moduleSteps(m, parseEnviron(base))
	if err != nil {
		return change{}, err
	}
	conda, watch, err := condaSteps(f.interp.Conda)
	if err != nil {
		return change{}, err
	}
	f.watch = append(f.watch, watch...)
	steps = append(steps, conda...)
	if m.Env.Setup != "" {
		if _, err := os.ReadFile(m.Env.Setup); err != nil {
			return change{}, &Error{Key: "env.setup", Msg: m.Env.Setup + ownership(m.Env.Setup), Err: errCause(err)}
		}
		steps = append(steps, step{key: "env.setup", what: "setup file " + m.Env.Setup, code: "source " + quote(m.Env.Setup) + " 3>&-"})
	}
	if len(steps) == 0 {
		return change{}, nil
	}
	c, warnings, err := runSteps(ctx, run, h, steps, base, m.Paths.Cwd)
	f.warnings = append(f.warnings, warnings...)
	return c, err
}

func runSteps(ctx context.Context, run Runner, h Host, steps []step, base []string, dir string) (change, []string, error) {
	bash, err := findTool(base, "bash")
	if err != nil {
		return change{}, nil, &Error{Key: steps[0].key, Msg: steps[0].what + " needs bash", Err: err}
	}
	env, err := findTool(base, "env")
	if err != nil {
		return change{}, nil, &Error{Key: steps[0].key, Msg: steps[0].what + " needs the program env", Err: err}
	}
	if !isDir(dir) {
		dir = "/" // a work_root that Prepare has still to make
	}
	probe := Probe{Argv: []string{bash, "--noprofile", "--norc", "-c", script(env, steps)}, Env: probeEnv(base), Dir: dir}
	what := "the probe of " + steps[len(steps)-1].what
	res, err := runProbe(ctx, run, h.EngineTimeout, what, probe)
	out := parseSteps(res.FD3)
	var e *Error
	if errors.As(err, &e) {
		at := steps[min(max(out.at, 0), len(steps)-1)]
		e.Key = at.key
		if ctx.Err() == nil && out.at >= 0 {
			e.Msg = strings.Replace(e.Msg, what, at.what, 1)
		}
		return change{}, nil, e
	}
	if err != nil {
		return change{}, nil, err
	}
	if !out.complete || res.Code != 0 || res.FD3Cut {
		at := steps[min(max(out.at, 0), len(steps)-1)]
		msg := fmt.Sprintf("%s ended with status %d%s", at.what, res.Code, lastLines(res.Stderr))
		if res.Code == 0 {
			msg = at.what + " ends the shell that reads it (exit), so its variables cannot be had" + lastLines(res.Stderr)
		}
		return change{}, nil, permanent(at.key, "%s", msg)
	}
	var warnings []string
	for _, w := range out.failed {
		at := steps[min(w.step, len(steps)-1)]
		warnings = append(warnings, fmt.Sprintf("%s: %s returned status %d%s", at.key, at.what, w.status, lastLines(res.Stderr)))
	}
	return diff(out.before, out.after), warnings, nil
}

// script writes the probe. On descriptor 3 it says, each ended by a NUL: the environment, an empty record, "@i" at the
// beginning of each step and "!i status" for a lenient one that failed, an empty record, the environment again. Both times
// another program prints it, so that it is what a worker would be given. No variable of its own is exported, and the files
// see no arguments.
func script(env string, steps []step) string {
	var b strings.Builder
	dump := quote(env) + " -0 >&3"
	fmt.Fprintf(&b, "%s || exit 125\nbuiltin printf '\\0' >&3\n", dump)
	for i, s := range steps {
		fmt.Fprintf(&b, "builtin printf '@%d\\0' >&3\n%s\n__workerd_status=$?\n", i, s.code)
		if s.lenient {
			fmt.Fprintf(&b, "if [[ $__workerd_status != 0 ]]; then builtin printf '!%d %%s\\0' \"$__workerd_status\" >&3; fi\n", i)
		} else {
			b.WriteString("if [[ $__workerd_status != 0 ]]; then builtin exit \"$__workerd_status\"; fi\n")
		}
	}
	fmt.Fprintf(&b, "builtin printf '\\0' >&3\nbuiltin exec %s\n", dump)
	return b.String()
}

type stepFailure struct{ step, status int }

type stepsOutput struct {
	before, after []string
	at            int // the last step that began; -1: none
	failed        []stepFailure
	complete      bool
}

func parseSteps(out []byte) stepsOutput {
	o := stepsOutput{at: -1}
	part := 0
	for len(out) > 0 {
		rec, rest, whole := bytes.Cut(out, []byte{0})
		if !whole {
			break
		}
		out = rest
		s := string(rec)
		switch {
		case s == "" && part < 2:
			part++
		case part == 0:
			o.before = append(o.before, s)
		case part == 1 && s[0] == '@':
			o.at, _ = strconv.Atoi(s[1:])
		case part == 1 && s[0] == '!':
			var w stepFailure
			if _, err := fmt.Sscanf(s[1:], "%d %d", &w.step, &w.status); err == nil {
				o.failed = append(o.failed, w)
			}
		case part == 2:
			o.after = append(o.after, s)
			o.complete = true
		}
	}
	return o
}

// ownToShell are variables that bash itself changes, and those that workerd sets per worker.
func ownToShell(name string) bool {
	return name == "_" || name == "SHLVL" || name == "PWD" || name == "OLDPWD" || strings.HasPrefix(name, "WORKERD_")
}

// diff returns what turns one environment into another.
func diff(before, after []string) change {
	was, is := parseEnviron(before), parseEnviron(after)
	c := change{Set: map[string]string{}}
	for name, v := range is {
		if old, ok := was[name]; (!ok || old != v) && !ownToShell(name) {
			c.Set[name] = v
		}
	}
	for name := range was {
		if _, ok := is[name]; !ok && !ownToShell(name) {
			c.Unset = append(c.Unset, name)
		}
	}
	slices.Sort(c.Unset)
	return c
}

// probeEnv takes out what makes a bash without rc files read some all the same.
func probeEnv(env []string) []string {
	return slices.DeleteFunc(slices.Clone(env), func(kv string) bool {
		return strings.HasPrefix(kv, "BASH_ENV=") || strings.HasPrefix(kv, "ENV=")
	})
}

// moduleInits are where environment modules and Lmod are found when the environment does not say.
var moduleInits = []string{
	"/usr/share/lmod/lmod/init/bash",
	"/usr/share/Modules/init/bash",
	"/usr/share/modules/init/bash",
}

func moduleSteps(m *manifest.Manifest, env environ) ([]step, error) {
	if len(m.Env.Modules) == 0 {
		return nil, nil
	}
	const key = "env.modules"
	var inits []string
	for _, v := range []string{"LMOD_PKG", "MODULESHOME"} {
		if env[v] != "" {
			inits = append(inits, filepath.Join(env[v], "init", "bash"))
		}
	}
	inits = append(inits, moduleInits...)
	i := slices.IndexFunc(inits, func(p string) bool {
		fi, err := os.Stat(p)
		return err == nil && !fi.IsDir()
	})
	if i < 0 {
		return nil, permanent(key, "there is no module system: neither $MODULESHOME/init/bash nor $LMOD_PKG/init/bash exists (looked for %s)",
			strings.Join(inits, ", "))
	}
	steps := []step{{key: key, what: "module system " + inits[i], code: "source " + quote(inits[i]) + " 3>&-"}}
	for _, name := range m.Env.Modules {
		// Old module systems return 0 for a module that they do not have: it has to be among the loaded then.
		code := fmt.Sprintf(`__workerd_was=${LOADEDMODULES-}; module load %[1]s 3>&- && `+
			`[[ ${LOADEDMODULES-} != "$__workerd_was" || ":$__workerd_was" == *:%[1]s* ]]`, quote(name))
		steps = append(steps, step{key: key, what: "module load " + name, code: code})
	}
	return steps, nil
}

// condaSteps are what `conda activate` does to variables: the prefix, its bin folder first on PATH, the variables that were
// configured for the environment, and the scripts that packages put into activate.d. watch lists those scripts.
func condaSteps(prefix string) (steps []step, watch []string, err error) {
	if prefix == "" {
		return nil, nil, nil
	}
	const key = "env.python"
	vars, files, err := condaVars(prefix)
	if err != nil {
		return nil, nil, err
	}
	vars["CONDA_PREFIX"] = prefix
	vars["CONDA_DEFAULT_ENV"] = filepath.Base(prefix)
	vars["CONDA_SHLVL"] = "1"
	var code strings.Builder
	for _, name := range sortedKeys(vars) {
		fmt.Fprintf(&code, "builtin export %s; ", quote(name+"="+vars[name]))
	}
	fmt.Fprintf(&code, "builtin export PATH=%s${PATH:+:$PATH}", quote(filepath.Join(prefix, "bin")))
	steps = append(steps, step{key: key, what: "conda prefix " + prefix, code: code.String()})

	scripts, err := globFiles(filepath.Join(prefix, "etc", "conda", "activate.d"), ".sh")
	if err != nil {
		return nil, nil, err
	}
	for _, s := range scripts {
		steps = append(steps, step{key: key, what: "activation script " + s, code: "source " + quote(s) + " 3>&-", lenient: true})
	}
	return steps, append(files, scripts...), nil
}

// condaUnset is what conda keeps as the value of a variable that was unset, also of one that a package brings.
const condaUnset = "***unset***"

// condaVars reads the variables of `conda env config vars` and those that packages bring.
func condaVars(prefix string) (map[string]string, []string, error) {
	vars := map[string]string{}
	files, err := globFiles(filepath.Join(prefix, "etc", "conda", "env_vars.d"), ".json")
	if err != nil {
		return nil, nil, err
	}
	for _, f := range files {
		if err := readJSON(f, &vars); err != nil {
			return nil, nil, err
		}
	}
	state := struct {
		Vars map[string]string `json:"env_vars"`
	}{}
	path := filepath.Join(prefix, "conda-meta", "state")
	if _, err := os.Stat(path); err == nil {
		if err := readJSON(path, &state); err != nil {
			return nil, nil, err
		}
		files = append(files, path)
	}
	maps.Copy(vars, state.Vars)
	maps.DeleteFunc(vars, func(_, v string) bool { return v == condaUnset })
	return vars, files, nil
}

func readJSON(path string, into any) error {
	data, err := os.ReadFile(path)
	if err == nil {
		err = json.Unmarshal(data, into)
	}
	if err != nil {
		return &Error{Key: "env.python", Msg: path, Err: errCause(err), Watch: []string{path}}
	}
	return nil
}

// globFiles lists the files of a folder by their ending, sorted; none where there is no folder.
func globFiles(dir, ext string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, &Error{Key: "env.python", Msg: dir, Err: errCause(err)}
	}
	var out []string
	for _, e := range entries {
		if filepath.Ext(e.Name()) == ext {
			out = append(out, filepath.Join(dir, e.Name()))
		}
	}
	return out, nil
}

// findTool looks a program up on the PATH of an environment, and in the usual places.
func findTool(env []string, name string) (string, error) {
	dirs := append(filepath.SplitList(parseEnviron(env)["PATH"]), "/usr/bin", "/bin")
	for _, d := range dirs {
		if p := filepath.Join(d, name); filepath.IsAbs(d) {
			if found, err := exec.LookPath(p); err == nil {
				return found, nil
			}
		}
	}
	return "", fmt.Errorf("no %s on PATH", name)
}

// quote makes s one word of a shell, whatever bytes it holds.
func quote(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }

// mostLines is how many lines of what a command printed stand in a message.
const mostLines = 5

// lastLines returns the end of what a command printed, to follow a message.
func lastLines(out []byte) string {
	if text := message(string(out)); text != "" {
		return ": " + text
	}
	return ""
}

// message returns the end of what a command printed, as a message. Of a long line the middle is left out: what is wrong stands
// first, and in what engines wrap around each other's errors last.
func message(out string) string {
	const longest = 500
	lines := strings.Split(strings.TrimSpace(strings.ToValidUTF8(out, "?")), "\n")
	lines = lines[max(0, len(lines)-mostLines):]
	for i, l := range lines {
		if len(l) > longest {
			lines[i] = strings.ToValidUTF8(l[:longest/2], "") + " ... " + strings.ToValidUTF8(l[len(l)-longest/2:], "")
		}
	}
	return strings.Join(lines, "\n")
}
