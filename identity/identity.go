package identity

import (
	"os"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Identity is a user as the kernel sees one, with the names that could be found for it.
type Identity struct {
	UID int
	GID int
	// Groups are the supplementary groups, sorted, without GID.
	Groups []int
	Name   string
	// Home is an absolute path, or empty where none is known.
	Home string
	// GroupNames names GID and Groups as far as the system can.
	GroupNames map[int]string
}

// Current returns the identity of this process. It needs no passwd entry: the numbers come from the kernel, the home then
// from $HOME and the name from $USER, or "uid<uid>" where that is unset or another user's.
func Current() (Identity, error) {
	groups, err := os.Getgroups()
	if err != nil {
		return Identity{}, err
	}
	return resolve(os.Geteuid(), os.Getegid(), groups, systemDB{}, os.Getenv), nil
}

// db is the part of the user database that an identity is resolved with.
type db interface {
	byID(uid int) (name, home string, ok bool)
	byName(name string) (uid int, ok bool)
	group(gid int) (name string, ok bool)
}

// systemDB is the host's. Without cgo package os/user reads /etc/passwd and /etc/group only, and for a caller that those do
// not know it answers with $USER and $HOME, whoever they belong to: hence the look into the file first.
type systemDB struct{}

func (systemDB) byID(uid int) (name, home string, ok bool) {
	u, err := user.LookupId(strconv.Itoa(uid))
	if err != nil {
		return "", "", false
	}
	if other, ok := passwdUID(u.Username); ok && other != uid {
		return "", "", false
	}
	return u.Username, u.HomeDir, true
}

func (systemDB) byName(name string) (int, bool) {
	if uid, ok := passwdUID(name); ok {
		return uid, true
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, false
	}
	uid, err := strconv.Atoi(u.Uid)
	return uid, err == nil
}

// passwdUID returns the uid of a name's line in /etc/passwd.
func passwdUID(name string) (int, bool) {
	data, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Split(line, ":"); len(f) > 2 && f[0] == name {
			uid, err := strconv.Atoi(f[2])
			return uid, err == nil
		}
	}
	return 0, false
}

func (systemDB) group(gid int) (string, bool) {
	g, err := user.LookupGroupId(strconv.Itoa(gid))
	if err != nil {
		return "", false
	}
	return g.Name, true
}

func resolve(uid, gid int, groups []int, d db, getenv func(string) string) Identity {
	id := Identity{UID: uid, GID: gid, GroupNames: map[int]string{}}
	for _, g := range groups {
		if g != gid {
			id.Groups = append(id.Groups, g)
		}
	}
	slices.Sort(id.Groups)
	id.Groups = slices.Compact(id.Groups)

	name, home, _ := d.byID(uid)
	id.Name, id.Home = name, home
	if id.Name == "" {
		id.Name = nameFromEnv(uid, d, getenv)
	}
	if !filepath.IsAbs(id.Home) {
		id.Home = ""
		if h := getenv("HOME"); filepath.IsAbs(h) {
			id.Home = h
		}
	}
	for _, g := range append([]int{gid}, id.Groups...) {
		if n, ok := d.group(g); ok && n != "" {
			id.GroupNames[g] = n
		}
	}
	return id
}

// nameFromEnv takes $USER or $LOGNAME unless the database knows it as somebody else: sudo and setpriv leave both behind.
func nameFromEnv(uid int, d db, getenv func(string) string) string {
	for _, v := range []string{"USER", "LOGNAME"} {
		name := getenv(v)
		if name == "" || name != clean(name) {
			continue
		}
		if other, ok := d.byName(name); ok && other != uid {
			continue
		}
		return name
	}
	return "uid" + strconv.Itoa(uid)
}

// GroupName returns the name of a group, or "gid<gid>" where none is known.
func (id Identity) GroupName(gid int) string {
	if n := id.GroupNames[gid]; n != "" {
		return n
	}
	return "gid" + strconv.Itoa(gid)
}
