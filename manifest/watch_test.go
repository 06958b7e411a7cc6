package manifest

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

func TestWatchKubernetesSwap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "..1/a.toml"), titled("1"))
	write(t, filepath.Join(dir, "..2/a.toml"), titled("2"))
	require.NoError(t, os.Symlink("..1", filepath.Join(dir, "..data")))
	require.NoError(t, os.Symlink("..data/a.toml", filepath.Join(dir, "a.toml")))
	w := startWatch(t, dir)
	w.waitTitle("a", "1")
	require.NoError(t, os.Symlink("..2", filepath.Join(dir, "..data_tmp")))
	require.NoError(t, os.Rename(filepath.Join(dir, "..data_tmp"), filepath.Join(dir, "..data")))
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "..1")))
	w.waitTitle("a", "2")
	assert.Equal(t, []string{"1", "2"}, w.titles("a"))
}

func TestWatchSymlinkedDirectorySwap(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	write(t, filepath.Join(top, "r1/a.toml"), titled("1"))
	write(t, filepath.Join(top, "r2/a.toml"), titled("2"))
	dir := filepath.Join(top, "current")
	require.NoError(t, os.Symlink("r1", dir))
	w := startWatch(t, dir)
	w.waitTitle("a", "1")
	require.NoError(t, os.Symlink("r2", dir+".new"))
	require.NoError(t, os.Rename(dir+".new", dir))
	w.waitTitle("a", "2")
	// The new folder is followed now.
	rename(t, filepath.Join(top, "r2/a.toml"), titled("3"))
	w.waitTitle("a", "3")
	assert.Equal(t, []string{"1", "2", "3"}, w.titles("a"))
}

func TestWatchTargetOfASymlink(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	target := write(t, filepath.Join(elsewhere, "real.toml"), titled("1"))
	require.NoError(t, os.Symlink(target, filepath.Join(dir, "a.toml")))
	w := startWatch(t, dir)
	rename(t, target, titled("2"))
	w.waitTitle("a", "2")
}

func TestWatchDirectoryVanishesAndReturns(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	dir := filepath.Join(top, "deep", "providers")
	write(t, filepath.Join(dir, "a.toml"), titled("1"))
	w := startWatch(t, dir)

	// Away and back at once: nothing happened.
	before := w.count()
	require.NoError(t, os.Rename(dir, dir+".away"))
	require.NoError(t, os.Rename(dir+".away", dir))
	w.quiesce(dir)
	assert.Equal(t, before+1, w.count(), "the marker alone")

	require.NoError(t, os.RemoveAll(filepath.Join(top, "deep")))
	w.waitTitle("a", "none")
	write(t, filepath.Join(dir, "a.toml"), titled("2"))
	w.waitTitle("a", "2")
	rename(t, filepath.Join(dir, "a.toml"), titled("3"))
	w.waitTitle("a", "3")
}

func TestWatchDirectoryThatIsMadeLater(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "x", "y", "providers")
	w := startWatch(t, dir)
	s, _ := w.last()
	assert.Empty(t, s.Entries)
	assert.Empty(t, s.Problems)
	write(t, filepath.Join(dir, "a.toml"), titled("1"))
	w.waitTitle("a", "1")
}

func TestWatchFolders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := startWatch(t, dir)
	write(t, filepath.Join(dir, "a/provider.toml"), titled("1"))
	w.waitTitle("a", "1")
	rename(t, filepath.Join(dir, "a/provider.toml"), titled("2"))
	w.waitTitle("a", "2")
	// A folder moved in whole, and its removal.
	aside := filepath.Join(t.TempDir(), "b")
	write(t, filepath.Join(aside, "provider.toml"), titled("b"))
	require.NoError(t, os.Rename(aside, filepath.Join(dir, "b")))
	w.waitTitle("b", "b")
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "a")))
	w.waitTitle("a", "none")
	require.NoError(t, os.Remove(filepath.Join(dir, "b/provider.toml")))
	w.waitTitle("b", "none")
	s, _ := w.last()
	assert.Empty(t, s.Entries)
}

