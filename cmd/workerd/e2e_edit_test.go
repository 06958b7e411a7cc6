package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// edited is a provider whose versions can be told apart: each worker says its version, and notes it when it starts.
type edited struct {
	*e2e
	slug, file, starts, toml string
}

// editable makes a provider of version 1.
func (e *e2e) editable(slug, toml string) *edited {
	e.t.Helper()
	p := &edited{e2e: e, slug: slug, starts: filepath.Join(e.dir, slug+".starts"), toml: toml}
	p.file = e.bare(slug, p.tables(1))
	return p
}

func (p *edited) tables(version int) string {
	return fmt.Sprintf("%s\n[env.variables]\nSTARTS = %q\nVERSION = \"%d\"\n", p.toml, p.starts, version)
}

// text is the whole manifest of a version.
func (p *edited) text(version int) string {
	return p.manifest(fmt.Sprintf(`command = [%q, "-S", "-E", "bare.py"]`, interpreter(p.t)), "", p.tables(version))
}

// started lists the versions of all workers there were so far, as "1 2 2".
func (p *edited) started() string {
	data, err := os.ReadFile(p.starts)
	if err != nil {
		return ""
	}
	return strings.Join(strings.Fields(string(data)), " ")
}

// runs waits until requests are answered by a version, and returns for how long and the worker's pid.
func (p *edited) runs(version int) (time.Duration, int) {
	p.t.Helper()
	w, err := connect(p.front(p.slug))
	require.NoError(p.t, err)
	defer func() { _ = w.conn.Close() }()
	var s said
	took := within(p.t, patience, fmt.Sprintf("%s runs version %d", p.slug, version), func() bool {
		s = p.call(w, "echo", "{}")
		return s.Version == strconv.Itoa(version)
	})
	return took, s.PID
}

// overwrite writes a file in place, as simple editors and cp do.
func overwrite(t *testing.T, file, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
}

// settled returns when all edits made so far have had the time that an edit takes: another provider's later one is in force.
func (p *edited) settled() {
	p.t.Helper()
	later := &edited{e2e: p.e2e, slug: "later", starts: filepath.Join(p.dir, "later.starts")}
	later.file = filepath.Join(p.manifests(), "later", "provider.toml")
	if _, err := os.Stat(later.file); err != nil {
		p.editable("later", "")
		p.ready("later")
	}
	version := 1 + len(strings.Fields(later.started()))
	overwrite(p.t, later.file, later.text(version))
	later.runs(version)
}

func TestE2ECase68RenameOver(t *testing.T) {
	e := newE2E(t)
	p := e.editable("x", "")
	e.start()
	_, pid := p.runs(1)

	// Somebody calls all the time and notices nothing but other versions.
	ctx, cancel := context.WithCancel(t.Context())
	caller := make(chan error, 1)
	go func() {
		caller <- e.besiege(ctx, "x", 3, false, func(what string) {
			if what == "crashed" {
				t.Error("a request was lost to an edit")
			}
		})
	}()
	for version := 2; version <= 6; version++ {
		if version < 5 {
			<-time.After(1100 * time.Millisecond) // of edits within a second the watcher waits for the last
		}
		begin := time.Now()
		replace(t, p.file, p.text(version))
		_, next := p.runs(version)
		t.Logf("%s from the rename to the first answer of version %d", time.Since(begin).Round(time.Millisecond), version)
		require.NotEqual(t, pid, next)
		e.until("the old worker is gone", func() bool { return !alive(pid) })
		pid = next
	}
	cancel()
	require.NoError(t, <-caller)
	require.Equal(t, "1 2 3 4 5 6", p.started(), "each edit is applied, once")
}

func TestE2ECase68HalfAnEditIsNeverApplied(t *testing.T) {
	e := newE2E(t)
	p := e.editable("x", "")
	e.start()
	_, pid := p.runs(1)
	version, applied := 1, []string{"1"}
	for _, open := range []bool{true, false} {
		for gap := time.Hour; gap > 400*time.Millisecond; { // else this machine was too slow to make the case
			version++
			text := p.text(version)
			half := strings.Index(text, "[env.variables]") // a whole manifest by itself, and a wrong one
			begin := time.Now()
			f, err := os.OpenFile(p.file, os.O_WRONLY|os.O_TRUNC, 0)
			require.NoError(t, err)
			_, err = f.WriteString(text[:half])
			require.NoError(t, err)
			if !open {
				require.NoError(t, f.Close())
			}
			<-time.After(300 * time.Millisecond) // what is tested
			if !open {
				f, err = os.OpenFile(p.file, os.O_WRONLY|os.O_APPEND, 0)
				require.NoError(t, err)
			}
			_, err = f.WriteString(text[half:])
			require.NoError(t, err)
			gap = time.Since(begin)
			require.NoError(t, f.Close())
			if gap > 400*time.Millisecond {
				applied = append(applied, "none")
			}
			require.True(t, alive(pid))
			took, next := p.runs(version)
			t.Logf("applied %s after the second half", took.Round(time.Millisecond))
			applied, pid = append(applied, strconv.Itoa(version)), next
		}
	}
	if !strings.Contains(strings.Join(applied, " "), "none") {
		require.Equal(t, strings.Join(applied, " "), p.started())
	}
}

