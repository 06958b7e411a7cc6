package protocol

import (
	"encoding/json"
	"fmt"
	"time"
)

// CallOption changes one call.
type CallOption func(*callOptions)

type callOptions struct {
	progress    func(Progress)
	timeout     time.Duration
	key         *string
	files       []int
	answerFiles *[]int
}

// WithProgress has fn called with the progress of the request: in Call's own goroutine, in order, never after Call has
// returned. Where fn is slow it misses some.
func WithProgress(fn func(Progress)) CallOption { return func(o *callOptions) { o.progress = fn } }

// WithTimeout bounds the request as a whole, waiting and cold start included: workerd answers with DeadlineExceeded then.
// d is rounded up to milliseconds.
func WithTimeout(d time.Duration) CallOption { return func(o *callOptions) { o.timeout = d } }

// WithIdempotencyKey has the request join one that is running under the same key, and get its answer.
func WithIdempotencyKey(key string) CallOption { return func(o *callOptions) { o.key = &key } }

// WithFiles sends descriptors with the request, at most MaxFiles. They belong to the client from the moment of the Call, which
// closes them.
func WithFiles(fds ...int) CallOption { return func(o *callOptions) { o.files = fds } }

// WithAnswerFiles stores the descriptors that come with the answer, which are the caller's then. Without this option they are
// closed.
func WithAnswerFiles(into *[]int) CallOption { return func(o *callOptions) { o.answerFiles = into } }

// requestLine makes the line of a request, newline included. What Scan refuses is not worth sending.
func requestLine(id int64, method string, params any, o *callOptions) ([]byte, error) {
	name, err := json.Marshal(method)
	if err != nil { // a string always marshals
		return nil, err
	}
	line := fmt.Appendf(nil, `{"jsonrpc":"2.0","id":%d,"method":%s,"params":`, id, name)
	if params == nil {
		line = append(line, "{}"...)
	} else {
		raw, err := json.Marshal(params)
		if err != nil {
			return nil, Errorf(InvalidParams, "params: %v", err)
		}
		line = append(line, raw...)
	}
	line = append(line, '}')
	var m Message
	if err := Scan(line, &m); err != nil {
		return nil, err
	}
	if line, err = addMeta(line, &m, id, o); err != nil {
		return nil, err
	}
	return append(line, '\n'), nil
}

// addMeta puts what the options say into params._meta, beside what is there.
func addMeta(line []byte, m *Message, id int64, o *callOptions) ([]byte, error) {
	add := map[string]any{}
	if o.progress != nil {
		add["progressToken"] = id
	}
	if o.timeout > 0 {
		add["timeoutMs"] = (o.timeout-1)/time.Millisecond + 1
	}
	if o.key != nil {
		add["idempotencyKey"] = *o.key
	}
	if len(add) == 0 {
		return line, nil
	}
	var there map[string]json.RawMessage
	if !m.Meta.Empty() {
		if err := json.Unmarshal(m.Meta.Of(line), &there); err != nil { // Scan has seen an object
			return nil, err
		}
	}
	for key, value := range there {
		if _, ours := add[key]; !ours {
			add[key] = value
		}
	}
	meta, err := json.Marshal(add)
	if err != nil {
		return nil, err
	}
	if !m.Meta.Empty() {
		return Splice(nil, line, Edit{m.Meta, meta}), nil
	}
	brace := Span{m.Params.Start, m.Params.Start + 1}
	member := append([]byte(`{"_meta":`), meta...)
	if len(m.Params.Of(line)) > len("{}") { // compact since it was marshalled
		member = append(member, ',')
	}
	return Splice(nil, line, Edit{brace, member}), nil
}
