package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// mostAlive looks all the time how many workers of a provider live at once, until ctx ends, and returns the most there were.
func (e *e2e) mostAlive(ctx context.Context, slug string) <-chan int {
	result := make(chan int, 1)
	go func() {
		most := 0
		for ctx.Err() == nil {
			workers := map[string]bool{}
			for _, pid := range e.marked(slug + "/") {
				data, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", pid))
				if _, after, ok := bytes.Cut(data, []byte("WORKERD_WORKER=")); err == nil && ok {
					id, _, _ := bytes.Cut(after, []byte{0})
					workers[string(id)] = true
				}
			}
			most = max(most, len(workers))
		}
		result <- most
	}()
	return result
}

func TestE2ESavedTwentyTimesInTwoSeconds(t *testing.T) {
	long(t)
	for change, most := range map[string]int{"rolling": 2, "stop-first": 1} {
		t.Run(change, func(t *testing.T) {
			e := newE2E(t)
			p := e.editable("x", fmt.Sprintf("[restart]\non_change = %q", change))
			e.start()
			p.runs(1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			counted := e.mostAlive(ctx, "x")
			tick := time.NewTicker(100 * time.Millisecond)
			defer tick.Stop()
			for version := 2; version <= 21; version++ {
				<-tick.C
				replace(t, p.file, p.text(version))
			}
			took, _ := p.runs(21)
			p.settled()
			cancel()
			require.LessOrEqual(t, <-counted, most)
			t.Logf("%s: the last version runs after %s; started: %s", change, took.Round(time.Millisecond), p.started())
			starts := strings.Fields(p.started())
			require.Less(t, len(starts), 15, "a burst is not followed step by step")
			require.Equal(t, "21", starts[len(starts)-1])
			for i := 1; i < len(starts); i++ {
				before, _ := strconv.Atoi(starts[i-1])
				after, _ := strconv.Atoi(starts[i])
				require.Greater(t, after, before, "never twice, never back")
			}
		})
	}
}

func TestE2EStopFirstNeverHasTwoWorkers(t *testing.T) {
	e := newE2E(t)
	p := e.editable("x", undaunted+"on_change = \"stop-first\"")
	e.start()
	p.runs(1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	counted := e.mostAlive(ctx, "x")
	caller := make(chan error, 1) // who calls meanwhile waits
	go func() { caller <- e.besiege(ctx, "x", 1, true, func(string) {}) }()
	for version := 2; version <= 6; version++ {
		replace(t, p.file, p.text(version))
		_, pid := p.runs(version)
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
		p.runs(version)
		e.ok("restart", "x")
		e.ok("reload")
	}
	cancel()
	require.NoError(t, <-caller)
	require.Equal(t, 1, <-counted)
}

func TestE2ECase68WhatEditorsLeaveIsNoManifest(t *testing.T) {
	e := newE2E(t)
	p := e.editable("x", "")
	e.start()
	_, pid := p.runs(1)
	nonsense := "this is no manifest"
	for _, dir := range []string{e.manifests(), filepath.Dir(p.file)} {
		for _, name := range []string{".provider.toml.swp", ".provider.toml.swx", "provider.toml~", "#provider.toml#", "4913", "provider.toml.tmp",
			"provider.toml.swp", ".provider.toml", "provider.toml.bak", "provider.tmp", "README.md"} {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(nonsense), 0o600))
		}
		require.NoError(t, os.Symlink("user@host.1234:5678", filepath.Join(dir, ".#provider.toml")), "as emacs locks a file")
	}
	p.settled()
	s, err := e.control().Status(t.Context())
	require.NoError(t, err)
	require.Len(t, s.Providers, 2, "%+v", s.Providers)
	require.Equal(t, pid, e.status("x").Workers[0].PID)
	require.Nil(t, e.status("x").ManifestError)

	// vim: try whether files can be made, move the old one away, write a new one under its name, remove the old one.
	probe := filepath.Join(filepath.Dir(p.file), "4914")
	for version := 2; version <= 4; version++ {
		require.NoError(t, os.WriteFile(probe, nil, 0o600))
		require.NoError(t, os.Remove(probe))
		require.NoError(t, os.Rename(p.file, p.file+"~"))
		require.NoError(t, os.WriteFile(p.file, []byte(p.text(version)), 0o600))
		require.NoError(t, os.Remove(p.file+"~"))
		e.until("it is served", func() bool { // on a slow machine it was gone for a moment, and its provider with it
			w, err := connect(e.front("x"))
			if err != nil {
				return false
			}
			defer func() { _ = w.conn.Close() }()
			m, err := w.try("echo", "{}")
			return err == nil && m.Error == nil && m.said().Version == strconv.Itoa(version)
		})
		p.runs(version)
	}
	require.Equal(t, "1 2 3 4", p.started())
}

