package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// request does one HTTP request and returns the response with its body read.
func request(t *testing.T, c *Client, method, path, body string) (*http.Response, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, "http://workerd"+path, strings.NewReader(body))
	require.NoError(t, err)
	resp, err := c.http.Do(req)
	require.NoError(t, err)
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return resp, string(data)
}

func TestEveryErrorIsAProblemDocument(t *testing.T) {
	c := serve(t, &Server{Backend: &fakeBackend{slugs: []string{"ocr", "echo"}}})
	for _, tc := range []struct {
		method, path, body string
		status             int
		kind, detail       string
	}{
		{"GET", "/", "", 404, "not_found", "/"},
		{"GET", "/v2/providers", "", 404, "not_found", "/v2/providers"},
		{"GET", "/metrics", "", 404, "not_found", "/metrics"},
		{"GET", "/v1/providers/ocr/dance", "", 404, "not_found", "dance"},
		{"DELETE", "/v1/providers/ocr", "", 405, "method_not_allowed", "use GET"},
		{"GET", "/v1/providers/ocr/start", "", 405, "method_not_allowed", "use POST"},
		{"POST", "/healthz", "", 405, "method_not_allowed", "use GET"},
		{"GET", "/v1/providers/orc", "", 404, "no_provider", `did you mean "ocr"?`},
		{"POST", "/v1/providers/nothing-like-it/start", "", 404, "no_provider", `no provider "nothing-like-it"`},
		{"GET", "/v1/providers/orc/logs", "", 404, "no_provider", `did you mean "ocr"?`},
		{"POST", "/v1/providers/ecko/call", `{"method":"m"}`, 404, "no_provider", `did you mean "echo"?`},
		{"POST", "/v1/providers/ech/smoke", "", 404, "no_provider", `did you mean "echo"?`},
		{"POST", "/v1/providers/ocr/smoke", "", 404, "no_smoke", "no smoke test"},
		{"POST", "/v1/providers/ocr/start?wait=maybe", "", 400, "invalid_request", "wait=maybe"},
		{"POST", "/v1/providers/ocr/start", `{"force":true}`, 400, "invalid_request", "must be empty"},
		{"POST", "/v1/reload", `[]`, 400, "invalid_request", "must be empty"},
		{"GET", "/v1/providers/ocr/logs?lines=-1", "", 400, "invalid_request", "lines=-1"},
		{"GET", "/v1/providers/ocr/logs?lines=x", "", 400, "invalid_request", "lines=x"},
		{"GET", "/v1/providers/ocr/logs?follow=yes-please", "", 400, "invalid_request", "follow"},
		{"POST", "/v1/providers/ocr/call", ``, 400, "invalid_request", "body"},
		{"POST", "/v1/providers/ocr/call", `{"method":"m"`, 400, "invalid_request", "body"},
		{"POST", "/v1/providers/ocr/call", `{"method":"m","parameters":{}}`, 400, "invalid_request", `unknown field "parameters"`},
		{"POST", "/v1/providers/ocr/call", `{"method":"m"} {}`, 400, "invalid_request", "more than one"},
		{"POST", "/v1/providers/ocr/call", `{"params":{}}`, 400, "invalid_request", "method: missing"},
		{"POST", "/v1/providers/ocr/call", `{"method":"m","params":[1]}`, 400, "invalid_request", "must be an object"},
	} {
		t.Run(tc.method+" "+tc.path+" "+tc.body, func(t *testing.T) {
			resp, body := request(t, c, tc.method, tc.path, tc.body)
			require.Equal(t, tc.status, resp.StatusCode, body)
			require.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
			var p Problem
			require.NoError(t, decodeStrict(strings.NewReader(body), &p))
			require.Equal(t, tc.kind, p.Kind)
			require.Equal(t, tc.status, p.Status)
			require.NotEmpty(t, p.Title)
			require.Contains(t, p.Detail, tc.detail)
			if tc.status == http.StatusMethodNotAllowed {
				require.NotEmpty(t, resp.Header.Get("Allow"))
			}
		})
	}
}

