package protocol

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// Class says what a line is.
type Class uint8

// The classes of messages.
const (
	Invalid      Class = iota // Scan returned an error
	Request                   // method and id: gets exactly one answer
	Notification              // method without id: never answered
	Response                  // result or error
)

// Span is a half-open byte range of the line that was scanned; the zero Span is "absent".
type Span struct{ Start, End int }

// Empty says that the part is absent. (No part of a message can be empty and present: even an empty method is refused.)
func (s Span) Empty() bool { return s.End <= s.Start }

// Of returns the bytes of line that s names, nil where s is empty.
func (s Span) Of(line []byte) []byte {
	if s.Empty() {
		return nil
	}
	return line[s.Start:s.End:s.End]
}

// Message says where the parts of a line stand. Spans cover raw JSON values, strings with their quotes, except Method,
// which is what stands between the quotes.
type Message struct {
	Class Class

	ID     Span // a string or an integer; empty in a Notification and where the id is missing, null or bad
	Method Span // see MethodName
	Params Span // an object
	Result Span
	Error  Span // an object

	// Of a Request, from params._meta. A member that is null counts as absent.
	Meta           Span  // the _meta object
	ProgressToken  Span  // a string or an integer
	TimeoutMs      int64 // at least 1; 0 where absent. At most MaxTimeoutMs, to which larger values are cut
	Timeout        Span  // where TimeoutMs stands
	IdempotencyKey Span  // a string

	// Of a Notification: NotifyProgress has ProgressToken (above) and these three, NotifyCancelled has RequestID.
	// A member of the wrong type counts as absent, since nobody can be told; all do where one stands twice.
	Progress  Span // a number
	Total     Span // a number
	Text      Span // a string: params.message
	RequestID Span // a string or an integer

	methodEscaped bool
}

// MaxTimeoutMs is the longest time that fits a time.Duration.
const MaxTimeoutMs = int64(math.MaxInt64 / time.Millisecond)

// MethodName returns the method's name: a part of line, or a copy where the name was written with escapes.
func (m *Message) MethodName(line []byte) []byte {
	if m.methodEscaped {
		return appendUnescaped(nil, m.Method.Of(line))
	}
	return m.Method.Of(line)
}

// Scan reads one line (without its newline) into m, in one pass and, where the line is good, without allocating.
//
// The line must be one JSON object (RFC 8259, valid UTF-8, no NaN or Infinity, nested at most 512 deep) that is a request, a
// notification or an answer of JSON-RPC 2.0. Member names are compared unescaped, and a structural one that stands twice is
// refused, since two readers of the line might each believe another one. Members it does not know are ignored.
//
// On an error m.Class is Invalid, and m.ID is the id under which the error is to be answered: empty (answer with id null)
// where the line is not JSON, no object, or has no good id. What can be said of the id then stands in the error's detail.
// The kinds are
//   - ParseError: not JSON, not UTF-8, nested too deep;
//   - InvalidRequest: no object (a batch), bad id, jsonrpc that is not "2.0", no method, params that are no object, an answer
//     with both or neither of result and error, a structural member twice;
//   - InvalidParams: params._meta or a member of it has the wrong type.
//
// A line without id is a Notification whatever its method; the caller ignores those that it does not know.
func Scan(line []byte, m *Message) *Error {
	*m = Message{}
	s := scanner{b: line, m: m}
	s.scanLine()
	if s.msg == "" {
		s.classify()
	}
	if s.msg == "" {
		return nil
	}
	return s.error()
}

// The structural members: each may stand once.
const (
	seenJSONRPC = 1 << iota
	seenID
	seenMethod
	seenParams
	seenResult
	seenError
	seenMeta
	seenToken
	seenTimeout
	seenKey
)

// seenNames are their names, in the same order.
var seenNames = [...]string{
	"jsonrpc", "id", "method", "params", "result", "error",
	"params._meta", "_meta.progressToken", "_meta.timeoutMs", "_meta.idempotencyKey",
}

// scanner is the state of one Scan. It lives on the stack.
type scanner struct {
	b []byte
	m *Message

	seen, twice uint // members that stood there, and those that did again
	jsonrpc     Span
	method      Span // raw values, checked in classify
	rawID       Span
	rawErr      Span

	token, progress, total, text, request Span // members of params that matter in a notification
	again                                 bool // one of them stood twice
	metaToken, metaTimeout, metaKey       Span

	kind Kind
	msg  string // what is wrong; "" while nothing is
	at   int    // where, for ParseError
}

// fail notes a parse error at a byte; it returns -1, which the readers of values return in turn.
func (s *scanner) fail(at int, msg string) int {
	if s.msg == "" {
		s.kind, s.msg, s.at = ParseError, msg, at
	}
	return -1
}

func (s *scanner) invalid(kind Kind, msg string) {
	if s.msg == "" {
		s.kind, s.msg, s.at = kind, msg, -1
	}
}

// scanLine reads the whole line and notes where its parts stand; it judges only JSON.
func (s *scanner) scanLine() {
	i := s.space(0)
	if i >= len(s.b) {
		s.fail(i, "the line is empty")
		return
	}
	if s.b[i] == '{' {
		i = s.object(i, levelTop)
	} else {
		c := s.b[i]
		i = s.value(i, 0)
		if i >= 0 && s.space(i) == len(s.b) {
			if c == '[' {
				s.invalid(InvalidRequest, "no batches: one message a line")
			} else {
				s.invalid(InvalidRequest, "a message is an object")
			}
			return
		}
	}
	if i < 0 {
		return
	}
	if i = s.space(i); i < len(s.b) {
		s.fail(i, "more after the end of the message")
	}
}

