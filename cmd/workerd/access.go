package main

import (
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"slices"

	"workerd/identity"
	"workerd/manifest"
	"workerd/supervisor"
)

// doorman lets others than the caller and root connect to front sockets, as serve.allow says: the files let those pass who are
// named, and whoever then connects is looked at.
type doorman struct {
	uid int
	log *slog.Logger
}

var _ supervisor.Doorman = doorman{}

// Admit says why a peer may not connect to a front socket.
func (d doorman) Admit(c *net.UnixConn, guests manifest.Guests) error {
	peer, err := identity.PeerCred(c)
	if err != nil {
		return err
	}
	if peer.UID == d.uid || peer.UID == 0 || slices.Contains(guests.UIDs, peer.UID) || slices.Contains(guests.GIDs, peer.GID) {
		return nil
	}
	if len(guests.GIDs) > 0 {
		groups, err := identity.PeerGroups(c)
		if err != nil {
			return err
		}
		if slices.ContainsFunc(groups, func(gid int) bool { return slices.Contains(guests.GIDs, gid) }) {
			return nil
		}
	}
	return fmt.Errorf("uid %d may not connect: serve.allow names neither it nor a group that it is in", peer.UID)
}

// Open makes a provider's folder or socket one that guests, and nobody else, can get at. Where a file system has no access
// control lists everybody can, and only Admit turns them away.
func (d doorman) Open(path string, guests manifest.Guests) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	owner, others, all := uint32(0o6), uint32(0o6), fs.FileMode(0o666)
	if info.IsDir() {
		owner, others, all = 0o7, 0o5, 0o711
	}
	err = identity.Grant(path, guests.UIDs, guests.GIDs, owner, others)
	if !errors.Is(err, identity.ErrNoACL) {
		return err
	}
	d.log.Warn("everybody can get at this, and who is not allowed is turned away on connecting", "path", path, "err", err)
	return os.Chmod(path, all)
}
