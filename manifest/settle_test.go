package manifest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestChangeSettles(t *testing.T) {
	start := time.Unix(1000, 0)
	some := stamp{ino: 1, size: 10}
	for _, test := range []struct {
		name string
		c    change
		seen stamp
		want time.Duration // after the last sign
	}{
		{"renamed into place", change{arrived: true}, some, quietArrived},
		{"created empty", change{arrived: true}, stamp{ino: 1}, quietWritten},
		{"created and written", change{arrived: true, written: true}, some, quietWritten},
		{"written in place", change{written: true}, some, quietWritten},
		{"seen without an event", change{}, some, quietWritten},
		{"saved again", change{arrived: true, burst: true}, some, quietBurst},
		{"written again", change{written: true, burst: true}, some, quietWritten},
		{"gone", change{arrived: true}, stamp{}, quietGone},
		{"gone with its folder", change{folder: true}, stamp{}, quietGoneFolder},
	} {
		t.Run(test.name, func(t *testing.T) {
			c := test.c
			c.since, c.last = start, start
			no := func() bool { return false }
			c.look(start, test.seen, no)
			assert.False(t, c.ready)
			assert.Equal(t, start.Add(test.want), c.due())
			c.look(start.Add(test.want-1), test.seen, no)
			assert.False(t, c.ready)
			c.look(start.Add(test.want), test.seen, no)
			assert.True(t, c.ready)
			// Another stamp begins the wait anew.
			later := start.Add(test.want + time.Millisecond)
			c.look(later, stamp{ino: 9, size: 9}, no)
			assert.False(t, c.ready)
			assert.True(t, c.due().After(later))
		})
	}
}

func TestChangeBurstIsBounded(t *testing.T) {
	start := time.Unix(1000, 0)
	c := change{since: start, last: start, arrived: true, burst: true}
	now := start
	for i := 0; !c.ready; i++ {
		require.Less(t, i, 1000)
		now = now.Add(100 * time.Millisecond)
		c.last = now // a save
		c.look(now, stamp{ino: uint64(i), size: 1}, func() bool { return false })
	}
	assert.Equal(t, burstBound, now.Sub(start))
}

func TestChangeWaitsForWriters(t *testing.T) {
	start := time.Unix(1000, 0)
	some := stamp{ino: 1, size: 10}
	c := change{since: start, last: start, arrived: true}
	writing := true
	now := start
	looks := 0
	for !c.ready {
		require.Less(t, looks, 1000)
		looks++
		now = c.due()
		c.look(now, some, func() bool { return writing })
	}
	assert.Equal(t, writerBound, now.Sub(start.Add(quietArrived)).Round(writerPoll), "a writer that never closes")
	assert.LessOrEqual(t, looks, int(writerBound/writerPoll)+2, "no busy loop")

	c = change{since: start, last: start, arrived: true}
	c.look(start.Add(quietArrived), some, func() bool { return true })
	assert.False(t, c.ready)
	c.look(c.due(), some, func() bool { return false })
	assert.True(t, c.ready, "closed")
}

func TestBeingWritten(t *testing.T) {
	file := write(t, filepath.Join(t.TempDir(), "f"), "x")
	assert.False(t, beingWritten(file))
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	require.NoError(t, err)
	assert.True(t, beingWritten(file))
	require.NoError(t, f.Close())
	assert.False(t, beingWritten(file))
	assert.False(t, beingWritten(file+".none"))
	assert.False(t, beingWritten(filepath.Dir(file)))
}

func TestTrace(t *testing.T) {
	top, err := filepath.EvalSymlinks(t.TempDir())
	require.NoError(t, err)
	write(t, filepath.Join(top, "..1/a.toml"), "")
	require.NoError(t, os.Symlink("..1", filepath.Join(top, "..data")))
	require.NoError(t, os.Symlink("..data/a.toml", filepath.Join(top, "a.toml")))
	require.NoError(t, os.Symlink(top+"/gone/x", filepath.Join(top, "dangling")))
	require.NoError(t, os.Symlink("loop", filepath.Join(top, "loop")))
	for path, want := range map[string][]string{
		"a.toml":              {"a.toml", "..data", "..1/a.toml"},
		"..1/../..1/./a.toml": {"..1/a.toml"},
		"none/of/it":          {"none"},
		"dangling":            {"dangling", "gone"},
	} {
		names, real := newTracer().trace(top + "/" + path)
		for i := range want {
			want[i] = filepath.Join(top, want[i])
		}
		assert.Equal(t, want, names, path)
		assert.Equal(t, path != "none/of/it" && path != "dangling", real != "", path)
	}
	_, real := newTracer().trace(top + "/loop")
	assert.Empty(t, real)
	names, real := newTracer().trace("/")
	assert.Equal(t, "/", real)
	assert.Equal(t, []string{"/"}, names)
}
