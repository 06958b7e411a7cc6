package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"workerd/execenv"
	"workerd/execenv/gpu"
	"workerd/identity"
	"workerd/manifest"
	"workerd/protocol/control"
	"workerd/supervisor"
)

// instance is one workerd in this process: `serve`, or a private one that `smoke` and `demo` run for a while.
type instance struct {
	app      *app
	settings *settings
	dirs     *dirs
	log      *slog.Logger
	// set are the manifests to serve instead of those of the settings' directories.
	set *manifest.Set
	// watchdog is within what time the service manager wants to hear that this lives; 0: it does not.
	watchdog time.Duration
	// listeners makes the control socket and the front sockets.
	listeners *fdStore

	gpus     *gpu.Machine
	sup      *supervisor.Supervisor
	watcher  *manifest.Watcher // nil with set
	server   *control.Server
	lock     *os.File
	children *execenv.Children
}

// children is the registry of all that this process forks and waits for. It is the process's, like its children: with two, each
// would take the other's for orphans.
var children execenv.Children

// run serves until ctx ends, then stops every worker and returns when all is gone. ready is called once, when the front
// sockets of the first set of manifests accept.
func (i *instance) run(ctx context.Context, ready func()) error {
	if err := i.open(); err != nil {
		return err
	}
	defer func() { i.lock.Close() }() // the one there is then: keepLock may replace it
	listener, err := i.listeners.Listen(controlName, i.socket(), nil)
	if err != nil {
		return err
	}
	defer func() {
		if err := i.gpus.Close(); err != nil {
			i.log.Warn("GPU inventory", "err", err)
		}
	}()
	defer func() {
		if !i.listeners.Stay() {
			_ = os.Remove(i.socket())
			i.listeners.Forget(controlName)
		}
	}()

	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	// The operator API answers until the last worker is gone.
	late, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	var group errgroup.Group
	start := func(run func() error) {
		group.Go(func() error {
			err := run()
			if err != nil {
				stop(err)
			}
			return err
		})
	}
	start(func() error { return i.serveControl(late, ctx, listener) })
	start(func() error { i.reap(late); return nil })
	start(func() error { i.killOnSecondSignal(late); return nil })
	start(func() error { return i.applySets(ctx, ready) })
	if i.watchdog > 0 {
		start(func() error { i.feedWatchdog(late); return nil })
	}
	if i.watcher != nil {
		start(func() error { return i.watcher.Run(ctx) })
	}
	err = i.sup.Run(ctx)
	end()
	return errors.Join(err, group.Wait())
}

// open takes the runtime directory and makes the parts, which start nothing yet.
func (i *instance) open() (err error) {
	if i.listeners == nil {
		i.listeners = newFDStore("", nil, i.log)
	}
	uid := i.app.uid
	if err := makePrivate(i.dirs.runtime, uid, i.dirs.fallback); err != nil {
		return fmt.Errorf("runtime directory: %w", err)
	}
	if i.lock, err = lockRuntimeDir(i.dirs.runtime); err != nil {
		return err
	}
	defer func() {
		if err != nil {
			i.lock.Close()
		}
	}()
	if i.set == nil { // a sweep takes the place of one that has ended, whose listeners the service manager may still hold
		if err := i.checkAlone(); err != nil {
			return err
		}
	}
	for _, dir := range []string{i.dirs.state, i.dirs.cache} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return err
		}
	}
	host, err := i.app.hostOf(i.settings, i.dirs)
	if err != nil {
		return err
	}
	i.gpus = i.app.inventory(i.settings)
	host.GPUs = i.gpus
	// What workers orphan becomes ours, to be found and reaped.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become child subreaper: %w", err)
	}
	var cgroups *execenv.Cgroups
	cgroups, host.Cgroups = execenv.EnterCgroups(host.Cgroups)
	if cgroups != nil {
		i.log.Info("workers get cgroups of their own", "below", host.Cgroups.Dir, "missing", host.Cgroups.Why)
	}
	config := supervisor.Config{
		Cgroups:    cgroups,
		RuntimeDir: host.RuntimeDir, StateDir: host.StateDir, Instance: host.Instance,
		Planner:  execenv.NewPlanner(host, execenv.OSRunner{Children: &children}),
		Children: &children, Log: i.log,
		Doorman: doorman{uid, i.log}, AuthorizeWorker: sameUser(uid),
		Listeners:  i.listeners,
		LogMaxSize: int64(i.settings.LogMaxSize), LogMaxFiles: i.settings.LogMaxFiles,
		ContainerTTL: i.settings.ContainerTTL.D(),
		GPUs:         host.GPUs, IgnoreStrangers: !i.settings.GPUExternalCheck,
	}
	if i.set == nil {
		i.watcher = manifest.NewWatcher(manifest.WatchConfig{
			Dirs: i.settings.Providers, Options: i.app.manifestOptions(i.settings, host), Log: i.log,
		})
		config.Follow = i.watcher.Follow
		config.Rescan = i.watcher.Rescan
	}
	i.children = &children
	if i.sup, err = supervisor.New(config); err != nil {
		return err
	}
	i.sup.FindLeftovers()
	i.server = &control.Server{Backend: i.sup, Metrics: metricsHandler(collector{i.sup.Status, i.sup.KnownGPUs, i.sup.Answers}), Authorize: sameUser(uid), Log: i.log}
	return nil
}

