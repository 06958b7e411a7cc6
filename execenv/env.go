package execenv

import (
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"workerd/manifest"
)

// environ is an environment by name.
type environ map[string]string

// parseEnviron reads a list of NAME=value; of a name that comes twice the last one counts. What is no such entry is dropped.
func parseEnviron(list []string) environ {
	e := make(environ, len(list))
	for _, kv := range list {
		// The search for "=" begins at the second byte, as the C library's does: a name is never empty.
		if i := strings.IndexByte(kv[min(1, len(kv)):], '='); i >= 0 {
			e[kv[:i+1]] = kv[i+2:]
		}
	}
	return e
}

// list returns the entries sorted by name, as exec takes them.
func (e environ) list() []string {
	out := make([]string, 0, len(e))
	for k, v := range e {
		out = append(out, k+"="+v)
	}
	slices.Sort(out)
	return out
}

func (e environ) clone() environ {
	c := make(environ, len(e))
	c.set(e)
	return c
}

func (e environ) set(from map[string]string) {
	for k, v := range from {
		e[k] = v
	}
}

// notInherited are names and, with a "*", prefixes that a venv worker does not get from workerd's own environment. They
// belong to another Python than the worker's, to the service manager's talk with workerd, to engines, or to the shell that
// workerd was started from, or say which of AMD's cards workerd itself may use: those that a worker is given are chosen among them,
// and what counts them (HIP_VISIBLE_DEVICES) would count those of the worker.
var notInherited = []string{
	"PYTHON*", "LD_PRELOAD", "CONDA_*", "VIRTUAL_ENV*",
	"APPTAINER*", "SINGULARITY*", "DOCKER_HOST", "DOCKER_CONTEXT", "CONTAINER_HOST",
	"NOTIFY_SOCKET", "LISTEN_*", "WATCHDOG_*", "JOURNAL_STREAM", "INVOCATION_ID", "MANAGERPID", "SYSTEMD_EXEC_PID", "WORKERD_*",
	"OLDPWD", "SHLVL", "_",
	"ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "GPU_DEVICE_ORDINAL",
}

// inherit returns workerd's own environment less notInherited and less the variables that secrets are taken from: those
// would show under their own name what is hidden under the worker's.
func inherit(own environ, secrets map[string]manifest.Secret) environ {
	e := make(environ, len(own))
	for k, v := range own {
		if !matchAny(notInherited, k) {
			e[k] = v
		}
	}
	dropSecrets(e, secrets)
	return e
}

// dropSecrets takes out what secrets are named and taken from.
func dropSecrets(e environ, secrets map[string]manifest.Secret) {
	for name, s := range secrets {
		delete(e, name)
		delete(e, s.Env)
	}
}

// setVariables sets the manifest's variables, but for those that are secrets.
func setVariables(e environ, m *manifest.Manifest) {
	for name, v := range m.Env.Variables {
		if _, secret := m.Env.Secrets[name]; !secret {
			e[name] = v
		}
	}
}

// passed returns what pass_env names: it arrives even where it is not inherited. workerd's own variables never do.
func passed(own environ, patterns []string, secrets map[string]manifest.Secret) environ {
	e := environ{}
	for k, v := range own {
		if matchAny(patterns, k) && !strings.HasPrefix(k, "WORKERD_") {
			e[k] = v
		}
	}
	dropSecrets(e, secrets)
	return e
}

func matchAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool {
		ok, err := path.Match(p, name)
		return ok && err == nil || p == name
	})
}

// cacheDirs are the variables that name a folder of the provider's own below its cache, and those folders' names.
var cacheDirs = map[string]string{
	"XDG_CACHE_HOME":            "xdg",
	"NUMBA_CACHE_DIR":           "numba",
	"MPLCONFIGDIR":              "matplotlib",
	"TRITON_CACHE_DIR":          "triton",
	"TORCHINDUCTOR_CACHE_DIR":   "torchinductor",
	"CUDA_CACHE_PATH":           "cuda",
	"JAX_COMPILATION_CACHE_DIR": "jax",
}

