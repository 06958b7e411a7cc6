package manifest

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// watch runs a watcher on dirs and collects every Set it sends.
type watch struct {
	*Watcher
	t    *testing.T
	logs *syncBuffer

	mu   sync.Mutex
	sets []*Set
	at   []time.Time
}

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *syncBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *syncBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

func startWatch(t *testing.T, rescan time.Duration, dirs ...string) *watch {
	t.Helper()
	logs := &syncBuffer{}
	w := &watch{t: t, logs: logs, Watcher: NewWatcher(WatchConfig{
		Dirs: dirs, Options: testOptions(), Rescan: rescan, Log: slog.New(slog.NewTextHandler(logs, nil)),
	})}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	ran := make(chan struct{})
	go func() {
		defer close(ran)
		assert.NoError(t, w.Run(ctx))
	}()
	go func() {
		defer close(done)
		for {
			select {
			case s := <-w.Sets():
				w.mu.Lock()
				w.sets, w.at = append(w.sets, s), append(w.at, time.Now())
				w.mu.Unlock()
			case <-ctx.Done():
				return
			}
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-ran
		<-done
	})
	eventually(t, "the first set is there", func() bool { return w.count() > 0 })
	return w
}

func (w *watch) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.sets)
}

// last returns the newest Set and when it came.
func (w *watch) last() (*Set, time.Time) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sets[len(w.sets)-1], w.at[len(w.at)-1]
}

// titles returns the titles of slug in all sets so far, "invalid" and "none" among them, each change once.
func (w *watch) titles(slug string) []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	var out []string
	for _, s := range w.sets {
		title := "none"
		if e, ok := s.Lookup(slug); ok && e.Manifest == nil {
			title = "invalid"
		} else if ok {
			title = e.Manifest.Title
		}
		if len(out) == 0 || out[len(out)-1] != title {
			out = append(out, title)
		}
	}
	return out
}

func (w *watch) waitTitle(slug, title string) {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%s is %q", slug, title), func() bool {
		titles := w.titles(slug)
		return titles[len(titles)-1] == title
	})
}

// quiesce waits until all that was done before has been seen: a marker written after it has.
func (w *watch) quiesce(dir string) {
	w.t.Helper()
	w.mu.Lock()
	marker := fmt.Sprintf("marker%d", len(w.sets))
	w.mu.Unlock()
	rename(w.t, filepath.Join(dir, marker+".toml"), titled(marker))
	w.waitTitle(marker, marker)
}

func titled(title string) string { return command(fmt.Sprintf("title = %q\n", title)) }

// rename puts text in place as editors and deployment tools do.
func rename(t *testing.T, path, text string) {
	t.Helper()
	tmp := filepath.Join(filepath.Dir(path), ".new"+filepath.Base(path))
	write(t, tmp, text)
	require.NoError(t, os.Rename(tmp, path))
}

func TestWatchRenameIsFast(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "a.toml"), titled("0"))
	w := startWatch(t, time.Minute, dir)
	w.quiesce(dir)
	best := time.Hour
	for i := range 5 {
		title := fmt.Sprint(i + 1)
		tmp := write(t, filepath.Join(dir, ".tmp"), titled(title))
		begin := time.Now()
		require.NoError(t, os.Rename(tmp, file))
		w.waitTitle("a", title)
		_, at := w.last()
		best = min(best, at.Sub(begin))
		// The next one is a change of its own, not part of a burst.
		eventually(t, "the burst is over", func() bool { return time.Since(at) > burstAge })
	}
	t.Logf("fastest of 5: %s", best)
	assert.Less(t, best, 100*time.Millisecond)
}

func TestCase68RenameOverFiveTimes(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "a.toml"), titled("0"))
	w := startWatch(t, time.Minute, dir)
	want := []string{"0"}
	for i := range 5 {
		title := fmt.Sprint(i + 1)
		rename(t, file, titled(title))
		w.waitTitle("a", title)
		want = append(want, title)
	}
	assert.Equal(t, want, w.titles("a"))
}

func TestCase68TwoHalves(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "a.toml"), titled("0"))
	w := startWatch(t, time.Minute, dir)

	require.NoError(t, os.WriteFile(file, []byte(titled("half")), 0o644))
	time.Sleep(300 * time.Millisecond) // the author's own pause
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_APPEND, 0)
	require.NoError(t, err)
	_, err = f.WriteString("description = \"whole\"\n")
	require.NoError(t, err)
	require.NoError(t, f.Close())

	w.waitTitle("a", "half")
	for _, s := range w.sets {
		e, _ := s.Lookup("a")
		require.NotNil(t, e.Manifest)
		if e.Manifest.Title == "half" {
			assert.Equal(t, "whole", e.Manifest.Description)
		}
	}
	assert.Equal(t, []string{"0", "half"}, w.titles("a"))
}

