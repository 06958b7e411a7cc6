package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// threads is how many threads of the operating system a process has.
func threads(t *testing.T, pid int) int {
	t.Helper()
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	require.NoError(t, err)
	_, after, ok := strings.Cut(string(data), "\nThreads:")
	require.True(t, ok)
	n, err := strconv.Atoi(strings.Fields(after)[0])
	require.NoError(t, err)
	return n
}

// openFiles is how many descriptors a process has.
func openFiles(t *testing.T, pid int) int {
	t.Helper()
	entries, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
	require.NoError(t, err)
	return len(entries)
}

// cpuTime is how long the threads of a process have run so far. (The times in /proc/PID/stat count ticks, and miss what is
// shorter.)
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	require.NoError(t, err)
	require.NotEmpty(t, tasks)
	var sum time.Duration
	for _, task := range tasks {
		data, err := os.ReadFile(task)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // it has ended
		}
		require.NoError(t, err)
		ran, err := strconv.ParseInt(strings.Fields(string(data))[0], 10, 64)
		require.NoError(t, err)
		sum += time.Duration(ran)
	}
	return sum
}

func TestE2EManyWorkersCostNoThreadsAndIdleOnesNoTime(t *testing.T) {
	long(t)
	e := newE2E(t)
	e.start()
	have := 0
	grow := func(to int) {
		for ; have < to; have++ {
			e.bare(fmt.Sprintf("w%d", have), "")
		}
		e.until(fmt.Sprintf("%d workers are ready", to), func() bool {
			s, err := e.control().Status(t.Context())
			ready := 0
			for _, p := range s.Providers {
				if p.State == "ready" {
					ready++
				}
			}
			return err == nil && ready == to
		})
	}
	grow(5)
	few := threads(t, e.pid())
	grow(30)
	used := time.Hour
	for try := 0; try < 3 && used >= soon(50*time.Millisecond); try++ { // what the starts left to do may take a while
		before := cpuTime(t, e.pid())
		<-time.After(5 * time.Second) // what is measured
		used = cpuTime(t, e.pid()) - before
		t.Logf("30 idle workers: %s of CPU time in 5 s", used.Round(time.Microsecond))
	}
	require.Less(t, used, soon(50*time.Millisecond), "1 %% of a core")
	grow(60)
	many := threads(t, e.pid())
	t.Logf("%d threads with 5 workers, %d with 60", few, many)
	require.Less(t, many, few+35, "not one for each worker; a slow disk holds a thread for each record that is written")
}

func TestE2ECase78ManyManifestsForRequests(t *testing.T) {
	e := newE2E(t)
	starts := e.dir + "/starts"
	for n := range 200 {
		e.bare(fmt.Sprintf("w%03d", n), fmt.Sprintf("[start]\nwhen = \"request\"\n[env.variables]\nSTARTS = %q\n", starts))
	}
	e.ok("version") // the binary is built, and in the page cache
	best := time.Hour
	for range 3 { // the machine may be busy with something else
		begin := time.Now()
		e.launch()
		e.until("200 front sockets", func() bool {
			s, err := e.control().Status(t.Context())
			return err == nil && len(s.Providers) == 200
		})
		best = min(best, time.Since(begin))
		if best < 2*time.Second {
			break
		}
		e.stop()
	}
	if e.cmd == nil {
		e.start()
	}
	t.Logf("ready after %s", best.Round(time.Millisecond))
	if !raceDetector {
		require.Less(t, best, 2*time.Second)
	}
	table := e.ok("status")
	require.Len(t, regexp.MustCompile(`(?m)^w\d+ +stopped `).FindAllString(table, -1), 200)
	for n := range 200 {
		w, err := connect(e.front(fmt.Sprintf("w%03d", n)))
		require.NoError(t, err)
		require.NoError(t, w.silent())
		require.NoError(t, w.conn.Close())
	}
	require.NoFileExists(t, starts)
	require.Empty(t, e.marked(""))
	e.call(e.dial("w117"), "echo", "{}")
	require.Len(t, e.marked(""), 1)
}
