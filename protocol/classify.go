package protocol

import (
	"bytes"
	"math/bits"
)

// classify decides what a line of good JSON is, and fills in the parts that depend on it.
func (s *scanner) classify() {
	m := s.m
	id := s.rawID.Of(s.b)
	hasID := s.seen&seenID != 0
	answer := s.seen&seenMethod == 0 && s.seen&(seenResult|seenError) != 0
	nullID := hasID && string(id) == "null"
	idBad := hasID && !isID(id) && !(answer && nullID && s.seen&seenError != 0)
	if hasID && !idBad && !nullID && s.twice&seenID == 0 {
		m.ID = s.rawID
	}
	switch {
	case s.twice != 0:
		s.invalid(InvalidRequest, seenNames[bits.TrailingZeros(s.twice)]+" stands twice")
	case idBad:
		s.invalid(InvalidRequest, "id must be a string or an integer")
	case !s.stringIs(s.jsonrpc, "2.0"):
		s.invalid(InvalidRequest, `jsonrpc must be "2.0"`)
	case answer:
		s.classifyAnswer(hasID)
	default:
		s.classifyCall(hasID)
	}
}

func (s *scanner) classifyAnswer(hasID bool) {
	m := s.m
	switch {
	case !hasID:
		s.invalid(InvalidRequest, "an answer has an id")
	case s.seen&seenResult != 0 && s.seen&seenError != 0:
		s.invalid(InvalidRequest, "an answer has a result or an error, not both")
	case s.seen&seenError != 0 && s.b[s.rawErr.Start] != '{':
		s.invalid(InvalidRequest, "error must be an object")
	}
	m.Error = s.rawErr
	m.Class = Response
}

func (s *scanner) classifyCall(hasID bool) {
	m := s.m
	switch {
	case s.seen&seenMethod == 0:
		s.invalid(InvalidRequest, "method is missing")
		return
	case s.b[s.method.Start] != '"' || s.method.End-s.method.Start == 2:
		s.invalid(InvalidRequest, "method must be a string that is not empty")
		return
	case s.seen&(seenResult|seenError) != 0:
		s.invalid(InvalidRequest, "a message has a method, or a result or an error, not both")
		return
	}
	m.Method = Span{s.method.Start + 1, s.method.End - 1}
	m.methodEscaped = bytes.IndexByte(m.Method.Of(s.b), '\\') >= 0
	if !hasID {
		m.Class = Notification
		s.notification()
		return
	}
	m.Class = Request
	if s.seen&seenParams != 0 && m.Params.Empty() {
		s.invalid(InvalidRequest, "params must be an object")
		return
	}
	s.meta()
}

// meta takes over and checks params._meta of a request.
func (s *scanner) meta() {
	m := s.m
	if s.seen&seenMeta == 0 {
		return
	}
	if s.b[m.Meta.Start] != '{' {
		s.invalid(InvalidParams, "_meta must be an object")
		return
	}
	if s.present(s.metaToken) {
		m.ProgressToken = s.metaToken
		if !isID(s.metaToken.Of(s.b)) {
			s.invalid(InvalidParams, "_meta.progressToken must be a string or an integer")
		}
	}
	if s.present(s.metaTimeout) {
		m.Timeout = s.metaTimeout
		if m.TimeoutMs = positive(s.metaTimeout.Of(s.b)); m.TimeoutMs == 0 {
			s.invalid(InvalidParams, "_meta.timeoutMs must be a positive integer")
		}
	}
	if s.present(s.metaKey) {
		m.IdempotencyKey = s.metaKey
		if s.b[s.metaKey.Start] != '"' {
			s.invalid(InvalidParams, "_meta.idempotencyKey must be a string")
		}
	}
}

// notification takes over the members of the two notifications that matter, those that have the right type.
func (s *scanner) notification() {
	m := s.m
	m.Meta = Span{}
	if s.again {
		return
	}
	switch string(m.MethodName(s.b)) {
	case NotifyProgress:
		m.ProgressToken = s.when(s.token, isID)
		m.Progress = s.when(s.progress, isNumber)
		m.Total = s.when(s.total, isNumber)
		m.Text = s.when(s.text, isString)
	case NotifyCancelled:
		m.RequestID = s.when(s.request, isID)
	}
}

func (s *scanner) when(v Span, ok func([]byte) bool) Span {
	if v.Empty() || !ok(v.Of(s.b)) {
		return Span{}
	}
	return v
}

func (s *scanner) present(v Span) bool { return !v.Empty() && s.b[v.Start] != 'n' }

// stringIs says whether the raw value v is the JSON string want, however it is escaped.
func (s *scanner) stringIs(v Span, want string) bool {
	raw := v.Of(s.b)
	if len(raw) < 2 || raw[0] != '"' {
		return false
	}
	raw = raw[1 : len(raw)-1]
	if len(raw) > 6*len(want) {
		return false
	}
	if bytes.IndexByte(raw, '\\') < 0 {
		return string(raw) == want
	}
	var buf [24]byte
	return string(appendUnescaped(buf[:0], raw)) == want
}

func isString(raw []byte) bool { return len(raw) > 0 && raw[0] == '"' }

func isNumber(raw []byte) bool {
	return len(raw) > 0 && (raw[0] == '-' || raw[0] >= '0' && raw[0] <= '9')
}

// isID says whether a valid JSON value can be an id or a progress token: a string, or a number without fraction and exponent.
func isID(raw []byte) bool {
	return isString(raw) || isNumber(raw) && !bytes.ContainsAny(raw, ".eE")
}

// positive returns the value of a valid JSON number that is a positive integer, at most MaxTimeoutMs; 0 for anything else.
func positive(raw []byte) int64 {
	if !isNumber(raw) || raw[0] == '-' {
		return 0
	}
	var n int64
	for _, c := range raw {
		if c < '0' || c > '9' {
			return 0
		}
		if n = n*10 + int64(c-'0'); n > MaxTimeoutMs {
			n = MaxTimeoutMs / 10 // stays above the bound for every digit that follows, and cannot overflow
			n = n*10 + 9
		}
	}
	return min(n, MaxTimeoutMs)
}
