package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/activation"
	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/spf13/cobra"

	"workerd/protocol"
	"workerd/supervisor"
)

func (a *app) serveCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "serve",
		Short: "Run workerd",
		Long: `Run workerd in the foreground: start the workers of all manifests, serve their sockets, and follow edits.

Every flag is also a key of the settings file and a variable: --log-level, log_level, WORKERD_LOG_LEVEL
(lists are split at ":"). A flag wins over the variable, that over the file, that over the default.

SIGTERM and SIGINT stop it in order, a second one at once; SIGHUP reads the manifests again.`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.serve(cmd.Context()) },
	}
	a.flags.register(cmd.Flags())
	return cmd
}

// unsupported refuses a setting without which workerd would be another one than was asked for.
func (s *settings) unsupported() error {
	if s.Listen != "" {
		return &usageError{errors.New("listen: this version serves the operator API on the control socket only")}
	}
	return nil
}

func (a *app) serve(ctx context.Context) error {
	inherited := activation.Files(true) // before anything is forked, which would have them too
	s, err := a.loadSettings()
	if err != nil {
		return err
	}
	if err := s.unsupported(); err != nil {
		return err
	}
	d, err := a.dirs()
	if err != nil {
		return err
	}
	log := a.newLogger(s)
	if d.note != "" {
		log.Warn("runtime directory", "note", d.note)
	}
	if name, network := protocol.FileSystem(nearestParent(d.runtime)); network {
		log.Warn("sockets may not work in the runtime directory", "directory", d.runtime, "file system", name)
	}
	watchdog, err := daemon.SdWatchdogEnabled(true)
	if err != nil {
		log.Warn("no watchdog", "err", err)
	}
	i := &instance{app: a, settings: s, dirs: d, log: log, watchdog: watchdog, listeners: newFDStore(a.getenv("NOTIFY_SOCKET"), inherited, log)}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	// Who reads the log may go away: writing then fails, and does not end workerd. Nobody has to receive this.
	pipes := make(chan os.Signal, 1)
	signal.Notify(pipes, syscall.SIGPIPE)
	defer signal.Stop(pipes)
	var running atomic.Pointer[supervisor.Supervisor]
	told := make(chan struct{})
	notTold := context.AfterFunc(ctx, func() {
		defer close(told)
		var within time.Duration
		if sup := running.Load(); sup != nil {
			within = sup.StopWithin()
		}
		notifyStopping(within)
		log.Info("stopping")
	})
	defer func() {
		if !notTold() {
			<-told
		}
	}()
	return i.run(ctx, func() {
		running.Store(i.sup)
		i.listeners.forgetRest()
		notifyReady()
		log.Info("ready", "socket", i.socket(), "providers", len(i.sup.Status(nil).Providers), "version", readVersion().Version)
		go i.reloadOn(ctx, hangups)
	})
}

// reloadOn reads the manifests again at each signal until ctx ends.
func (i *instance) reloadOn(ctx context.Context, hangups <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			notifyReloading()
			if err := i.sup.Reload(ctx); err != nil && ctx.Err() == nil {
				i.log.Error("reload", "err", err)
			}
			notifyReady()
		}
	}
}
