package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"time"

	"workerd/protocol"
)

const (
	// maxBody bounds a request's body; larger parameters go by path, or over the front socket.
	maxBody = 64 << 20
	// maxLines bounds what one request for logs may ask for.
	maxLines = 1_000_000
	// defaultLines is how much of the log is shown unasked.
	defaultLines = 100
	// keepAlive is how often an idle event stream sends a comment, so that nothing in between takes it for dead.
	keepAlive = 15 * time.Second
	// shutdownGrace is how long a request that is being answered may take to end after the server's context did.
	shutdownGrace = 2 * time.Second
)

// Server serves the operator API.
type Server struct {
	Backend Backend
	// Metrics answers GET /metrics; without one that is not found.
	Metrics http.Handler
	// Authorize says whether the peer of a connection may use the API; who may not is answered "forbidden".
	Authorize func(*net.UnixConn) error
	Log       *slog.Logger
}

// forbiddenKey is the context key of the error that Authorize gave for a connection.
type forbiddenKey struct{}

// Serve answers on l until ctx ends, then ends streams, lets running requests finish for a moment and returns nil. It
// closes l.
func (s *Server) Serve(ctx context.Context, l net.Listener) error {
	base, endStreams := context.WithCancelCause(context.WithoutCancel(ctx))
	defer endStreams(nil)
	srv := &http.Server{
		Handler:           s.Handler(),
		ReadHeaderTimeout: 10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(s.Log.Handler(), slog.LevelWarn),
		BaseContext:       func(net.Listener) context.Context { return base },
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			if err := s.authorize(c); err != nil {
				return context.WithValue(ctx, forbiddenKey{}, err)
			}
			return ctx
		},
	}
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	select {
	case err := <-done:
		return fmt.Errorf("operator API: %w", err)
	case <-ctx.Done():
	}
	endStreams(errors.New("workerd is stopping"))
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownGrace)
	defer cancel()
	if srv.Shutdown(grace) != nil {
		srv.Close()
	}
	<-done
	return nil
}

func (s *Server) authorize(c net.Conn) error {
	uc, ok := c.(*net.UnixConn)
	if s.Authorize == nil || !ok {
		return nil
	}
	return s.Authorize(uc)
}

// Handler returns the routes of the API. Every error, also of the routing, is a problem document.
func (s *Server) Handler() http.Handler {
	mux := http.NewServeMux()
	route := func(pattern string, get, post handler) {
		mux.Handle(pattern, methods{http.MethodGet: get, http.MethodPost: post})
	}
	route("/v1/providers", s.providers, nil)
	route("/v1/providers/{slug}", s.provider, nil)
	route("/v1/providers/{slug}/logs", s.logs, nil)
	route("/v1/providers/{slug}/start", nil, s.order(s.Backend.Start))
	route("/v1/providers/{slug}/stop", nil, s.order(s.Backend.Stop))
	route("/v1/providers/{slug}/restart", nil, s.order(s.Backend.Restart))
	route("/v1/providers/{slug}/smoke", nil, s.smoke)
	route("/v1/providers/{slug}/call", nil, s.call)
	route("/v1/events", s.events, nil)
	route("/v1/gpus", s.gpus, nil)
	route("/v1/reload", nil, s.reload)
	route("/healthz", func(w http.ResponseWriter, _ *http.Request) error {
		return answer(w, http.StatusOK, map[string]string{"status": "ok"})
	}, nil)
	if s.Metrics != nil {
		route("/metrics", func(w http.ResponseWriter, r *http.Request) error {
			s.Metrics.ServeHTTP(w, r)
			return nil
		}, nil)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		problem(http.StatusNotFound, kindNotFound, "no such endpoint: "+r.URL.Path, "").write(w)
	})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err, _ := r.Context().Value(forbiddenKey{}).(error); err != nil {
			problem(http.StatusForbidden, kindForbidden, err.Error(), "use the API as the user who runs workerd, or as root").write(w)
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// handler answers a request, or returns the error that is to be answered; then it has written nothing.
type handler func(http.ResponseWriter, *http.Request) error

// methods are the handlers of one path. http.ServeMux could tell methods apart, but answers others in plain text.
type methods map[string]handler

func (m methods) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	method := r.Method
	if method == http.MethodHead {
		method = http.MethodGet
	}
	h := m[method]
	if h == nil {
		allow := http.MethodPost
		if m[http.MethodGet] != nil {
			allow = "GET, HEAD"
		}
		w.Header().Set("Allow", allow)
		problem(http.StatusMethodNotAllowed, kindMethodNotAllowed, r.Method+" "+r.URL.Path+": use "+allow, "").write(w)
		return
	}
	if err := h(w, r); err != nil {
		problemOf(err, r.PathValue("slug")).write(w)
	}
}

func answer(w http.ResponseWriter, status int, body any) error {
	data, err := json.Marshal(body)
	if err != nil {
		return err
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // a client that left needs no answer
	return nil
}

func (s *Server) providers(w http.ResponseWriter, _ *http.Request) error {
	return answer(w, http.StatusOK, s.Backend.Status(nil))
}

func (s *Server) gpus(w http.ResponseWriter, r *http.Request) error {
	ctx, cancel := context.WithTimeout(r.Context(), gpuPatience)
	defer cancel()
	return answer(w, http.StatusOK, s.Backend.GPUs(ctx))
}

// gpuPatience is how long a look at the GPUs may take before what is known already is answered: drivers hang.
const gpuPatience = 10 * time.Second

func (s *Server) provider(w http.ResponseWriter, r *http.Request) error {
	status, err := s.find(r.PathValue("slug"))
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, status)
}