func TestE2ECase68CopyOfALargeFile(t *testing.T) {
	e := newE2E(t)
	p := e.editable("x", "")
	e.start()
	p.runs(1)
	from := filepath.Join(e.dir, "large.toml")
	require.NoError(t, os.WriteFile(from, []byte(strings.Repeat("# A line of a long comment.\n", 36_000)+p.text(2)), 0o600))
	require.NoError(t, exec.Command("cp", from, p.file).Run())
	p.runs(2)
	require.Equal(t, "1 2", p.started())
}

func TestE2ECase71OnlyWhatChangedRestarts(t *testing.T) {
	e := newE2E(t)
	var all []*edited
	for _, slug := range []string{"changed", "touched", "commented", "live"} {
		all = append(all, e.editable(slug, "description = \"old\""))
	}
	e.start()
	pids := map[string]int{}
	conns := map[string]*wire{}
	for _, p := range all {
		_, pids[p.slug] = p.runs(1)
		conns[p.slug] = e.dial(p.slug)
		_, err := conns[p.slug].request("echo", `{"sleep":4,"text":"under way"}`)
		require.NoError(t, err)
		e.until("it runs", func() bool { return e.status(p.slug).InFlight == 1 })
	}
	now := time.Now()
	require.NoError(t, os.Chtimes(all[1].file, now, now))
	require.NoError(t, os.Chtimes(filepath.Join(e.manifests(), "touched/bare.py"), now, now))
	replace(t, all[2].file, "# A comment.\n\n\n"+strings.ReplaceAll(all[2].text(1), " = ", "    =  "))
	live := strings.Replace(all[3].text(1), "description = \"old\"", "description = \"new\"\nserve.queue = 7\nstart.idle_timeout = \"1h\"\nrestart.backoff = \"3s\"", 1)
	replace(t, all[3].file, live)
	replace(t, all[0].file, all[0].text(2))
	for _, p := range all {
		m, err := conns[p.slug].answer(nil)
		require.NoError(t, err)
		require.Nil(t, m.Error, p.slug)
		require.Equal(t, pids[p.slug], m.said().PID, "a request under way is finished")
	}
	all[0].runs(2)
	all[0].settled()
	e.ok("reload")
	all[0].settled()
	require.Equal(t, "1 2", all[0].started())
	for _, p := range all[1:] {
		require.Equal(t, "1", p.started(), p.slug)
		require.Equal(t, pids[p.slug], e.status(p.slug).Workers[0].PID, p.slug)
	}
	require.Equal(t, 7, e.status("live").Queue.Limit, "applied without a restart")
}

func TestE2EABrokenEditKeepsTheOldOne(t *testing.T) {
	e := newE2E(t)
	p := e.editable("x", "")
	e.start()
	_, pid := p.runs(1)
	w := e.dial("x")
	replace(t, p.file, p.text(2)+"colour = \"red\"\n[srve]\nqueue = 1\n[start]\ntimeout = \"soon\"\n")
	e.until("the error shows", func() bool { return len(e.status("x").ManifestError) > 0 })
	require.Equal(t, pid, e.call(w, "echo", "{}").PID)

	var got struct {
		Providers []struct {
			Slug, State   string
			ManifestError []struct {
				File, Key, Message string
				Line, Column       int
			} `json:"manifest_error"`
		}
	}
	require.NoError(t, json.Unmarshal([]byte(e.ok("status", "--json")), &got))
	require.Len(t, got.Providers, 1)
	require.Equal(t, "ready", got.Providers[0].State)
	problems := got.Providers[0].ManifestError
	require.Len(t, problems, 2, "all problems at once; any name may stand below env.variables")
	lines := strings.Split(p.text(2), "\n")
	require.Equal(t, p.file, problems[0].File)
	require.Equal(t, len(lines)+1, problems[0].Line)
	require.Equal(t, 2, problems[0].Column)
	require.Contains(t, problems[0].Message, "serve", "the nearest name")
	require.Equal(t, len(lines)+4, problems[1].Line)
	require.Equal(t, "start.timeout", problems[1].Key)
	validated := e.cli("validate")
	require.Equal(t, exitFailed, validated.code)
	require.Contains(t, validated.out, fmt.Sprintf("%s:%d:", p.file, len(lines)+4))

	replace(t, p.file, p.text(1))
	e.until("the error is gone", func() bool { return e.status("x").ManifestError == nil })
	require.Equal(t, pid, e.call(w, "echo", "{}").PID, "and nothing has changed")
	require.Equal(t, "1", p.started())

	// A version that does not become ready is kept out as well, and shown.
	replace(t, p.file, strings.Replace(p.text(3), "bare.py", "nothing.py", 1))
	e.until("the error shows", func() bool { return len(e.status("x").ManifestError) > 0 })
	require.Equal(t, pid, e.call(w, "echo", "{}").PID)
	require.Contains(t, e.status("x").ManifestError[0].Message, "did not become ready")
	replace(t, p.file, p.text(4))
	p.runs(4)
	require.Nil(t, e.status("x").ManifestError)
	require.Equal(t, "1 4", p.started())
}

