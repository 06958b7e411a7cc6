package main

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"workerd/manifest"
)

// fault does one bad thing to a provider, or to workerd. It says false where there was nothing to do it to.
type fault struct {
	name string
	do   func(c *chaos, v *victim) bool
}

// weighted are the faults that are drawn from; what stands twice comes twice as often.
var weighted = []fault{
	{"kill -9 a worker", func(c *chaos, v *victim) bool { return c.signalWorker(v, syscall.SIGKILL) }},
	{"kill -9 a worker", func(c *chaos, v *victim) bool { return c.signalWorker(v, syscall.SIGKILL) }},
	{"kill -9 all workers", (*chaos).killAll},
	{"kill -TERM a worker", func(c *chaos, v *victim) bool { return c.signalWorker(v, syscall.SIGTERM) }},
	{"kill -SEGV a worker", func(c *chaos, v *victim) bool { return c.signalWorker(v, syscall.SIGSEGV) }},
	{"kill -STOP a worker", func(c *chaos, v *victim) bool { return c.signalWorker(v, syscall.SIGSTOP) }},
	{"kill -STOP workerd for a moment", (*chaos).pauseWorkerd},
	{"kill the runner", (*chaos).killRunner},
	{"kill -9 the engine's helper", (*chaos).killHelper},
	{"remove the container", (*chaos).removeContainer},
	{"new version", (*chaos).newVersion},
	{"new version", (*chaos).newVersion},
	{"broken edit", (*chaos).brokenEdit},
	{"version that does not start", (*chaos).stillborn},
	{"touch", (*chaos).touch},
	{"manifest away for an instant", (*chaos).blink},
	{"manifest removed and back", (*chaos).removeManifest},
	{"restart", func(c *chaos, v *victim) bool { return c.control().Restart(c.t.Context(), v.slug, false) == nil }},
	{"reload", func(c *chaos, _ *victim) bool { return c.cmd.Process.Signal(syscall.SIGHUP) == nil }},
	{"delete a front socket", func(c *chaos, v *victim) bool { return os.Remove(c.front(v.slug)) == nil }},
	{"delete the folder of a front socket", func(c *chaos, v *victim) bool { return os.RemoveAll(filepath.Dir(c.front(v.slug))) == nil }},
	{"delete a worker's socket", (*chaos).deleteWorkerSocket},
	{"delete the folder of worker sockets", func(c *chaos, v *victim) bool {
		return os.RemoveAll(filepath.Join(c.runtimeDir(), "w", v.slug)) == nil
	}},
	{"delete the runtime directory", func(c *chaos, _ *victim) bool {
		return os.RemoveAll(c.runtimeDir()) == nil && c.controlIsBack()
	}},
	{"delete the state directory", func(c *chaos, _ *victim) bool { return os.RemoveAll(filepath.Join(c.dir, "state/workerd")) == nil }},
	{"delete the control socket", func(c *chaos, _ *victim) bool {
		return os.Remove(filepath.Join(c.runtimeDir(), "workerd.sock")) == nil && c.controlIsBack()
	}},
	{"delete the logs", func(c *chaos, v *victim) bool {
		logs, _ := filepath.Glob(filepath.Join(c.dir, "state/workerd/*/logs", v.slug))
		return len(logs) > 0 && os.RemoveAll(logs[0]) == nil
	}},
	{"empty the cache", (*chaos).emptyCache},
	{"a stranger's record", (*chaos).foreignRecord},
	{"full disk", (*chaos).fillDisk},
}

// rage draws faults for a while. With own workerd is killed now and then too.
func (c *chaos) rage(long time.Duration, own bool) {
	end := time.Now().Add(long)
	next := time.Now().Add(5 * time.Second)
	for time.Now().Before(end) {
		if own && time.Now().After(next) {
			c.killWorkerd()
			next = time.Now().Add(time.Duration(5+c.random.IntN(10)) * time.Second)
		}
		f, v := weighted[c.random.IntN(len(weighted))], c.slugs[c.random.IntN(len(c.slugs))]
		if f.do(c, v) {
			c.mu.Lock()
			c.faults[f.name]++
			c.mu.Unlock()
		}
		<-time.After(time.Duration(c.random.IntN(700)) * time.Millisecond)
	}
	for _, v := range c.slugs { // what was broken on purpose is mended
		v.version.Add(1)
		replace(c.t, v.file, v.text())
	}
	for _, pid := range c.marked("") {
		_ = syscall.Kill(pid, syscall.SIGCONT)
	}
}

