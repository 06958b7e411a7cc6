package execenv

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// The texts are those of docker 20.10, 27 and 28, podman 4.3 and 5, and Apptainer 1.4.
func TestEngineErrors(t *testing.T) {
	const (
		docker = manifest.Docker
		podman = manifest.Podman
	)
	for _, c := range []struct {
		engine, verb string
		code         int
		text         string
		kind         EngineErrorKind
		hint         string
	}{
		{docker, "info", 1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?", EngineUnreachable, "start the docker daemon"},
		{docker, "info", 1, "failed to connect to the docker API at unix:///var/run/docker.sock; check if the path is correct and if the daemon is running: dial unix /var/run/docker.sock: connect: no such file or directory", EngineUnreachable, "start"},
		{docker, "ps", 1, "error during connect: Get \"http://d:2375/v1.41/containers/json\": dial tcp: lookup d: no such host", EngineUnreachable, "DOCKER_HOST"},
		{docker, "pull", 1, "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?", EngineUnreachable, "start"},
		{docker, "info", 1, "permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock: Get \"http://%2Fvar%2Frun%2Fdocker.sock/v1.50/info\": dial unix /var/run/docker.sock: connect: permission denied", EnginePermission, "group docker"},
		{docker, "ps", 1, "Got permission denied while trying to connect to the Docker daemon socket at unix:///var/run/docker.sock", EnginePermission, "group docker"},
		{docker, "ps", 1, "permission denied while trying to connect to the docker API at unix:///var/run/docker.sock", EnginePermission, "group docker"},
		{podman, "info", 125, "Cannot connect to Podman. Please verify your connection to the Linux system using `podman system connection list`", EngineUnreachable, "CONTAINER_HOST"},
		{docker, "run", 125, "docker: Error response from daemon: No such image: nosuch:1\n\nRun 'docker run --help' for more information", EngineImageMissing, ""},
		{docker, "image inspect", 1, "[]\nError response from daemon: no such image: nosuch:1: No such image: nosuch:1", EngineImageMissing, ""},
		{docker, "run", 125, "Unable to find image 'nosuch:1' locally", EngineImageMissing, ""},
		{podman, "image inspect", 125, "Error: inspecting object: nosuch:1: image not known", EngineImageMissing, ""},
		{docker, "pull", 1, "Error response from daemon: Get \"http://localhost:1/v2/\": dial tcp 127.0.0.1:1: connect: connection refused", EnginePullFailed, "registry"},
		{docker, "pull", 1, "Error response from daemon: pull access denied for lab/x, repository does not exist or may require 'docker login'", EnginePullFailed, "logged in"},
		{docker, "pull", 1, "Error response from daemon: manifest for lab/x:2 not found: manifest unknown: manifest unknown", EnginePullFailed, "registry"},
		{podman, "pull", 125, "Error: initializing source docker://localhost:1/nosuch:1: pinging container registry localhost:1: Get \"https://localhost:1/v2/\": dial tcp 127.0.0.1:1: connect: connection refused", EnginePullFailed, "registry"},
		{docker, "run", 125, "docker: Error response from daemon: Conflict. The container name \"/zz3\" is already in use by container \"bfcd43\". You have to remove (or rename) that container to be able to reuse that name.", EngineNameTaken, "rename"},
		{podman, "run", 125, "Error: creating container storage: the container name \"zz3\" is already in use by be34f3. You have to remove that container to be able to reuse that name: that name is already in use", EngineNameTaken, "rename"},
		{docker, "inspect", 1, "[]\nError response from daemon: No such container: nosuch", EngineNoContainer, ""},
		{docker, "kill", 1, "Error response from daemon: Cannot kill container: nosuch: No such container: nosuch", EngineNoContainer, ""},
		{podman, "inspect", 125, "[]\nError: inspecting object: no such container nosuch", EngineNoContainer, ""},
		{podman, "stop", 125, "Error: no container with name or ID \"nosuch\" found: no such container", EngineNoContainer, ""},
		{docker, "run", 127, "docker: Error response from daemon: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: \"/nosuch\": stat /nosuch: no such file or directory: unknown", EngineNotFound, "container_python"},
		{docker, "run", 126, "docker: Error response from daemon: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: exec: \"/etc/passwd\": permission denied: unknown", EngineNotExecutable, "executed"},
		{podman, "run", 127, "Error: runc: runc create failed: unable to start container process: exec: \"/nosuch\": stat /nosuch: no such file or directory: OCI runtime attempted to invoke a command that was not found", EngineNotFound, "container_python"},
		{podman, "run", 126, "Error: runc: runc create failed: unable to start container process: exec: \"/etc/passwd\": permission denied: OCI permission denied", EngineNotExecutable, "executed"},
		{podman, "run", 126, "{\"msg\":\"exec container process `/usr/bin/python3`: Exec format error\",\"level\":\"error\"}", EngineNotExecutable, ""},
		{docker, "run", 125, "docker: Error response from daemon: invalid mount config for type \"bind\": bind source path does not exist: /tmp/nope", EngineUnseen, "root_squash"},
		{docker, "run", 127, "docker: Error response from daemon: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: error mounting \"/c/identity/1/group\" to rootfs at \"/etc/group\": stat /c/identity/1/group: no such file or directory: unknown.", EngineUnseen, "has gone"},
		{podman, "run", 126, "Error: OCI runtime error: runc: runc create failed: unable to start container process: can't get final child's PID from pipe: EOF", EngineInterrupted, ""},
		{podman, "run", 125, "Error: statfs /tmp/nope: no such file or directory", EngineUnseen, "has gone"},
		{docker, "run", 125, "docker: Error response from daemon: network nosuchnet not found", EngineNoNetwork, "network ls"},
		{docker, "run", 125, "docker: Error response from daemon: failed to create endpoint x on network bridge: adding interface veth1 to bridge docker0 failed: could not find bridge docker0: route ip+net: no such network interface", EngineNoNetwork, "network ls"},
		{docker, "run", 125, "unknown flag: --bogus\n\nUsage:  docker run [OPTIONS] IMAGE [COMMAND] [ARG...]\n\nRun 'docker run --help' for more information", EngineRefused, ""},
		{docker, "run", 125, "docker: Error response from daemon: could not select device driver \"\" with capabilities: [[gpu]]", EngineGPURuntimeMissing, "nvidia-ctk runtime configure"},
		{docker, "run", 125, "docker: Error response from daemon: unknown or invalid runtime name: nvidia", EngineGPURuntimeMissing, "toolkit"},
		{docker, "run", 125, "docker: Error response from daemon: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: error running hook #0: error running hook: exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\nnvidia-container-cli: initialization error: nvml error: driver not loaded: unknown", EngineGPURuntimeMissing, "toolkit"},
		{docker, "run", 125, "docker: Error response from daemon: failed to discover GPU vendor from CDI: no known GPU vendor found", EngineGPURuntimeMissing, "toolkit"},
		{docker, "run", 125, "docker: Error response from daemon: could not select device driver \"cdi\" with capabilities: []", EngineCDIUnresolved, "nvidia-ctk cdi generate"},
		{podman, "run", 126, "Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=0", EngineCDIUnresolved, "nvidia-ctk cdi generate"},
		{podman, "info", 125, "cannot clone: Operation not permitted\nuser namespaces are not enabled in /proc/sys/kernel/unprivileged_userns_clone\nError: cannot re-exec process", EngineUserNamespacesOff, "unprivileged_userns_clone"},
		{podman, "info", 125, "ERRO[0000] cannot find UID/GID for user alice: no subuid ranges found for user \"alice\" in /etc/subuid", EngineUserNamespacesOff, "usermod --add-subuids"},
		{podman, "run", 125, "Error: cannot set up namespace using \"/usr/bin/newuidmap\": exit status 1", EngineUserNamespacesOff, "uidmap"},
		{podman, "run", 126, "Error: crun: mount `/gpfs/u/.local/share/containers/storage/overlay/ab/merged` to `x`: Permission denied: OCI permission denied", EngineStorage, "NFS or GPFS"},
		{podman, "run", 126, "Error: runc: runc create failed: unable to start container process: error during container init: error preparing rootfs: stat /home/u/.local/share/containers/storage/overlay/ab/merged: permission denied: OCI permission denied", EngineStorage, "chmod o+x"},
		{podman, "pull", 125, "Error: copying system image from manifest list: writing blob: adding layer with blob \"sha256:ab\": processing tar file(potentially insufficient UIDs or GIDs available in user namespace (requested 0:42 for /etc/gshadow)): lchown /etc/gshadow: invalid argument", EngineUserNamespacesOff, "usermod --add-subuids"},
		{podman, "pull", 125, "Error: processing tar file(potentially insufficient UIDs or GIDs available in user namespace (requested 0:42 for /etc/gshadow)): lchown /etc/gshadow: operation not permitted", EngineStorage, "NFS or GPFS"},
		{podman, "pull", 125, "Error: writing blob: adding layer with blob \"sha256:ab\": ApplyLayer stdout:  stderr: operation not permitted exit status 1", EngineStorage, "graphroot"},
		{podman, "run", 126, "Error: crun: open executable: Permission denied: OCI permission denied", EngineStorage, "chmod o+x"},
		{podman, "run", 125, "Error: could not find slirp4netns, the network namespace can't be configured: exec: \"slirp4netns\": executable file not found in $PATH", EngineNoNetwork, "install slirp4netns"},
		{podman, "run", 127, "Error: could not find pasta, the network namespace can't be configured: exec: \"pasta\": executable file not found in $PATH", EngineNoNetwork, "passt"},
		{podman, "run", 125, "Error: container-init binary not found on the host: stat /usr/libexec/podman/catatonit: no such file or directory", EngineRefused, "catatonit"},
		{docker, "run", 125, "docker: Error response from daemon: exec: \"docker-init\": executable file not found in $PATH", EngineRefused, "tini"},
	} {
		e := engineError(c.engine, c.verb, c.code, []byte(c.text))
		assert.Equal(t, c.kind, e.Kind, "%s", c.text)
		if c.hint == "" {
			continue
		}
		assert.Contains(t, e.Hint, c.hint, c.text)
		assert.Contains(t, e.Error(), c.hint)
	}
}

// What is wrong stands at the end of a chain of errors, however long the paths in it are.
func TestLongPathsHideNoError(t *testing.T) {
	dir := "/home/someone" + strings.Repeat("/a-folder-of-many-letters", 8)
	e := engineError("docker", "run", 127, []byte("docker: Error response from daemon: failed to create shim task: OCI runtime create failed: runc create failed: "+
		"unable to start container process: error during container init: error mounting \""+dir+"/group\" to rootfs at \"/etc/group\": stat "+dir+
		"/group: no such file or directory: unknown.\n\nRun 'docker run --help' for more information"))
	assert.Equal(t, EngineUnseen, e.Kind)
	assert.Contains(t, e.Error(), "docker: Error response from daemon: failed to create shim task")
	assert.Contains(t, e.Error(), "/group: no such file or directory: unknown.;")
	assert.Less(t, len(e.Msg), 600)
}

func TestRunnerErrors(t *testing.T) {
	for _, c := range []struct {
		code int
		text string
		kind EngineErrorKind
		hint string
	}{
		{255, "FATAL:   stat /nosuch: no such file or directory", EngineNotFound, "container_python"},
		{255, "FATAL:   \"nosuch\": executable file not found in $PATH", EngineNotFound, "container_python"},
		{255, "FATAL:   permission denied", EngineNotExecutable, "executed"},
		{255, "\x1b[31mFATAL:  \x1b[0m Couldn't determine user account information: user: unknown userid 4242", EngineRefused, "add this uid"},
		{255, "FATAL:   While checking container encryption: could not open image /x.sif: failed to retrieve path for /x.sif: lstat /x.sif: no such file or directory", EngineImageMissing, "env.sif"},
		{255, "FATAL:   While checking container encryption: could not open image /home/u/junk.sif: image format not recognized", EngineRefused, "damaged"},
		{255, "FATAL:   failed to set working directory: chdir /nosuchdir: no such file or directory", EngineRefused, ""},
		{255, "WARNING: skipping mount of /nope: stat /nope: no such file or directory\nFATAL:   container creation failed: mount hook function failure: mount /nope->/nope error: while mounting /nope: mount source /nope doesn't exist", EngineUnseen, "has gone"},
		{255, "FATAL:   container creation failed: network requires root or a suid installation with /etc/subuid --fakeroot; non-root users can only use --network=none unless permitted by the administrator", EngineRefused, ""},
		{255, "FATAL:   container creation failed: while applying cgroups config: cannot use cgroups - cannot use systemd cgroups manager, systemd not running as init on this host", EngineRefused, ""},
		{255, "ERROR  : Failed to create user namespace: user namespace requires to set a non-zero value in /proc/sys/user/max_user_namespaces\nFATAL:   x", EngineUserNamespacesOff, "sysctl"},
		{255, "ERROR  : Failed to create user namespace: user namespace disabled", EngineUserNamespacesOff, "sysctl"},
		{1, "ERROR  : Failed to create user namespace: not allowed to create user namespace", EngineUserNamespacesOff, "kernel.apparmor_restrict_unprivileged_userns"},
		{255, "FATAL:   while extracting: setgroups: Permission denied", EngineUserNamespacesOff, "max_user_namespaces"},
		{1, "ERROR  : Requesting capability set 0x000001ffffffffff while permitted capability set is 0x000001fffeffffff", EngineRefused, ""},
		{1, "Error for command \"exec\": unknown flag: --bogus\n\nOptions for exec command:\n\n" + strings.Repeat("      --flag   text\n", 200) + "\nRun 'apptainer --help' for more detailed usage information.\n", EngineRefused, ""},
	} {
		e := runnerError("apptainer", c.code, []byte(c.text))
		require.NotNil(t, e, c.text)
		assert.Equal(t, c.kind, e.Kind, c.text)
		assert.Contains(t, e.Error(), c.hint)
		assert.NotContains(t, e.Error(), "\x1b")
		assert.NotContains(t, e.Error(), "Options for")
	}
	for text, code := range map[string]int{
		"": 0, "Traceback (most recent call last):\nValueError: x": 1, "FATAL:   stat /x: no such file or directory": 2, "Traceback (most recent call last):": 255,
		"killed": 137, "FATAL:   x": 143,
		// What workers log themselves.
		"FATAL: no licence": 255, "2026-01-01 FATAL:   no licence": 255, "loading FATAL:   x": 255, "FATAL:no licence": 255,
		"INFO   : loading\nERROR  : no licence": 1, "ERROR  : Failed to load": 255, "OSError: newuidmap: setgroups: Permission denied": 255,
	} {
		assert.Nil(t, runnerError("apptainer", code, []byte(text)), "%d %s", code, text)
	}
}

func TestRunFailureOfInits(t *testing.T) {
	pl := &Plan{Kind: manifest.Docker, Engine: manifest.Docker}
	for text, want := range map[string]EngineErrorKind{
		"[FATAL tini (7)] exec /no/such failed: No such file or directory\n":      EngineNotFound,
		"[FATAL tini (7)] exec /etc/hostname failed: Permission denied\n":         EngineNotExecutable,
		"[FATAL tini (7)] exec server failed: Exec format error\n":                EngineNotExecutable,
		"ERROR (catatonit:7): failed to exec pid1: No such file or directory\n":   EngineNotFound,
		"banner\nERROR (catatonit:2): failed to exec pid1: Permission denied\n\n": EngineNotExecutable,
	} {
		e := pl.RunFailure(127, []byte(text))
		require.NotNil(t, e, text)
		assert.Equal(t, want, e.Kind, text)
		assert.Nil(t, (&Plan{Kind: manifest.Venv}).RunFailure(127, []byte(text)))
	}
	assert.Nil(t, pl.RunFailure(1, []byte("[FATAL tini (7)] exec x failed: No such file or directory\nmore from the worker\n")))
	assert.Nil(t, pl.RunFailure(127, nil))
	e := pl.RunFailure(127, []byte("[FATAL tini (7)] exec /bin/sh failed: No such file or directory\n"))
	require.NotNil(t, e)
	assert.Contains(t, e.Hint, "umask 022")
}

func TestEngineErrorClasses(t *testing.T) {
	for kind := range engineErrorNames {
		assert.NotEmpty(t, kind.String())
		err := planError("env.image", &EngineError{Kind: kind, Engine: "docker", Verb: "run", Msg: "text"})
		var e *Error
		require.ErrorAs(t, err, &e)
		assert.Equal(t, kind.Class(), e.Kind)
		assert.True(t, IsEngineError(err, kind), "it is still what it was")
		assert.Contains(t, err.Error(), "env.image: docker run: ")
	}
	assert.Equal(t, EngineUnavailable, EngineTimeout.Class())
	assert.Equal(t, Transient, EnginePullFailed.Class())
	assert.Equal(t, Permanent, EngineUserNamespacesOff.Class())
}
