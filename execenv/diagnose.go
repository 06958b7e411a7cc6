package execenv

import (
	"bytes"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"os/user"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Diagnose says why a Command could not be executed: the error of exec names the program even where the working directory
// or the program's own interpreter is what is missing.
func Diagnose(c Command, err error) error {
	for _, e := range []error{unix.EAGAIN, unix.ENOMEM, unix.EMFILE, unix.ENFILE, unix.ETXTBSY} {
		if errors.Is(err, e) {
			return &Error{Kind: Transient, Msg: c.Path, Err: errCause(err)}
		}
	}
	if errors.Is(err, unix.E2BIG) {
		return &Error{Msg: "arguments and environment are too large for the kernel: " + largest(c), Err: unix.E2BIG}
	}
	if e := inspectDir(c.Dir); e != nil {
		return &Error{Key: "paths.cwd", Msg: e.Error(), Err: errCause(err)}
	}
	if e := inspectProgram(c.Path); e != nil {
		return &Error{Msg: e.Error(), Err: errCause(err), Watch: []string{c.Path}}
	}
	return &Error{Msg: c.Path + ownership(c.Path), Err: errCause(err), Watch: []string{c.Path}}
}

// largest names the largest string of a command, without its value.
func largest(c Command) string {
	name, size := "", 0
	for i, a := range c.Argv {
		if len(a) > size {
			name, size = "argument "+strconv.Itoa(i), len(a)
		}
	}
	for _, kv := range c.Env {
		if len(kv) > size {
			k, _, _ := strings.Cut(kv, "=")
			name, size = "variable "+k, len(kv)
		}
	}
	return fmt.Sprintf("the largest is %s with %d bytes", name, size)
}

// inspectDir says why a process of this user could not be started in a directory.
func inspectDir(dir string) error {
	fi, err := os.Stat(dir)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", dir, missing(dir, err))
	case !fi.IsDir():
		return fmt.Errorf("%s is no folder", dir)
	case unix.Faccessat(unix.AT_FDCWD, dir, unix.X_OK, unix.AT_EACCESS) != nil:
		return fmt.Errorf("%s may not be entered%s", dir, ownership(dir))
	}
	return nil
}

// inspectProgram says why path could not be executed, nil where nothing is to be seen. It follows what the kernel does:
// symlinks, the execute bit, the format, and the interpreter that a script or a dynamic program names.
func inspectProgram(path string) error { return inspectExec(path, 0) }

// The kernel follows a chain of scripts five times.
const maxShebangs = 5

func inspectExec(path string, depth int) error {
	fi, err := os.Stat(path)
	if err != nil {
		return fmt.Errorf("%s %w", path, missing(path, err))
	}
	if fi.IsDir() {
		return fmt.Errorf("%s is a folder, not a program", path)
	}
	if unix.Faccessat(unix.AT_FDCWD, path, unix.X_OK, unix.AT_EACCESS) != nil {
		return fmt.Errorf("%s is not executable%s%s", path, ownership(path), noexec(path, fi))
	}
	f, err := os.Open(path)
	if err != nil {
		return nil // a program may be executable without being readable
	}
	defer f.Close()
	head := make([]byte, 256)
	n, _ := io.ReadFull(f, head)
	head = head[:n]
	switch {
	case bytes.HasPrefix(head, []byte("#!")):
		return inspectShebang(path, head, depth)
	case bytes.HasPrefix(head, []byte(elf.ELFMAG)):
		return inspectELF(path, f, depth)
	case !foreignFormats():
		return fmt.Errorf("%s is no program: neither an ELF file nor a script whose first line begins with an interpreter line (#! and a path)", path)
	}
	return nil
}

// inspectShebang reads the first line as the kernel does, which knows its first 256 bytes only: the interpreter's path ends
// at the first blank, and has to end within those.
func inspectShebang(path string, head []byte, depth int) error {
	line, _, whole := bytes.Cut(head[2:], []byte("\n"))
	rest := strings.TrimLeft(string(line), " \t")
	interp := rest
	if i := strings.IndexAny(rest, " \t"); i >= 0 {
		interp, whole = rest[:i], true
	}
	switch {
	case !whole && len(head) == 256:
		return fmt.Errorf("%s: its first line names an interpreter whose path is too long for the kernel (%d bytes and more; 255 with the #!): re-create the environment under a shorter path",
			path, len(head))
	case interp == "":
		return fmt.Errorf("%s: its first line names no interpreter", path)
	case strings.HasSuffix(interp, "\r"):
		return fmt.Errorf("%s: its first line ends in a carriage return (Windows line ends)", path)
	case depth >= maxShebangs:
		return fmt.Errorf("%s: too many scripts that name one another as interpreter", path)
	}
	if err := inspectExec(interp, depth+1); err != nil {
		return fmt.Errorf("%s: its first line is #!%s, but %w; a moved environment has to be re-created", path, rest, err)
	}
	return nil
}

