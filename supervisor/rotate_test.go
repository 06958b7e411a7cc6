package supervisor

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRotateCopiesAndTruncates(t *testing.T) {
	log := filepath.Join(t.TempDir(), "1.log")
	w, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600) // as a worker holds it
	require.NoError(t, err)
	defer func() { _ = w.Close() }()
	write := func(s string) { _, err := w.WriteString(s); require.NoError(t, err) }
	content := func(path string) string { b, _ := os.ReadFile(path); return string(b) }

	write("small\n")
	require.NoError(t, new(rotations).rotate(log, 10, 2))
	require.Equal(t, "small\n", content(log))
	for i := range 4 {
		write(fmt.Sprintf("round %d 0123456789\n", i))
		require.NoError(t, new(rotations).rotate(log, 10, 2))
		require.Empty(t, content(log))
	}
	require.Equal(t, "123456789\n", content(log+".1"), "the end of what was there, no more than the limit")
	require.NotEmpty(t, content(log+".2"))
	require.NoFileExists(t, log+".3")
	write("goes on\n")
	require.Equal(t, "goes on\n", content(log), "appended at the new end, without a hole")
	require.NoError(t, new(rotations).rotate(filepath.Join(t.TempDir(), "none"), 10, 2))
	require.NoError(t, new(rotations).rotate(log, 1, 0))
	require.Empty(t, content(log))
}

// 73: a log that cannot be copied is bounded all the same.
func TestCase73RotateOnAFullDisk(t *testing.T) {
	log := filepath.Join(t.TempDir(), "1.log")
	require.NoError(t, os.WriteFile(log, bytes.Repeat([]byte("x"), 100), 0o600))
	require.NoError(t, os.Symlink("/dev/full", log+".1"))
	require.Error(t, new(rotations).rotate(log, 10, 1))
	st, err := os.Stat(log)
	require.NoError(t, err)
	require.Zero(t, st.Size())
}

// Following survives a rotation.
func TestFollowSurvivesRotation(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "1.log")
	add := func(s string) {
		f, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		require.NoError(t, err)
		_, err = f.WriteString(s)
		require.NoError(t, err)
		require.NoError(t, f.Close())
	}
	add("one\n")
	var r rotations
	ctx, cancel := context.WithCancel(t.Context())
	var out lockedBuilder
	done := make(chan error, 1)
	go func() { done <- showLogs(ctx, &r, dir, 10, true, &out) }()
	has := func(s string) {
		eventually(t, func() bool { return strings.Contains(out.String(), s) }, func() string { return s + " in " + out.String() })
	}
	has("one\n")
	add("two two two two\n")
	has("two two two two\n")
	require.NoError(t, r.rotate(log, 1, 1))
	add("three\n")
	has("three\n")
	cancel()
	require.NoError(t, <-done)
}

type lockedBuilder struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *lockedBuilder) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lockedBuilder) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// gated lets one write through for each that it is given.
type gated struct {
	lockedBuilder
	gate chan struct{}
}

func (g *gated) Write(p []byte) (int, error) {
	<-g.gate
	return g.lockedBuilder.Write(p)
}

// Who reads slowly, or looks late, is shown what was rotated away meanwhile, as far as it is kept.
func TestFollowShowsWhatWasRotatedAway(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "1.log")
	var want strings.Builder
	n := 0
	add := func(lines int) {
		f, err := os.OpenFile(log, os.O_WRONLY|os.O_CREATE|os.O_APPEND, 0o600)
		require.NoError(t, err)
		for range lines {
			n++
			line := fmt.Sprintf("line %d\n", n)
			want.WriteString(line)
			_, err = f.WriteString(line)
			require.NoError(t, err)
		}
		require.NoError(t, f.Close())
	}
	var r rotations
	rotates := func() { // all but a byte is kept
		st, err := os.Stat(log)
		require.NoError(t, err)
		require.NoError(t, r.rotate(log, st.Size()-1, 3))
	}
	add(10)
	rotates() // before anybody follows
	add(10)
	ctx, cancel := context.WithCancel(t.Context())
	out := &gated{gate: make(chan struct{})}
	done := make(chan error, 1)
	go func() { done <- showLogs(ctx, &r, dir, 1000, true, out) }()
	out.gate <- struct{}{}
	out.gate <- struct{}{} // both parts are shown
	add(10)                // is read, or is not
	for range 3 {
		rotates()
		add(10)
	}
	close(out.gate)
	all := strings.NewReplacer("line 1\n", "ine 1\n", "line 31\n", "ine 31\n", "line 41\n", "ine 41\n").Replace(want.String())
	eventually(t, func() bool { return len(out.String()) >= len(all) }, func() string { return "all is shown: " + out.String() })
	cancel()
	require.NoError(t, <-done)
	require.Equal(t, all, out.String(), "but for the bytes that were not kept")

	// What is kept of a log may be less than what went away.
	out = &gated{gate: make(chan struct{})}
	close(out.gate)
	s := newLogShow(&r, out)
	require.NoError(t, s.last(dir, 0))
	add(100)
	require.NoError(t, r.rotate(log, 20, 3))
	require.NoError(t, s.appended(log))
	require.Equal(t, want.String()[want.Len()-20:], out.String())
}
