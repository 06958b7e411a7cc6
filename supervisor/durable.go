package supervisor

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"workerd/execenv"
)

// stops remembers which providers the operator stopped, over workerd's restarts: one file a slug.
type stops struct {
	dir string
	log *slog.Logger
}

func (s *stops) held(slug string) bool {
	_, err := os.Stat(filepath.Join(s.dir, slug))
	return err == nil
}

func (s *stops) set(slug string, held bool) {
	path := filepath.Join(s.dir, slug)
	var err error
	if held {
		if err = os.MkdirAll(s.dir, 0o700); err == nil {
			err = execenv.WriteFile(path, []byte("stopped by the operator\n"), 0o600)
		}
	} else if err = os.Remove(path); errors.Is(err, os.ErrNotExist) {
		err = nil
	}
	if err != nil {
		s.log.Error("an operator's stop cannot be remembered: it is forgotten when workerd restarts", keyProvider, slug, keyError, err)
	}
}

// numberBlock is how many worker numbers are reserved by one write of the counter's file.
const numberBlock = 100

// numbers gives each worker of an instance a number that is never used again, so that a name, a socket, a log or a marker
// always means one worker. The file holds the first number that is not reserved; what a crash leaves of a block is skipped.
type numbers struct {
	path string

	mu       sync.Mutex
	next     int64
	reserved int64
}

// openNumbers reads the counter. Where the file was torn, overwritten or deleted the logs tell which numbers were used, and what was
// reserved beyond them is skipped by a wide margin. Where there are no logs either, the workers that live tell: see above. A disk
// that is full keeps nobody from starting: numbers go on beyond the newest log, as they do in take.
func openNumbers(path, logs string, log *slog.Logger) (*numbers, error) {
	n := &numbers{path: path, next: 1}
	data, err := os.ReadFile(path)
	newest := newestLog(logs)
	switch {
	case errors.Is(err, os.ErrNotExist) && newest == 0: // the first start of all
	case err != nil && !errors.Is(err, os.ErrNotExist):
		return nil, fmt.Errorf("worker numbers: %w", err)
	default:
		if n.next, err = strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64); err != nil || n.next < 1 {
			n.next = newest + 100*numberBlock
			log.Warn("worker numbers go on from the newest log: the file does not hold a number", "file", path, "next", n.next)
		}
	}
	n.next = max(n.next, newest+1)
	n.reserved = n.next
	err = n.reserve()
	if errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) {
		log.Warn("worker numbers cannot be written down now", keyError, err)
		err = nil
	}
	return n, err
}

// newestLog is the largest number of a worker that has a log; 0 for none.
func newestLog(dir string) (newest int64) {
	files, _ := filepath.Glob(filepath.Join(dir, "*", "*.log"))
	for _, f := range files {
		n, _ := strconv.ParseInt(strings.TrimSuffix(filepath.Base(f), ".log"), 10, 64)
		newest = max(newest, n)
	}
	return newest
}

// reserve writes the end of the next block.
func (n *numbers) reserve() error {
	end := n.reserved + numberBlock
	if err := execenv.WriteFile(n.path, []byte(strconv.FormatInt(end, 10)+"\n"), 0o600); err != nil {
		return fmt.Errorf("worker numbers: %w", err)
	}
	n.reserved = end
	return nil
}

// take returns the next number. Where the file cannot be written (a full disk) numbers go on: they stay unique while this
// process lives.
func (n *numbers) take() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.next >= n.reserved && n.reserve() != nil {
		n.reserved = n.next + 1
	}
	v := n.next
	n.next++
	return v
}

// above makes every number that is given from now on larger than used.
func (n *numbers) above(used int64) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if used < n.next {
		return
	}
	n.next, n.reserved = used+1, used+1
	_ = n.reserve() // take tries again
}

// peek returns the number that take returns next.
func (n *numbers) peek() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.next
}