func (i *instance) socket() string { return filepath.Join(i.dirs.runtime, "workerd.sock") }

// sameUser lets in who runs workerd, and root.
func sameUser(uid int) func(*net.UnixConn) error {
	return func(c *net.UnixConn) error {
		peer, err := identity.PeerCred(c)
		if err != nil {
			return err
		}
		if peer.UID != uid && peer.UID != 0 {
			return fmt.Errorf("uid %d may not use the workerd of uid %d", peer.UID, uid)
		}
		return nil
	}
}

// applySets brings each set of manifests into force until ctx ends.
func (i *instance) applySets(ctx context.Context, ready func()) error {
	if i.set != nil {
		i.sup.Apply(i.set)
		ready()
		return nil
	}
	first := true
	for {
		select {
		case <-ctx.Done():
			return nil
		case set := <-i.watcher.Sets():
			for _, p := range set.Problems {
				i.log.Warn("manifest directory", "err", p.Error())
			}
			i.sup.Apply(set)
			if first {
				ready()
				first = false
			}
		}
	}
}

// reap collects the processes that workers left behind when they end. Many that end at once are one round.
func (i *instance) reap(ctx context.Context) {
	const pause = 100 * time.Millisecond
	ch := make(chan os.Signal, 1)
	signal.Notify(ch, syscall.SIGCHLD)
	defer signal.Stop(ch)
	for {
		select {
		case <-ctx.Done():
			i.children.ReapOrphans()
			return
		case <-ch:
		}
		i.children.ReapOrphans()
		select {
		case <-ctx.Done():
		case <-time.After(pause):
		}
	}
}

// killOnSecondSignal makes the stop that the first signal began one without patience. Only here: a process that simply ended
// would leave its workers running.
func (i *instance) killOnSecondSignal(ctx context.Context) {
	ch := make(chan os.Signal, 2)
	signal.Notify(ch, syscall.SIGINT, syscall.SIGTERM)
	defer signal.Stop(ch)
	for n := 1; ; n++ {
		select {
		case <-ctx.Done():
			return
		case sig := <-ch:
			if n == 2 {
				i.log.Warn("stopping at once", "signal", sig.String())
				i.sup.Kill()
			}
		}
	}
}

// start runs an instance beside the caller until stop is called, which returns when all of it is gone.
func (i *instance) start(ctx context.Context) (c *control.Client, stop func() error, err error) {
	ctx, cancel := context.WithCancel(ctx)
	ready, done := make(chan struct{}), make(chan error, 1)
	go func() { done <- i.run(ctx, sync.OnceFunc(func() { close(ready) })) }()
	select {
	case err := <-done:
		cancel()
		if err == nil {
			err = context.Cause(ctx)
		}
		return nil, nil, err
	case <-ready:
	}
	return control.NewClient(i.socket()), func() error {
		cancel()
		return <-done
	}, nil
}
