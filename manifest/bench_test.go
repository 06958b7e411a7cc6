package manifest

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// manyManifests fills dir with n folders as `workerd init` makes them.
func manyManifests(tb testing.TB, dir string, n int) {
	tb.Helper()
	python := filepath.Join(dir, ".venv/bin/python")
	require.NoError(tb, os.MkdirAll(filepath.Dir(python), 0o755))
	require.NoError(tb, os.WriteFile(python, []byte("#!/bin/sh\n"), 0o755))
	text := fmt.Sprintf(`title = "Provider"
description = "One of many."
worker = "worker.py"
smoke = "smoke.json"
[env]
kind = "venv"
python = %q
[env.variables]
OMP_NUM_THREADS = "4"
[weights]
root = "."
[paths]
binds = ["/tmp:ro", { path = "/var", mode = "ro" }]
[start]
when = "request"
timeout = "10m"
[serve]
queue = 64
[[tools]]
name = "run"
method = "run"
input_schema = { type = "object", properties = { image = { type = "string" } } }
`, python)
	for i := range n {
		folder := filepath.Join(dir, fmt.Sprintf("p%03d", i))
		require.NoError(tb, os.MkdirAll(folder, 0o755))
		require.NoError(tb, os.WriteFile(filepath.Join(folder, "provider.toml"), []byte(text), 0o644))
		require.NoError(tb, os.WriteFile(filepath.Join(folder, "worker.py"), []byte("pass\n"), 0o644))
		require.NoError(tb, os.WriteFile(filepath.Join(folder, "smoke.json"), []byte(`{"method": "run"}`), 0o644))
	}
}

func TestCase78TwoHundredManifests(t *testing.T) {
	dir := t.TempDir()
	manyManifests(t, dir, 200)
	write(t, filepath.Join(dir, "broken.toml"), "= nothing\n")
	begin := time.Now()
	s := LoadDirs([]string{dir}, nil, testOptions())
	took := time.Since(begin)
	t.Logf("loaded in %s", took)
	assert.Len(t, s.Entries, 201)
	valid := 0
	for _, e := range s.Entries {
		if e.Manifest != nil {
			valid++
		}
	}
	assert.Equal(t, 200, valid)
	assert.Less(t, took, 20*time.Second, "far above what it takes, for slow machines under the race detector")
}

func BenchmarkLoad200(b *testing.B) {
	dir := b.TempDir()
	manyManifests(b, dir, 200)
	for b.Loop() {
		LoadDirs([]string{dir}, nil, testOptions())
	}
}

// BenchmarkReload200 is what one edit among 200 manifests costs.
func BenchmarkReload200(b *testing.B) {
	dir := b.TempDir()
	manyManifests(b, dir, 200)
	set := LoadDirs([]string{dir}, nil, testOptions())
	time.Sleep(2 * racyAge) // what was just written is read again
	set = LoadDirs([]string{dir}, set, testOptions())
	for b.Loop() {
		LoadDirs([]string{dir}, set, testOptions())
	}
}

// BenchmarkRenameToSet is the time from the rename of one of 200 manifests to the Set.
func BenchmarkRenameToSet(b *testing.B) {
	dir := b.TempDir()
	manyManifests(b, dir, 200)
	w := NewWatcher(WatchConfig{Dirs: []string{dir}, Options: testOptions(), Rescan: time.Hour})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- w.Run(ctx) }()
	<-w.Sets()
	for i := 0; b.Loop(); i++ {
		b.StopTimer()
		tmp := filepath.Join(dir, ".new")
		require.NoError(b, os.WriteFile(tmp, []byte(titled(fmt.Sprint(i))), 0o644))
		b.StartTimer()
		// Each time another one: one file alone would be a burst.
		require.NoError(b, os.Rename(tmp, filepath.Join(dir, fmt.Sprintf("p%03d/provider.toml", i%200))))
		<-w.Sets()
	}
	cancel()
	require.NoError(b, <-done)
}
