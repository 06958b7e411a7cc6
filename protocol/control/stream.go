package control

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"time"
)

// logs streams text. An error after the first byte can no longer be answered: the connection is cut, so that the client
// does not take the text for complete.
func (s *Server) logs(w http.ResponseWriter, r *http.Request) error {
	slug := r.PathValue("slug")
	if _, err := s.find(slug); err != nil {
		return err
	}
	follow, err := boolParam(r, "follow", false)
	if err != nil {
		return err
	}
	lines := defaultLines
	if text := r.URL.Query().Get("lines"); text != "" {
		lines, err = strconv.Atoi(text)
		if err != nil || lines < 0 || lines > maxLines {
			return invalidRequest("lines=%s: must be a number from 0 to %d", text, maxLines)
		}
	}
	out := &textStream{w: w}
	if follow {
		out.begin() // a quiet worker's reader learns at once that it is connected
	}
	err = s.Backend.Logs(r.Context(), slug, lines, follow, out)
	switch {
	case r.Context().Err() != nil: // the reader left, or the server stops
		return nil
	case err == nil:
		out.begin()
		return nil
	case out.begun:
		s.Log.Warn("logs cut short", "provider", slug, "err", err)
		panic(http.ErrAbortHandler)
	}
	return err
}

// textStream sends each write on at once.
type textStream struct {
	w     http.ResponseWriter
	begun bool
}

func (t *textStream) begin() {
	if t.begun {
		return
	}
	t.begun = true
	t.w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	t.w.Header().Set("X-Content-Type-Options", "nosniff")
	t.w.WriteHeader(http.StatusOK)
	_ = http.NewResponseController(t.w).Flush()
}

func (t *textStream) Write(p []byte) (int, error) {
	t.begin()
	n, err := t.w.Write(p)
	if err != nil {
		return n, err
	}
	return n, http.NewResponseController(t.w).Flush()
}

// events serves server-sent events: of all providers, or of those named by ?provider=. The id counts the events of the
// stream. Nothing is stored, so a client that connects again goes on from now.
func (s *Server) events(w http.ResponseWriter, r *http.Request) error {
	only := r.URL.Query()["provider"]
	ctx := r.Context()
	ch := s.Backend.Events(ctx)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.WriteHeader(http.StatusOK)
	rc := http.NewResponseController(w)
	// The first bytes say that the subscription stands: what happens from here on is delivered.
	if send(w, rc, ": connected\nretry: 1000\n\n") != nil {
		return nil
	}
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for id := 1; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			if send(w, rc, ": keep-alive\n\n") != nil {
				return nil
			}
		case e, open := <-ch:
			if !open {
				return nil
			}
			if len(only) > 0 && !slices.Contains(only, e.Provider) {
				continue
			}
			data, err := json.Marshal(e)
			if err != nil {
				s.Log.Error("event left out", "err", err)
				continue
			}
			if send(w, rc, fmt.Sprintf("id: %d\nevent: %s\ndata: %s\n\n", id, e.Type, data)) != nil {
				return nil
			}
			id++
		}
	}
}

func send(w http.ResponseWriter, rc *http.ResponseController, text string) error {
	if _, err := w.Write([]byte(text)); err != nil {
		return err
	}
	return rc.Flush()
}
