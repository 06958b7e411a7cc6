package supervisor

import (
	"bytes"
	"context"
	"io"
	"os"
	"time"

	"github.com/fsnotify/fsnotify"
)

// followLogs goes on where a logShow has come to.
func followLogs(ctx context.Context, dir string, s *logShow) error {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	var watcher *fsnotify.Watcher
	if made, err := fsnotify.NewWatcher(); err == nil {
		defer func() { _ = made.Close() }()
		if made.Add(dir) == nil {
			watcher = made
		}
	}
	return s.follow(ctx, dir, watcher)
}

// follow shows what is appended. Without a watcher (inotify is exhausted) it looks every half second; with one now and then too,
// since somebody may delete the folder, and its watch with it.
func (s *logShow) follow(ctx context.Context, dir string, watcher *fsnotify.Watcher) error {
	var events <-chan fsnotify.Event
	var failures <-chan error
	look := 500 * time.Millisecond
	if watcher != nil {
		events, failures, look = watcher.Events, watcher.Errors, 2*time.Second
	}
	tick := time.NewTicker(look)
	defer tick.Stop()
	for {
		for _, f := range logFiles(dir) {
			if s.skip(f) {
				continue
			}
			if err := s.appended(f); err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case _, ok := <-events:
			if !ok {
				return nil
			}
		case <-failures: // events were lost, perhaps
		case <-tick.C:
			if watcher != nil {
				_ = watcher.Add(dir) // nothing happens where it is watched
			}
		}
	}
}

// rotatedAway writes what was rotated away unread.
func (s *logShow) rotatedAway(path string) error {
	parts, seen := s.rotations.unread(path, s.seen[path], s.at[path])
	if seen != s.seen[path] {
		s.seen[path], s.at[path] = seen, 0
	}
	var err error
	for _, part := range parts {
		if err == nil {
			_, err = io.Copy(s.w, part)
		}
		_ = part.Close()
	}
	return err
}

// appended writes the whole lines that a file has beyond what was shown. A file that shrank though it was not rotated is shown from
// its beginning.
func (s *logShow) appended(path string) error {
	if err := s.rotatedAway(path); err != nil {
		return err
	}
	const most = 1 << 20
	for {
		data, at := s.rotations.read(path, s.seen[path], s.at[path], most)
		s.at[path] = at
		end := bytes.LastIndexByte(data, '\n') + 1
		if end == 0 {
			if len(data) < most {
				return nil // nothing, or half a line: wait for the rest
			}
			end = len(data)
		}
		if _, err := s.w.Write(data[:end]); err != nil {
			return err
		}
		s.at[path] += int64(end)
	}
}