func TestEveryKindHasItsStatusAndComesBackAsItself(t *testing.T) {
	f := &fakeBackend{slugs: []string{"p"}, fail: map[string]error{}}
	c := serve(t, &Server{Backend: f})
	for kind, status := range statusOf {
		sent := protocol.Errorf(kind, "because %s", kind).WithDetail(map[string]any{"output": "last line"}).From("p", "p/1")
		f.fail["p"] = fmt.Errorf("wrapped: %w", sent)
		_, err := c.Call(t.Context(), "p", "m", json.RawMessage(`{}`))
		var p *Problem
		require.ErrorAs(t, err, &p, kind)
		require.Equal(t, status, p.Status)
		require.Equal(t, string(kind), p.Kind)
		require.Equal(t, "because "+string(kind), p.Error())
		var got *protocol.Error
		require.ErrorAs(t, err, &got, kind)
		require.Equal(t, sent, got)
		require.Equal(t, kind, protocol.KindOf(err))
	}
	for _, sentinel := range []error{protocol.ErrNoProvider, protocol.ErrInvalidManifest, protocol.ErrNoSmoke} {
		f.fail["p"] = fmt.Errorf("p: %w", sentinel)
		require.ErrorIs(t, c.Start(t.Context(), "p", true), sentinel)
	}
	f.fail["p"] = errors.New("disk full")
	var p *Problem
	require.ErrorAs(t, c.Start(t.Context(), "p", true), &p)
	require.Equal(t, "internal", p.Kind)
	require.Equal(t, 500, p.Status)
	require.NoError(t, p.Unwrap())
}

func TestErrorThatCannotBeMarshalledStillAnswers(t *testing.T) {
	f := &fakeBackend{slugs: []string{"p"}, fail: map[string]error{"p": protocol.Errorf(protocol.WorkerError, "odd").WithDetail(func() {})}}
	c := serve(t, &Server{Backend: f})
	_, err := c.Call(t.Context(), "p", "m", nil)
	require.ErrorContains(t, err, "odd")
}

func TestStatusAndOrders(t *testing.T) {
	f := &fakeBackend{slugs: []string{"ocr", "echo"}}
	c := serve(t, &Server{Backend: f})
	ctx := t.Context()

	s, err := c.Status(ctx)
	require.NoError(t, err)
	require.Len(t, s.Providers, 2)
	p, err := c.Provider(ctx, "echo")
	require.NoError(t, err)
	require.Equal(t, "echo", p.Slug)

	require.NoError(t, c.Start(ctx, "ocr", true))
	require.NoError(t, c.Stop(ctx, "ocr", false))
	require.NoError(t, c.Restart(ctx, "echo", true))
	_, err = c.Reload(ctx)
	require.NoError(t, err)
	require.Equal(t, []string{"start ocr true", "stop ocr false", "restart echo true", "reload  true"}, f.orders)
	require.NoError(t, c.Health(ctx))

	resp, body := request(t, c, "POST", "/v1/providers/ocr/start?wait=0", "")
	require.Equal(t, http.StatusAccepted, resp.StatusCode)
	require.Contains(t, body, `"slug":"ocr"`)
	resp, body = request(t, c, "POST", "/v1/providers/ocr/start", "{}")
	require.Equal(t, http.StatusOK, resp.StatusCode, body)
	resp, _ = request(t, c, "HEAD", "/healthz", "")
	require.Equal(t, http.StatusOK, resp.StatusCode)
}

func TestCallRelaysParametersAndResult(t *testing.T) {
	f := &fakeBackend{slugs: []string{"p"}}
	c := serve(t, &Server{Backend: f})
	got, err := c.Call(t.Context(), "p", "m", json.RawMessage(`{"a":1.0,"b":"ü"}`))
	require.NoError(t, err)
	require.JSONEq(t, `{"a":1.0,"b":"ü"}`, string(got))
	for _, none := range []string{"", "null"} {
		got, err = c.Call(t.Context(), "p", "m", json.RawMessage(none))
		require.NoError(t, err)
		require.Equal(t, `{}`, string(got), "left out parameters are an empty object")
	}
	resp, body := request(t, c, "POST", "/v1/providers/p/call", `{"method":"m","params":{"x":"`+strings.Repeat("x", maxBody)+`"}}`)
	require.Equal(t, http.StatusRequestEntityTooLarge, resp.StatusCode)
	require.Contains(t, body, `"kind":"too_large"`)
}

