package supervisor

import (
	"errors"
	"io"
	"os"
	"strconv"
	"sync"
)

// rotateLogs keeps the logs of the workers that run below log_max_size. It copies and truncates: a worker holds its log open for
// appending and never learns of it. What is written between the copy and the truncation is lost.
func (s *Supervisor) rotateLogs() {
	if s.cfg.LogMaxSize <= 0 {
		return
	}
	for _, p := range s.all() {
		snap := p.snapshot.Load()
		if snap == nil {
			continue
		}
		for _, w := range snap.Workers {
			if w.PID == 0 || w.Container != "" {
				continue // a container's output lies with its engine, which bounds it
			}
			path := p.logFile(w.ID)
			if err := s.rotations.rotate(path, s.cfg.LogMaxSize, s.cfg.LogMaxFiles); err != nil {
				p.log.Warn("log rotation", "log", path, keyError, err)
			}
		}
	}
}

// rotations knows which logs have been rotated, so that who follows one is shown what went away before it was read.
type rotations struct {
	mu   sync.Mutex
	cuts map[string][]cut
}

// cut is one rotation of a log: the number of it, where the log ended, and how much of its end is kept.
type cut struct {
	n         int
	end, kept int64
}

// cutsKept bounds what is remembered of one log. Who is further behind than that has lost what lies between.
const cutsKept = 16

// rotate moves a log's content to <log>.1, and what was there to <log>.2 and so on, where it is larger than limit. keep is how many
// of those stay; with none the content is dropped. Where the copy fails (a full disk) the log is truncated all the same:
// its bound is what matters then.
func (r *rotations) rotate(path string, limit int64, keep int) error {
	st, err := os.Stat(path)
	if err != nil || st.Size() <= limit {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	c := cut{n: 1, end: st.Size()}
	if keep > 0 {
		for i := keep - 1; i >= 1; i-- {
			_ = os.Rename(numberedLog(path, i), numberedLog(path, i+1))
		}
		c.end, c.kept, err = copyEnd(path, numberedLog(path, 1), limit)
	}
	err = errors.Join(err, os.Truncate(path, 0))
	all := r.cuts[path]
	if len(all) > 0 {
		c.n = all[len(all)-1].n + 1
	}
	if r.cuts == nil {
		r.cuts = map[string][]cut{}
	}
	r.cuts[path] = append(all[max(len(all)+1-cutsKept, 0):], c)
	return err
}

// size is how long a log is, after how many rotations.
func (r *rotations) size(path string) (size int64, seen int, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	st, err := os.Stat(path)
	if err != nil {
		return 0, 0, err
	}
	if all := r.cuts[path]; len(all) > 0 {
		seen = all[len(all)-1].n
	}
	return st.Size(), seen, nil
}

// read reads on in a log from at, which is 0 where the log is shorter. It reads nothing where the log has been rotated more than seen
// times: what went away comes first.
func (r *rotations) read(path string, seen int, at int64, most int) ([]byte, int64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if all := r.cuts[path]; len(all) > 0 && all[len(all)-1].n != seen {
		return nil, at
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, at
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return nil, at
	}
	if st.Size() < at {
		at = 0
	}
	data := make([]byte, min(st.Size()-at, int64(most)))
	n, _ := f.ReadAt(data, at)
	return data[:n], at
}

// unread is what has been rotated away of a log since it had been read up to at, after seen rotations, the oldest first. It says how
// many there have been now.
func (r *rotations) unread(path string, seen int, at int64) (parts []*os.File, now int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.cuts[path]
	if len(all) == 0 {
		return nil, seen
	}
	now = all[len(all)-1].n
	for _, c := range all {
		if c.n <= seen {
			continue
		}
		from := max(c.kept-(c.end-at), 0)
		at = 0
		if c.kept == 0 { // what lies under that name is older
			continue
		}
		if f, err := os.Open(numberedLog(path, now-c.n+1)); err == nil {
			if _, err := f.Seek(from, io.SeekStart); err == nil {
				parts = append(parts, f)
			} else {
				_ = f.Close()
			}
		}
	}
	return parts, now
}

// forget drops what is known of a log that is gone.
func (r *rotations) forget(path string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.cuts, path)
}

func numberedLog(path string, n int) string { return path + "." + strconv.Itoa(n) }

// copyEnd copies the last most bytes of a file. It returns where that ended, and how much it was.
func copyEnd(from, to string, most int64) (end, n int64, err error) {
	in, err := os.Open(from)
	if err != nil {
		return 0, 0, err
	}
	defer func() { _ = in.Close() }()
	st, err := in.Stat()
	if err != nil {
		return 0, 0, err
	}
	begin := max(st.Size()-most, 0)
	if _, err := in.Seek(begin, io.SeekStart); err != nil {
		return st.Size(), 0, err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return st.Size(), 0, err
	}
	n, err = io.Copy(out, io.LimitReader(in, most))
	if err = errors.Join(err, out.Close()); err != nil {
		_ = os.Remove(to)
		return st.Size(), 0, err
	}
	return begin + n, n, nil
}
