package control

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

func TestLogsAreStreamedAsTheyCome(t *testing.T) {
	next := make(chan string)
	f := &fakeBackend{slugs: []string{"p"}, logs: func(ctx context.Context, lines int, follow bool, w io.Writer) error {
		if lines != 5 || !follow {
			return errors.New("wrong arguments")
		}
		for {
			select {
			case line := <-next:
				if _, err := io.WriteString(w, line); err != nil {
					return err
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}}
	c := serve(t, &Server{Backend: f})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() { done <- c.Logs(ctx, "p", 5, true, w) }()
	lines := bufio.NewReader(r)
	for _, want := range []string{"one\n", "two\n"} {
		next <- want
		got, err := lines.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
}

func TestLogsThatBreakOffDoNotLookComplete(t *testing.T) {
	fail := errors.New("disk on fire")
	f := &fakeBackend{slugs: []string{"p"}, logs: func(_ context.Context, lines int, _ bool, w io.Writer) error {
		if lines == 0 {
			return fail
		}
		_, _ = io.WriteString(w, "half\n")
		return fail
	}}
	c := serve(t, &Server{Backend: f})
	var out bytes.Buffer
	require.ErrorIs(t, c.Logs(t.Context(), "p", 1, false, &out), io.ErrUnexpectedEOF)
	require.Equal(t, "half\n", out.String())
	require.ErrorContains(t, c.Logs(t.Context(), "p", 0, false, &out), "disk on fire", "before the first byte it is a problem document")
}

func TestEmptyLogIsAnEmptyText(t *testing.T) {
	f := &fakeBackend{slugs: []string{"p"}, logs: func(context.Context, int, bool, io.Writer) error { return nil }}
	c := serve(t, &Server{Backend: f})
	resp, body := request(t, c, "GET", "/v1/providers/p/logs", "")
	require.Equal(t, http.StatusOK, resp.StatusCode)
	require.Equal(t, "text/plain; charset=utf-8", resp.Header.Get("Content-Type"))
	require.Empty(t, body)
}

func TestEventsAreFilteredAndEndWithTheServer(t *testing.T) {
	f := &fakeBackend{slugs: []string{"a", "b"}}
	c := serve(t, &Server{Backend: f})
	run, err := c.Events(t.Context(), []string{"b"})
	require.NoError(t, err)
	got := make(chan protocol.Event, 4)
	enough := errors.New("enough")
	done := make(chan error, 1)
	go func() {
		done <- run(func(e protocol.Event) error {
			got <- e
			if e.State == "ready" {
				return enough
			}
			return nil
		})
	}()
	f.emit(t, protocol.Event{Type: "state", Provider: "a", State: "starting"})
	f.emit(t, protocol.Event{Type: "state", Provider: "b", State: "starting", Reason: "two\nlines"})
	f.emit(t, protocol.Event{Type: "state", Provider: "b", State: "ready"})
	require.ErrorIs(t, <-done, enough)
	require.Equal(t, "two\nlines", (<-got).Reason)
	require.Equal(t, "ready", (<-got).State)
	require.Empty(t, got)
}

func TestEventStreamFormat(t *testing.T) {
	f := &fakeBackend{}
	c := serve(t, &Server{Backend: f})
	resp, err := c.send(t.Context(), http.MethodGet, "/v1/events", nil)
	require.NoError(t, err)
	defer resp.Body.Close()
	require.Equal(t, "text/event-stream", resp.Header.Get("Content-Type"))
	r := bufio.NewReader(resp.Body)
	block := func() string {
		var b strings.Builder
		for {
			line, err := r.ReadString('\n')
			require.NoError(t, err)
			b.WriteString(line)
			if line == "\n" {
				return b.String()
			}
		}
	}
	require.Equal(t, ": connected\nretry: 1000\n\n", block())
	f.emit(t, protocol.Event{Type: "state", Provider: "a"})
	f.emit(t, protocol.Event{Type: "progress", Provider: "a"})
	require.Regexp(t, `^id: 1\nevent: state\ndata: \{.*"provider":"a".*\}\n\n$`, block())
	require.Regexp(t, `^id: 2\nevent: progress\n`, block())
}

func TestEventStreamOfAStoppedServerEnds(t *testing.T) {
	f := &fakeBackend{}
	done := make(chan error, 1)
	t.Run("served", func(t *testing.T) {
		c := serve(t, &Server{Backend: f})
		run, err := c.Events(context.Background(), nil)
		require.NoError(t, err)
		go func() { done <- run(func(protocol.Event) error { return nil }) }()
	}) // the cleanup stops the server and waits for it
	require.Error(t, <-done)
}
