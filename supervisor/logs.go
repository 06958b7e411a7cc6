package supervisor

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

const (
	tailBytes = 4 << 10 // of a worker's output, shown with its end
	tailLines = 40      // Python tells of each thread when it dies of a signal: what was printed before is not to be lost in that
	keepLogs  = 10      // logs of earlier workers kept for each provider, where the settings say nothing
)

// tail returns the last lines of a log, at most most bytes of them, valid UTF-8; "" where there is nothing to read.
func tail(path string, most int64) string {
	return strings.ToValidUTF8(string(lastLines(endOf(path, most), tailLines)), "\uFFFD")
}

// endOf returns the end of a log, at most most bytes of it. What has just been rotated away belongs to it.
func endOf(path string, most int64) []byte {
	data, cut := lastBytes(path, most)
	if left := most - int64(len(data)); !cut && left > 0 {
		var before []byte
		before, cut = lastBytes(numberedLog(path, 1), left)
		data = append(before, data...)
	}
	if cut { // begin with a whole line, unless all of it is one
		if i := bytes.IndexByte(data, '\n'); i >= 0 && i+1 < len(data) {
			data = data[i+1:]
		}
	}
	return data
}

// lastBytes reads the last bytes of a file, and says whether there are more.
func lastBytes(path string, most int64) (data []byte, more bool) {
	f, err := os.Open(path)
	if err != nil {
		return nil, false
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return nil, false
	}
	start := max(st.Size()-most, 0)
	data = make([]byte, st.Size()-start)
	n, _ := f.ReadAt(data, start)
	return data[:n], start > 0
}

// lastLines returns the last n lines of data, a last one without newline included.
func lastLines(data []byte, n int) []byte {
	end := len(data)
	if end > 0 && data[end-1] == '\n' {
		end--
	}
	for i := end - 1; i >= 0; i-- {
		if data[i] == '\n' {
			if n--; n == 0 {
				return data[i+1:]
			}
		}
	}
	return data
}

// logFiles lists a provider's logs by worker number, the oldest first.
func logFiles(dir string) []string {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil
	}
	type numbered struct {
		n    int64
		path string
	}
	var files []numbered
	for _, e := range entries {
		n, err := strconv.ParseInt(strings.TrimSuffix(e.Name(), ".log"), 10, 64)
		if err == nil && strings.HasSuffix(e.Name(), ".log") {
			files = append(files, numbered{n, filepath.Join(dir, e.Name())})
		}
	}
	slices.SortFunc(files, func(a, b numbered) int { return int(a.n - b.n) })
	out := make([]string, len(files))
	for i, f := range files {
		out[i] = f.path
	}
	return out
}

// pruneLogs removes the logs of workers long gone.
func (p *provider) pruneLogs() {
	live := map[string]bool{}
	if snap := p.snapshot.Load(); snap != nil {
		for _, w := range snap.Workers {
			live[strings.TrimPrefix(w.ID, p.slug+"/")+".log"] = true
		}
	}
	keep := p.sup.cfg.LogMaxFiles
	if keep <= 0 {
		keep = keepLogs
	}
	files := logFiles(p.sup.logDir(p.slug))
	for i := 0; i < len(files)-keep; i++ {
		if live[filepath.Base(files[i])] {
			continue
		}
		_ = os.Remove(files[i])
		p.sup.rotations.forget(files[i])
		parts, _ := filepath.Glob(files[i] + ".*")
		for _, part := range parts {
			_ = os.Remove(part)
		}
	}
}

// logFile is the log of the worker with this id.
func (p *provider) logFile(id string) string {
	return filepath.Join(p.sup.logDir(p.slug), strings.TrimPrefix(id, p.slug+"/")+".log")
}

// showLogs writes the last lines of a provider's logs, merged by worker number, and with follow what is appended to any of
// them, until ctx ends. Whole lines are written; a line is never mixed with one of another worker.
func showLogs(ctx context.Context, r *rotations, dir string, lines int, follow bool, w io.Writer) error {
	s := newLogShow(r, w)
	if err := s.last(dir, lines); err != nil || !follow {
		return err
	}
	return followLogs(ctx, dir, s)
}

// logShow remembers how far each file has been shown, and how often it had been rotated then. What is appended to those to skip is
// shown by somebody else.
type logShow struct {
	w         io.Writer
	at        map[string]int64
	seen      map[string]int
	rotations *rotations
	skip      func(path string) bool
}

func newLogShow(r *rotations, w io.Writer) *logShow {
	return &logShow{w: w, at: map[string]int64{}, seen: map[string]int{}, rotations: r, skip: func(string) bool { return false }}
}

// last shows the last n lines over all files.
func (s *logShow) last(dir string, n int) error {
	files := logFiles(dir)
	var parts [][]byte
	for i := len(files) - 1; i >= 0; i-- {
		size, seen, err := s.rotations.size(files[i])
		if err != nil {
			continue
		}
		s.at[files[i]], s.seen[files[i]] = size, seen
		path := files[i]
		for rotated := 1; n > 0; rotated++ {
			data, err := readEnd(path, size, n)
			if err != nil {
				return err
			}
			n -= bytes.Count(data, []byte{'\n'})
			parts = append(parts, data)
			path = numberedLog(files[i], rotated)
			st, err := os.Stat(path)
			if err != nil {
				break
			}
			size = st.Size()
		}
	}
	for i := len(parts) - 1; i >= 0; i-- {
		if _, err := s.w.Write(parts[i]); err != nil {
			return err
		}
	}
	return nil
}

// readEnd reads the last n lines of the first size bytes of a file, the last one ended with a newline.
func readEnd(path string, size int64, n int) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		if errors.Is(err, os.ErrNotExist) {
			return nil, nil
		}
		return nil, err
	}
	defer func() { _ = f.Close() }()
	for chunk := int64(64 << 10); ; chunk *= 4 {
		start := max(size-chunk, 0)
		data := make([]byte, size-start)
		k, err := f.ReadAt(data, start)
		if err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		data = data[:k]
		end := lastLines(data, n)
		if start > 0 && len(end) == len(data) && chunk < 64<<20 {
			continue // n lines need more than this
		}
		if len(end) > 0 && end[len(end)-1] != '\n' {
			end = append(end, '\n')
		}
		return end, nil
	}
}
