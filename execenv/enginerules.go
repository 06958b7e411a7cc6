package execenv

import (
	"regexp"
	"strings"
)

// textRule recognises one failure by what an engine printed.
type textRule struct {
	kind EngineErrorKind
	text *regexp.Regexp
	hint string
}

// rule takes regular expressions, of which one has to match whatever the case of the letters.
func rule(kind EngineErrorKind, hint string, texts ...string) textRule {
	return textRule{kind, regexp.MustCompile("(?i)" + strings.Join(texts, "|")), hint}
}

const (
	hintTimeout = "see whether the engine hangs, or raise the setting engine_timeout where it is only slow"
	hintDaemon  = "start the docker daemon (systemctl start docker), or set DOCKER_HOST"
	hintService = "start podman's service, or unset CONTAINER_HOST"
	hintGroup   = "add this user to the group docker (usermod -aG docker USER) and log in anew, or use podman or apptainer"
	hintName    = "a container that is not this worker's has the name: remove or rename it"
	hintGPU     = "install the NVIDIA container toolkit and run nvidia-ctk runtime configure --runtime=docker, or set gpu.policy = \"none\""
	hintCDI     = "write the CDI specification anew: nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
	hintSubIDs  = "this user needs ranges in /etc/subuid and /etc/subgid " +
		"(usermod --add-subuids 100000-165535 --add-subgids 100000-165535 USER) and newuidmap (package uidmap)"
	hintUserNS = "user namespaces must be open to this user: sysctl kernel.unprivileged_userns_clone=1, user.max_user_namespaces above 0, " +
		"and where AppArmor restricts them kernel.apparmor_restrict_unprivileged_userns=0"
	hintPodmanInit  = "install podman's init: the package catatonit"
	hintDockerInit  = "install docker's init: the package tini or docker-init"
	hintNetwork     = "install slirp4netns or passt, or set env.network to \"none\" or \"host\""
	hintNetworkName = "env.network must be a network that the engine lists (network ls), \"none\", \"bridge\" or \"host\""
	hintStorage     = "two causes are known of trouble with a storage of images: the home must be passable for the user namespace (chmod o+x), " +
		"and images cannot be stored on NFS or GPFS: set graphroot in ~/.config/containers/storage.conf to a local folder"
	// The path was there when the plan was made.
	hintUnseen = "the path has gone, or the engine's daemon cannot see it: root cannot enter a home that NFS exports with root_squash, " +
		"nor a FUSE mount of yours; cache_dir, runtime_dir and scratch_dir may have to be on local disks"
	hintGone   = "the path was there when the plan was made, and has gone: bring it back, or take it out of the manifest"
	hintSIF    = "env.sif must name a .sif file or a sandbox directory"
	hintBroken = "the file is no image, or a damaged one: build it anew"
	hintUser   = "apptainer runs only users that the host knows: add this uid to the user database"
	hintFUSE   = "images are mounted by FUSE: install squashfuse and fuse3, and /dev/fuse must be open to the user"
)

// textRules are tried in order. The texts are those that engines were seen to print, of several versions.
var textRules = []textRule{
	rule(EnginePermission, hintGroup,
		`permission denied while trying to connect`),
	rule(EngineUnreachable, hintDaemon,
		`cannot connect to the docker daemon`, `is the docker daemon running`, `error during connect`, `failed to connect to the docker api`),
	rule(EngineUnreachable, hintService,
		`unable to connect to podman`, `cannot connect to podman`),
	rule(EngineNoContainer, "",
		`no such container`, `no container with (name or id|id or name)`),
	rule(EngineNameTaken, hintName,
		`container name .* is already in use`, `that name is already in use`),
	rule(EngineGPURuntimeMissing, hintGPU,
		`could not select device driver "" with capabilities: \[\[gpu`, `nvidia-container-cli`, `nvidia-container-runtime`,
		`unknown or invalid runtime name: nvidia`, `failed to discover gpu vendor`),
	rule(EngineCDIUnresolved, hintCDI,
		`unresolvable cdi devices?`, `could not select device driver "cdi"`, `cdi device injection failed`),
	rule(EngineUserNamespacesOff, hintSubIDs,
		`newuidmap`, `newgidmap`, `no sub[ug]id ranges found`, `lchown .*: invalid argument`, `not enough unused (ids|uids|gids)`),
	rule(EngineUserNamespacesOff, hintUserNS,
		`failed to create user namespace`, `user namespaces are not enabled`, `cannot re-exec process`, `setgroups: permission denied`,
		`max_user_namespaces`, `unprivileged_userns_clone`, `(unshare|clone).*operation not permitted`),
	rule(EngineRefused, hintPodmanInit,
		`container-init binary not found`, `catatonit.*(not found|no such file)`),
	rule(EngineRefused, hintDockerInit,
		`docker-init"?: (executable file )?not found`, `docker-init.*no such file`),
	rule(EngineNoNetwork, hintNetwork,
		`could not find (slirp4netns|pasta)`, `/dev/net/tun`),
	rule(EngineNoNetwork, hintNetworkName,
		`network \S+ not found`, `unable to find network`, `no such network`, `failed to create endpoint .* on network`),
	rule(EngineStorage, hintStorage,
		`containers/storage/.*(permission denied|operation not permitted)`, `(permission denied|operation not permitted).*containers/storage/`,
		`error (mounting|creating) (rootfs|container storage).*permission denied`, `open executable: permission denied`,
		`potentially insufficient`, `l?chown .*operation not permitted`,
		`(applying layer|applylayer|processing tar file|overlay mount).*(operation not (permitted|supported)|permission denied)`),
	rule(EngineUnseen, hintUnseen,
		`error mounting .* to rootfs .*no such file or directory`, `bind source path does not exist`, `error while creating mount source path`, `statfs .*no such file or directory`),
	rule(EngineUnseen, hintGone,
		`mount source \S.* doesn't exist`),
	rule(EngineInterrupted, "",
		`can't get final child's pid from pipe: eof`, `(waiting for|reading|read) init.*(eof|connection reset by peer)`, `conmon exited prematurely`,
		`conmon bytes "": (readobjectstart|unexpected end of json)`),
	rule(EngineImageMissing, "",
		`no such image`, `image not known`, `unable to find image`),
	rule(EngineImageMissing, hintSIF,
		`could not open image .*no such file`),
	rule(EngineRefused, hintBroken,
		`image format not recognized`, `not a valid sif`),
	rule(EngineRefused, hintUser,
		`unknown userid`, `couldn't determine user account information`),
	rule(EngineRefused, hintFUSE,
		`squashfuse`, `fusermount`, `/dev/fuse`),
	rule(EngineNotExecutable, "",
		`exec format error`),
}