func TestCase68CopyOfAMegabyte(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := startWatch(t, time.Minute, dir)
	f, err := os.Create(filepath.Join(dir, "big.toml"))
	require.NoError(t, err)
	_, err = f.WriteString(titled("big"))
	require.NoError(t, err)
	filler := "# " + strings.Repeat("x", 1<<10-3) + "\n"
	for range 1 << 10 {
		_, err = f.WriteString(filler)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	w.waitTitle("big", "big")
	assert.Equal(t, []string{"none", "big"}, w.titles("big"))
}

func TestWatchWaitsForAnOpenWriter(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := startWatch(t, time.Minute, dir)
	f, err := os.Create(filepath.Join(dir, "a.toml"))
	require.NoError(t, err)
	_, err = f.WriteString(titled("half"))
	require.NoError(t, err)
	begin := time.Now()
	// Others are not held up by the file that is not settled.
	rename(t, filepath.Join(dir, "b.toml"), titled("b"))
	w.waitTitle("b", "b")
	eventually(t, "the pause of the writer is over", func() bool { return time.Since(begin) > 2*quietWritten })
	assert.Equal(t, []string{"none"}, w.titles("a"))
	_, err = f.WriteString("description = \"whole\"\n")
	require.NoError(t, err)
	require.NoError(t, f.Close())
	w.waitTitle("a", "half")
	s, _ := w.last()
	e, _ := s.Lookup("a")
	assert.Equal(t, "whole", e.Manifest.Description)
}

func TestWatchTakesAFileThatStaysOpen(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := startWatch(t, time.Minute, dir)
	f, err := os.Create(filepath.Join(dir, "a.toml"))
	require.NoError(t, err)
	defer f.Close()
	_, err = f.WriteString(titled("open"))
	require.NoError(t, err)
	w.waitTitle("a", "open")
}

func TestCase68MoveOutAndIn(t *testing.T) {
	t.Parallel()
	dir, away := t.TempDir(), filepath.Join(t.TempDir(), "a.toml")
	file := write(t, filepath.Join(dir, "a.toml"), titled("0"))
	w := startWatch(t, time.Minute, dir)
	require.NoError(t, os.Rename(file, away))
	w.waitTitle("a", "none")
	require.NoError(t, os.Rename(away, file))
	w.waitTitle("a", "0")
	assert.Equal(t, []string{"0", "none", "0"}, w.titles("a"))
}

func TestCase68EditorsNames(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "a.toml"), titled("0"))
	w := startWatch(t, time.Minute, dir)
	before := w.count()
	for _, name := range []string{"a.toml~", ".a.toml.swp", "#a.toml#", "4913", ".#a.toml", "a.toml.tmp", "notes.txt", "b.toml.swp"} {
		write(t, filepath.Join(dir, name), titled("backup"))
	}
	w.quiesce(dir)
	assert.Equal(t, before+1, w.count(), "the marker alone")

	// An editor that renames the old file away and writes a new one.
	require.NoError(t, os.Rename(file, file+"~"))
	write(t, file, titled("1"))
	w.waitTitle("a", "1")
	assert.Equal(t, []string{"0", "1"}, w.titles("a"))
}

func TestWatchBrokenEditIsReported(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "a.toml"), titled("0"))
	w := startWatch(t, time.Minute, dir)
	rename(t, file, titled("1")+"kind = 3\n")
	w.waitTitle("a", "invalid")
	s, _ := w.last()
	e, _ := s.Lookup("a")
	require.Len(t, e.Problems, 1)
	assert.Equal(t, 3, e.Problems[0].Line)
	rename(t, file, titled("2"))
	w.waitTitle("a", "2")
}