func TestE2ECase68MovedInAndOut(t *testing.T) {
	e := newE2E(t)
	p := e.editable("x", "")
	away := filepath.Join(e.dir, "away")
	folder := filepath.Dir(p.file)
	require.NoError(t, os.Rename(folder, away))
	e.start()
	require.Empty(t, e.marked(""))
	for n := range 2 {
		require.NoError(t, os.Rename(away, folder))
		e.until("it is served", func() bool { _, err := os.Stat(e.front("x")); return err == nil })
		_, pid := p.runs(1)
		require.NoError(t, os.Rename(folder, away))
		e.until("it is not", func() bool { _, err := os.Lstat(e.front("x")); return err != nil })
		require.False(t, alive(pid))
		require.Len(t, strings.Fields(p.started()), n+1)
	}

	// A file by itself, as slug.toml.
	flat := filepath.Join(e.manifests(), "flat.toml")
	require.NoError(t, os.WriteFile(filepath.Join(e.manifests(), "bare.py"), mustRead(t, filepath.Join(away, "bare.py")), 0o600))
	require.NoError(t, os.WriteFile(flat+".new", []byte(p.text(5)), 0o600))
	require.NoError(t, os.Rename(flat+".new", flat))
	e.until("it is served", func() bool { _, err := os.Stat(e.front("flat")); return err == nil })
	require.Equal(t, "5", e.call(e.dial("flat"), "echo", "{}").Version)
	require.NoError(t, os.Rename(flat, filepath.Join(e.dir, "flat.toml")))
	e.until("it is not", func() bool { _, err := os.Lstat(e.front("flat")); return err != nil })
}

func mustRead(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	return data
}

// A folder whose files are symlinks through one that is swapped, as Kubernetes mounts a configuration.
func TestE2ESymlinkSwap(t *testing.T) {
	e := newE2E(t)
	p := &edited{e2e: e, slug: "x", starts: filepath.Join(e.dir, "x.starts")}
	folder := filepath.Join(e.manifests(), "x")
	p.file = filepath.Join(folder, "provider.toml")
	code, err := testWorkers.ReadFile("testdata/e2e/bare.py")
	require.NoError(t, err)
	deploy := func(version int) {
		data := filepath.Join(folder, fmt.Sprintf("..v%d", version))
		require.NoError(t, os.MkdirAll(data, 0o700))
		require.NoError(t, os.WriteFile(filepath.Join(data, "provider.toml"), []byte(p.text(version)), 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(data, "bare.py"), code, 0o600))
		require.NoError(t, os.Symlink(filepath.Base(data), filepath.Join(folder, "..data_tmp")))
		require.NoError(t, os.Rename(filepath.Join(folder, "..data_tmp"), filepath.Join(folder, "..data")))
	}
	deploy(1)
	for _, name := range []string{"provider.toml", "bare.py"} {
		require.NoError(t, os.Symlink("..data/"+name, filepath.Join(folder, name)))
	}
	e.start()
	p.runs(1)
	for version := 2; version <= 4; version++ {
		deploy(version)
		begin := time.Now()
		p.runs(version)
		t.Logf("%s after the swap", time.Since(begin).Round(time.Millisecond))
		require.NoError(t, os.RemoveAll(filepath.Join(folder, fmt.Sprintf("..v%d", version-1))))
	}
	require.Equal(t, "1 2 3 4", p.started())
}
