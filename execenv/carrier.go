package execenv

import (
	"maps"
	"os"
	"slices"
	"strings"
)

// arg is one argument of an engine's command line, or, with fill, those that each worker has of its own; text is what
// explain shows for them.
type arg struct {
	text []string
	fill func(w WorkerParams, spec ContainerSpec) []string
}

func fixed(text ...string) arg { return arg{text: text} }

// ContainerSpec is what one worker's container is called.
type ContainerSpec struct {
	Name   string
	Labels map[string]string
}

// Container returns the name and the labels of a worker's container.
func (p *Planner) Container(pl *Plan, w WorkerParams) ContainerSpec {
	return ContainerSpec{
		Name:   ContainerName(p.host.Instance, pl.Slug, w.N),
		Labels: containerLabels(p.host.Instance, pl.Slug, pl.Fingerprint, w.N, w.GPUs, w.Attempt),
	}
}

// carrier is how a worker's environment and arguments get into its container.
type carrier struct {
	args []arg
	env  environ // of the client or runner itself
	// prefix is put before the names of the worker's variables in the runner's environment; with none, names are in args, and
	// what the client uses itself goes by stdin.
	prefix string
	// without is a variable that has another way in.
	without string
	// home is the folder on the host that is mounted as the worker's home.
	home string
}

// argv returns the arguments as explain shows them.
func (c *carrier) argv() []string {
	var out []string
	for _, a := range c.args {
		out = append(out, a.text...)
	}
	return out
}

// command makes the command that runs one worker with the environment env.
func (c *carrier) command(env environ, w WorkerParams, spec ContainerSpec) (Command, error) {
	var argv []string
	for _, a := range c.args {
		if a.fill == nil {
			argv = append(argv, a.text...)
		} else {
			argv = append(argv, a.fill(w, spec)...)
		}
	}
	// The worker may write to what is around its home. A symlink there would show the next worker another folder of the host.
	if fi, err := os.Lstat(c.home); err == nil && !fi.IsDir() {
		return Command{}, permanent("", "the worker's home %s is no folder (mode %s): remove it", c.home, fi.Mode())
	}
	own := maps.Clone(c.env)
	cmd := Command{Path: argv[0], Argv: argv, Dir: "/"}
	if c.prefix != "" {
		for name, v := range env {
			if strings.Contains(v, "\r\n") {
				return Command{}, permanent("env", "%s: %s", name, noCRLF)
			}
			if name != c.without {
				own[c.prefix+name] = v
			}
		}
		cmd.Env = own.list()
		return cmd, nil
	}
	named, lines := splitEnv(env)
	for _, name := range sortedKeys(env) {
		if isOwnToClient(name) {
			if err := checkEnvLine("env", name, env[name]); err != nil {
				return Command{}, err
			}
		}
	}
	own.set(named)
	cmd.Env = own.list()
	cmd.Stdin = []byte(strings.Join(append(slices.Clone(lines), ""), "\n"))
	return cmd, nil
}
