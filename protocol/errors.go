package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
)

// Kind names what went wrong with a request. It is the `data.kind` of an error object and the `kind` of the
// operator API's problem documents; each kind has one JSON-RPC code and says whether a retry makes sense.
type Kind string

// The kinds, grouped as PROTOCOL.md groups them.
const (
	ParseError     Kind = "parse_error"      // the line is not JSON
	InvalidRequest Kind = "invalid_request"  // JSON, but not a request of this protocol
	MethodNotFound Kind = "method_not_found" // the worker has no such method
	InvalidParams  Kind = "invalid_params"   // parameters do not fit the method

	WorkerError     Kind = "worker_error"     // the method raised
	InvalidResponse Kind = "invalid_response" // the worker's answer is not valid

	WorkerCrashed     Kind = "worker_crashed"      // died, or was killed, with this request; it may have run
	WorkerStartFailed Kind = "worker_start_failed" // the last start that was to be tried failed
	ProviderFailed    Kind = "provider_failed"     // later requests of a failed provider
	ProviderStopped   Kind = "provider_stopped"    // stopped by the operator, or its manifest was removed
	ShuttingDown      Kind = "shutting_down"       // workerd is stopping
	EngineUnavailable Kind = "engine_unavailable"  // the container engine does not answer, or could not pull the image and tries again later
	NoGPU             Kind = "no_gpu"              // no device can be had

	QueueFull        Kind = "queue_full"        // everything is busy and the queue is at its limit
	DeadlineExceeded Kind = "deadline_exceeded" // request_timeout or the caller's timeoutMs passed
	Cancelled        Kind = "cancelled"         // the caller cancelled
	TooLarge         Kind = "too_large"         // a message beyond max_message

	// ConnectionLost is what clients report when the connection ends before the answer; it never travels on a socket.
	ConnectionLost Kind = "connection_lost"
)

type kindInfo struct {
	code      int
	retryable bool
}

// kinds is the one table from kind to JSON-RPC code and retryability; PROTOCOL.md shows it, and a test keeps the two in step.
var kinds = map[Kind]kindInfo{
	ParseError:        {-32700, false},
	InvalidRequest:    {-32600, false},
	MethodNotFound:    {-32601, false},
	InvalidParams:     {-32602, false},
	WorkerError:       {-32000, false},
	InvalidResponse:   {-32001, false},
	WorkerCrashed:     {-32010, true},
	WorkerStartFailed: {-32011, false},
	ProviderFailed:    {-32012, false},
	ProviderStopped:   {-32013, false},
	ShuttingDown:      {-32014, true},
	EngineUnavailable: {-32015, true},
	NoGPU:             {-32016, true},
	QueueFull:         {-32020, true},
	DeadlineExceeded:  {-32021, true},
	Cancelled:         {-32022, false},
	TooLarge:          {-32023, false},
	ConnectionLost:    {-32099, false},
}

// Code returns the JSON-RPC error code of the kind; -32603 (internal error) for a kind that is not in the table.
func (k Kind) Code() int {
	if i, ok := kinds[k]; ok {
		return i.code
	}
	return -32603
}

// Retryable says whether sending the request again makes sense.
func (k Kind) Retryable() bool { return kinds[k].retryable }

// Error is the error object of an answer: {code, message, data: {kind, retryable, provider, worker, detail}}.
type Error struct {
	Code    int       `json:"code"`
	Message string    `json:"message"`
	Data    ErrorData `json:"data"`
}

// ErrorData is the `data` member of an error object. Detail is any JSON value: an object for the kinds that workerd
// itself answers (limits, exit code, last output), the exception's type and traceback for worker_error.
type ErrorData struct {
	Kind      Kind   `json:"kind"`
	Retryable bool   `json:"retryable"`
	Provider  string `json:"provider,omitempty"`
	Worker    string `json:"worker,omitempty"`
	Detail    any    `json:"detail,omitempty"`
}

// Errorf makes an Error of a kind with its code and retryability filled in.
func Errorf(kind Kind, format string, args ...any) *Error {
	return &Error{
		Code:    kind.Code(),
		Message: fmt.Sprintf(format, args...),
		Data:    ErrorData{Kind: kind, Retryable: kind.Retryable()},
	}
}

// WithDetail sets data.detail and returns e.
func (e *Error) WithDetail(detail any) *Error {
	e.Data.Detail = detail
	return e
}

// From sets data.provider and data.worker and returns e.
func (e *Error) From(provider, worker string) *Error {
	e.Data.Provider, e.Data.Worker = provider, worker
	return e
}

// Error implements error: the kind and the message.
func (e *Error) Error() string {
	if e.Data.Kind == "" {
		return fmt.Sprintf("error %d: %s", e.Code, e.Message)
	}
	return fmt.Sprintf("%s: %s", e.Data.Kind, e.Message)
}

// KindOf returns the kind of the first *Error in err's chain, "" where there is none.
func KindOf(err error) Kind {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Data.Kind
	}
	return ""
}

// AppendAnswer appends the whole answer line, newline included, that carries e under the raw JSON id ("null" where id
// is empty).
func (e *Error) AppendAnswer(dst, id []byte) []byte {
	if len(id) == 0 {
		id = []byte("null")
	}
	body, err := json.Marshal(e)
	if err != nil { // only Detail can fail to marshal; the answer must go out all the same
		plain := *e
		plain.Data.Detail = fmt.Sprint(e.Data.Detail)
		body, _ = json.Marshal(&plain)
	}
	dst = append(dst, `{"jsonrpc":"2.0","id":`...)
	dst = append(dst, id...)
	dst = append(dst, `,"error":`...)
	dst = append(dst, body...)
	return append(dst, '}', '\n')
}
