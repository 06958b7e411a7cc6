package gputest

import (
	_ "embed"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"workerd/protocol/prototest"
)

// ScriptVariable names the file of the Script in the environment of the process that loads the library. Workers inherit it.
const ScriptVariable = "NVML_STANDIN_SCRIPT"

// LibraryVariable is where the loader has to be told the folder of Library, before the process starts.
const LibraryVariable = "LD_LIBRARY_PATH"

//go:embed standin/nvml.c
var source []byte

// Library compiles the stand-in of libnvidia-ml.so.1 and returns its folder. A process that is started with LibraryVariable set
// to it, and ScriptVariable to the file of a Script, finds the GPUs of that Script by NVML.
func Library(t testing.TB) (dir string) {
	t.Helper()
	return compile(t)
}

// OldLibrary is a Library of a driver so old that it has no MIG, no events, no ECC counters, and no later version of any call.
func OldLibrary(t testing.TB) (dir string) {
	t.Helper()
	return compile(t, "-DNVML_OLD")
}

// EmptyLibrary has the name, and nothing of NVML in it.
func EmptyLibrary(t testing.TB) (dir string) {
	t.Helper()
	return compileText(t, []byte("int nothing;\n"))
}

func compile(t testing.TB, flags ...string) string {
	t.Helper()
	return compileText(t, source, flags...)
}

func compileText(t testing.TB, text []byte, flags ...string) string {
	t.Helper()
	compiler, err := exec.LookPath("cc")
	if err != nil {
		prototest.Needs(t, "cc", "no C compiler")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "nvml.c")
	must(t, os.WriteFile(file, text, 0o644))
	args := append([]string{"-shared", "-fPIC", "-O1", "-o", filepath.Join(dir, "libnvidia-ml.so.1"), file, "-lpthread"}, flags...)
	out, err := exec.Command(compiler, args...).CombinedOutput()
	if err != nil {
		t.Fatalf("compile the stand-in: %v\n%s", err, out)
	}
	return dir
}

// must is require.NoError; this package is built with production code, which has no testify.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
