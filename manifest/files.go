package manifest

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// The largest files that are read whole.
const (
	maxManifest = 16 << 20
	maxJSON     = 4 << 20
)

// stamp tells one state of a file from another without reading it. The zero stamp is that of a missing file.
type stamp struct {
	dev, ino     uint64
	size         int64
	mtime, ctime int64 // nanoseconds
}

func stampOf(info fs.FileInfo) stamp {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{size: info.Size(), mtime: info.ModTime().UnixNano()}
	}
	return stamp{
		dev:   st.Dev,
		ino:   st.Ino,
		size:  st.Size,
		mtime: st.Mtim.Nano(),
		ctime: st.Ctim.Nano(),
	}
}

// stampFile returns the stamp of what path leads to, the zero stamp where that is nothing or cannot be reached.
func stampFile(path string) stamp {
	info, err := os.Stat(path)
	if err != nil {
		return stamp{}
	}
	return stampOf(info)
}

// contents are the bytes of a regular file with the state of the file in which they were read.
type contents struct {
	data  []byte
	info  fs.FileInfo
	stamp stamp
	whole bool // nothing changed the file while it was read
}

// readRegular reads a regular file of at most limit bytes. A FIFO or a device named by mistake must not hang the caller,
// and what is judged (owner, mode) must be what is read: both hold because everything goes through one descriptor.
func readRegular(path string, limit int64) (contents, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return contents{}, err
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return contents{}, err
	case !info.Mode().IsRegular():
		return contents{}, fmt.Errorf("is no regular file (%s)", info.Mode().Type())
	case info.Size() > limit:
		return contents{}, fmt.Errorf("is larger than %s", Bytes(limit))
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return contents{}, err
	}
	if int64(len(data)) > limit {
		return contents{}, fmt.Errorf("is larger than %s", Bytes(limit))
	}
	after, err := f.Stat()
	if err != nil {
		return contents{}, err
	}
	c := contents{data: data, info: info, stamp: stampOf(info)}
	c.whole = c.stamp == stampOf(after) && int64(len(data)) == info.Size()
	return c, nil
}

// whyUnusable says in words why path could not be opened or reached.
func whyUnusable(path string, err error) string {
	var pathErr *fs.PathError
	if errors.As(err, &pathErr) {
		err = pathErr.Err
	}
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENOTDIR):
		if target := danglingTarget(path); target != "" {
			return fmt.Sprintf("%s is a symlink to %s, which does not exist", path, target)
		}
		return path + " does not exist"
	case errors.Is(err, fs.ErrPermission):
		return path + " cannot be reached: permission denied"
	case errors.Is(err, syscall.ELOOP):
		return path + " is a symlink that leads back to itself"
	}
	if pathErr == nil {
		return fmt.Sprintf("%s %v", path, err) // one of ours: "is no regular file"
	}
	return fmt.Sprintf("%s: %v", path, err)
}

// danglingTarget returns the missing end of the chain of symlinks that path begins, "" where path is no symlink or its
// end exists.
func danglingTarget(path string) string {
	for hops := range 40 {
		info, err := os.Lstat(path)
		if err != nil {
			if hops > 0 {
				return path
			}
			return ""
		}
		if info.Mode()&fs.ModeSymlink == 0 {
			return ""
		}
		target, err := os.Readlink(path)
		if err != nil {
			return ""
		}
		if !filepath.IsAbs(target) {
			target = filepath.Dir(path) + "/" + target
		}
		path = target
	}
	return ""
}

// sameFolder reports whether two paths name the same folder, by name or by what they lead to.
func sameFolder(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	if filepath.Clean(a) == filepath.Clean(b) {
		return true
	}
	ai, err := os.Stat(a)
	if err != nil {
		return false
	}
	bi, err := os.Stat(b)
	return err == nil && os.SameFile(ai, bi)
}
