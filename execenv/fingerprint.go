package execenv

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"hash"
	"strconv"
	"strings"

	"workerd/manifest"
)

// InstanceID names one workerd among those of a machine: 8 hex digits of who runs it, on which host, and the runtime
// directory with its symlinks resolved. It does not change over a restart.
func InstanceID(uid int, host, realRuntimeDir string) string {
	sum := newSummer()
	sum.add("instance", strconv.Itoa(uid), host, realRuntimeDir)
	return sum.hex()[:8]
}

// fingerprint sums up what a worker can see of its plan. Not in it: the inherited environment, the GPUs chosen, the worker's
// number and socket, and the versions of workerd and of the SDK, so that an upgrade reloads no model.
func fingerprint(h Host, m *manifest.Manifest, pl *Plan, f *facts) string {
	sum := newSummer()
	sum.add("kind", pl.Kind)
	argv, binds := pl.Argv, pl.Binds
	if pl.view != nil {
		argv, binds = pl.view.argv, pl.view.binds
		sum.add("image", pl.view.image)
	}
	sum.add("argv", argv...)
	sum.add("cwd", pl.Cwd)
	for _, b := range binds {
		sum.add("bind", b.Source, b.Target, b.Mode)
	}
	sum.addMap("variable", m.Env.Variables)
	own := parseEnviron(h.Environ)
	sum.addMap("pass_env", passed(own, m.Env.PassEnv, m.Env.Secrets))
	sum.addMap("secret", f.secrets)
	sum.addMap("content", f.content)
	sum.add("interpreter", f.interp.Path, f.interp.Stamp)
	for _, name := range sortedKeys(f.setup.Set) {
		sum.add("setup", name, lessInherited(f.setup.Set[name], own[name]))
	}
	sum.add("setup unset", f.setup.Unset...)
	sum.add("gpu", append([]string{m.GPU.Policy, strconv.Itoa(m.GPU.Count)}, m.GPU.Devices...)...) // as asked for, not as found
	return sum.hex()
}

// lessInherited takes what workerd inherited out of a value that a setup extended, such as PATH: the same setup then has the
// same fingerprint when workerd is started from another shell.
func lessInherited(value, inherited string) string {
	if inherited == "" {
		return value
	}
	return strings.Replace(value, inherited, "\x00inherited\x00", 1)
}

// summer hashes fields unambiguously: each string with its length before it, each field with its count.
type summer struct{ h hash.Hash }

func newSummer() summer { return summer{sha256.New()} }

func (s summer) str(v string) {
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(v)))
	s.h.Write(n[:])
	s.h.Write([]byte(v))
}

func (s summer) add(field string, values ...string) {
	s.str(field)
	s.str(strconv.Itoa(len(values)))
	for _, v := range values {
		s.str(v)
	}
}

func (s summer) addMap(field string, m map[string]string) {
	for _, k := range sortedKeys(m) {
		s.add(field, k, m[k])
	}
}

func (s summer) hex() string { return hex.EncodeToString(s.h.Sum(nil)) }
