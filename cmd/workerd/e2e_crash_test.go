package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// undaunted has a worker restarted for ever, and almost at once.
const undaunted = "[restart]\nmax_crashes = 100000\nbackoff = \"10ms\"\nmax_backoff = \"20ms\"\n"

// killEvery kills the provider's workers again and again until ctx ends, and returns how often.
func (e *e2e) killEvery(ctx context.Context, slug string, pause time.Duration) int {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	kills := 0
	for {
		select {
		case <-ctx.Done():
			return kills
		case <-tick.C:
		}
		for _, w := range e.status(slug).Workers {
			// On a slow machine none would ever serve if all were killed while they load.
			if w.PID > 0 && (w.ReadySince != nil || kills%3 == 2) && syscall.Kill(w.PID, syscall.SIGKILL) == nil {
				kills++
			}
		}
	}
}

var serial atomic.Int64 // no two requests of the besiegers are the same

// besiege calls a provider until ctx ends, at requests at a time over one connection, or with reconnect over a new one each
// time. Every request must get its own answer, once: a result, or worker_crashed.
func (e *e2e) besiege(ctx context.Context, slug string, at int, reconnect bool, count func(string)) error {
	w, err := connect(e.front(slug))
	if err != nil {
		return err
	}
	for n := 0; ctx.Err() == nil; n++ {
		if reconnect {
			_ = w.conn.Close()
			if w, err = connect(e.front(slug)); err != nil {
				return fmt.Errorf("connection refused: %w", err)
			}
		}
		open := map[string]string{}
		for range at {
			text := fmt.Sprintf("request %d of all", serial.Add(1))
			id, err := w.request("echo", fmt.Sprintf(`{"text":%q,"sleep":0.004}`, text))
			if err != nil {
				return fmt.Errorf("connection lost: %w", err)
			}
			open[fmt.Sprint(id)] = text
		}
		for range at {
			m, err := w.answer(nil)
			if err != nil {
				return fmt.Errorf("request lost: %w", err)
			}
			text, asked := open[string(m.ID)]
			delete(open, string(m.ID))
			switch {
			case !asked:
				return fmt.Errorf("a second answer, or nobody's: %s", m.ID)
			case m.kind() == protocol.WorkerCrashed:
				count("crashed")
			case m.Error != nil:
				return m.Error
			case !strings.Contains(string(m.Result), fmt.Sprintf("%q", text)):
				return fmt.Errorf("%q was answered %s", text, m.Result)
			default:
				count("answered")
			}
		}
	}
	return errors.Join(w.silent(), w.conn.Close())
}

func TestE2EEachRequestIsAnsweredOnceWhileWorkersAreKilled(t *testing.T) {
	long(t)
	e := newE2E(t)
	e.bare("one", undaunted)
	e.provider("many", undaunted+"[serve]\nreplicas = 2\nconcurrency = 2\n")
	e.start()
	e.call(e.dial("one"), "echo", "{}")
	e.call(e.dial("many"), "echo", "{}")
	for _, siege := range []struct {
		slug string
		at   int
	}{{"one", 1}, {"many", 5}} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		kills := make(chan int, 1)
		go func() {
			killed := 0
			for begin := time.Now(); ctx.Err() == nil && (killed <= 10 || time.Since(begin) < 10*time.Second); {
				round, end := context.WithTimeout(ctx, time.Second)
				killed += e.killEvery(round, siege.slug, 250*time.Millisecond)
				end()
			}
			cancel()
			kills <- killed
		}()
		counts := gather(t, 8, func(i int, count func(string)) error {
			return e.besiege(ctx, siege.slug, siege.at, i%2 == 1, count)
		})
		cancel()
		killed := <-kills
		t.Logf("%s: %d kills, %d results, %d worker_crashed", siege.slug, killed, counts["answered"], counts["crashed"])
		require.Greater(t, killed, 10)
		require.Greater(t, counts["answered"], 20)
		if siege.slug == "one" {
			require.Positive(t, counts["crashed"])
			require.LessOrEqual(t, counts["crashed"], killed, "a kill costs the one request that ran at most")
		}
	}
}

func TestE2EAWorkerKilledWhileIdleCostsNoRequest(t *testing.T) {
	long(t)
	for name, times := range map[string]int{"bare": 200, "sdk": 30} {
		t.Run(name, func(t *testing.T) {
			e := newE2E(t)
			write := e.bare
			if name == "sdk" {
				write = e.provider
			}
			write("x", undaunted)
			e.start()
			w := e.dial("x")
			begin := time.Now()
			pid := e.call(w, "echo", "{}").PID
			files := 0
			for n := range times {
				if n == 5 {
					files = openFiles(t, e.pid())
				}
				if n%2 == 0 {
					require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
					_, err := w.request("echo", "{}")
					require.NoError(t, err)
				} else { // the request certainly lies unread in the socket when the worker dies
					require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
					e.until("the worker has stopped", func() bool { stat := procStat(pid); return stat != nil && stat[0] == "T" })
					_, err := w.request("echo", "{}")
					require.NoError(t, err)
					e.until("the request is sent", func() bool { return e.status("x").InFlight == 1 })
					require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
				}
				m, err := w.answer(nil)
				require.NoError(t, err)
				require.Nil(t, m.Error, "death %d", n)
				require.NotEqual(t, pid, m.said().PID)
				pid = m.said().PID
			}
			require.NoError(t, w.silent())
			t.Logf("%d deaths, %s each", times, (time.Since(begin) / time.Duration(times)).Round(time.Millisecond))
			e.until("no descriptor is left over", func() bool { return openFiles(t, e.pid()) <= files+1 })
			logs, err := filepath.Glob(filepath.Join(e.dir, "state/workerd/*/logs/x/*"))
			require.NoError(t, err)
			require.LessOrEqual(t, len(logs), 12, "old logs go")
		})
	}
}

