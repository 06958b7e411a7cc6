package manifest

import (
	"fmt"
	"io/fs"
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
)

// truster decides whether what lies in the file system may tell workerd what to run: nobody but the caller, root and the
// trusted groups may be able to change it. It remembers folders, so it lives for one load only.
type truster struct {
	uid     int
	groups  []string // names or numbers
	folders map[string]error
}

func newTruster(opt *Options) *truster {
	return &truster{uid: opt.UID, groups: opt.TrustedGroups, folders: map[string]error{}}
}

// group reports whether the group is trusted. Names are looked up only where a group may write at all: a directory
// service may be slow.
func (t *truster) group(gid uint32) bool {
	id := strconv.FormatUint(uint64(gid), 10)
	return slices.ContainsFunc(t.groups, func(name string) bool {
		if name == id {
			return true
		}
		// A name that this machine does not know trusts nobody: settings may be shared between machines.
		g, err := user.LookupGroup(name)
		return err == nil && g.Gid == id
	})
}

// folder returns why the folder at path is not to be trusted, nil if it is.
func (t *truster) folder(path string) error {
	if err, known := t.folders[path]; known {
		return err
	}
	err := t.checkFolder(path)
	t.folders[path] = err
	return err
}

func (t *truster) checkFolder(path string) error {
	info, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%s", whyUnusable(path, err))
	}
	if err := t.owned(path, info); err != nil {
		return err
	}
	if err := t.parents(path); err != nil {
		return err
	}
	if real, err := filepath.EvalSymlinks(path); err == nil && real != path {
		return t.parents(real)
	}
	return nil
}

// parents refuses a path in which a stranger could replace a folder: one below a world-writable folder without the sticky
// bit.
func (t *truster) parents(path string) error {
	for path != "/" && path != "." {
		path = filepath.Dir(path)
		info, err := os.Stat(path)
		if err != nil {
			return fmt.Errorf("%s", whyUnusable(path, err))
		}
		if info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
			return fmt.Errorf("the parent folder %s is world-writable without the sticky bit (mode %04o): chmod o-w %s",
				path, info.Mode().Perm(), path)
		}
	}
	return nil
}

// owned returns why one file or folder is not to be trusted.
func (t *truster) owned(path string, info fs.FileInfo) error {
	st, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return nil
	}
	mode := info.Mode().Perm()
	switch {
	case st.Uid != 0 && int(st.Uid) != t.uid:
		return fmt.Errorf("%s belongs to uid %d: it must belong to the caller (uid %d) or root", path, st.Uid, t.uid)
	case mode&0o002 != 0:
		return fmt.Errorf("%s is world-writable (mode %04o): chmod o-w %s", path, mode, path)
	case mode&0o020 != 0 && !t.group(st.Gid):
		return fmt.Errorf("%s is writable for group %s (mode %04o): chmod g-w %s, or name the group in the setting trusted_groups",
			path, groupName(st.Gid), mode, path)
	}
	return nil
}

func groupName(gid uint32) string {
	id := strconv.FormatUint(uint64(gid), 10)
	if g, err := user.LookupGroupId(id); err == nil {
		return g.Name
	}
	return id
}
