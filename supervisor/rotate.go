package supervisor

import (
	"errors"
	"io"
	"os"
	"strconv"
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
			if err := rotate(path, s.cfg.LogMaxSize, s.cfg.LogMaxFiles); err != nil {
				p.log.Warn("log rotation", "log", path, keyError, err)
			}
		}
	}
}

// rotate moves a log's content to <log>.1, and what was there to <log>.2 and so on, where it is larger than limit. keep is how many
// of those stay; with none the content is dropped. Where the copy fails (a full disk) the log is truncated all the same:
// its bound is what matters then.
func rotate(path string, limit int64, keep int) error {
	st, err := os.Stat(path)
	if err != nil || st.Size() <= limit {
		if errors.Is(err, os.ErrNotExist) {
			return nil
		}
		return err
	}
	if keep > 0 {
		for i := keep - 1; i >= 1; i-- {
			_ = os.Rename(numberedLog(path, i), numberedLog(path, i+1))
		}
		err = copyEnd(path, numberedLog(path, 1), limit)
	}
	return errors.Join(err, os.Truncate(path, 0))
}

func numberedLog(path string, n int) string { return path + "." + strconv.Itoa(n) }

// copyEnd copies the last most bytes of a file.
func copyEnd(from, to string, most int64) error {
	in, err := os.Open(from)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }()
	st, err := in.Stat()
	if err != nil {
		return err
	}
	if _, err := in.Seek(max(st.Size()-most, 0), io.SeekStart); err != nil {
		return err
	}
	out, err := os.OpenFile(to, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, io.LimitReader(in, most))
	err = errors.Join(err, out.Close())
	if err != nil {
		_ = os.Remove(to)
	}
	return err
}