func TestE2E50FirstRequestsAreOneStart(t *testing.T) {
	e := newE2E(t)
	starts := filepath.Join(e.dir, "starts")
	e.provider("x", fmt.Sprintf("[env.variables]\nLOAD_SECONDS = \"3\"\nSTARTS = %q\n[start]\nwhen = \"request\"\n", starts))
	e.start()
	require.NoFileExists(t, starts)
	var heard atomic.Int64
	counts := gather(t, 50, func(i int, count func(string)) error {
		w, err := connect(e.front("x"))
		if err != nil {
			return err
		}
		defer func() { _ = w.conn.Close() }()
		params := fmt.Sprintf(`{"n":%d}`, i)
		if i%2 == 0 {
			params = fmt.Sprintf(`{"n":%d,"_meta":{"progressToken":"token %d"}}`, i, i)
		}
		if _, err := w.request("echo", params); err != nil {
			return err
		}
		notes := 0
		m, err := w.answer(func(m message) {
			if string(m.Params.Token) == fmt.Sprintf(`"token %d"`, i) && m.Params.Message != "" {
				notes++
			}
			if strings.Contains(m.Params.Message, "loading") {
				heard.Add(1)
			}
		})
		switch {
		case err != nil:
			return err
		case m.Error != nil:
			return m.Error
		case string(m.said().Params) != fmt.Sprintf(`{"n":%d}`, i):
			return fmt.Errorf("%d was answered %s", i, m.Result)
		case (notes > 0) != (i%2 == 0):
			return fmt.Errorf("%d heard %d notes", i, notes)
		}
		count("answered")
		return w.silent()
	})
	require.Equal(t, 50, counts["answered"])
	require.Positive(t, heard.Load(), "that it loads was said")
	data, err := os.ReadFile(starts)
	require.NoError(t, err)
	require.Equal(t, 1, strings.Count(string(data), "\n"), "one start")
}

// exitOf is what an error says about the end of a worker.
func exitOf(t *testing.T, e *protocol.Error) protocol.Exit {
	t.Helper()
	require.NotNil(t, e)
	data, err := json.Marshal(e.Data.Detail)
	require.NoError(t, err)
	var x protocol.Exit
	require.NoError(t, json.Unmarshal(data, &x))
	return x
}

func TestE2ECase92DeathInARequestIsExplainedAtOnce(t *testing.T) {
	e := newE2E(t)
	e.provider("x", undaunted)
	e.start()
	pid := e.ready("x")
	w := e.dial("x")
	begin := time.Now()
	_, err := w.request("die", `{"name":"SIGSEGV","words":"out of luck"}`)
	require.NoError(t, err)
	_, err = w.request("echo", "{}")
	require.NoError(t, err)
	m, err := w.answer(nil)
	require.NoError(t, err)
	took := time.Since(begin)
	t.Logf("answered after %s: %v", took.Round(time.Millisecond), m.Error)
	require.Less(t, took, soon(time.Second))
	require.Equal(t, protocol.WorkerCrashed, m.kind())
	require.True(t, m.Error.Data.Retryable)
	x := exitOf(t, m.Error)
	require.NotNil(t, x.Signal)
	require.Equal(t, "SIGSEGV", *x.Signal)
	require.Nil(t, x.Code)
	require.Contains(t, x.Output, "out of luck")
	require.Contains(t, x.Output, "Segmentation fault", "the SDK has Python say where")

	m, err = w.answer(nil)
	require.NoError(t, err)
	require.Nil(t, m.Error, "the one that waited goes to the next worker")
	require.NotEqual(t, pid, m.said().PID)

	// Case 79: status tells the truth within a second.
	var p protocol.ProviderStatus
	within(t, soon(time.Second), "status shows the restart", func() bool {
		p = e.status("x")
		return len(p.Workers) == 1 && p.Workers[0].PID == m.said().PID && p.Workers[0].Restarts == 1
	})
	require.Equal(t, "SIGSEGV", *p.Workers[0].LastExit.Signal)
	require.WithinDuration(t, time.Now(), p.Workers[0].Since, patience)
	require.NotNil(t, p.Workers[0].ReadySince)
}