// find returns the provider's first entry, or a problem that names the slug most like it.
func (s *Server) find(slug string) (*protocol.ProviderStatus, error) {
	if found := s.Backend.Status([]string{slug}).Providers; len(found) > 0 {
		return &found[0], nil
	}
	return nil, s.unknown(slug)
}

func (s *Server) unknown(slug string) *Problem {
	var slugs []string
	for _, p := range s.Backend.Status(nil).Providers {
		slugs = append(slugs, p.Slug)
	}
	detail := fmt.Sprintf("no provider %q", slug)
	hint := "`workerd status` lists the providers"
	if n := nearest(slug, slugs); n != "" {
		detail += fmt.Sprintf("; did you mean %q?", n)
	} else if len(slugs) == 0 {
		hint = "no manifest was found: `workerd init SLUG` writes one, `workerd doctor` shows the directories that are read"
	}
	return problem(http.StatusNotFound, kindNoProvider, detail, hint)
}

// order serves start, stop and restart: 200 when done, 202 with ?wait=0, each with the provider's status.
func (s *Server) order(do func(ctx context.Context, slug string, wait bool) error) handler {
	return func(w http.ResponseWriter, r *http.Request) error {
		slug := r.PathValue("slug")
		if _, err := s.find(slug); err != nil {
			return err
		}
		wait, err := boolParam(r, "wait", true)
		if err != nil {
			return err
		}
		if err := emptyBody(w, r); err != nil {
			return err
		}
		if err := do(r.Context(), slug, wait); err != nil {
			return err
		}
		status, err := s.find(slug)
		if err != nil {
			return err
		}
		code := http.StatusOK
		if !wait {
			code = http.StatusAccepted
		}
		return answer(w, code, status)
	}
}

// callRequest is the body of POST /v1/providers/{slug}/call.
type callRequest struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
}

// callAnswer is the body of its answer.
type callAnswer struct {
	Result json.RawMessage `json:"result"`
}

func (s *Server) call(w http.ResponseWriter, r *http.Request) error {
	slug := r.PathValue("slug")
	if _, err := s.find(slug); err != nil {
		return err
	}
	var req callRequest
	if err := decodeBody(w, r, &req); err != nil {
		return err
	}
	if req.Method == "" {
		return invalidRequest("method: missing")
	}
	params, err := objectParams(req.Params)
	if err != nil {
		return err
	}
	result, err := s.Backend.Call(r.Context(), slug, req.Method, params, nil)
	if err != nil {
		return err
	}
	return answer(w, http.StatusOK, callAnswer{Result: result})
}

func (s *Server) smoke(w http.ResponseWriter, r *http.Request) error {
	slug := r.PathValue("slug")
	if _, err := s.find(slug); err != nil {
		return err
	}
	if err := emptyBody(w, r); err != nil {
		return err
	}
	file, err := s.Backend.SmokeFile(slug)
	if err != nil {
		return err
	}
	test, err := readSmoke(file)
	if err != nil {
		return problem(http.StatusUnprocessableEntity, kindInvalidSmoke, err.Error(), "")
	}
	params, err := objectParams(test.Params)
	if err != nil {
		return err
	}
	start := time.Now()
	result, err := s.Backend.Call(r.Context(), slug, test.Method, params, nil)
	callErr, isCall := errors.AsType[*protocol.Error](err)
	if err != nil && !isCall {
		return err
	}
	return answer(w, http.StatusOK, test.judge(slug, result, callErr, time.Since(start)))
}

func (s *Server) reload(w http.ResponseWriter, r *http.Request) error {
	if err := emptyBody(w, r); err != nil {
		return err
	}
	if err := s.Backend.Reload(r.Context()); err != nil {
		return err
	}
	return answer(w, http.StatusOK, s.Backend.Status(nil))
}

func invalidRequest(format string, args ...any) *Problem {
	return problem(http.StatusBadRequest, string(protocol.InvalidRequest), fmt.Sprintf(format, args...), "")
}

// objectParams returns the parameters of a call, which are an object or left out.
func objectParams(params json.RawMessage) (json.RawMessage, error) {
	trimmed := bytes.TrimSpace(params)
	if len(trimmed) == 0 || string(trimmed) == "null" {
		return json.RawMessage("{}"), nil
	}
	if trimmed[0] != '{' {
		return nil, invalidRequest("params: must be an object")
	}
	return trimmed, nil
}

func decodeBody(w http.ResponseWriter, r *http.Request, into any) error {
	err := decodeStrict(http.MaxBytesReader(w, r.Body, maxBody), into)
	if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
		return protocol.Errorf(protocol.TooLarge, "the body has more than %d bytes", maxBody).WithDetail(map[string]int{"limit": maxBody})
	}
	if err != nil {
		return invalidRequest("body: %v", err)
	}
	return nil
}

// emptyBody refuses a body where none is read, so that nobody believes that what it asks for is done.
func emptyBody(w http.ResponseWriter, r *http.Request) error {
	var none struct{}
	err := decodeStrict(http.MaxBytesReader(w, r.Body, 4096), &none)
	if err != nil && err != io.EOF {
		return invalidRequest("body: must be empty: %v", err)
	}
	return nil
}

func boolParam(r *http.Request, name string, value bool) (bool, error) {
	text := r.URL.Query().Get(name)
	if text == "" {
		return value, nil
	}
	v, err := strconv.ParseBool(text)
	if err != nil {
		return false, invalidRequest("%s=%s: must be 0 or 1", name, text)
	}
	return v, nil
}
