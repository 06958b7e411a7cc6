package manifest

import (
	"errors"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) {
	flag.Parse()
	// A site's umask of 002 would make every test folder untrusted.
	syscall.Umask(0o022)
	goleak.VerifyTestMain(m)
}

// testOptions are options in which the test's own user is trusted and only the given variables exist.
func testOptions(variables ...string) Options {
	env := map[string]string{}
	for i := 0; i+1 < len(variables); i += 2 {
		env[variables[i]] = variables[i+1]
	}
	known := func(names ...string) func(string) (int, error) {
		return func(name string) (int, error) {
			if i := slices.Index(names, name); i >= 0 {
				return 1000 + i, nil
			}
			return 0, errors.New("unknown")
		}
	}
	return Options{
		LookupUser: known("alice", "bob"), LookupGroup: known("lab"),
		UID:  os.Getuid(),
		Home: "/home/tester",
		LookupEnv: func(name string) (string, bool) {
			value, ok := env[name]
			return value, ok
		},
	}
}

// write makes a file with its folders and returns its path.
func write(t *testing.T, path, text string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
	return path
}

// arrive makes a file in a folder that was not there, at once.
func arrive(t *testing.T, path, text string) {
	t.Helper()
	aside := filepath.Join(t.TempDir(), "folder")
	write(t, filepath.Join(aside, filepath.Base(path)), text)
	require.NoError(t, os.Rename(aside, filepath.Dir(path)))
}

// writeProgram makes an executable file.
func writeProgram(t *testing.T, path string) string {
	t.Helper()
	require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(t, os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755))
	return path
}

// command is a manifest that needs no other file.
func command(keys string) string {
	return "command = [\"server\"]\n" + keys
}

// parse checks text as if it were dir/test.toml.
func parse(t *testing.T, dir, text string, opt Options) (*Manifest, []string, Problems) {
	t.Helper()
	m, warnings, err := Parse([]byte(text), filepath.Join(dir, "test.toml"), opt)
	if err == nil {
		return m, warnings, nil
	}
	problems, ok := err.(Problems)
	require.True(t, ok, "the error is %T", err)
	require.Nil(t, m)
	return nil, warnings, problems
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.Now().Add(20 * time.Second)
	for !condition() {
		if time.Now().After(deadline) {
			t.Fatalf("gave up waiting until %s", what)
		}
		time.Sleep(2 * time.Millisecond)
	}
}