// cacheEnv returns the cache variables of a provider. HF_HOME and TORCH_HOME hold models rather than compiled code, so all
// providers share them. FONTCONFIG_PATH is left alone: it names fontconfig's configuration, and an empty one breaks every
// font.
func cacheEnv(h Host, slug string) environ {
	e := environ{}
	for name, dir := range cacheDirs {
		e[name] = filepath.Join(providerCache(h, slug), dir)
	}
	e["HF_HOME"] = h.HFHome
	if h.HFHome == "" {
		e["HF_HOME"] = filepath.Join(h.CacheDir, "shared", "huggingface")
	}
	e["TORCH_HOME"] = filepath.Join(h.CacheDir, "shared", "torch")
	return e
}

// providerCache is the one writable folder of a provider, and providerHome the home inside it.
func providerCache(h Host, slug string) string { return filepath.Join(h.CacheDir, "providers", slug) }
func providerHome(h Host, slug string) string  { return filepath.Join(providerCache(h, slug), "home") }

// pythonEnv keeps a user's own site-packages out, and output unbuffered so that the last line before a crash is seen.
func pythonEnv() environ {
	return environ{"PYTHONNOUSERSITE": "1", "PYTHONUNBUFFERED": "1"}
}

// perWorker are the variables whose values Command fills in. In a Plan the angle brackets stand for them.
func perWorker(h Host, m *manifest.Manifest, g GPU) environ {
	gpus := "<gpus>"
	if g.Count == 0 {
		gpus = "" // not unset, which would mean all of them
	}
	e := environ{}
	if g.Count > 0 {
		e["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID" // for indices, where nobody could be asked for a UUID: CUDA's own order is another
	}
	if g.amd {
		e["ROCR_VISIBLE_DEVICES"] = gpus // empty is none, as for CUDA; HIP takes an empty list of its own for all
	}
	maps.Copy(e, environ{
		"WORKERD_SOCKET":       filepath.Join(h.RuntimeDir, "w", m.Slug, "<n>.sock"),
		MarkerVar:              h.Instance + "/" + m.Slug + "/<n>",
		"WORKERD_GPUS":         gpus,
		"CUDA_VISIBLE_DEVICES": gpus,
		"TMPDIR":               filepath.Join(scratch(h), tmpName(h.Instance, "<n>")),
	})
	if m.Serve.Standby == standbyWarm {
		e[StandbyVar] = "" // but for the standby: an engine's client has to be told every name beforehand
	}
	return e
}

// StandbyVar tells a worker that it is a warm standby: it preloads, and waits to be told to load. Empty for one that serves.
const StandbyVar = "WORKERD_STANDBY"

const standbyWarm = "warm"

// Marker is the value of WORKERD_WORKER for one worker.
func Marker(instance, slug string, n int64) string {
	return instance + "/" + slug + "/" + strconv.FormatInt(n, 10)
}

// workerdEnv is what every worker is told that is the same for all workers of a provider.
func workerdEnv(h Host, m *manifest.Manifest) environ {
	return environ{
		"WORKERD_PROVIDER":     m.Slug,
		"WORKERD_PROVIDER_DIR": m.Dir,
		"WORKERD_WEIGHTS":      m.Weights.Root,
		"WORKERD_WORK_ROOT":    m.Paths.WorkRoot,
		"WORKERD_STOP_TIMEOUT": strconv.FormatFloat(m.Start.StopTimeout.D().Seconds(), 'f', -1, 64),
	}
}

// withSDK puts the SDK's folder in front of a PYTHONPATH.
func withSDK(sdkDir, pythonPath string) string {
	switch {
	case sdkDir == "":
		return pythonPath
	case pythonPath == "":
		return sdkDir
	default:
		return sdkDir + ":" + pythonPath
	}
}
