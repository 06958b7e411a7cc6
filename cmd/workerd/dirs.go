package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"

	"golang.org/x/sys/unix"

	"workerd/identity"
	"workerd/protocol"
)

// dirs are the directories of one workerd. None is made by looking them up.
type dirs struct {
	runtime, state, cache string
	// note says why the runtime directory is not where it usually is; "" where it is.
	note string
	// fallback says that runtime is one below /tmp, whose owner has to be checked.
	fallback bool
}

// longestName is room for the sockets below the runtime directory, with a slug of eight letters.
const longestName = "/front/12345678/sock"

// home returns the caller's home directory.
func (a *app) home() string {
	if h := a.getenv("HOME"); filepath.IsAbs(h) {
		return h
	}
	if id, err := identity.Current(); err == nil && id.Home != "" {
		return id.Home
	}
	return "/"
}

// xdg returns a base directory. The specification of these variables has relative ones ignored.
func (a *app) xdg(name, fallback string) string {
	if v := a.getenv(name); filepath.IsAbs(v) {
		return v
	}
	return filepath.Join(a.home(), fallback)
}

func (a *app) configHome() string { return a.xdg("XDG_CONFIG_HOME", ".config") }

func (a *app) dirs() (*dirs, error) {
	s, err := a.loadSettings()
	if err != nil {
		return nil, err
	}
	d := &dirs{runtime: s.RuntimeDir, state: s.StateDir, cache: s.CacheDir}
	if d.state == "" {
		d.state = filepath.Join(a.xdg("XDG_STATE_HOME", ".local/state"), "workerd")
	}
	if d.cache == "" {
		d.cache = filepath.Join(a.xdg("XDG_CACHE_HOME", ".cache"), "workerd")
	}
	if d.runtime == "" {
		d.runtime, d.note = a.defaultRuntimeDir()
		d.fallback = d.note != ""
	}
	// Nothing below could be bound: said here once, with what to do, rather than by each provider.
	if err := protocol.CheckSocketPath(d.runtime + longestName); err != nil {
		return nil, fmt.Errorf("runtime directory: %w (--runtime-dir)", err)
	}
	// Homes are shared by the machines of a cluster, and state is about processes of one.
	host, err := os.Hostname()
	if err != nil {
		return nil, err
	}
	d.state = filepath.Join(d.state, host)
	return d, nil
}

var jobID = regexp.MustCompile(`^[0-9A-Za-z_-]{1,32}$`)

// defaultRuntimeDir returns the session's runtime directory, or one below /tmp and why.
func (a *app) defaultRuntimeDir() (dir, note string) {
	suffix := ""
	if id := a.getenv("SLURM_JOB_ID"); jobID.MatchString(id) {
		suffix = "-" + id
	}
	fallback := filepath.Join(a.tmp, "workerd-"+strconv.Itoa(a.uid)+suffix)
	base := a.getenv("XDG_RUNTIME_DIR")
	if err := a.checkXDGRuntimeDir(base); err != nil {
		return fallback, fmt.Sprintf("%v: using %s", err, fallback)
	}
	dir = filepath.Join(base, "workerd"+suffix)
	if err := protocol.CheckSocketPath(dir + longestName); err != nil {
		return fallback, fmt.Sprintf("XDG_RUNTIME_DIR: %v: using %s", err, fallback)
	}
	return dir, ""
}

// checkXDGRuntimeDir says why a runtime directory cannot be trusted: su and sudo hand on that of another user.
func (a *app) checkXDGRuntimeDir(dir string) error {
	if dir == "" {
		return errors.New("XDG_RUNTIME_DIR is not set")
	}
	if !filepath.IsAbs(dir) {
		return fmt.Errorf("XDG_RUNTIME_DIR=%s is relative", dir)
	}
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return fmt.Errorf("XDG_RUNTIME_DIR=%s: %w", dir, err)
	}
	switch {
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("XDG_RUNTIME_DIR=%s is no directory", dir)
	case int(st.Uid) != a.uid:
		return fmt.Errorf("XDG_RUNTIME_DIR=%s belongs to uid %d, not to uid %d", dir, st.Uid, a.uid)
	case st.Mode&0o022 != 0:
		return fmt.Errorf("XDG_RUNTIME_DIR=%s can be written by others (mode %04o)", dir, st.Mode&0o7777)
	}
	return nil
}

// makePrivate makes a directory that only the caller can enter, or checks that the one which is there is the caller's and
// nobody else can write into it. strict refuses one that others can read, as below /tmp anybody may have made it; they may
// pass it where serve.allow has let somebody in.
func makePrivate(dir string, uid int, strict bool) error {
	err := os.Mkdir(dir, 0o700)
	if errors.Is(err, fs.ErrNotExist) {
		if err := os.MkdirAll(filepath.Dir(dir), 0o700); err != nil {
			return err
		}
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(dir, &st); err != nil {
		return &os.PathError{Op: "lstat", Path: dir, Err: err}
	}
	forbidden := uint32(0o022)
	if strict {
		forbidden = 0o066
	}
	mode := st.Mode & 0o7777
	switch {
	case st.Mode&unix.S_IFMT == unix.S_IFLNK && !strict:
		target, err := filepath.EvalSymlinks(dir)
		if err != nil {
			return err
		}
		return makePrivate(target, uid, false)
	case st.Mode&unix.S_IFMT != unix.S_IFDIR:
		return fmt.Errorf("%s is no directory: remove it, or name another one with --runtime-dir", dir)
	case int(st.Uid) != uid:
		return fmt.Errorf("%s belongs to uid %d, not to uid %d: name another directory with --runtime-dir", dir, st.Uid, uid)
	case mode&forbidden != 0:
		return fmt.Errorf("%s has mode %04o, so that others could get at the sockets: chmod 700 it", dir, mode)
	}
	return nil
}

// checkFallback refuses a directory below /tmp that somebody else made, before a client trusts the socket in it.
func (a *app) checkFallback(d *dirs) error {
	if !d.fallback {
		return nil
	}
	var st unix.Stat_t
	if err := unix.Lstat(d.runtime, &st); err != nil {
		return nil // it is not there: then workerd is not running
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR || int(st.Uid) != a.uid {
		return fmt.Errorf("%s is not a directory of uid %d: not trusted; name another directory with --runtime-dir", d.runtime, a.uid)
	}
	return nil
}
