package main

import (
	"context"
	"errors"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"workerd/protocol"
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

// withoutEffect names the settings given that this version does not act on.
func (s *settings) withoutEffect() []string {
	def := defaultSettings()
	var keys []string
	for key, set := range map[string]bool{
		"gpu_health_check":   s.GPUHealthCheck != def.GPUHealthCheck,
		"gpu_external_check": s.GPUExternalCheck != def.GPUExternalCheck,
		"gpu_devices":        len(s.GPUDevices) > 0,
		"container_ttl":      s.ContainerTTL != def.ContainerTTL,
	} {
		if set {
			keys = append(keys, key)
		}
	}
	return keys
}

func (a *app) serve(ctx context.Context) error {
	s, err := a.loadSettings()
	if err != nil {
		return err
	}
	if s.Listen != "" {
		return &usageError{errors.New("listen: this version serves the operator API on the control socket only")}
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
	for _, key := range s.withoutEffect() {
		log.Warn("setting has no effect in this version", "key", key)
	}
	i := &instance{app: a, settings: s, dirs: d, log: log}
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP)
	defer signal.Stop(hangups)
	defer context.AfterFunc(ctx, func() {
		notifyStopping()
		log.Info("stopping")
	})()
	return i.run(ctx, func() {
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
