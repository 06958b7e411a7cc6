package manifest

import (
	"fmt"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
)

// Guests are whom a provider lets connect besides the caller and root, as the kernel knows them.
type Guests struct {
	UIDs, GIDs []int
}

// None says that there are none.
func (g Guests) None() bool { return len(g.UIDs)+len(g.GIDs) == 0 }

// Guests looks up the users and groups of a. Its error names those that this machine does not know; the others are returned
// all the same.
func (a Allow) Guests() (Guests, error) {
	var g Guests
	var unknown []string
	for _, name := range a.Users {
		if id, err := lookupUser(name); err == nil {
			g.UIDs = append(g.UIDs, id)
		} else {
			unknown = append(unknown, "user "+strconv.Quote(name))
		}
	}
	for _, name := range a.Groups {
		if id, err := lookupGroup(name); err == nil {
			g.GIDs = append(g.GIDs, id)
		} else {
			unknown = append(unknown, "group "+strconv.Quote(name))
		}
	}
	if unknown != nil {
		return g, fmt.Errorf("serve.allow: this machine knows no %s", strings.Join(unknown, ", no "))
	}
	return g, nil
}

// number reads an id that is written as a number. -1 is none to the kernel, in 32 bits too.
func number(name string) (int, bool) {
	n, err := strconv.ParseUint(name, 10, 32)
	return int(n), err == nil && n != 1<<32-1
}

func lookupUser(name string) (int, error) {
	if id, ok := number(name); ok {
		return id, nil
	}
	u, err := user.Lookup(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(u.Uid)
}

func lookupGroup(name string) (int, error) {
	if id, ok := number(name); ok {
		return id, nil
	}
	g, err := user.LookupGroup(name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(g.Gid)
}

func (c *checker) checkAllow() {
	allow := &c.m.Serve.Allow
	for _, list := range []struct {
		key, kind string
		names     []string
		lookup    func(string) (int, error)
	}{
		{"serve.allow.users", "user", allow.Users, c.opt.LookupUser},
		{"serve.allow.groups", "group", allow.Groups, c.opt.LookupGroup},
	} {
		for i, name := range list.names {
			key := indexKey(list.key, i)
			c.checkWord(key, name)
			if !c.ok(key) {
				continue
			}
			if _, err := list.lookup(name); err != nil {
				c.report(key, "this machine knows no %s %q: write the name or the number of one", list.kind, name)
			}
		}
	}
	if len(allow.Users)+len(allow.Groups) > 0 && c.opt.RuntimeDir != "" {
		c.checkPassable()
	}
}

// checkPassable warns where nobody else gets as far as the runtime directory. That itself, and what is in it, workerd opens.
func (c *checker) checkPassable() {
	const why = "others cannot pass %s, so nobody else can connect: choose a runtime directory elsewhere"
	xdg, _ := c.opt.LookupEnv("XDG_RUNTIME_DIR")
	if xdg != "" && strings.HasPrefix(c.opt.RuntimeDir+"/", strings.TrimSuffix(xdg, "/")+"/") {
		c.warn("serve.allow", why, xdg)
		return
	}
	for dir := filepath.Dir(c.opt.RuntimeDir); ; dir = filepath.Dir(dir) {
		// An access control list that lets somebody pass shows in the group's bits.
		if info, err := os.Stat(dir); err == nil && info.Mode().Perm()&0o011 == 0 {
			c.warn("serve.allow", why, dir)
			return
		}
		if dir == "/" || dir == "." {
			return
		}
	}
}
