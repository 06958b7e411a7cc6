package execenv

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// EngineErrorKind says what went wrong with a container engine.
type EngineErrorKind int

// The ways in which engines fail.
const (
	// EngineRefused is any other refusal: of a flag, a mount, a network (exit 125; 255 of apptainer).
	EngineRefused EngineErrorKind = iota
	EngineNotInstalled
	EngineUnreachable // the daemon does not answer
	EnginePermission  // the caller may not talk to the daemon
	EngineTimeout     // the command did not finish and was killed
	EngineImageMissing
	EnginePullFailed
	EngineNameTaken // by a container that is not this worker's
	EngineNoContainer
	EngineNotExecutable // exit 126
	EngineNotFound      // exit 127: the program is not in the image
	EngineGPURuntimeMissing
	EngineCDIUnresolved
	EngineUserNamespacesOff
	EngineStorage // the image's storage cannot be used, as with a closed home or a network file system
)

var engineErrorNames = map[EngineErrorKind]string{
	EngineRefused: "refused", EngineNotInstalled: "not installed", EngineUnreachable: "not reachable",
	EnginePermission: "permission denied", EngineTimeout: "does not answer", EngineImageMissing: "image missing",
	EnginePullFailed: "pull failed", EngineNameTaken: "name taken", EngineNoContainer: "no such container",
	EngineNotExecutable: "program not executable", EngineNotFound: "program not found in the image",
	EngineGPURuntimeMissing: "no GPU runtime", EngineCDIUnresolved: "CDI device unresolved",
	EngineUserNamespacesOff: "user namespaces are off", EngineStorage: "storage cannot be used",
}

// String returns the kind in words.
func (k EngineErrorKind) String() string { return engineErrorNames[k] }

// Class says what the kind means for the next try.
func (k EngineErrorKind) Class() ErrorKind {
	switch k {
	case EngineNotInstalled, EngineUnreachable, EnginePermission, EngineTimeout:
		return EngineUnavailable
	case EnginePullFailed, EngineNameTaken, EngineNoContainer:
		return Transient
	default:
		return Permanent
	}
}

// EngineError is a failed command of a container engine.
type EngineError struct {
	Kind   EngineErrorKind
	Engine string // docker, podman, apptainer, singularity
	Verb   string // run, inspect, ...
	Code   int    // exit status; 0 where there is none
	Msg    string // the end of what it printed
	Hint   string // what to do
	Err    error  // the cause, where the command did not run to its end
}

