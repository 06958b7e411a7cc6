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

	"workerd/execenv"
)

// stops remembers which providers the operator stopped, over workerd's restarts: one empty file a slug.
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
			err = os.WriteFile(path, nil, 0o600)
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

func openNumbers(path string) (*numbers, error) {
	n := &numbers{path: path, next: 1}
	data, err := os.ReadFile(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("worker numbers: %w", err)
	default:
		v, err := strconv.ParseInt(strings.TrimSpace(string(data)), 10, 64)
		if err != nil || v < 1 {
			return nil, fmt.Errorf("worker numbers: %s does not hold a number; remove it when no worker of this instance runs", path)
		}
		n.next = v
	}
	n.reserved = n.next
	return n, n.reserve()
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

// peek returns the number that take returns next.
func (n *numbers) peek() int64 {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.next
}