func TestE2EARemovedManifestEndsItsProvider(t *testing.T) {
	e := newE2E(t)
	p := e.editable("x", "")
	e.start()
	_, pid := p.runs(1)
	running, waiting := e.dial("x"), e.dial("x")
	_, err := running.request("echo", `{"sleep":6,"text":"under way"}`)
	require.NoError(t, err)
	e.until("it runs", func() bool { return e.status("x").InFlight == 1 })
	for range 5 {
		_, err = waiting.request("echo", "{}")
		require.NoError(t, err)
	}
	e.until("five wait", func() bool { return e.status("x").Queue.Waiting == 5 })
	require.NoError(t, os.Remove(p.file))
	for range 5 {
		m, err := waiting.answer(nil)
		require.NoError(t, err)
		require.EqualValues(t, "provider_stopped", m.kind())
	}
	require.True(t, alive(pid), "it still runs what it was given")
	m, err := running.answer(nil)
	require.NoError(t, err)
	require.Equal(t, "under way", m.said().Text)
	for _, w := range []*wire{running, waiting} {
		_, err = w.read()
		require.Error(t, err, "the connection closes after its last answer")
	}
	e.until("the front socket is gone", func() bool { _, err := os.Lstat(e.front("x")); return errors.Is(err, os.ErrNotExist) })
	e.until("the worker is gone", func() bool { return !alive(pid) })
	require.Equal(t, exitFailed, e.cli("status", "x").code)

	replace(t, p.file, p.text(2))
	e.until("it is back", func() bool { _, err := os.Stat(e.front("x")); return err == nil })
	p.runs(2)
}

func TestE2EADirectoryThatVanishesAndComesBack(t *testing.T) {
	long(t)
	e := newE2E(t)
	p := e.editable("x", "")
	e.start()
	_, pid := p.runs(1)
	away := e.manifests() + ".away"
	require.NoError(t, os.Rename(e.manifests(), away))
	require.NoError(t, os.Rename(away, e.manifests()))
	replace(t, p.file, p.text(2))
	_, next := p.runs(2)
	require.Equal(t, "1 2", p.started(), "the move alone changed nothing, and edits are seen")
	e.until("the old worker is gone", func() bool { return !alive(pid) })

	require.NoError(t, os.Rename(e.manifests(), away))
	e.until("its front socket is gone", func() bool { _, err := os.Lstat(e.front("x")); return err != nil })
	require.False(t, alive(next))
	require.NoError(t, os.Rename(away, e.manifests()))
	e.until("it is back", func() bool { _, err := os.Stat(e.front("x")); return err == nil })
	p.runs(2)
	replace(t, p.file, p.text(3))
	p.runs(3)
	require.Equal(t, "1 2 2 3", p.started())

	require.NoError(t, os.RemoveAll(e.manifests()))
	e.until("its front socket is gone", func() bool { _, err := os.Lstat(e.front("x")); return err != nil })
	require.Empty(t, e.marked(""))
	require.NoError(t, os.MkdirAll(e.manifests(), 0o700))
	p = e.editable("x", "")
	e.until("it is back", func() bool { _, err := os.Stat(e.front("x")); return err == nil })
	p.runs(1)
	require.True(t, alive(e.pid()))
}

func TestE2EAnEditedWorkerScriptRestarts(t *testing.T) {
	e := newE2E(t)
	e.provider("x", "")
	e.start()
	w := e.dial("x")
	script := filepath.Join(e.manifests(), "x/worker.py")
	code, err := os.ReadFile(script)
	require.NoError(t, err)
	for n, write := range []func(*testing.T, string, string){replace, overwrite} {
		text := fmt.Sprintf("edition %d", n)
		write(t, script, strings.Replace(string(code), `"pid": os.getpid(), "params"`, fmt.Sprintf(`"pid": os.getpid(), "text": %q, "params"`, text), 1))
		begin := time.Now()
		e.until("the new code runs", func() bool { return e.call(w, "echo", "{}").Text == text })
		t.Logf("%s after the edit", time.Since(begin).Round(time.Millisecond))
	}
	require.Equal(t, 0, e.status("x").Workers[0].Restarts)
}

func TestE2ECase71SighupAndTheWatcherApplyOnce(t *testing.T) {
	e := newE2E(t)
	p := e.editable("x", "")
	e.start()
	p.runs(1)
	want := "1"
	for version := 2; version <= 6; version++ {
		replace(t, p.file, p.text(version))
		require.NoError(t, e.cmd.Process.Signal(syscall.SIGHUP))
		if version%2 == 0 {
			e.ok("reload")
		}
		p.runs(version)
		want += " " + strconv.Itoa(version)
	}
	p.settled()
	require.Equal(t, want, p.started())
}