func TestWatchFollowsFiles(t *testing.T) {
	t.Parallel()
	dir, other := t.TempDir(), t.TempDir()
	write(t, filepath.Join(dir, "a.toml"), titled("1"))
	script := write(t, filepath.Join(other, "real/script.py"), "one\n")
	link := filepath.Join(other, "link.py")
	require.NoError(t, os.Symlink("real/script.py", link))
	later := filepath.Join(other, "not/yet")
	w := startWatch(t, dir)
	folder := filepath.Join(other, "folder")
	require.NoError(t, os.Mkdir(folder, 0o755))
	w.Follow([]string{link, later, folder})
	w.quiesce(dir)
	next := func(what string, act func()) {
		t.Helper()
		// Let what was just followed or changed become old, so that it is this act that counts.
		begin := time.Now()
		eventually(t, "the last act is old", func() bool { return time.Since(begin) > freshAge+quietWritten })
		before := w.count()
		act()
		eventually(t, what, func() bool { return w.count() == before+1 })
	}
	next("a rewritten target counts", func() { write(t, script, "two\n") })
	next("a renamed target counts", func() { rename(t, script, "three\n") })
	next("a symlink to other content counts", func() {
		write(t, filepath.Join(other, "real/other.py"), "four\n")
		require.NoError(t, os.Symlink("real/other.py", link+".new"))
		require.NoError(t, os.Rename(link+".new", link))
	})
	next("a file that appears counts", func() { arrive(t, later, "here\n") })
	next("a new name in a folder counts", func() {
		write(t, filepath.Join(folder, "__pycache__/x.pyc"), "")
		write(t, filepath.Join(folder, "module.py"), "")
	})
	next("a file that goes counts", func() { require.NoError(t, os.RemoveAll(filepath.Dir(later))) })
}

func TestWatchMissingWorkerAppears(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	python := writeProgram(t, filepath.Join(dir, "venv/bin/python"))
	worker := filepath.Join(elsewhere, "sub/worker.py")
	write(t, filepath.Join(dir, "a.toml"), fmt.Sprintf("title = 'a'\nworker = %q\nenv.python = %q\n", worker, python))
	w := startWatch(t, dir)
	w.waitTitle("a", "invalid")
	arrive(t, worker, "pass\n")
	w.waitTitle("a", "a")
}

func TestWatchProgramBecomesExecutable(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	python := write(t, filepath.Join(elsewhere, "python"), "#!/bin/sh\n")
	write(t, filepath.Join(dir, "w.py"), "pass\n")
	write(t, filepath.Join(dir, "a.toml"), fmt.Sprintf("title = 'a'\nworker = 'w.py'\nenv.python = %q\n", python))
	w := startWatch(t, dir)
	w.waitTitle("a", "invalid")
	require.NoError(t, os.Chmod(python, 0o755))
	w.waitTitle("a", "a")
}

func TestCase80RecreatedVenvClears(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "w.py"), "pass\n")
	bin := filepath.Join(dir, "venv/bin")
	require.NoError(t, os.MkdirAll(bin, 0o755))
	require.NoError(t, os.Symlink("/nonexistent/python3.99", filepath.Join(bin, "python")))
	write(t, filepath.Join(dir, "a.toml"), "title = 'a'\nworker = 'w.py'\nenv.python = 'venv'\n")
	w := startWatch(t, dir)
	w.waitTitle("a", "invalid")
	require.NoError(t, os.Remove(filepath.Join(bin, "python")))
	writeProgram(t, filepath.Join(bin, "python"))
	w.waitTitle("a", "a")
}

func TestWatchSchemaFileIsPartOfTheManifest(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	schema := write(t, filepath.Join(dir, "schemas/s.json"), `{"type": "object"}`)
	write(t, filepath.Join(dir, "a.toml"), titled("a")+"[[tools]]\nname = 't'\nmethod = 'm'\ninput_schema = 'schemas/s.json'\n")
	w := startWatch(t, dir)
	before, _ := w.last()
	rename(t, schema, `{"type": "object", "required": ["x"]}`)
	eventually(t, "the sum changes", func() bool {
		s, _ := w.last()
		return s.Entries[0].Sum != before.Entries[0].Sum
	})
}

