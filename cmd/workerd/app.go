package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"workerd/protocol"
	"workerd/protocol/control"
)

// app is what all commands share: the streams, the environment, and the global flags.
type app struct {
	in       io.Reader
	out, err io.Writer
	// outTTY and errTTY say that a person reads there, and color that a terminal may be coloured.
	outTTY, errTTY, color bool

	lookup  func(string) (string, bool)
	environ []string
	uid     int
	tmp     string // where the runtime directory goes when the session has none

	flags    flagValues // of the settings, as given on the command line
	config   string     // --config
	json     bool       // --json of the command that runs
	settings *settings  // loaded once, on demand

	// What install writes a unit for and asks; nil: this program, and the systemd of the user.
	binary  func() (string, error)
	manager *systemd
}

func newApp() *app {
	a := &app{
		in: os.Stdin, out: os.Stdout, err: os.Stderr,
		outTTY: isTerminal(os.Stdout), errTTY: isTerminal(os.Stderr),
		lookup: os.LookupEnv, environ: os.Environ(), uid: os.Geteuid(), tmp: "/tmp",
		flags: flagValues{},
	}
	a.color = a.getenv("NO_COLOR") == "" && a.getenv("TERM") != "dumb"
	return a
}

func (a *app) getenv(name string) string {
	v, _ := a.lookup(name)
	return v
}

const exitStatus = `

Exit status:
  0  done
  1  it failed
  2  the command line or the settings are wrong
  3  workerd is not running`

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "workerd",
		Short: "Keep model workers resident, each in its own environment, behind one stable socket",
		Long: `workerd keeps model workers resident and supervised. An operator drops a TOML manifest into a
directory; workerd starts the worker in the environment which the manifest names, restarts it when
it dies, follows every edit, and gives tool servers one stable socket per provider.` + exitStatus,
		Args:          cobra.ArbitraryArgs,
		SilenceErrors: true,
		SilenceUsage:  true,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			msg := fmt.Sprintf("unknown command %q", args[0])
			cmd.SuggestionsMinimumDistance = 2
			if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
				msg += fmt.Sprintf("; did you mean %q?", near[0])
			}
			return &usageError{errors.New(msg)}
		},
	}
	root.SetIn(a.in)
	root.SetOut(a.out)
	root.SetErr(a.err)
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &usageError{err} })
	root.CompletionOptions.DisableDefaultCmd = true
	root.PersistentFlags().StringVar(&a.config, "config", "", "settings `file` (default $XDG_CONFIG_HOME/workerd/workerd.toml)")
	a.flags.register(root.PersistentFlags(), "runtime_dir")
	for _, c := range []*cobra.Command{
		a.serveCommand(), a.statusCommand(), a.callCommand(), a.logsCommand(),
		a.startCommand(), a.stopCommand(), a.restartCommand(), a.reloadCommand(),
		a.validateCommand(), a.explainCommand(), a.smokeCommand(), a.initCommand(), a.demoCommand(),
		a.schemaCommand(), a.sdkCommand(), a.doctorCommand(), a.installCommand(), a.gpusCommand(), a.sweepCommand(), a.versionCommand(), a.completionCommand(),
		a.leaveCgroupCommand(),
	} {
		c.Long += exitStatus
		c.Args = usageArgs(c.Args)
		root.AddCommand(c)
	}
	return root
}

// usageArgs makes the errors of an argument check usage errors.
func usageArgs(check cobra.PositionalArgs) cobra.PositionalArgs {
	if check == nil {
		check = cobra.NoArgs
	}
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{err}
		}
		return nil
	}
}

func (a *app) jsonFlag(cmd *cobra.Command) {
	cmd.Flags().BoolVar(&a.json, "json", false, "print JSON")
}

// client returns a client of the control socket of the workerd that the settings name.
func (a *app) client() (*control.Client, error) {
	d, err := a.dirs()
	if err != nil {
		return nil, err
	}
	if err := a.checkFallback(d); err != nil {
		return nil, err
	}
	return control.NewClient(filepath.Join(d.runtime, "workerd.sock")), nil
}

// withHint is an error and what to do about it.
type withHint struct {
	error
	hint string
}

func (e *withHint) Unwrap() error { return e.error }

// printError shows an error and what to do next; with --json as a problem document.
func (a *app) printError(err error) {
	hint := a.hintFor(err)
	e, _ := errors.AsType[*protocol.Error](err)
	if a.json {
		p := control.Problem{Title: "failed", Detail: err.Error(), Kind: string(protocol.KindOf(err)), Hint: hint, Err: e}
		if q, ok := errors.AsType[*control.Problem](err); ok {
			p = *q
		}
		_ = writeJSON(a.err, map[string]any{"error": p})
		return
	}
	text := err.Error()
	if e != nil {
		text = fmt.Sprintf("%s: %s", e.Data.Kind, e.Message)
	}
	a.errorf("%s %s\n", a.paintErr(red, "error:"), text)
	if e != nil {
		a.printDetail(e)
	}
	if hint != "" {
		a.errorf("%s %s\n", a.paintErr(bold, "hint:"), hint)
	}
}

// hintFor is the function hintFor, and says of a workerd that is not running where it was looked for, if that is not where a session has
// it: started once more because cron or su knows another place, it would load every model twice.
func (a *app) hintFor(err error) string {
	hint := hintFor(err)
	if errors.Is(err, control.ErrNotRunning) {
		if d, err := a.dirs(); err == nil && d.note != "" {
			return d.note + "; if it runs already, name its directory with --runtime-dir, or set XDG_RUNTIME_DIR as in the session where it was started. Else " + hint
		}
	}
	return hint
}

// hintFor says what to do about an error, "" where it says so itself.
func hintFor(err error) string {
	if h, ok := errors.AsType[*withHint](err); ok {
		return h.hint
	}
	if p, ok := errors.AsType[*control.Problem](err); ok {
		return p.Hint
	}
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		return control.Hint(e.Data.Kind, e.Data.Provider)
	}
	switch {
	case errors.Is(err, control.ErrNotRunning):
		return "start it with `workerd serve`; --runtime-dir names the directory of another one"
	case errors.Is(err, context.Canceled):
		return ""
	}
	return ""
}