func (c *chaos) signalWorker(v *victim, sig syscall.Signal) bool {
	p := c.status(v.slug)
	if len(p.Workers) == 0 {
		return false
	}
	pid := p.Workers[c.random.IntN(len(p.Workers))].PID
	return pid > 0 && syscall.Kill(pid, sig) == nil
}

func (c *chaos) killAll(v *victim) bool {
	killed := false
	for _, w := range c.status(v.slug).Workers {
		killed = w.PID > 0 && syscall.Kill(w.PID, syscall.SIGKILL) == nil || killed
	}
	return killed
}

// killRunner kills what runs a worker for an engine: Apptainer's parent process, or a container behind docker's back.
func (c *chaos) killRunner(v *victim) bool {
	p := c.status(v.slug)
	for _, w := range p.Workers {
		switch {
		case w.PID == 0:
		case v.kind == manifest.Apptainer:
			stat := procStat(w.PID)
			return stat != nil && alive(w.PID) && syscall.Kill(c.runnerOf(w.PID), syscall.SIGKILL) == nil
		case slices.Contains(engines, v.kind) && w.Container != "":
			return v.client("kill", w.Container).Run() == nil
		}
	}
	return false
}

// runnerOf is the oldest ancestor of a worker below workerd.
func (c *chaos) runnerOf(pid int) int {
	for stat := procStat(pid); stat != nil; stat = procStat(pid) {
		parent, _ := strconv.Atoi(stat[1])
		if parent == c.pid() || parent <= 1 {
			return pid
		}
		pid = parent
	}
	return 1 << 30 // nobody
}

// pauseWorkerd stops workerd itself. Whoever asks meanwhile waits.
func (c *chaos) pauseWorkerd(*victim) bool {
	if syscall.Kill(c.pid(), syscall.SIGSTOP) != nil {
		return false
	}
	<-time.After(time.Duration(100+c.random.IntN(1000)) * time.Millisecond)
	return syscall.Kill(c.pid(), syscall.SIGCONT) == nil
}

// killHelper kills the process by which podman watches a container: the container lives on, and podman does not learn of its end.
func (c *chaos) killHelper(v *victim) bool {
	for _, w := range c.status(v.slug).Workers {
		if v.kind == manifest.Podman && w.Container != "" {
			pid := helperOf("conmon", w.Container)
			return pid > 0 && syscall.Kill(pid, syscall.SIGKILL) == nil
		}
	}
	return false
}

func (c *chaos) removeContainer(v *victim) bool {
	for _, w := range c.status(v.slug).Workers {
		if slices.Contains(engines, v.kind) && w.Container != "" {
			return v.client("rm", "--force", w.Container).Run() == nil
		}
	}
	return false
}

func (c *chaos) newVersion(v *victim) bool {
	v.version.Add(1)
	replace(c.t, v.file, v.text())
	return true
}

func (c *chaos) brokenEdit(v *victim) bool {
	text := v.text()
	replace(c.t, v.file, text[:c.random.IntN(len(text))]+"\n[env\nkind = 7\n")
	return true
}

// stillborn is a version that never becomes ready: the one before it goes on.
func (c *chaos) stillborn(v *victim) bool {
	v.version.Add(1)
	text := strings.Replace(v.text(), "VERSION =", "NEVER_READY = \"1\"\nVERSION =", 1)
	if !v.raw {
		text = strings.Replace(text, `worker = "live.py"`, "command = [\"/bin/sh\", \"-c\", \"echo no weights; exit 4\"]", 1)
	}
	replace(c.t, v.file, strings.Replace(text, `timeout = "60s"`, `timeout = "2s"`, 1))
	return true
}

func (c *chaos) touch(v *victim) bool {
	now := time.Now()
	return os.Chtimes(v.file, now, now) == nil
}

