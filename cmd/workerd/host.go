package main

import (
	"os"
	"path/filepath"

	"workerd/execenv"
	"workerd/execenv/gpu"
	"workerd/identity"
	"workerd/manifest"
	"workerd/protocol/pysdk"
)

// host describes this machine and user to execenv. It makes nothing.
func (a *app) host() (execenv.Host, error) {
	s, err := a.loadSettings()
	if err != nil {
		return execenv.Host{}, err
	}
	d, err := a.dirs()
	if err != nil {
		return execenv.Host{}, err
	}
	return a.hostOf(s, d)
}

func (a *app) hostOf(s *settings, d *dirs) (execenv.Host, error) {
	id, err := identity.Current()
	if err != nil {
		return execenv.Host{}, err
	}
	name, err := os.Hostname()
	if err != nil {
		return execenv.Host{}, err
	}
	return execenv.Host{
		ID:            id,
		Instance:      execenv.InstanceID(id.UID, name, realPath(d.runtime)),
		RuntimeDir:    d.runtime,
		StateDir:      d.state,
		CacheDir:      d.cache,
		ScratchDir:    s.ScratchDir,
		HFHome:        s.HFHome,
		SDKDir:        filepath.Join(d.cache, "sdk"),
		SDK:           pysdk.Files,
		Environ:       a.environ,
		Cgroups:       execenv.FindCgroups("/", id.UID),
		EngineTimeout: s.EngineTimeout.D(),
		LogMaxSize:    int64(s.LogMaxSize),
		GPUs:          a.inventory(s),
	}, nil
}

// inventory makes the inventory of this machine's GPUs. Nothing is asked before somebody wants to know.
func (a *app) inventory(s *settings) *gpu.Machine {
	return gpu.Open(gpu.Options{Devices: s.GPUDevices, Environ: a.environ, Health: s.GPUHealthCheck, Fork: children.Fork, Log: a.newLogger(s)})
}

// realPath resolves the symlinks of as much of a path as exists.
func realPath(path string) string {
	if real, err := filepath.EvalSymlinks(path); err == nil {
		return real
	}
	dir, base := filepath.Split(filepath.Clean(path))
	if base == "" {
		return path
	}
	return filepath.Join(realPath(dir), base)
}

// manifestOptions are what loading manifests needs.
func (a *app) manifestOptions(s *settings, h execenv.Host) manifest.Options {
	o := manifest.Options{
		LookupEnv: a.lookup, Home: a.home(), UID: h.ID.UID,
		TrustedGroups: s.TrustedGroups, RuntimeDir: h.RuntimeDir, PullTimeout: &s.PullTimeout,
	}
	if len(s.Defaults) > 0 {
		o.Defaults, o.DefaultsTable, o.DefaultsFile = s.data, "defaults", s.file
	}
	return o
}

// bench is what the commands need that look at manifests without a running workerd.
type bench struct {
	settings *settings
	options  manifest.Options
	planner  *execenv.Planner
}

func (a *app) bench() (*bench, error) {
	s, err := a.loadSettings()
	if err != nil {
		return nil, err
	}
	h, err := a.host()
	if err != nil {
		return nil, err
	}
	return &bench{
		settings: s,
		options:  a.manifestOptions(s, h),
		planner:  execenv.NewPlanner(h, execenv.OSRunner{Children: &children}),
	}, nil
}