// machines are the ELF machines that a kernel of each architecture runs by itself.
var machines = map[string][]elf.Machine{
	"amd64": {elf.EM_X86_64, elf.EM_386},
	"arm64": {elf.EM_AARCH64, elf.EM_ARM},
}

func inspectELF(path string, r io.ReaderAt, depth int) error {
	f, err := elf.NewFile(r)
	if err != nil {
		return fmt.Errorf("%s is a damaged ELF file: %w", path, err)
	}
	native := false
	for _, m := range machines[runtime.GOARCH] {
		native = native || f.Machine == m
	}
	if !native && len(machines[runtime.GOARCH]) > 0 {
		if foreignFormats() {
			return nil
		}
		return fmt.Errorf("%s is a program for %s, this machine is %s", path, strings.TrimPrefix(f.Machine.String(), "EM_"), runtime.GOARCH)
	}
	for _, p := range f.Progs {
		if p.Type != elf.PT_INTERP {
			continue
		}
		buf := make([]byte, min(p.Filesz, 4096))
		if n, _ := p.ReadAt(buf, 0); n > 0 {
			loader := string(bytes.TrimRight(buf[:n], "\x00"))
			if _, err := os.Stat(loader); err != nil {
				return fmt.Errorf("%s needs the loader %s, which %w (built for another system)", path, loader, missing(loader, err))
			}
		}
	}
	return nil
}

// binfmtMisc is where the kernel shows the formats that it has been taught.
var binfmtMisc = "/proc/sys/fs/binfmt_misc"

// foreignFormats says whether the kernel may run what is no native program (by qemu, java).
func foreignFormats() bool {
	names, _ := os.ReadDir(binfmtMisc)
	return len(names) > 2 // besides "register" and "status"
}

// missing says why a path could not be looked at: the symlink that points nowhere, the folder that is missing or closed.
func missing(path string, err error) error {
	if errors.Is(err, os.ErrPermission) {
		for p := filepath.Dir(path); ; p = filepath.Dir(p) {
			if unix.Faccessat(unix.AT_FDCWD, p, unix.X_OK, unix.AT_EACCESS) == nil || p == "/" || p == "." {
				return errors.New("may not be reached")
			}
			if _, e := os.Stat(p); e == nil {
				return fmt.Errorf("may not be reached: %s is closed%s", p, ownership(p))
			}
		}
	}
	if !errors.Is(err, os.ErrNotExist) {
		return errCause(err)
	}
	for p := path; p != "/" && p != "."; p = filepath.Dir(p) {
		if fi, e := os.Lstat(p); e == nil {
			if fi.Mode()&os.ModeSymlink != 0 {
				return dangling(path, p)
			}
			return fmt.Errorf("does not exist (%s does)", p)
		}
	}
	return errors.New("does not exist")
}

// dangling describes the symlink at link, on the way to path, that leads nowhere.
func dangling(path, link string) error {
	target := link
	for range 40 { // the kernel's limit
		t, err := os.Readlink(target)
		if err != nil {
			break
		}
		if !filepath.IsAbs(t) {
			t = filepath.Join(filepath.Dir(target), t)
		}
		target = t
	}
	what := "is a symlink that"
	if link != path {
		what = "is below the symlink " + link + ", which"
	}
	return fmt.Errorf("%s points to missing %s", what, target)
}

// ownership returns mode and owner of a path and who asks, for a message: " (mode -rw-r--r--, owner alice, run as uid 1001)".
func ownership(path string) string {
	fi, err := os.Stat(path)
	if err != nil {
		return ""
	}
	owner := "?"
	if st, ok := fi.Sys().(*syscall.Stat_t); ok {
		owner = strconv.Itoa(int(st.Uid))
		if u, err := user.LookupId(owner); err == nil {
			owner = u.Username + " (uid " + owner + ")"
		} else {
			owner = "uid " + owner
		}
	}
	return fmt.Sprintf(" (mode %s, owner %s, run as uid %d)", fi.Mode(), owner, os.Geteuid())
}

func noexec(path string, fi os.FileInfo) string {
	var st unix.Statfs_t
	const stNoexec = 8
	if fi.Mode()&0o111 != 0 && unix.Statfs(path, &st) == nil && st.Flags&stNoexec != 0 {
		return ": its file system is mounted noexec"
	}
	return ""
}
