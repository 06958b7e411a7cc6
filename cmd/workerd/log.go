package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// newLogger makes the daemon's logger, which writes to stderr.
func (a *app) newLogger(s *settings) *slog.Logger {
	var level slog.Level
	_ = level.UnmarshalText([]byte(s.LogLevel)) // one of the words that the settings allow
	opt := &slog.HandlerOptions{Level: level}
	switch {
	case s.LogFormat == "json":
		return slog.New(slog.NewJSONHandler(a.err, opt))
	case a.toJournal():
		return slog.New(newJournalHandler(a.err, level))
	}
	return slog.New(slog.NewTextHandler(a.err, opt))
}

// toJournal says whether stderr is the stream that systemd gave this service.
func (a *app) toJournal() bool {
	f, isFile := a.err.(*os.File)
	stream := a.getenv("JOURNAL_STREAM")
	if !isFile || stream == "" {
		return false
	}
	var st unix.Stat_t
	return unix.Fstat(int(f.Fd()), &st) == nil && stream == fmt.Sprintf("%d:%d", st.Dev, st.Ino)
}

// journalHandler writes lines as systemd reads them from a service: the priority as "<N>" in front, and no time, which the
// journal keeps itself.
type journalHandler struct {
	slog.Handler // formats into sink.buf
	sink         *journalSink
}

type journalSink struct {
	mu  sync.Mutex // held from formatting a record until it is written
	buf bytes.Buffer
	w   io.Writer
}

func newJournalHandler(w io.Writer, level slog.Leveler) slog.Handler {
	sink := &journalSink{w: w}
	text := slog.NewTextHandler(&sink.buf, &slog.HandlerOptions{Level: level, ReplaceAttr: func(groups []string, at slog.Attr) slog.Attr {
		if len(groups) == 0 && (at.Key == slog.TimeKey || at.Key == slog.LevelKey) {
			return slog.Attr{}
		}
		return at
	}})
	return &journalHandler{text, sink}
}

func (h *journalHandler) Handle(ctx context.Context, r slog.Record) error {
	priority := 7
	switch {
	case r.Level >= slog.LevelError:
		priority = 3
	case r.Level >= slog.LevelWarn:
		priority = 4
	case r.Level >= slog.LevelInfo:
		priority = 6
	}
	h.sink.mu.Lock()
	defer h.sink.mu.Unlock()
	h.sink.buf.Reset()
	fmt.Fprintf(&h.sink.buf, "<%d>", priority)
	if err := h.Handler.Handle(ctx, r); err != nil {
		return err
	}
	_, err := h.sink.w.Write(h.sink.buf.Bytes())
	return err
}

func (h *journalHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &journalHandler{h.Handler.WithAttrs(attrs), h.sink}
}

func (h *journalHandler) WithGroup(name string) slog.Handler {
	return &journalHandler{h.Handler.WithGroup(name), h.sink}
}
