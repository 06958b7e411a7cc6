package execenv

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// TmpLimit is how many bytes a worker's TMPDIR may have: Python's multiprocessing and others put sockets into it, whose
// whole path may have SocketLimit.
const TmpLimit = 70

// longestN is what a path is measured with before a worker's number is known.
const longestN = "9999999"

func tmpName(instance, n string) string { return "wd-" + instance + "-" + n }

// scratchDirs lists where workers' TMPDIRs may go, the best first. A scratch_dir that was set is the only candidate.
func scratchDirs(h Host) []string {
	if h.ScratchDir != "" {
		return []string{h.ScratchDir}
	}
	own := parseEnviron(h.Environ)
	var out []string
	for _, v := range []string{"SLURM_TMPDIR", "TMPDIR"} {
		if filepath.IsAbs(own[v]) {
			out = append(out, filepath.Clean(own[v]))
		}
	}
	return append(out, filepath.Join(h.CacheDir, "tmp"), "/tmp")
}

// scratch returns the first candidate that is short enough, else the first of all: then there is no TMPDIR to be had, and
// NewTmp says so.
func scratch(h Host) string {
	dirs := scratchDirs(h)
	for _, d := range dirs {
		if tmpFits(h, d) {
			return d
		}
	}
	return dirs[0]
}

func tmpFits(h Host, dir string) bool {
	return len(filepath.Join(dir, tmpName(h.Instance, longestN))) <= TmpLimit
}

// NewTmp makes the TMPDIR of one worker: a folder of its own, 0700 and short. The candidates after one that is too long or
// that cannot be written are tried in order, but for a scratch_dir that was set.
func (p *Planner) NewTmp(n int64) (string, error) {
	var errs []error
	for _, dir := range scratchDirs(p.host) {
		if !tmpFits(p.host, dir) {
			errs = append(errs, fmt.Errorf("a TMPDIR below %s would have more than %d bytes, and sockets in it would not fit", dir, TmpLimit))
			continue
		}
		tmp, err := makeTmp(dir, tmpName(p.host.Instance, strconv.FormatInt(n, 10)))
		if err == nil {
			return tmp, nil
		}
		errs = append(errs, err)
	}
	return "", &Error{Kind: Transient, Msg: "no TMPDIR for the worker (setting scratch_dir)", Err: errors.Join(errs...)}
}

// makeTmp makes a folder that was not there before: in a directory that others may write to, a name that exists may be
// anybody's. Numbers are not used twice, so a second attempt under another name is rare.
func makeTmp(dir, name string) (string, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	for i := range 10 {
		path := filepath.Join(dir, name)
		if i > 0 {
			path += "." + strconv.Itoa(i)
		}
		err := os.Mkdir(path, 0o700)
		if err == nil || !errors.Is(err, os.ErrExist) {
			return path, err
		}
	}
	return "", fmt.Errorf("%s and its like exist", filepath.Join(dir, name))
}

// RemoveTmp removes a worker's TMPDIR, also what its owner may not write to.
func RemoveTmp(path string) error {
	err := os.RemoveAll(path)
	if err == nil || !errors.Is(err, os.ErrPermission) {
		return err
	}
	// Folders without the write bit keep their content: give it back, and never through a symlink.
	_ = filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if d != nil && d.IsDir() {
			fd, e := unix.Open(p, unix.O_PATH|unix.O_NOFOLLOW|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
			if e == nil {
				_ = os.Chmod("/proc/self/fd/"+strconv.Itoa(fd), 0o700)
				_ = unix.Close(fd)
			}
		}
		return nil
	})
	return os.RemoveAll(path)
}

// SweepTmp removes the TMPDIRs of this instance's workers but for those of keep: what a workerd that was killed left, or a boot
// before this one. No worker may be about to start.
func (p *Planner) SweepTmp(keep []string) {
	for _, dir := range scratchDirs(p.host) {
		left, _ := filepath.Glob(filepath.Join(globQuote(dir), tmpName(p.host.Instance, "[0-9]*")))
		for _, path := range left {
			st, err := os.Lstat(path)
			if err != nil || !st.IsDir() || slices.Contains(keep, path) {
				continue
			}
			if sys, ok := st.Sys().(*syscall.Stat_t); ok && int(sys.Uid) == p.host.ID.UID { // anybody can make a name in /tmp
				_ = RemoveTmp(path)
			}
		}
	}
}

// globQuote escapes what filepath.Glob would take for a pattern.
func globQuote(path string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(path)
}

// WriteSDK writes the files of the Python SDK to dir, each whole under its name or not at all: running workers import them.
// A file that has the content already is left alone.
func WriteSDK(sdk fs.FS, dir string) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return fmt.Errorf("SDK directory: %w", err)
	}
	return fs.WalkDir(sdk, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(dir, name), 0o700)
		}
		data, err := fs.ReadFile(sdk, name)
		if err != nil {
			return err
		}
		return WriteFile(filepath.Join(dir, name), data, 0o600)
	})
}

// WriteFile writes a file by rename, so that a reader sees the old content or the new and never half of it, after a loss of power
// too. A file that has the content already is left alone.
func WriteFile(path string, data []byte, mode os.FileMode) error {
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, data) {
		return nil
	}
	f, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.Write(data)
	if err = errors.Join(err, f.Chmod(mode), f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(filepath.Dir(path))
}

// syncDir makes the names in a folder last. A file system that cannot do that keeps them in its own way.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer func() { _ = d.Close() }()
	if err := d.Sync(); err != nil && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOTSUP) {
		return err
	}
	return nil
}