func TestCase71TouchAndFormatSendNothing(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	a := write(t, filepath.Join(dir, "a.toml"), titled("a"))
	b := write(t, filepath.Join(dir, "b.toml"), titled("b"))
	script := write(t, filepath.Join(dir, "script.py"), "pass\n")
	w := startWatch(t, time.Minute, dir)
	w.Follow([]string{script})
	w.quiesce(dir)
	eventually(t, "a newly followed file is no longer fresh", func() bool { return time.Since(modTime(t, script)) > 2*freshAge })
	w.quiesce(dir)
	before := w.count()
	now := time.Now()
	require.NoError(t, os.Chtimes(a, now, now))
	require.NoError(t, os.Chtimes(script, now, now))
	rename(t, b, "# a comment\n\ntitle   =  'b'\ncommand = [ \"server\", ]\n")
	eventually(t, "all have settled", func() bool { return time.Since(now) > 3*quietWritten })
	w.quiesce(dir)
	assert.Equal(t, before+1, w.count(), "the marker alone")
}

func modTime(t *testing.T, path string) time.Time {
	info, err := os.Stat(path)
	require.NoError(t, err)
	return info.ModTime()
}

func TestWatchTwentySavesAreFew(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	file := write(t, filepath.Join(dir, "a.toml"), titled("0"))
	w := startWatch(t, time.Minute, dir)
	for i := range 20 {
		rename(t, file, titled(fmt.Sprint(i+1)))
		time.Sleep(100 * time.Millisecond) // the pace of the saves
	}
	w.waitTitle("a", "20")
	assert.LessOrEqual(t, len(w.titles("a")), 4, "%v", w.titles("a"))
}

func TestWatchKubernetesSwap(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, filepath.Join(dir, "..1/a.toml"), titled("1"))
	write(t, filepath.Join(dir, "..2/a.toml"), titled("2"))
	require.NoError(t, os.Symlink("..1", filepath.Join(dir, "..data")))
	require.NoError(t, os.Symlink("..data/a.toml", filepath.Join(dir, "a.toml")))
	w := startWatch(t, time.Minute, dir)
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
	w := startWatch(t, time.Minute, dir)
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
	w := startWatch(t, time.Minute, dir)
	rename(t, target, titled("2"))
	w.waitTitle("a", "2")
}

func TestWatchDirectoryVanishesAndReturns(t *testing.T) {
	t.Parallel()
	top := t.TempDir()
	dir := filepath.Join(top, "deep", "providers")
	write(t, filepath.Join(dir, "a.toml"), titled("1"))
	w := startWatch(t, time.Minute, dir)

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
	w := startWatch(t, time.Minute, dir)
	s, _ := w.last()
	assert.Empty(t, s.Entries)
	assert.Empty(t, s.Problems)
	write(t, filepath.Join(dir, "a.toml"), titled("1"))
	w.waitTitle("a", "1")
}

func TestWatchFolders(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	w := startWatch(t, time.Minute, dir)
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
	w := startWatch(t, time.Minute, dir)
	w.Follow([]string{link, later})
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
	next("a file that appears counts", func() { write(t, later, "here\n") })
	next("a file that goes counts", func() { require.NoError(t, os.RemoveAll(filepath.Dir(later))) })
}

func TestWatchMissingWorkerAppears(t *testing.T) {
	t.Parallel()
	dir, elsewhere := t.TempDir(), t.TempDir()
	python := writeProgram(t, filepath.Join(dir, "venv/bin/python"))
	worker := filepath.Join(elsewhere, "sub/worker.py")
	write(t, filepath.Join(dir, "a.toml"), fmt.Sprintf("title = 'a'\nworker = %q\nenv.python = %q\n", worker, python))
	w := startWatch(t, time.Minute, dir)
	w.waitTitle("a", "invalid")
	write(t, worker, "pass\n")
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
	w := startWatch(t, time.Minute, dir)
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
	w := startWatch(t, time.Minute, dir)
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
	w := startWatch(t, time.Minute, dir)
	write(t, file, titled("1")) // in place: it would have to settle
	before := w.count()
	s, err := w.Rescan(context.Background())
	require.NoError(t, err)
	e, _ := s.Lookup("a")
	assert.Equal(t, "1", e.Manifest.Title)
	eventually(t, "the set is sent too", func() bool { return w.count() == before+1 })
	sent, _ := w.last()
	assert.Same(t, s, sent)

	stopped := NewWatcher(WatchConfig{Dirs: []string{dir}})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	require.NoError(t, stopped.Run(ctx))
	_, err = stopped.Rescan(context.Background())
	assert.ErrorIs(t, err, ErrStopped)
	_, err = NewWatcher(WatchConfig{Dirs: []string{dir}}).Rescan(ctx)
	assert.ErrorIs(t, err, context.Canceled)
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
