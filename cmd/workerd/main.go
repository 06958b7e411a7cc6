// Workerd keeps model workers resident and supervised: it starts each in the environment that its manifest names, restarts
// it when it dies, follows every edit, and gives tool servers one stable socket per provider.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"workerd/protocol/control"
)

// The exit codes of every command.
const (
	exitOK         = 0
	exitFailed     = 1 // the thing failed
	exitUsage      = 2 // the command line, a WORKERD_ variable or a setting is wrong
	exitNotRunning = 3 // workerd does not run
)

// usageError is a mistake in how the command was called.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

// errReported is a failure that the command has shown already.
var errReported = errors.New("failed")

// errReportedDown is errReported where the reason is that workerd does not run.
var errReportedDown = fmt.Errorf("%w: %w", errReported, control.ErrNotRunning)

func main() {
	os.Exit(newApp().run(os.Args[1:]))
}

// run executes one command line and returns the exit code.
func (a *app) run(args []string) int {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	// The first signal ends the command in order. The second ends the process, where nobody else waits for it.
	context.AfterFunc(ctx, stop)
	return a.runContext(ctx, args)
}

// runContext is run below a context that is given: the one place where errors become messages and exit codes.
func (a *app) runContext(ctx context.Context, args []string) int {
	root := a.rootCommand()
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	var usage *usageError
	switch {
	case errors.Is(err, errReportedDown):
		return exitNotRunning
	case errors.Is(err, errReported):
		return exitFailed
	case errors.As(err, &usage):
		a.printError(err)
		a.errorf("Run `%s --help` for usage.\n", cmd.CommandPath())
		return exitUsage
	case errors.Is(err, control.ErrNotRunning):
		a.printError(err)
		return exitNotRunning
	}
	a.printError(err)
	return exitFailed
}
