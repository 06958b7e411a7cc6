package execenv

import (
	"strings"
)

// clientVars are what the client of an engine is given of workerd's own environment: names and, with a "*", prefixes. What
// names the engine and its configuration goes to the client only, never to a worker.
var clientVars = []string{
	"PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_*", "TMPDIR", "TZ", "LD_LIBRARY_PATH",
	"XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME", "XDG_RUNTIME_DIR", "XDG_DATA_DIRS", "XDG_CONFIG_DIRS",
	"DBUS_SESSION_BUS_ADDRESS", "SSL_CERT_FILE", "SSL_CERT_DIR",
}

// engineVars are those of one kind besides.
var engineVars = map[string][]string{
	"docker": {"DOCKER_*", "SSH_AUTH_SOCK", "CONTAINER_HOST", "CONTAINER_SSHKEY", "CONTAINERS_*", "STORAGE_DRIVER", "STORAGE_OPTS", "REGISTRY_AUTH_FILE"},
	"podman": {"CONTAINER_HOST", "CONTAINER_SSHKEY", "CONTAINERS_*", "STORAGE_DRIVER", "STORAGE_OPTS", "REGISTRY_AUTH_FILE", "SSH_AUTH_SOCK", "DOCKER_HOST", "DOCKER_CONFIG"},
}

// clientEnv is the environment of an engine's client. Proxies are for its own way to a registry or a daemon.
func clientEnv(h Host, kind string) environ {
	own := parseEnviron(h.Environ)
	e := environ{}
	for name, v := range own {
		if matchAny(clientVars, name) || matchAny(engineVars[kind], name) || isProxy(name) {
			e[name] = v
		}
	}
	if e["PATH"] == "" {
		e["PATH"] = defaultPath
	}
	if e["HOME"] == "" && h.ID.Home != "" {
		e["HOME"] = h.ID.Home
	}
	return e
}

// proxyNames are the variables that engines hand on to containers by themselves.
var proxyNames = []string{"http_proxy", "https_proxy", "ftp_proxy", "no_proxy", "all_proxy"}

func isProxy(name string) bool {
	low := strings.ToLower(name)
	for _, p := range proxyNames {
		if low == p {
			return true
		}
	}
	return false
}

// ownToClient are variables whose value in a client's environment would be the client's own: a worker's value of them is
// given on the client's stdin instead. WORKERD_WORKER is among them because what an engine leaves running, conmon and
// podman's pause process, inherits the client's environment and would pass for a part of the worker.
var ownToClient = []string{
	"PATH", "HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TZ", "XDG_*", "DBUS_*", "LD_*", "GLIBC_TUNABLES", "MALLOC_*", "LOCPATH",
	"DOCKER_*", "CONTAINER*", "_CONTAINERS_*", "PODMAN_*", "STORAGE_*", "REGISTRY_*", "BUILDAH*", "BUILDKIT*", "BUILDX*", "NETAVARK*", "CNI_*",
	"SSH_*", "SSL_*", "OTEL_*", "GODEBUG", "GOGC", "GOMAXPROCS", "GOMEMLIMIT", "GOTRACEBACK", "GORACE", "GOCOVERDIR",
	"NOTIFY_SOCKET", "LISTEN_*", "WATCHDOG_*", "SUDO_*", MarkerVar,
}

func isOwnToClient(name string) bool { return matchAny(ownToClient, name) || isProxy(name) }

// split divides a worker's environment into what goes by name, with the value in the client's environment, and the
// lines of an env file for the rest.
func splitEnv(worker environ) (named environ, lines []string) {
	named = environ{}
	for _, name := range sortedKeys(worker) {
		if isOwnToClient(name) {
			lines = append(lines, name+"="+worker[name])
		} else {
			named[name] = worker[name]
		}
	}
	return named, lines
}

// envLineLimit is less than what the engines' line reader takes.
const envLineLimit = 60 << 10

// checkEnvLine says why a variable cannot be a line of an env file. Some versions of podman read a value that begins with a
// quote as a quoted string.
func checkEnvLine(key, name, value string) error {
	switch {
	case strings.ContainsAny(value, "\r\n"):
		return permanent(key, "the engine's client uses %s itself, so a worker in a container cannot be given one with a line break", name)
	case len(name)+len(value) > envLineLimit:
		return permanent(key, "the engine's client uses %s itself, so a worker in a container cannot be given one of more than %d bytes", name, envLineLimit)
	case strings.HasPrefix(value, `"`), strings.HasPrefix(value, "'"), strings.HasPrefix(value, "`"):
		return permanent(key, "the engine's client uses %s itself, so a worker in a container cannot be given one that begins with a quote", name)
	}
	return nil
}
