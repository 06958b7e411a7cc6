package protocol

import (
	"encoding/json"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// depthOf returns how deep a valid JSON text is nested.
func depthOf(text []byte) int {
	depth, deepest, inString := 0, 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case inString && c == '\\':
			i++
		case c == '"':
			inString = !inString
		case inString:
		case c == '{' || c == '[':
			depth++
			deepest = max(deepest, depth)
		case c == '}' || c == ']':
			depth--
		}
	}
	return deepest
}

// FuzzScan holds Scan against encoding/json: the same lines are JSON, and the parts are where it finds them.
func FuzzScan(f *testing.F) {
	for _, seed := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"progressToken":"t","timeoutMs":60000,"idempotencyKey":"k"},"a":[1,-2.5e+3,"\u00e9\ud83d"]}}`,
		`{"jsonrpc":"2.0","id":"\u0061","result":{"a":[{},[],null,true,false]}}`,
		`{"jsonrpc":"2.0","id":1,"error":{"code":-32000,"message":"é"}}`,
		`{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":0.4,"total":1,"message":"page 2"}}`,
		`{"jsonrpc":"2.0","method":"notifications\/cancelled","params":{"requestId":"a"}}`,
		`{"a":NaN}`, `[1]`, "{\"a\":\"\xff\"}", `{"a":{"b":[{"c":"\\\""}]}} `, `{"\u0069d":01}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, line []byte) {
		var m Message
		err := Scan(line, &m)
		valid := json.Valid(line) && utf8.Valid(line) && depthOf(line) <= maxDepth
		require.Equal(t, valid, err == nil || err.Data.Kind != ParseError, "%v", err)
		if err != nil {
			require.Equal(t, Invalid, m.Class)
			answer := err.AppendAnswer(nil, m.ID.Of(line))
			require.True(t, json.Valid(answer), "%s", answer)
			return
		}
		var top map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(line, &top))
		var params, meta map[string]json.RawMessage
		if !m.Params.Empty() {
			require.NoError(t, json.Unmarshal(top["params"], &params))
		}
		same := func(want json.RawMessage, s Span) { t.Helper(); require.Equal(t, string(want), string(s.Of(line))) }
		if m.Class != Response || string(top["id"]) != "null" {
			same(top["id"], m.ID)
		}
		same(top["result"], m.Result)
		same(top["error"], m.Error)
		if m.Class != Response {
			var method string
			require.NoError(t, json.Unmarshal(top["method"], &method))
			require.Equal(t, method, Unquote(append(append([]byte{'"'}, m.Method.Of(line)...), '"')))
			if name := m.MethodName(line); utf8.Valid(name) {
				require.Equal(t, method, string(name))
			}
		}
		if m.Class == Request {
			same(top["params"], m.Params)
			same(params["_meta"], m.Meta)
			json.Unmarshal(params["_meta"], &meta)
			for key, s := range map[string]Span{"progressToken": m.ProgressToken, "timeoutMs": m.Timeout, "idempotencyKey": m.IdempotencyKey} {
				if string(meta[key]) != "null" {
					same(meta[key], s)
				}
			}
		}
		spliced := Splice(nil, line, Edit{m.ID, []byte(`"new"`)}, Edit{m.ProgressToken, []byte("7")})
		var again Message
		require.Nil(t, Scan(spliced, &again), "%s", spliced)
		require.Equal(t, m.Class, again.Class)
		if !m.ID.Empty() {
			require.Equal(t, `"new"`, string(again.ID.Of(spliced)))
		}
	})
}

// FuzzIDKey holds IDKey against encoding/json: strings with the same text are the same id.
func FuzzIDKey(f *testing.F) {
	f.Add(`"a"`, `"\u0061"`)
	f.Add(`"\ud83d\ude00"`, `"😀"`)
	f.Add(`1`, `"1"`)
	f.Fuzz(func(t *testing.T, a, b string) {
		id := func(raw string) (any, bool) {
			var v any
			if !utf8.ValidString(raw) || json.Unmarshal([]byte(raw), &v) != nil || !isID([]byte(raw)) {
				return nil, false
			}
			if _, number := v.(float64); number {
				return json.Number(raw), true
			}
			return v, true
		}
		va, okA := id(a)
		vb, okB := id(b)
		if !okA || !okB || len(a) == 0 || a[0] == ' ' || b[0] == ' ' {
			return
		}
		if IDKey([]byte(a)) == IDKey([]byte(b)) && a != "-0" && b != "-0" {
			require.Equal(t, va, vb)
		}
	})
}
