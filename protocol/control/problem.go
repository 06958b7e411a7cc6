package control

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"

	"workerd/protocol"
)

// The kinds of problems that are no protocol.Kind.
const (
	kindNoProvider       = "no_provider"
	kindInvalidManifest  = "invalid_manifest"
	kindNoSmoke          = "no_smoke"
	kindInvalidSmoke     = "invalid_smoke"
	kindNotFound         = "not_found"
	kindMethodNotAllowed = "method_not_allowed"
	kindForbidden        = "forbidden"
	kindInternal         = "internal"
)

// Problem is an RFC 9457 problem document, the body of every answer that is an error. It is also the error that the
// client returns; protocol.ErrNoProvider, *protocol.Error and the like are found in it by errors.Is and errors.As.
type Problem struct {
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail"`
	Kind   string `json:"kind"`
	// Hint says what to do next, where there is something.
	Hint string `json:"hint,omitempty"`
	// Err is the error of the provider whole: its code, and in data.detail the traceback or the worker's last output.
	Err *protocol.Error `json:"error,omitempty"`
}

// Error is the detail; the hint is a field of its own.
func (p *Problem) Error() string {
	if p.Detail == "" {
		return p.Title
	}
	return p.Detail
}

// Unwrap gives back the error that the supervisor returned.
func (p *Problem) Unwrap() error {
	switch {
	case p.Err != nil:
		return p.Err
	case p.Kind == kindNoProvider:
		return protocol.ErrNoProvider
	case p.Kind == kindInvalidManifest:
		return protocol.ErrInvalidManifest
	case p.Kind == kindNoSmoke:
		return protocol.ErrNoSmoke
	}
	return nil
}

// statusOf is the HTTP status of each kind of the protocol. 499 (client closed request) is nobody's standard and what
// proxies write for it.
var statusOf = map[protocol.Kind]int{
	protocol.ParseError:        http.StatusBadRequest,
	protocol.InvalidRequest:    http.StatusBadRequest,
	protocol.MethodNotFound:    http.StatusNotFound,
	protocol.InvalidParams:     http.StatusUnprocessableEntity,
	protocol.WorkerError:       http.StatusInternalServerError,
	protocol.InvalidResponse:   http.StatusBadGateway,
	protocol.WorkerCrashed:     http.StatusBadGateway,
	protocol.WorkerStartFailed: http.StatusServiceUnavailable,
	protocol.ProviderFailed:    http.StatusServiceUnavailable,
	protocol.ProviderStopped:   http.StatusConflict,
	protocol.ShuttingDown:      http.StatusServiceUnavailable,
	protocol.EngineUnavailable: http.StatusServiceUnavailable,
	protocol.NoGPU:             http.StatusServiceUnavailable,
	protocol.QueueFull:         http.StatusTooManyRequests,
	protocol.DeadlineExceeded:  http.StatusGatewayTimeout,
	protocol.Cancelled:         499,
	protocol.TooLarge:          http.StatusRequestEntityTooLarge,
	protocol.ConnectionLost:    http.StatusBadGateway,
}

// Hint says what an operator can do about an error of this kind in a provider; "" where the error says it all.
func Hint(kind protocol.Kind, slug string) string {
	switch kind {
	case protocol.MethodNotFound:
		return "`workerd status " + slug + "` lists the methods of its worker"
	case protocol.WorkerError, protocol.InvalidResponse, protocol.WorkerCrashed:
		return "`workerd logs " + slug + "` has what the worker printed"
	case protocol.WorkerStartFailed, protocol.ProviderFailed:
		return "see `workerd logs " + slug + "`; after the repair an edit of the manifest or `workerd restart " + slug + "` tries again"
	case protocol.ProviderStopped:
		return "`workerd start " + slug + "` starts it"
	case protocol.ShuttingDown:
		return "try again when workerd runs again"
	case protocol.EngineUnavailable:
		return "`workerd doctor` says what the engine answers"
	case protocol.QueueFull:
		return "try again later, or raise serve.queue, serve.replicas or serve.concurrency in the manifest"
	case protocol.DeadlineExceeded:
		return "give the call more time (--timeout), or raise serve.request_timeout in the manifest"
	case protocol.TooLarge:
		return "pass large data by path (paths.work_root), or raise serve.max_message in the manifest"
	}
	return ""
}

// problemOf turns any error of the Backend into a problem about the provider slug ("" for none).
func problemOf(err error, slug string) *Problem {
	if p, ok := errors.AsType[*Problem](err); ok {
		return p
	}
	if e, ok := errors.AsType[*protocol.Error](err); ok {
		status, known := statusOf[e.Data.Kind]
		if !known {
			status = http.StatusInternalServerError
		}
		return problem(status, string(e.Data.Kind), e.Message, Hint(e.Data.Kind, slug)).with(e)
	}
	switch {
	case errors.Is(err, protocol.ErrNoProvider):
		return problem(http.StatusNotFound, kindNoProvider, err.Error(), "`workerd status` lists the providers")
	case errors.Is(err, protocol.ErrInvalidManifest):
		return problem(http.StatusConflict, kindInvalidManifest, err.Error(), "`workerd validate` shows all of its problems")
	case errors.Is(err, protocol.ErrNoSmoke):
		return problem(http.StatusNotFound, kindNoSmoke, err.Error(), `add smoke = "smoke.json" to the manifest`)
	case errors.Is(err, context.Canceled):
		return problem(499, string(protocol.Cancelled), "the request was given up", "")
	case errors.Is(err, context.DeadlineExceeded):
		return problem(http.StatusGatewayTimeout, string(protocol.DeadlineExceeded), err.Error(), "")
	}
	return problem(http.StatusInternalServerError, kindInternal, err.Error(), "")
}

func problem(status int, kind, detail, hint string) *Problem {
	title := http.StatusText(status)
	if title == "" {
		title = "Client Closed Request"
	}
	return &Problem{Title: title, Status: status, Kind: kind, Detail: detail, Hint: hint}
}

func (p *Problem) with(e *protocol.Error) *Problem {
	p.Err = e
	return p
}

func (p *Problem) write(w http.ResponseWriter) {
	body, err := json.Marshal(p)
	if err != nil { // only the detail of a provider's error can fail to marshal
		plain := *p
		plain.Err = nil
		body, _ = json.Marshal(&plain)
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	_, _ = w.Write(append(body, '\n'))
}

// nearest returns the candidate most like word, "" where none is alike.
func nearest(word string, candidates []string) string {
	best, bestDistance := "", max(2, len(word)/3)+1
	for _, c := range candidates {
		if d := editDistance(word, c); d < bestDistance {
			best, bestDistance = c, d
		}
	}
	return best
}

func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			change := diagonal
			if a[i] != b[j] {
				change++
			}
			diagonal = row[j+1]
			row[j+1] = min(change, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