func TestWatchRescan(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "a.toml"), titled("0"))
	w := startWatch(t, dir)
	write(t, file, titled("1")) // in place: it would have to settle
	s, err := w.Rescan(context.Background())
	require.NoError(t, err)
	e, _ := s.Lookup("a")
	assert.Equal(t, "1", e.Manifest.Title)
	eventually(t, "the set is sent too", func() bool { sent, _ := w.last(); return sent == s })

	stopped := NewWatcher(WatchConfig{Dirs: []string{dir}})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, stopped.Run(ctx))
	_, err = stopped.Rescan(context.Background())
	assert.ErrorIs(t, err, ErrStopped)
	_, err = NewWatcher(WatchConfig{Dirs: []string{dir}}).Rescan(ctx)
	assert.ErrorIs(t, err, context.Canceled)
}

// polls runs a watcher whose events fail with err.
func polls(t *testing.T, err error, dirs ...string) *watch {
	logs := &syncBuffer{}
	w := NewWatcher(WatchConfig{
		Dirs: dirs, Options: testOptions(), Rescan: 50 * time.Millisecond, Log: slog.New(slog.NewTextHandler(logs, nil)),
	})
	w.notify = func() (*fsnotify.Watcher, error) { return nil, err }
	return runWatch(t, logs, w)
}

func TestCase70WithoutInotify(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "a.toml"), titled("0"))
	w := polls(t, unix.EMFILE, dir)
	rename(t, file, titled("1"))
	w.waitTitle("a", "1")
	write(t, file, titled("2")) // in place
	w.waitTitle("a", "2")
	require.NoError(t, os.Remove(file))
	w.waitTitle("a", "none")
	assert.Equal(t, []string{"0", "1", "2", "none"}, w.titles("a"))
	assert.Equal(t, 1, strings.Count(w.logs.String(), "\n"), w.logs.String())
	assert.Contains(t, w.logs.String(), "too many open files")
}

func TestWatchInterval(t *testing.T) {
	t.Parallel()
	n := &notifier{log: slog.New(slog.DiscardHandler), make: fsnotify.NewWatcher}
	assert.Equal(t, pollInterval, n.interval(time.Minute), "no inotify instance")
	n.point(nil)
	defer n.close()
	assert.Equal(t, time.Minute, n.interval(time.Minute))
	n.complain(unix.ENOSPC)
	assert.Equal(t, pollInterval, n.interval(time.Minute), "a folder is not watched")
	assert.Equal(t, time.Second, n.interval(time.Second))
	n.point(nil)
	assert.Equal(t, time.Minute, n.interval(time.Minute), "all are watched again")
	n.checkRemote([]string{"/proc", "/nonexistent"})
	assert.Equal(t, time.Minute, n.interval(time.Minute))
	n.remote = true
	assert.Equal(t, pollInterval, n.interval(time.Minute))
}

func TestWatchSurvivesLostEvents(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "a.toml"), titled("0"))
	logs := &syncBuffer{}
	watcher := NewWatcher(WatchConfig{Dirs: []string{dir}, Options: testOptions(), Rescan: time.Hour})
	made := make(chan *fsnotify.Watcher, 10)
	watcher.notify = func() (*fsnotify.Watcher, error) {
		w, err := fsnotify.NewWatcher()
		made <- w
		return w, err
	}
	w := runWatch(t, logs, watcher)
	(<-made).Close() // as if its reader had ended
	<-made           // and a new one is made
	rename(t, file, titled("1"))
	w.waitTitle("a", "1")
}

func TestWatchSetsKeepsTheLatest(t *testing.T) {
	t.Parallel()
	w := NewWatcher(WatchConfig{})
	first, second := &Set{}, &Set{}
	w.send(first)
	w.send(second)
	assert.Same(t, second, <-w.Sets())
	assert.Empty(t, w.Sets())
}