func TestCallEndsWithItsClient(t *testing.T) {
	started, ended := make(chan struct{}), make(chan struct{})
	f := &fakeBackend{slugs: []string{"p"}, call: func(ctx context.Context, _ string, _ json.RawMessage) (json.RawMessage, error) {
		close(started)
		<-ctx.Done()
		close(ended)
		return nil, ctx.Err()
	}}
	c := serve(t, &Server{Backend: f})
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		<-started
		cancel()
	}()
	_, err := c.Call(ctx, "p", "m", nil)
	require.ErrorIs(t, err, context.Canceled)
	<-ended
}

func TestSmoke(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	f := &fakeBackend{
		slugs: []string{"good", "bad", "broken", "fails", "list"},
		smoke: map[string]string{
			"good":   write("good", `{"method":"m","params":{"a":1,"b":2},"expect":{"a":1}}`),
			"bad":    write("bad", `{"method":"m","params":{"a":1},"expect":{"a":2}}`),
			"broken": write("broken", `{"method":"m","parms":{}}`),
			"fails":  write("fails", `{"method":"m"}`),
			"list":   write("list", `{"method":"m","params":[1]}`),
		},
		fail: map[string]error{"fails": protocol.Errorf(protocol.WorkerCrashed, "gone")},
	}
	c := serve(t, &Server{Backend: f})
	r, err := c.Smoke(t.Context(), "good")
	require.NoError(t, err)
	require.True(t, r.Passed)
	require.Equal(t, "m", r.Method)

	r, err = c.Smoke(t.Context(), "bad")
	require.NoError(t, err)
	require.False(t, r.Passed)
	require.Equal(t, []Difference{{Path: "a", Message: "want 2, got 1"}}, r.Differences)

	r, err = c.Smoke(t.Context(), "fails")
	require.NoError(t, err)
	require.False(t, r.Passed)
	require.Equal(t, protocol.WorkerCrashed, r.Error.Data.Kind)

	_, err = c.Smoke(t.Context(), "broken")
	require.ErrorContains(t, err, `unknown field "parms"`)
	_, err = c.Smoke(t.Context(), "list")
	require.ErrorContains(t, err, "must be an object")
}

func TestMetricsHandlerIsServed(t *testing.T) {
	m := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "workerd_up 1") })
	c := serve(t, &Server{Backend: &fakeBackend{}, Metrics: m})
	resp, body := request(t, c, "GET", "/metrics", "")
	require.Equal(t, 200, resp.StatusCode)
	require.Equal(t, "workerd_up 1\n", body)
}

func TestUnauthorizedPeerIsToldSo(t *testing.T) {
	c := serve(t, &Server{Backend: &fakeBackend{slugs: []string{"p"}}, Authorize: func(uc *net.UnixConn) error {
		if uc == nil {
			return nil
		}
		return errors.New("uid 12 is not uid 0")
	}})
	err := c.Start(t.Context(), "p", true)
	var p *Problem
	require.ErrorAs(t, err, &p)
	require.Equal(t, "forbidden", p.Kind)
	require.ErrorContains(t, err, "uid 12 is not uid 0")
}

func TestNotRunning(t *testing.T) {
	dir := t.TempDir()
	_, err := NewClient(filepath.Join(dir, "none.sock")).Status(t.Context())
	require.ErrorIs(t, err, ErrNotRunning)
	require.ErrorContains(t, err, "none.sock")

	stale := filepath.Join(dir, "s")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale})
	require.NoError(t, err)
	l.SetUnlinkOnClose(false)
	l.Close()
	require.ErrorIs(t, NewClient(stale).Health(t.Context()), ErrNotRunning)
}

func TestNearest(t *testing.T) {
	slugs := []string{"boltz-2", "boltz-1", "ocr"}
	require.Equal(t, "boltz-2", nearest("bolz-2", slugs))
	require.Equal(t, "ocr", nearest("orc", slugs))
	require.Equal(t, "", nearest("completely-else", slugs))
	require.Equal(t, "", nearest("x", nil))
}
