package control

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// fakeBackend has one entry per slug and records the orders that it gets.
type fakeBackend struct {
	slugs []string
	smoke map[string]string
	// fail is what Start, Call and the like of a slug return.
	fail map[string]error
	// call answers; nil echoes the parameters.
	call func(ctx context.Context, method string, params json.RawMessage) (json.RawMessage, error)
	logs func(ctx context.Context, lines int, follow bool, w io.Writer) error

	mu          sync.Mutex
	orders      []string
	subscribers []chan protocol.Event
}

var _ Backend = (*fakeBackend)(nil)

func (f *fakeBackend) Status(slugs []string) protocol.Status {
	s := protocol.Status{Providers: []protocol.ProviderStatus{}}
	for _, slug := range f.slugs {
		if len(slugs) == 0 || slices.Contains(slugs, slug) {
			s.Providers = append(s.Providers, protocol.ProviderStatus{Slug: slug, State: "ready"})
		}
	}
	return s
}

func (f *fakeBackend) order(verb, slug string, wait bool) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.orders = append(f.orders, fmt.Sprintf("%s %s %v", verb, slug, wait))
	return f.fail[slug]
}

func (f *fakeBackend) Start(_ context.Context, slug string, wait bool) error {
	return f.order("start", slug, wait)
}

func (f *fakeBackend) Stop(_ context.Context, slug string, wait bool) error {
	return f.order("stop", slug, wait)
}

func (f *fakeBackend) Restart(_ context.Context, slug string, wait bool) error {
	return f.order("restart", slug, wait)
}

func (f *fakeBackend) Call(ctx context.Context, slug, method string, params json.RawMessage, _ func(protocol.Progress)) (json.RawMessage, error) {
	if err := f.fail[slug]; err != nil {
		return nil, err
	}
	if f.call == nil {
		return params, nil
	}
	return f.call(ctx, method, params)
}

func (f *fakeBackend) SmokeFile(slug string) (string, error) {
	if file := f.smoke[slug]; file != "" {
		return file, nil
	}
	return "", fmt.Errorf("%s: %w", slug, protocol.ErrNoSmoke)
}

func (f *fakeBackend) Logs(ctx context.Context, _ string, lines int, follow bool, w io.Writer) error {
	return f.logs(ctx, lines, follow, w)
}

func (f *fakeBackend) Events(ctx context.Context) <-chan protocol.Event {
	in, out := make(chan protocol.Event), make(chan protocol.Event)
	f.mu.Lock()
	f.subscribers = append(f.subscribers, in)
	f.mu.Unlock()
	go func() {
		defer close(out)
		for {
			select {
			case <-ctx.Done():
				return
			case e := <-in:
				select {
				case out <- e:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	return out
}

func (f *fakeBackend) emit(t *testing.T, e protocol.Event) {
	f.mu.Lock()
	subscribers := slices.Clone(f.subscribers)
	f.mu.Unlock()
	require.NotEmpty(t, subscribers)
	for _, ch := range subscribers {
		select {
		case ch <- e:
		case <-t.Context().Done():
		}
	}
}

func (f *fakeBackend) GPUs(context.Context) protocol.GPUs {
	return protocol.GPUs{Source: "fake", Devices: []protocol.GPUStatus{{UUID: "GPU-1"}}}
}

func (f *fakeBackend) Reload(context.Context) error { return f.order("reload", "", true) }

// serve runs a server on a socket of its own and returns a client of it.
func serve(t *testing.T, s *Server) *Client {
	t.Helper()
	dir, err := os.MkdirTemp("", "wc")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "workerd.sock")
	l, err := protocol.Listen(path)
	require.NoError(t, err)
	if s.Log == nil {
		s.Log = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx, l) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		_, err := net.Dial("unix", path)
		require.Error(t, err, "the listener is closed")
	})
	return NewClient(path)
}
