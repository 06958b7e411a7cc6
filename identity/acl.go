package identity

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"

	"golang.org/x/sys/unix"
)

// aclAttr is where the kernel keeps a file's access control list.
const aclAttr = "system.posix_acl_access"

// Tags of the entries of a list, in the order in which the kernel wants them.
const (
	aclOwner = 1 << iota
	aclUser
	aclOwnGroup
	aclGroup
	aclMask
	aclOther
)

// ErrNoACL says that a file system keeps no access control lists.
var ErrNoACL = errors.New("the file system keeps no access control lists")

// Grant gives the owner of path the permissions owner (rwx in the three low bits), these users and groups the permissions perm,
// and nobody else any. What held before is replaced in one step.
//
// One group that the caller is in becomes the file's own; else a list is kept with the file, and where its file system has
// none the error is ErrNoACL and the file is its owner's alone.
func Grant(path string, uids, gids []int, owner, perm uint32) error {
	own := uint32(0) // what the file's own group may do
	if len(uids) == 0 && len(gids) == 1 && os.Lchown(path, -1, gids[0]) == nil {
		own, gids = perm, nil
	}
	err := unix.Setxattr(path, aclAttr, encodeACL(uids, gids, owner, own, perm), 0)
	if errors.Is(err, unix.EOPNOTSUPP) {
		err = os.Chmod(path, os.FileMode(owner<<6|own<<3))
		if err == nil && len(uids)+len(gids) > 0 {
			err = fmt.Errorf("%s: %w", path, ErrNoACL)
		}
		return err
	}
	if err != nil {
		return &os.PathError{Op: "set the access control list of", Path: path, Err: err}
	}
	return nil
}

// encodeACL writes a list in the kernel's form. Without named users and groups it is the mode, and the kernel keeps none.
func encodeACL(uids, gids []int, owner, own, perm uint32) []byte {
	const version, nobody = 2, 1<<32 - 1
	b := binary.LittleEndian.AppendUint32(nil, version)
	entry := func(tag uint16, perm uint32, id uint32) {
		b = binary.LittleEndian.AppendUint16(b, tag)
		b = binary.LittleEndian.AppendUint16(b, uint16(perm))
		b = binary.LittleEndian.AppendUint32(b, id)
	}
	named := func(tag uint16, ids []int) {
		ids = slices.Clone(ids)
		slices.Sort(ids)
		for _, id := range slices.Compact(ids) {
			entry(tag, perm, uint32(id))
		}
	}
	entry(aclOwner, owner, nobody)
	named(aclUser, uids)
	entry(aclOwnGroup, own, nobody)
	named(aclGroup, gids)
	if len(uids)+len(gids) > 0 {
		entry(aclMask, perm, nobody)
	}
	entry(aclOther, 0, nobody)
	return b
}
