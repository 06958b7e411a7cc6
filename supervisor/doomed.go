package supervisor

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// The kernel takes a process apart before it tells anybody that it has ended: some milliseconds for a small one, a good part of a
// second for one with gigabytes. Where a standby waits, a request that arrives meanwhile need not: before it is sent, the state of
// the process is looked at. That costs some microseconds, so it is done only while there is a standby which could take over.

// omen looks out for the end of a life.
type omen struct {
	watch atomic.Bool // a standby is there
	seen  atomic.Bool
	open  sync.Once
	stat  *os.File // of /proc/PID; held open, so that it is never a stranger's
	mu    sync.Mutex
	buf   [1024]byte // guarded by mu
}

// doomed says that the worker's process is certain to end, or has. It tells the provider the first time. Called from lanes.
func (f *life) doomed() bool {
	if !f.omen.watch.Load() {
		return false
	}
	if !f.omen.seen.Load() {
		if !f.omen.look(f.body.pid()) {
			return false
		}
		if f.omen.seen.CompareAndSwap(false, true) {
			f.p.postAsync(func() { f.p.onDead(f) })
		}
	}
	return true
}

func (o *omen) look(pid int) bool {
	o.open.Do(func() { o.stat, _ = os.Open("/proc/" + strconv.Itoa(pid) + "/stat") })
	if o.stat == nil {
		return false // its pidfd tells
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	n, err := o.stat.ReadAt(o.buf[:], 0)
	return n > 0 && isDoomed(o.buf[:n]) || errors.Is(err, unix.ESRCH)
}

// close lets go of the file. After the life's lanes have ended.
func (o *omen) close() {
	o.open.Do(func() {})
	if o.stat != nil {
		_ = o.stat.Close()
	}
}

// isDoomed reads /proc/PID/stat, see proc_pid_stat(5): the process has SIGKILL pending, or died of a signal and is being taken
// apart, or its only thread is. A thread that leaves others behind does not count.
func isDoomed(stat []byte) bool {
	const (
		sigkill  = 1 << 8
		exiting  = 0x4   // PF_EXITING
		signaled = 0x400 // PF_SIGNALED
	)
	rest := stat[bytes.LastIndexByte(stat, ')')+1:]
	state, flags, threads, pending := byte(0), uint64(0), uint64(0), uint64(0)
	for field := 3; len(rest) > 0; field++ {
		rest = bytes.TrimLeft(rest, " ")
		word, after, _ := bytes.Cut(rest, []byte{' '})
		rest = after
		switch field {
		case 3:
			if len(word) == 1 {
				state = word[0]
			}
		case 9:
			flags = number10(word)
		case 20:
			threads = number10(word)
		case 31:
			pending = number10(word)
			rest = nil
		}
	}
	switch {
	case pending&sigkill != 0, flags&signaled != 0:
		return true
	case threads > 1:
		return false
	}
	return flags&exiting != 0 || state == 'Z' || state == 'X'
}

// number10 is a decimal number, 0 for anything else. It allocates nothing.
func number10(word []byte) (n uint64) {
	for _, c := range word {
		if c < '0' || c > '9' {
			return 0
		}
		n = n*10 + uint64(c-'0')
	}
	return n
}

// watchOmens has the workers with a seat looked at before each request while a standby could take over.
func (p *provider) watchOmens() {
	s := p.standby()
	spare := s != nil && s.state == Ready && s.life != nil && !s.life.dead
	for _, w := range p.workers {
		if w.life != nil {
			w.life.omen.watch.Store(spare && !w.standby && !w.candidate && w.life.body != nil)
		}
	}
}