// The levels of a line whose members matter; the number is the depth of the object.
const (
	levelTop    = 1
	levelParams = 2
	levelMeta   = 3
)

// object reads the object of a level, whose brace stands at i, and notes its members.
func (s *scanner) object(i, level int) int {
	i = s.space(i + 1)
	if s.peek(i) == '}' {
		return i + 1
	}
	for {
		key, at := s.key(i)
		if at < 0 {
			return -1
		}
		switch level {
		case levelTop:
			i = s.topMember(key, at)
		case levelParams:
			i = s.paramsMember(key, at)
		default:
			i = s.metaMember(key, at)
		}
		if i < 0 {
			return -1
		}
		i = s.space(i)
		switch s.peek(i) {
		case ',':
			i = s.space(i + 1)
		case '}':
			return i + 1
		default:
			return s.unexpected(i, "',' or '}' after a member")
		}
	}
}

// name returns the unescaped member name; names longer than any that matters come back cut, which equals none of them.
func (s *scanner) name(key Span, buf *[24]byte) []byte {
	raw := s.b[key.Start:key.End]
	if bytes.IndexByte(raw, '\\') < 0 {
		return raw
	}
	if len(raw) > 6*len(buf) {
		return nil
	}
	return appendUnescaped(buf[:0], raw)
}

func (s *scanner) mark(bit uint) {
	s.twice |= s.seen & bit
	s.seen |= bit
}

// topMember reads one member of the message itself.
func (s *scanner) topMember(key Span, i int) int {
	var buf [24]byte
	var into *Span
	switch string(s.name(key, &buf)) {
	case "jsonrpc":
		s.mark(seenJSONRPC)
		into = &s.jsonrpc
	case "id":
		s.mark(seenID)
		into = &s.rawID
	case "method":
		s.mark(seenMethod)
		into = &s.method
	case "params":
		s.mark(seenParams)
		if i < len(s.b) && s.b[i] == '{' {
			end := s.object(i, levelParams)
			s.m.Params = Span{i, end}
			return end
		}
	case "result":
		s.mark(seenResult)
		into = &s.m.Result
	case "error":
		s.mark(seenError)
		into = &s.rawErr
	}
	end := s.value(i, levelTop)
	if into != nil {
		*into = Span{i, end}
	}
	return end
}

// paramsMember reads one member of params. Those of a notification are noted whatever the method, which may come later.
func (s *scanner) paramsMember(key Span, i int) int {
	var buf [24]byte
	var into *Span
	switch string(s.name(key, &buf)) {
	case "_meta":
		s.mark(seenMeta)
		end := 0
		if i < len(s.b) && s.b[i] == '{' {
			end = s.object(i, levelMeta)
		} else {
			end = s.value(i, levelParams)
		}
		s.m.Meta = Span{i, end}
		return end
	case "progressToken":
		into = &s.token
	case "requestId":
		into = &s.request
	case "progress":
		into = &s.progress
	case "total":
		into = &s.total
	case "message":
		into = &s.text
	}
	end := s.value(i, levelParams)
	if into != nil {
		s.again = s.again || !into.Empty()
		*into = Span{i, end}
	}
	return end
}

// metaMember reads one member of params._meta.
func (s *scanner) metaMember(key Span, i int) int {
	var buf [24]byte
	var into *Span
	switch string(s.name(key, &buf)) {
	case "progressToken":
		s.mark(seenToken)
		into = &s.metaToken
	case "timeoutMs":
		s.mark(seenTimeout)
		into = &s.metaTimeout
	case "idempotencyKey":
		s.mark(seenKey)
		into = &s.metaKey
	}
	end := s.value(i, levelMeta)
	if into != nil {
		*into = Span{i, end}
	}
	return end
}

// error makes the error that says what is wrong.
func (s *scanner) error() *Error {
	s.m.Class = Invalid
	if s.kind == ParseError {
		detail := &lineDetail{}
		if id := s.rawID.Of(s.b); s.seen&seenID != 0 && isID(id) {
			detail.ID = rawDetail(id) // what was read of it before the broken place: enough for the caller to find the call
		}
		*s.m = Message{}
		return Errorf(ParseError, "%s (byte %d)", s.msg, s.at+1).WithDetail(detail.orNil())
	}
	e := Errorf(s.kind, "%s", s.msg)
	if s.m.ID.Empty() && s.seen&seenID != 0 {
		e.Data.Detail = &lineDetail{ID: rawDetail(s.rawID.Of(s.b))}
	}
	return e
}

// lineDetail is the detail of an error that cannot be answered under an id.
type lineDetail struct {
	ID    json.RawMessage `json:"id,omitempty"`
	Limit int             `json:"limit,omitempty"`
}

func (d *lineDetail) orNil() any {
	if d.ID == nil && d.Limit == 0 {
		return nil
	}
	return d
}

// IDDetail is the detail of an error that is answered with id null although the line had an id: {"id": raw}.
func IDDetail(raw []byte) any { return &lineDetail{ID: rawDetail(raw)} }

// rawDetail copies a raw value into an error; of a long one it keeps the beginning, as a string.
func rawDetail(raw []byte) json.RawMessage {
	const most = 1024
	if len(raw) <= most {
		return bytes.Clone(raw)
	}
	out, err := json.Marshal(fmt.Sprintf("%.64s... (%d bytes)", raw, len(raw)))
	if err != nil { // a string always marshals
		return nil
	}
	return out
}
