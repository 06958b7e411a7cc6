package manifest

import (
	"errors"
	"log/slog"
	"path/filepath"
	"strings"
	"time"

	"github.com/fsnotify/fsnotify"
	"golang.org/x/sys/unix"
)

// notifier keeps one inotify instance pointed at a set of folders. Without one (the user's instances or watches are used
// up) it says so once, and the watcher looks more often instead.
type notifier struct {
	log       *slog.Logger
	make      func() (*fsnotify.Watcher, error)
	fs        *fsnotify.Watcher
	watched   map[string]inode // folder -> what it was when the watch was made
	exhausted bool             // some folder is not watched
	complained,
	remote bool // said so already; some directory is on a file system without events
}

// inode tells a folder from another one of the same name.
type inode struct{ dev, ino uint64 }

// open makes the inotify instance if there is none yet.
func (n *notifier) open() {
	if n.fs != nil {
		return
	}
	w, err := n.make()
	if err != nil {
		n.complain(err)
		return
	}
	n.fs, n.watched = w, map[string]inode{}
}

// close ends the inotify instance and what reads from it.
func (n *notifier) close() {
	if n.fs != nil {
		n.fs.Close()
		n.fs = nil
	}
}

// errNotifyEnded is what a closed channel of events means.
var errNotifyEnded = errors.New("the reader of file events ended")

// events returns the channels to receive from; nil ones, which never deliver, without an inotify instance.
func (n *notifier) events() (<-chan fsnotify.Event, <-chan error) {
	if n.fs == nil {
		return nil, nil
	}
	return n.fs.Events, n.fs.Errors
}

// complain says once that events are missing.
func (n *notifier) complain(err error) {
	n.exhausted = true
	if !n.complained {
		n.complained = true
		n.log.Warn("file events unavailable, looking at the manifests at short intervals instead", "error", err, "interval", pollInterval)
	}
}

// point makes folders, which hold no symlinks, those that are watched.
func (n *notifier) point(folders map[string]bool) {
	n.exhausted = false
	n.open()
	if n.fs == nil {
		return
	}
	alive := map[string]bool{}
	for _, path := range n.fs.WatchList() {
		alive[path] = true
	}
	for path := range n.watched {
		if !folders[path] || !alive[path] {
			n.drop(path)
		}
	}
	for path := range folders {
		var st unix.Stat_t
		if unix.Stat(path, &st) != nil {
			continue
		}
		now := inode{st.Dev, st.Ino}
		before, known := n.watched[path]
		if known && before == now {
			continue
		}
		if known {
			n.drop(path) // another folder has taken the name
		}
		switch err := n.fs.Add(path); {
		case err == nil:
			n.watched[path] = now
		case errors.Is(err, unix.ENOSPC), errors.Is(err, unix.ENOMEM), errors.Is(err, unix.EMFILE):
			n.complain(err)
		}
	}
}

func (n *notifier) drop(path string) {
	// It fails where the kernel has dropped the watch already, which is as good.
	_ = n.fs.Remove(path)
	delete(n.watched, path)
}

// remoteMagic are file systems on which other machines, or a process outside the kernel's sight, change files without
// events here.
var remoteMagic = map[uint32]string{
	0x00006969: "NFS",
	0x0000517b: "SMB",
	0xff534d42: "CIFS",
	0xfe534d42: "SMB2",
	0x0bd00bd0: "Lustre",
	0x47504653: "GPFS",
	0x65735546: "FUSE",
	0x00c36400: "Ceph",
	0x5346414f: "AFS",
	0x01021997: "9P",
	0x19830326: "BeeGFS",
	0xaad7aaea: "PanFS",
	0x20030528: "OrangeFS",
	0x786f4256: "vboxsf",
}

// checkRemote notes, and says once, that one of dirs is on a file system without events.
func (n *notifier) checkRemote(dirs []string) {
	for _, dir := range dirs {
		var st unix.Statfs_t
		if n.remote || unix.Statfs(dir, &st) != nil {
			continue
		}
		if name, ok := remoteMagic[uint32(st.Type)]; ok {
			n.remote = true
			n.log.Info("the file system has no events for changes by others, looking at short intervals too",
				"dir", dir, "type", name, "interval", pollInterval)
		}
	}
}

// interval returns how often to look without any event.
func (n *notifier) interval(rescan time.Duration) time.Duration {
	if n.fs == nil || n.exhausted || n.remote {
		return min(rescan, pollInterval)
	}
	return rescan
}

// eventName returns the name of an event's file as trace gives it.
func eventName(name string) string {
	if strings.HasPrefix(name, "//") {
		return filepath.Clean(name)
	}
	return name
}
