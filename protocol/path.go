package protocol

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"golang.org/x/sys/unix"
)

// socketRoom is room for a front socket below the runtime directory, with a slug of eight letters.
const socketRoom = "/front/12345678/sock"

var slurmJob = regexp.MustCompile(`^[0-9A-Za-z_-]{1,32}$`)

// SocketPath returns the path of a provider's front socket: slug itself where it is a path (it contains a slash), else the
// provider's below runtimeDir, or where that is empty below RuntimeDir of this process's environment.
func SocketPath(slug, runtimeDir string) string {
	if strings.Contains(slug, "/") {
		return slug
	}
	if runtimeDir == "" {
		runtimeDir, _ = RuntimeDir(os.Getenv)
	}
	return filepath.Join(runtimeDir, "front", slug, "sock")
}

// RuntimeDir returns the runtime directory that an environment names: WORKERD_RUNTIME_DIR; else workerd below XDG_RUNTIME_DIR
// where that is the caller's alone and leaves room for a socket's path; else one below /tmp, and why. Inside a Slurm job the last
// two end in the job's id.
func RuntimeDir(getenv func(string) string) (dir, note string) {
	if dir = getenv("WORKERD_RUNTIME_DIR"); dir != "" {
		return dir, ""
	}
	suffix := ""
	if id := getenv("SLURM_JOB_ID"); slurmJob.MatchString(id) {
		suffix = "-" + id
	}
	fallback := fmt.Sprintf("/tmp/workerd-%d%s", os.Geteuid(), suffix)
	xdg := getenv("XDG_RUNTIME_DIR")
	dir = filepath.Join(xdg, "workerd"+suffix)
	err := checkRuntimeDir(xdg)
	if err == nil {
		err = CheckSocketPath(dir + socketRoom)
	}
	if err != nil {
		return fallback, fmt.Sprintf("XDG_RUNTIME_DIR: %v: using %s", err, fallback)
	}
	return dir, ""
}

// checkRuntimeDir says why a session's runtime directory cannot be trusted: su and sudo hand on that of another user.
func checkRuntimeDir(dir string) error {
	if dir == "" {
		return errors.New("not set")
	}
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("%s is relative", dir)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("%s: %w", dir, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is no directory", dir)
	case int(st.Uid) != os.Geteuid():
		return fmt.Errorf("%s belongs to uid %d, not to uid %d", dir, st.Uid, os.Geteuid())
	case st.Mode&0o022 != 0:
		return fmt.Errorf("%s can be written by others (mode %04o)", dir, st.Mode&0o7777)
	}
	return nil
}
