package execenv

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Each program fails to be executed by the kernel, and the diagnosis says why.
func TestDiagnose(t *testing.T) {
	usual := binfmtMisc
	binfmtMisc = t.TempDir()
	defer func() { binfmtMisc = usual }()

	native, err := os.ReadFile("/bin/true")
	require.NoError(t, err)
	foreign := bytes.Clone(native)
	foreign[18], foreign[19] = 0xf3, 0 // e_machine: RISC-V
	at := bytes.Index(native, []byte("/lib"))
	require.Positive(t, at)
	noLoader := bytes.Clone(native)
	copy(noLoader[at:], "/nol")

	dir := t.TempDir()
	write := func(name string, content []byte, mode os.FileMode) string {
		p := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(p, content, mode))
		require.NoError(t, os.Chmod(p, mode))
		return p
	}
	require.NoError(t, os.Symlink("b", filepath.Join(dir, "a")))
	require.NoError(t, os.Symlink("/gone/python", filepath.Join(dir, "b")))
	require.NoError(t, os.Symlink("/gone", filepath.Join(dir, "d")))
	tests := []struct {
		name string
		path string
		want string
	}{
		{"missing", dir + "/x/y/python", "does not exist (" + dir + " does)"},
		{"dangling chain", dir + "/a", "/a is a symlink that points to missing /gone/python"},
		{"below a dangling link", dir + "/d/bin/python", "is below the symlink " + dir + "/d, which points to missing /gone"},
		{"folder", dir, "is a folder, not a program"},
		{"below a file", write("file", nil, 0o600) + "/python", "not a directory"},
		{"no execute bit", write("plain", native, 0o644), "is not executable (mode -rw-r--r--, owner "},
		{"foreign", write("foreign", foreign, 0o755), "is a program for RISCV, this machine is "},
		{"no loader", write("noloader", noLoader, 0o755), "needs the loader /nol"},
		{"damaged", write("damaged", native[:40], 0o755), "is a damaged ELF file"},
		{"text", write("text", []byte("import os\n"), 0o755), "is no program: neither an ELF file nor a script"},
		{"empty", write("empty", nil, 0o755), "is no program"},
		{"shebang missing", write("moved", []byte("#!/gone/venv/bin/python -u\n"), 0o755), "/moved: its first line is #!/gone/venv/bin/python -u, but /gone/venv/bin/python does not exist; a moved environment has to be re-created"},
		{"shebang dangling", write("link", []byte("#! "+dir+"/a\n"), 0o755), "points to missing /gone/python"},
		{"shebang with a space", write("space", []byte("#!/my venv/bin/python\n"), 0o755), "its first line is #!/my venv/bin/python, but /my does not exist"},
		{"shebang too long", write("long", []byte("#!/"+strings.Repeat("x", 300)+"/python\n"), 0o755), "too long for the kernel"},
		{"shebang of a script", write("chain", []byte("#!"+dir+"/moved\n"), 0o755), "/gone/venv/bin/python does not exist"},
		{"shebang of itself", write("self", []byte("#!"+dir+"/self\n"), 0o755), "too many scripts"},
		{"shebang from Windows", write("crlf", []byte("#!/bin/sh\r\n"), 0o755), "carriage return"},
		{"shebang of nothing", write("none", []byte("#!\n"), 0o755), "names no interpreter"},
		{"shebang without the bit", write("nobit", []byte("#!"+dir+"/plain\n"), 0o755), dir + "/plain is not executable"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := (&exec.Cmd{Path: tt.path, Args: []string{tt.path}}).Start()
			require.Error(t, err, "the kernel refuses it too")
			got := Diagnose(Command{Path: tt.path, Argv: []string{tt.path}, Dir: "/"}, err)
			assert.ErrorContains(t, got, tt.want)
			var e *Error
			require.ErrorAs(t, got, &e)
			assert.Equal(t, Permanent, e.Kind)
			assert.Equal(t, []string{tt.path}, e.Watch)
		})
	}
	for name, content := range map[string]string{
		"env": "#!/usr/bin/env python3\n", "options": "#!/bin/sh -" + strings.Repeat("e", 300) + "\n", "no newline": "#!/bin/sh", "blank first": "#! /bin/sh\n",
	} {
		assert.NoError(t, inspectProgram(write("good", []byte(content), 0o755)), name)
	}
	assert.NoError(t, inspectProgram("/bin/true"))
	assert.NoError(t, inspectProgram("/proc/self/exe"))
}

func TestDiagnoseTheRest(t *testing.T) {
	dir := t.TempDir()
	big := Command{Path: "/bin/true", Argv: []string{"/bin/true"}, Dir: "/", Env: []string{"A=1", "TOKEN=" + strings.Repeat("s3cr3t", 40_000)}}
	cmd := toExec(big)
	err := cmd.Start()
	require.ErrorIs(t, err, unix.E2BIG)
	got := Diagnose(big, err)
	assert.ErrorContains(t, got, "the largest is variable TOKEN with 240006 bytes")
	assert.NotContains(t, got.Error(), "s3cr3t")

	bad := Command{Path: "/bin/true", Argv: []string{"/bin/true"}, Dir: dir + "/gone"}
	err = toExec(bad).Start()
	require.Error(t, err)
	got = Diagnose(bad, err)
	assert.ErrorContains(t, got, "paths.cwd: "+dir+"/gone: does not exist ("+dir+" does)")

	// The kernel's own state is nobody's fault.
	var e *Error
	require.ErrorAs(t, Diagnose(Command{Path: "/bin/true", Dir: "/"}, &os.PathError{Op: "fork/exec", Path: "/bin/true", Err: unix.EAGAIN}), &e)
	assert.Equal(t, Transient, e.Kind)
	require.ErrorAs(t, Diagnose(Command{Path: "/bin/true", Dir: "/"}, errors.New("something else")), &e)
	assert.Equal(t, Permanent, e.Kind)
	assert.Contains(t, e.Error(), "/bin/true (mode ")
}
