package main

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"workerd/execenv"
)

// What is checked after a chaos run, besides the answers.

// movesAllowed are the changes of a worker's state that there may be, as the operator's manual has them; workerd's own table is
// elsewhere, and says besides for what reasons.
var movesAllowed = map[string]string{
	"stopped":  "starting backoff failed",
	"starting": "starting loading ready draining stopped backoff failed",
	"loading":  "ready draining stopped starting backoff failed",
	"ready":    "draining stopped starting backoff failed",
	"draining": "stopped starting",
	"backoff":  "starting stopped failed",
	"failed":   "starting stopped",
}

var stateLine = regexp.MustCompile(`(?m) msg=state .*? from=(\w+) state=(\w+) .*$`)

// dataRace is a report of the race detector, which a workerd of the engine tests is built with.
var dataRace = regexp.MustCompile(`(?ms)^WARNING: DATA RACE$.*?^==================$`)

// illegalMoves finds in a log changes of state that may not be, and whatever else must not be there, and counts those that may.
func illegalMoves(log string) (illegal []string, legal int) {
	for _, m := range stateLine.FindAllStringSubmatch(log, -1) {
		if slices.Contains(strings.Fields(movesAllowed[m[1]]), m[2]) {
			legal++
		} else {
			illegal = append(illegal, m[0])
		}
	}
	for line := range strings.Lines(log) {
		if strings.Contains(line, "illegal transition") || strings.HasPrefix(line, "panic:") {
			illegal = append(illegal, line)
		}
	}
	return append(illegal, dataRace.FindAllString(log, -1)...), legal
}

// leftovers lists what is there of a workerd that has been stopped and should not be.
func (c *chaos) leftovers() (left []string) {
	for _, pid := range c.marked("") {
		left = append(left, fmt.Sprintf("process %d", pid))
	}
	_ = filepath.WalkDir(c.runtimeDir(), func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.Type()&(fs.ModeSocket|fs.ModeSymlink) != 0 {
			left = append(left, "socket "+path)
		}
		return nil
	})
	tmp, _ := filepath.Glob(filepath.Join(c.dir, "cache/workerd/tmp/*"))
	for _, dir := range tmp {
		left = append(left, "folder "+dir)
	}
	for _, l := range c.kinds {
		for _, name := range l.owned() {
			left = append(left, l.kind+" container "+name)
		}
		for _, pid := range l.freshMounts() {
			left = append(left, fmt.Sprintf("mount of process %d", pid))
		}
	}
	return append(left, c.strays()...)
}

// strays lists the processes that mention this workerd in their command lines: an engine's helpers, and what mounts its images.
func (c *chaos) strays() (left []string) {
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, file := range files {
		data, _ := os.ReadFile(file)
		line := strings.ReplaceAll(string(data), "\x00", " ")
		if strings.Contains(line, c.dir+"/") || strings.Contains(line, "workerd-"+c.kinds[0].instance()+"-") {
			left = append(left, fmt.Sprintf("process %s: %.200s", filepath.Base(filepath.Dir(file)), line))
		}
	}
	return left
}

// helperOf finds the process by which an engine watches a container, where it is one of ours; 0 for none.
func helperOf(comm, container string) int {
	dirs, _ := filepath.Glob("/proc/[0-9]*")
	for _, dir := range dirs {
		var pid int
		if _, err := fmt.Sscan(filepath.Base(dir), &pid); err != nil {
			continue
		}
		if st, err := execenv.ReadStat(pid); err != nil || st.Comm != comm {
			continue
		}
		line, _ := os.ReadFile(filepath.Join(dir, "cmdline"))
		if strings.Contains(string(line), container) {
			return pid
		}
	}
	return 0
}

// backTo waits until workerd takes what it took before.
func (c *chaos) backTo(before measured) measured {
	c.t.Helper()
	m := c.least()
	for begin := time.Now(); !m.like(before) && time.Since(begin) < 30*time.Second; {
		m = c.least()
	}
	return m
}