// blink takes a manifest away and puts it back before anybody can believe that it is gone.
func (c *chaos) blink(v *victim) bool {
	if os.Rename(v.file, v.file+".tmp") != nil {
		return false
	}
	<-time.After(time.Duration(c.random.IntN(50)) * time.Millisecond)
	return os.Rename(v.file+".tmp", v.file) == nil
}

// removeManifest takes a provider away, and puts it back when it has gone.
func (c *chaos) removeManifest(v *victim) bool {
	v.away.Add(1)
	defer v.away.Add(1)
	if os.Remove(v.file) != nil {
		return false
	}
	c.until("its front socket is gone", func() bool { _, err := os.Lstat(c.front(v.slug)); return err != nil })
	replace(c.t, v.file, v.text())
	c.until("its front socket is back", func() bool { _, err := os.Lstat(c.front(v.slug)); return err == nil })
	return true
}

func (c *chaos) deleteWorkerSocket(v *victim) bool {
	sockets, _ := filepath.Glob(filepath.Join(c.runtimeDir(), "w", v.slug, "*.sock"))
	return len(sockets) > 0 && os.Remove(sockets[c.random.IntN(len(sockets))]) == nil
}

// controlIsBack waits for the control socket, by which faults find their victims.
func (c *chaos) controlIsBack() bool {
	c.until("the control socket is back", func() bool {
		_, err := os.Stat(filepath.Join(c.runtimeDir(), "workerd.sock"))
		return err == nil
	})
	return true
}

// emptyCache removes what can be made again. Containers that run hold it open.
func (c *chaos) emptyCache(*victim) bool {
	return os.RemoveAll(filepath.Join(c.dir, "cache/workerd/sdk")) == nil && os.RemoveAll(filepath.Join(c.dir, "cache/workerd/identity")) == nil
}

// foreignRecord leaves state files that are torn, or somebody else's.
func (c *chaos) foreignRecord(v *victim) bool {
	dir := filepath.Join(c.runtimeDir(), "w", v.slug)
	text := []string{"", "{", `{"version":1,"instance":"ffffffff"}`, "\x00\x00\x00"}[c.random.IntN(4)]
	return os.WriteFile(filepath.Join(dir, "999999.json"), []byte(text), 0o600) == nil
}

// fillDisk leaves no room for logs and state for a while.
func (c *chaos) fillDisk(*victim) bool {
	if c.disk == "" {
		return false
	}
	path := filepath.Join(c.disk, "full")
	f, err := os.Create(path)
	require.NoError(c.t, err)
	for chunk := make([]byte, 1<<20); err == nil; {
		_, err = f.Write(chunk)
	}
	<-time.After(time.Duration(500+c.random.IntN(1500)) * time.Millisecond)
	_ = f.Close()
	return os.Remove(path) == nil
}

// killWorkerd kills workerd and starts it again: what was in flight is lost, and nothing else. Now and then the next one finds no
// inotify instance left.
func (c *chaos) killWorkerd() {
	name, release := "kill -9 workerd", func() {}
	if c.random.IntN(4) == 0 {
		if free := c.hoard(); free != nil {
			name, release = "kill -9 workerd, no inotify", free
		}
	}
	c.life.Add(1)
	c.kills()
	c.start()
	c.life.Add(1)
	release()
	c.mu.Lock()
	c.faults[name]++
	c.mu.Unlock()
	require.NotContains(c.t, c.log.String(), "panic:")
}

// hoard takes all inotify instances that this user may still have, until they are released. Root's are left alone, on which other
// services of the machine live: then it returns nil.
func (c *chaos) hoard() (release func()) {
	data, _ := os.ReadFile("/proc/sys/fs/inotify/max_user_instances")
	most, err := strconv.Atoi(strings.TrimSpace(string(data)))
	if err != nil || most > 1000 || os.Geteuid() == 0 {
		return nil
	}
	var fds []int
	for fd, err := unix.InotifyInit1(unix.IN_CLOEXEC); err == nil; fd, err = unix.InotifyInit1(unix.IN_CLOEXEC) {
		fds = append(fds, fd)
	}
	return func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}
}
