package identity

import (
	"fmt"
	"strings"
)

// Passwd renders a passwd file of root and the caller; of root alone where the caller is root. A caller that lives elsewhere
// in a container sets Home first. A home that the format cannot hold (':' or a control character) is refused: another path
// in its place would be wrong. Names are only labels, so there such characters become '_'.
func (id Identity) Passwd() ([]byte, error) {
	home := id.Home
	if home == "" {
		home = "/"
	}
	if home != clean(home) {
		return nil, fmt.Errorf("home %q: a passwd file cannot hold ':' or control characters", home)
	}
	if id.UID == 0 {
		return fmt.Appendf(nil, "root:x:0:%d:root:%s:/bin/sh\n", id.GID, home), nil
	}
	name := label(id.Name, fmt.Sprintf("uid%d", id.UID))
	out := "root:x:0:0:root:/root:/bin/sh\n"
	return fmt.Appendf([]byte(out), "%s:x:%d:%d:%s:%s:/bin/sh\n", name, id.UID, id.GID, name, home), nil
}

// Group renders a group file of root, the caller's group and the supplementary ones, in which the caller is a member.
// Names that are not known are made up ("gid<gid>"), and so is the second of two groups that share one.
func (id Identity) Group() []byte {
	var b strings.Builder
	b.WriteString("root:x:0:\n")
	seen := map[int]bool{0: true}
	names := map[string]bool{"root": true}
	member := "root"
	if id.UID != 0 {
		member = label(id.Name, fmt.Sprintf("uid%d", id.UID))
	}
	for i, gid := range append([]int{id.GID}, id.Groups...) {
		if seen[gid] {
			continue
		}
		seen[gid] = true
		fallback := fmt.Sprintf("gid%d", gid)
		name := label(id.GroupName(gid), fallback)
		if names[name] {
			name = fallback
		}
		names[name] = true
		members := ""
		if i > 0 {
			members = member
		}
		fmt.Fprintf(&b, "%s:x:%d:%s\n", name, gid, members)
	}
	return []byte(b.String())
}

// label makes s a field of a passwd or group file. A user other than root never gets root's name.
func label(s, fallback string) string {
	s = strings.ReplaceAll(clean(s), ",", "_") // the separator of a group's members
	if s == "" || s == "root" {
		return fallback
	}
	return s
}

// clean replaces what would end a field or a line.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r == ':' || r < 0x20 || r == 0x7f {
			return '_'
		}
		return r
	}, s)
}
