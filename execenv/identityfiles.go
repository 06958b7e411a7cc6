package execenv

import (
	"path/filepath"
	"strings"

	"workerd/identity"
)

// planFile is one file that Prepare writes.
type planFile struct {
	path string
	data []byte
}

// identityFiles are the passwd and the group file that a container worker sees, with the home that it has there. They are
// named by their content: running containers hold the ones that they were started with, and two workerds that share a cache
// may belong to hosts with other groups.
//
// Where root in there is the caller out here (mapped), the caller's line has the number 0 and comes first, which is the one
// that a look-up finds.
func identityFiles(h Host, id identity.Identity, home string, mapped bool) ([]planFile, error) {
	id.Home = home
	passwd, err := id.Passwd()
	if err != nil {
		return nil, &Error{Msg: "passwd file of the container (setting cache_dir)", Err: err}
	}
	if mapped {
		root, own, _ := strings.Cut(string(passwd), "\n")
		f := strings.Split(own, ":")
		f[2], f[3] = "0", "0"
		passwd = []byte(strings.Join(f, ":") + root + "\n")
		id = identity.Identity{}
	}
	group := id.Group()
	sum := newSummer()
	sum.add("identity", string(passwd), string(group))
	dir := identityDir(h, sum.hex()[:16])
	return []planFile{{filepath.Join(dir, "passwd"), passwd}, {filepath.Join(dir, "group"), group}}, nil
}

// identityBinds mounts them over the image's.
func identityBinds(files []planFile) []Bind {
	out := make([]Bind, len(files))
	for i, f := range files {
		out[i] = Bind{Source: f.path, Target: "/etc/" + filepath.Base(f.path), Mode: ro}
	}
	return out
}