// Error says what was tried, what the engine said, and what to do.
func (e *EngineError) Error() string {
	s := e.Engine + " " + e.Verb + ": " + e.Kind.String()
	if e.Kind == EngineRefused && e.Code != 0 {
		s = fmt.Sprintf("%s %s: refused (exit %d)", e.Engine, e.Verb, e.Code)
	}
	if e.Msg != "" {
		s += ": " + e.Msg
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	if e.Hint != "" {
		s += "; " + e.Hint
	}
	return s
}

// Unwrap returns the cause.
func (e *EngineError) Unwrap() error { return e.Err }

// planError makes an Error of what an engine's verb returned.
func planError(key string, err error) error {
	var ee *EngineError
	if errors.As(err, &ee) {
		return &Error{Kind: ee.Kind.Class(), Key: key, Err: ee}
	}
	return err
}

// IsEngineError says whether err is an EngineError of that kind.
func IsEngineError(err error, kind EngineErrorKind) bool {
	var ee *EngineError
	return errors.As(err, &ee) && ee.Kind == kind
}

// textRule recognises one failure by what an engine printed. The texts are those that engines were seen to print.
type textRule struct {
	kind EngineErrorKind
	text *regexp.Regexp
	hint string
}

func rule(kind EngineErrorKind, hint, text string) textRule {
	return textRule{kind, regexp.MustCompile("(?i)" + text), hint}
}

const (
	hintTimeout = "see whether the engine hangs, or raise the setting engine_timeout where it is only slow"
	hintDaemon  = "start the docker daemon (systemctl start docker), or set DOCKER_HOST"
	hintGroup   = "add this user to the group docker (usermod -aG docker USER) and log in anew, or use podman or apptainer"
	hintUserNS  = "user namespaces must be open to this user: sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces above 0, " +
		"and where AppArmor restricts them kernel.apparmor_restrict_unprivileged_userns=0"
	hintSubIDs  = "this user needs ranges in /etc/subuid and /etc/subgid (usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER) and newuidmap (package uidmap)"
	hintStorage = "two causes are known of trouble with a storage of images: the home must be passable for the user namespace (chmod o+x), and images cannot be stored on NFS or GPFS: " +
		"set graphroot in ~/.config/containers/storage.conf to a local folder"
	// The path was there when the plan was made.
	hintUnseen = "the path has gone, or the engine's daemon cannot see it: root cannot enter a home that NFS exports with root_squash, nor a FUSE mount of yours; " +
		"cache_dir, runtime_dir and scratch_dir may have to be on local disks"
	hintGPU = "install the NVIDIA container toolkit and run nvidia-ctk runtime configure --runtime=docker, or set gpu.policy = \"none\""
	hintCDI = "write the CDI specification anew: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
)

// textRules are tried in order.
var textRules = []textRule{
	rule(EnginePermission, hintGroup, `permission denied while trying to connect`),
	rule(EngineUnreachable, hintDaemon, `cannot connect to the docker daemon|is the docker daemon running|error during connect|failed to connect to the docker api`),
	rule(EngineUnreachable, "start podman's service, or unset CONTAINER_HOST", `unable to connect to podman|cannot connect to podman`),
	rule(EngineNoContainer, "", `no such container|no container with (name or id|id or name)`),
	rule(EngineNameTaken, "a container that is not this worker's has the name: remove or rename it", `container name .* is already in use|that name is already in use`),
	rule(EngineGPURuntimeMissing, hintGPU, `could not select device driver "" with capabilities: \[\[gpu|nvidia-container-cli|nvidia-container-runtime|unknown or invalid runtime name: nvidia|failed to discover gpu vendor`),
	rule(EngineCDIUnresolved, hintCDI, `unresolvable cdi devices?|could not select device driver "cdi"|cdi device injection failed`),
	rule(EngineUserNamespacesOff, hintSubIDs, `newuidmap|newgidmap|no sub[ug]id ranges found|lchown .*: invalid argument|not enough unused (ids|uids|gids)`),
	rule(EngineUserNamespacesOff, hintUserNS, `failed to create user namespace|user namespaces are not enabled|cannot clone: operation not permitted|cannot re-exec process|setgroups: permission denied|max_user_namespaces|unprivileged_userns_clone|unshare: operation not permitted|clone.*operation not permitted`),
	rule(EngineRefused, "install podman's init: the package catatonit", `container-init binary not found|catatonit.*(not found|no such file)`),
	rule(EngineRefused, "install docker's init: the package tini or docker-init", `"?docker-init"?: (executable file )?not found|docker-init.*no such file`),
	rule(EngineRefused, "install slirp4netns or passt, or set env.network to \"none\" or \"host\"", `could not find (slirp4netns|pasta)|/dev/net/tun`),
	rule(EngineStorage, hintStorage, `containers/storage/.*(permission denied|operation not permitted)|(permission denied|operation not permitted).*containers/storage/|error (mounting|creating) (rootfs|container storage).*permission denied|open executable: permission denied|potentially insufficient|l?chown .*operation not permitted|(applying layer|applylayer|processing tar file|overlay mount).*(operation not (permitted|supported)|permission denied)`),
	rule(EngineRefused, hintUnseen, `bind source path does not exist|error while creating mount source path|statfs .*no such file or directory`),
	rule(EngineImageMissing, "", `no such image|image not known|unable to find image`),
	rule(EngineImageMissing, "env.sif must name a .sif file or a sandbox directory", `could not open image .*no such file`),
	rule(EngineRefused, "the file is no image, or a damaged one: build it anew", `image format not recognized|not a valid sif`),
	rule(EngineRefused, "apptainer runs only users that the host knows: add this uid to the user database", `unknown userid|couldn't determine user account information`),
	rule(EngineRefused, "images are mounted by FUSE: install squashfuse and fuse3, and /dev/fuse must be open to the user", `squashfuse|fusermount|/dev/fuse`),
	rule(EngineNotExecutable, "", `exec format error`),
}

// exitRules are for what no text explains.
var exitRules = map[int]EngineErrorKind{126: EngineNotExecutable, 127: EngineNotFound}

const (
	hintNotFound      = "env.container_python, or the first word of command, must be a program of the image"
	hintNotExecutable = "the program of the image may not be executed by this user, or is for another machine"
	hintPull          = "see that the registry can be reached and that you are logged in, or load the image by hand and set env.pull = \"never\""
)

// engineError makes a typed error of a command of docker or podman that failed.
func engineError(engine, verb string, code int, output []byte) *EngineError {
	e := &EngineError{Engine: engine, Verb: verb, Code: code, Msg: engineText(output)}
	for _, r := range textRules {
		if r.text.MatchString(e.Msg) {
			e.Kind, e.Hint = r.kind, r.hint
			break
		}
	}
	if verb == "pull" && e.Kind.Class() != EngineUnavailable && e.Kind != EngineStorage && e.Kind != EngineUserNamespacesOff {
		e.Kind, e.Hint = EnginePullFailed, hintPull
	}
	if verb == "run" && e.Kind == EngineRefused && e.Hint == "" {
		e.Kind = exitRules[code] // the zero value is EngineRefused
		switch e.Kind {
		case EngineNotFound:
			e.Hint = hintNotFound
		case EngineNotExecutable:
			e.Hint = hintNotExecutable
		}
	}
	return e
}

var (
	ansiColour = regexp.MustCompile("\x1b\\[[0-9;]*m")
	// engineNoise are lines that say nothing about what went wrong.
	engineNoise = regexp.MustCompile(`^(Run '.*--help'.*|See '.*--help'.*|Usage: .*|\[\]|)$`)
)

// engineText returns the last lines of what an engine printed, without what is no message.
func engineText(output []byte) string {
	var kept []string
	for line := range strings.Lines(ansiColour.ReplaceAllString(string(output), "")) {
		if line = strings.TrimRight(line, " \r\n"); !engineNoise.MatchString(strings.TrimSpace(line)) {
			kept = append(kept, line)
		}
	}
	return strings.TrimPrefix(lastLines([]byte(strings.Join(kept, "\n"))), ": ")
}
