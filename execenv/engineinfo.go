package execenv

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"

	"workerd/manifest"
)

// EngineInfo is what an engine says of itself.
type EngineInfo struct {
	// Engine is what the program is, docker or podman, whatever its name.
	Engine  string
	Bin     string
	Version string // of the daemon where there is one
	// Rootless says that the engine runs as a user; OwnerUID is that user, -1 where it cannot be told.
	Rootless bool
	OwnerUID int
	Remapped bool   // docker's userns-remap
	Runtime  string // runc, crun
	// CgroupVersion is 1 or 2, 0 where it did not say.
	CgroupVersion int
	Storage       string // the folder of images and containers
	// Memory, CPUs and Pids say which limits the engine can enforce.
	Memory, CPUs, Pids bool
	// Swap says that it can keep what is beyond the memory out of the swap space too.
	Swap bool
	// Processors is how many there are for containers; 0 where it did not say.
	Processors int
	// ProxyConfig says that the client's configuration gives proxy variables to every container.
	ProxyConfig bool
	// Unread says that its answer could not be understood, so that the rest is what is usual.
	Unread bool
}

// AtLeast compares the version.
func (i EngineInfo) AtLeast(major, minor int) bool {
	a, b, ok := versionOf(i.Version)
	return !ok || a > major || a == major && b >= minor
}

var versionNumber = regexp.MustCompile(`(\d+)\.(\d+)`)

func versionOf(s string) (major, minor int, ok bool) {
	m := versionNumber.FindStringSubmatch(s)
	if m == nil {
		return 0, 0, false
	}
	major, _ = strconv.Atoi(m[1])
	minor, _ = strconv.Atoi(m[2])
	return major, minor, true
}

// Flavour says what the program is, docker or podman, by what it prints as its version: distributions install podman under
// docker's name too. It asks no daemon.
func (e *Engine) Flavour(ctx context.Context) (string, error) {
	return e.flavour.get(ctx, engineHold, func(ctx context.Context) (string, error) {
		out, err := e.command(ctx, "version", "--version")
		if err != nil {
			return "", err
		}
		if strings.Contains(strings.ToLower(string(out)), "podman") {
			return manifest.Podman, nil
		}
		return manifest.Docker, nil
	})
}

// Info asks the engine about itself. The answer is kept for a while.
func (e *Engine) Info(ctx context.Context) (EngineInfo, error) {
	flavour, err := e.Flavour(ctx)
	if err != nil {
		return EngineInfo{}, err
	}
	return e.info.get(ctx, engineHold, func(ctx context.Context) (EngineInfo, error) {
		// podman's "json" is the same under both names; docker 20 knows the template only.
		format := "{{json .}}"
		if flavour == manifest.Podman {
			format = "json"
		}
		out, err := e.command(ctx, "info", "info", "--format", format)
		if err != nil {
			return EngineInfo{}, err
		}
		var info EngineInfo
		if flavour == manifest.Podman {
			info = podmanInfo(out, e.uid)
		} else {
			info, err = e.dockerInfo(ctx, out)
		}
		info.Engine, info.Bin = flavour, e.bin
		return info, err
	})
}

func podmanInfo(out []byte, uid int) EngineInfo {
	var p struct {
		Host *struct {
			CgroupVersion     string
			CgroupControllers []string
			CPUs              int
			OCIRuntime        struct{ Name string }
			Security          struct{ Rootless bool }
		}
		Store   struct{ GraphRoot string }
		Version struct{ Version string }
	}
	if err := json.Unmarshal(out, &p); err != nil || p.Host == nil {
		return EngineInfo{Unread: true, Rootless: uid != 0, OwnerUID: uid, Memory: true, CPUs: true, Pids: true}
	}
	info := EngineInfo{
		Version: p.Version.Version, Storage: p.Store.GraphRoot, Rootless: p.Host.Security.Rootless, OwnerUID: uid,
		Runtime: p.Host.OCIRuntime.Name, CgroupVersion: 2, Processors: p.Host.CPUs,
	}
	if p.Host.CgroupVersion == "v1" {
		info.CgroupVersion = 1
	}
	has := func(controller string) bool {
		if info.Rootless && info.CgroupVersion == 1 {
			return false // podman warns and ignores limits
		}
		for _, c := range p.Host.CgroupControllers {
			if c == controller {
				return true
			}
		}
		return p.Host.CgroupControllers == nil // podman 3 does not list them
	}
	info.Memory, info.CPUs, info.Pids = has("memory"), has("cpu"), has("pids")
	info.Swap = info.Memory // a kernel that cannot is podman's to see, which goes on without
	return info
}

func (e *Engine) dockerInfo(ctx context.Context, out []byte) (EngineInfo, error) {
	var d struct {
		ServerVersion, CgroupVersion, DefaultRuntime, DockerRootDir string
		MemoryLimit, SwapLimit, CPUCfsQuota, PidsLimit              bool
		NCPU                                                        int
		SecurityOptions, ServerErrors                               []string
	}
	if err := json.Unmarshal(out, &d); err != nil {
		return EngineInfo{Unread: true, OwnerUID: -1, Memory: true, CPUs: true, Pids: true}, nil
	}
	if len(d.ServerErrors) > 0 {
		// Some versions report this with status 0.
		return EngineInfo{}, engineError(e.kind, "info", 1, []byte(strings.Join(d.ServerErrors, "\n")))
	}
	info := EngineInfo{
		Version: d.ServerVersion, Storage: d.DockerRootDir, Runtime: d.DefaultRuntime, OwnerUID: -1,
		Memory: d.MemoryLimit, Swap: d.SwapLimit, CPUs: d.CPUCfsQuota, Pids: d.PidsLimit, Processors: d.NCPU, ProxyConfig: proxyConfig(e.env),
	}
	info.CgroupVersion, _ = strconv.Atoi(d.CgroupVersion)
	for _, opt := range d.SecurityOptions {
		switch name, _, _ := strings.Cut(strings.TrimPrefix(opt, "name="), ","); name {
		case "rootless":
			info.Rootless = true
		case "userns":
			info.Remapped = true
		}
	}
	if info.Rootless {
		info.OwnerUID = e.socketOwner(ctx)
	}
	return info, nil
}

// socketOwner returns who runs a rootless docker daemon: the owner of its socket; -1 where that is not to be had.
func (e *Engine) socketOwner(ctx context.Context) int {
	out, err := e.command(ctx, "context inspect", "context", "inspect", "--format", "{{.Endpoints.docker.Host}}")
	if err != nil {
		return -1
	}
	path, ok := strings.CutPrefix(strings.TrimSpace(string(out)), "unix://")
	if !ok {
		return -1
	}
	fi, err := os.Stat(path)
	if err != nil {
		return -1
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		return int(st.Uid)
	}
	return -1
}

// proxyConfig says whether docker's client would give proxy variables to every container by its configuration.
func proxyConfig(env environ) bool {
	dir := env["DOCKER_CONFIG"]
	if dir == "" {
		dir = filepath.Join(env["HOME"], ".docker")
	}
	data, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return false
	}
	var c struct{ Proxies map[string]any }
	return json.Unmarshal(data, &c) == nil && len(c.Proxies) > 0
}
