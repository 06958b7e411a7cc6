package protocol

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// parts is a Message with its spans as text.
type parts struct {
	Class                             Class
	ID, Method, Params, Result, Error string
	Meta, Token, Timeout, Key         string
	TimeoutMs                         int64
	Progress, Total, Text, RequestID  string
}

func partsOf(line string, m *Message) parts {
	text := func(s Span) string { return string(s.Of([]byte(line))) }
	return parts{
		m.Class, text(m.ID), string(m.MethodName([]byte(line))), text(m.Params), text(m.Result), text(m.Error),
		text(m.Meta), text(m.ProgressToken), text(m.Timeout), text(m.IdempotencyKey), m.TimeoutMs,
		text(m.Progress), text(m.Total), text(m.Text), text(m.RequestID),
	}
}

func TestScanGoodLines(t *testing.T) {
	tests := []struct {
		name, line string
		want       parts
	}{
		{"request", `{"jsonrpc":"2.0","id":1,"method":"recognize","params":{"image":"/d/p.png"}}`,
			parts{Class: Request, ID: "1", Method: "recognize", Params: `{"image":"/d/p.png"}`}},
		{"no params", `{"jsonrpc":"2.0","id":-7,"method":"x"}`, parts{Class: Request, ID: "-7", Method: "x"}},
		{"any order, spaces", " {\t\"params\" : { } , \"method\":\"x\",\"id\" : \"a b\" ,\"jsonrpc\":\"2.0\" } \r",
			parts{Class: Request, ID: `"a b"`, Method: "x", Params: "{ }"}},
		{"meta", `{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"progressToken":"t","timeoutMs":60000,"idempotencyKey":"k","other":[1]},"a":1}}`,
			parts{Class: Request, ID: "1", Method: "x",
				Params: `{"_meta":{"progressToken":"t","timeoutMs":60000,"idempotencyKey":"k","other":[1]},"a":1}`,
				Meta:   `{"progressToken":"t","timeoutMs":60000,"idempotencyKey":"k","other":[1]}`,
				Token:  `"t"`, Timeout: "60000", TimeoutMs: 60000, Key: `"k"`}},
		{"null members of meta are absent", `{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"progressToken":null,"timeoutMs":null,"idempotencyKey":null}}}`,
			parts{Class: Request, ID: "1", Method: "x", Params: `{"_meta":{"progressToken":null,"timeoutMs":null,"idempotencyKey":null}}`,
				Meta: `{"progressToken":null,"timeoutMs":null,"idempotencyKey":null}`}},
		{"endless timeout is cut", `{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"timeoutMs":99999999999999999999999999}}}`,
			parts{Class: Request, ID: "1", Method: "x", Params: `{"_meta":{"timeoutMs":99999999999999999999999999}}`,
				Meta: `{"timeoutMs":99999999999999999999999999}`, Timeout: "99999999999999999999999999", TimeoutMs: MaxTimeoutMs}},
		{"a method's own parameters may be named like ours, and twice", `{"jsonrpc":"2.0","id":1,"method":"x","params":{"message":1,"message":2,"progressToken":{},"requestId":null,"timeoutMs":-1}}`,
			parts{Class: Request, ID: "1", Method: "x", Params: `{"message":1,"message":2,"progressToken":{},"requestId":null,"timeoutMs":-1}`}},
		{"meta deeper down is the method's own", `{"jsonrpc":"2.0","id":1,"method":"x","params":{"a":{"_meta":{"timeoutMs":"x"},"id":{}}}}`,
			parts{Class: Request, ID: "1", Method: "x", Params: `{"a":{"_meta":{"timeoutMs":"x"},"id":{}}}`}},
		{"names in escapes", `{"\u006asonrpc":"2\u002e0","\u0069\u0064":3,"metho\u0064":"notifications\/x","params":{"_m\u0065ta":{"progress\u0054oken":9}}}`,
			parts{Class: Request, ID: "3", Method: "notifications/x", Params: `{"_m\u0065ta":{"progress\u0054oken":9}}`,
				Meta: `{"progress\u0054oken":9}`, Token: "9"}},
		{"unknown members", `{"jsonrpc":"2.0","id":1,"method":"x","extra":[{"id":2}],"extra":null}`, parts{Class: Request, ID: "1", Method: "x"}},
		{"big id", `{"jsonrpc":"2.0","id":123456789012345678901234567890,"method":"x"}`, parts{Class: Request, ID: "123456789012345678901234567890", Method: "x"}},
		{"empty string as id", `{"jsonrpc":"2.0","id":"","method":"x"}`, parts{Class: Request, ID: `""`, Method: "x"}},

		{"progress", `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":0.4,"total":1,"message":"page 2"}}`,
			parts{Class: Notification, Method: NotifyProgress, Params: `{"progressToken":1,"progress":0.4,"total":1,"message":"page 2"}`,
				Token: "1", Progress: "0.4", Total: "1", Text: `"page 2"`}},
		{"progress before its method", `{"params":{"progress":-1e3,"progressToken":"t"},"method":"notifications\/progress","jsonrpc":"2.0"}`,
			parts{Class: Notification, Method: NotifyProgress, Params: `{"progress":-1e3,"progressToken":"t"}`, Token: `"t"`, Progress: "-1e3"}},
		{"progress of wrong types", `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":[1],"progress":"a","total":null,"message":3}}`,
			parts{Class: Notification, Method: NotifyProgress, Params: `{"progressToken":[1],"progress":"a","total":null,"message":3}`}},
		{"cancelled", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"a","reason":"r"}}`,
			parts{Class: Notification, Method: NotifyCancelled, Params: `{"requestId":"a","reason":"r"}`, RequestID: `"a"`}},
		{"cancelled of nothing", `{"jsonrpc":"2.0","method":"notifications/cancelled","params":[1]}`, parts{Class: Notification, Method: NotifyCancelled}},
		{"progress that says two things", `{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":1,"progressT\u006fken":2}}`,
			parts{Class: Notification, Method: NotifyProgress, Params: `{"progressToken":1,"progress":1,"progressT\u006fken":2}`}},
		{"another notification", `{"jsonrpc":"2.0","method":"x","params":7}`, parts{Class: Notification, Method: "x"}},

		{"result", `{"jsonrpc":"2.0","id":"a","result":null}`, parts{Class: Response, ID: `"a"`, Result: "null"}},
		{"error", `{"jsonrpc":"2.0","id":4,"error":{"code":-1,"message":"m"}}`, parts{Class: Response, ID: "4", Error: `{"code":-1,"message":"m"}`}},
		{"error without id", `{"jsonrpc":"2.0","id":null,"error":{}}`, parts{Class: Response, Error: "{}"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var m Message
			if err := Scan([]byte(tt.line), &m); err != nil {
				t.Fatalf("%v", err)
			}
			assert.Equal(t, tt.want, partsOf(tt.line, &m))
		})
	}
}

func TestScanBadLines(t *testing.T) {
	deep := func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]", n) }
	const ok = `"jsonrpc":"2.0","method":"x"`
	tests := []struct {
		line   string
		kind   Kind
		id     string // under which it is answered; "" is null
		detail string // of data.detail, JSON
	}{
		// Not JSON.
		{``, ParseError, "", ""},
		{`   `, ParseError, "", ""},
		{`x`, ParseError, "", ""},
		{`{`, ParseError, "", ""},
		{`{"a"`, ParseError, "", ""},
		{`{"a":`, ParseError, "", ""},
		{`{"a":1`, ParseError, "", ""},
		{`{"a":1,`, ParseError, "", ""},
		{`{"a":1,}`, ParseError, "", ""},
		{`{,}`, ParseError, "", ""},
		{`{"a" 1}`, ParseError, "", ""},
		{`{a:1}`, ParseError, "", ""},
		{`{'a':1}`, ParseError, "", ""},
		{`{"a":1 "b":2}`, ParseError, "", ""},
		{`{"a":01}`, ParseError, "", ""},
		{`{"a":+1}`, ParseError, "", ""},
		{`{"a":1.}`, ParseError, "", ""},
		{`{"a":.5}`, ParseError, "", ""},
		{`{"a":1e}`, ParseError, "", ""},
		{`{"a":-}`, ParseError, "", ""},
		{`{"a":tru}`, ParseError, "", ""},
		{`{"a":nul`, ParseError, "", ""},
		{`{"a":[1,]}`, ParseError, "", ""},
		{`{"a":[1}`, ParseError, "", ""},
		{`{"a":{"b":1]}`, ParseError, "", ""},
		{`{"a":[1 2]}`, ParseError, "", ""},
		{`{"a":[{b:1}]}`, ParseError, "", ""},
		{`{"a":[x]}`, ParseError, "", ""},
		{`{"\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061\u0061":x}`, ParseError, "", ""},
		{`{"a":"\x"}`, ParseError, "", ""},
		{`{"a":"\u12g4"}`, ParseError, "", ""},
		{`{"a":"\u12"}`, ParseError, "", ""},
		{`{"a":"\`, ParseError, "", ""},
		{`{"a":"abc`, ParseError, "", ""},
		{"{\"a\":\"\x01\"}", ParseError, "", ""},
		{"{\"a\":\"01234567\t\"}", ParseError, "", ""},
		{"\ufeff{" + ok + `,"id":1}`, ParseError, "", ""},
		{`{"a":1} x`, ParseError, "", ""},
		{`{"a":1}{}`, ParseError, "", ""},
		{`[1,2`, ParseError, "", ""},
		{"{\"a\":\f1}", ParseError, "", ""},
		// Not UTF-8; a surrogate in UTF-8; overlong; cut off.
		{"{\"a\":\"\xff\"}", ParseError, "", ""},
		{"{\"a\":\"12345678\xc3\x28\"}", ParseError, "", ""},
		{"{\"a\":\"\xed\xa0\x80\"}", ParseError, "", ""},
		{"{\"a\":\"\xc0\xaf\"}", ParseError, "", ""},
		{"{\"a\":\"\xe2\x82", ParseError, "", ""},
		{"{\"\x80\":1}", ParseError, "", ""},
		// The id that was read by then helps the caller.
		{`{` + ok + `,"id":5,"params":{"a":NaN}}`, ParseError, "", `{"id":5}`},
		{`{` + ok + `,"id":"q","params":{"a":-Infinity}}`, ParseError, "", `{"id":"q"}`},
		{`{` + ok + `,"id":5,"params":{"a":Infinity}}`, ParseError, "", `{"id":5}`},
		{`{` + ok + `,"params":{"a":NaN},"id":5}`, ParseError, "", ""},
		{`{` + ok + `,"id":null,"params":{"a":NaN}}`, ParseError, "", ""},
		{`{` + ok + `,"id":1,"params":{"a":` + deep(maxDepth) + `}}`, ParseError, "", `{"id":1}`},

		// JSON, but no object.
		{`[]`, InvalidRequest, "", ""},
		{`[{` + ok + `,"id":1}]`, InvalidRequest, "", ""},
		{`null`, InvalidRequest, "", ""},
		{`"x"`, InvalidRequest, "", ""},
		{`12`, InvalidRequest, "", ""},
		{deep(maxDepth), InvalidRequest, "", ""},
		{deep(maxDepth + 1), ParseError, "", ""},
		{strings.Repeat("[", 1<<20), ParseError, "", ""},

		// Ids.
		{`{` + ok + `,"id":null}`, InvalidRequest, "", `{"id":null}`},
		{`{` + ok + `,"id":true}`, InvalidRequest, "", `{"id":true}`},
		{`{` + ok + `,"id":1.0}`, InvalidRequest, "", `{"id":1.0}`},
		{`{` + ok + `,"id":1e3}`, InvalidRequest, "", `{"id":1e3}`},
		{`{` + ok + `,"id":[1]}`, InvalidRequest, "", `{"id":[1]}`},
		{`{` + ok + `,"id":{"a":1}}`, InvalidRequest, "", `{"id":{"a":1}}`},
		{`{"jsonrpc":"1.0","id":{}}`, InvalidRequest, "", `{"id":{}}`},
		{`{` + ok + `,"id":1,"id":1}`, InvalidRequest, "", `{"id":1}`},
		{`{` + ok + `,"id":1,"\u0069d":2}`, InvalidRequest, "", `{"id":2}`},

		// Answered under the id.
		{`{"id":1,"method":"x"}`, InvalidRequest, "1", ""},
		{`{"jsonrpc":2.0,"id":1,"method":"x"}`, InvalidRequest, "1", ""},
		{`{"jsonrpc":"1.0","id":"a","method":"x"}`, InvalidRequest, `"a"`, ""},
		{`{"jsonrpc":"2.00","id":1,"method":"x"}`, InvalidRequest, "1", ""},
		{`{"jsonrpc":"2.0","id":1}`, InvalidRequest, "1", ""},
		{`{"jsonrpc":"2.0","id":1,"method":7}`, InvalidRequest, "1", ""},
		{`{"jsonrpc":"2.0","id":1,"method":null}`, InvalidRequest, "1", ""},
		{`{"jsonrpc":"2.0","id":1,"method":""}`, InvalidRequest, "1", ""},
		{`{` + ok + `,"id":1,"params":[1]}`, InvalidRequest, "1", ""},
		{`{` + ok + `,"id":1,"params":null}`, InvalidRequest, "1", ""},
		{`{` + ok + `,"id":1,"params":"x"}`, InvalidRequest, "1", ""},
		{`{` + ok + `,"id":1,"result":1}`, InvalidRequest, "1", ""},
		{`{` + ok + `,"id":1,"error":{}}`, InvalidRequest, "1", ""},
		{`{` + ok + `,"id":1,"method":"y"}`, InvalidRequest, "1", ""},
		{`{` + ok + `,"id":1,"jsonrpc":"2.0"}`, InvalidRequest, "1", ""},
		{`{` + ok + `,"id":1,"params":{},"par\u0061ms":{}}`, InvalidRequest, "1", ""},
		{`{` + ok + `,"id":1,"params":{"_meta":{},"_meta":{}}}`, InvalidRequest, "1", ""},
		{`{` + ok + `,"id":1,"params":{"_meta":{"progressToken":1,"progressToken":2}}}`, InvalidRequest, "1", ""},
		{`{` + ok + `,"id":1,"params":{"_meta":{"timeoutMs":1,"timeoutMs":2}}}`, InvalidRequest, "1", ""},
		{`{` + ok + `,"id":1,"params":{"_meta":{"idempotencyKey":"1","idempotencyKey":"2"}}}`, InvalidRequest, "1", ""},
		{`{` + ok + `,"id":1,"params":{"_meta":null}}`, InvalidParams, "1", ""},
		{`{` + ok + `,"id":1,"params":{"_meta":[]}}`, InvalidParams, "1", ""},
		{`{` + ok + `,"id":1,"params":{"_meta":{"timeoutMs":0}}}`, InvalidParams, "1", ""},
		{`{` + ok + `,"id":1,"params":{"_meta":{"timeoutMs":-1}}}`, InvalidParams, "1", ""},
		{`{` + ok + `,"id":1,"params":{"_meta":{"timeoutMs":1.5}}}`, InvalidParams, "1", ""},
		{`{` + ok + `,"id":1,"params":{"_meta":{"timeoutMs":1e3}}}`, InvalidParams, "1", ""},
		{`{` + ok + `,"id":1,"params":{"_meta":{"timeoutMs":"60"}}}`, InvalidParams, "1", ""},
		{`{` + ok + `,"id":1,"params":{"_meta":{"progressToken":1.5}}}`, InvalidParams, "1", ""},
		{`{` + ok + `,"id":1,"params":{"_meta":{"progressToken":true}}}`, InvalidParams, "1", ""},
		{`{` + ok + `,"id":1,"params":{"_meta":{"idempotencyKey":1}}}`, InvalidParams, "1", ""},

		// Nobody's.
		{`{}`, InvalidRequest, "", ""},
		{`{"jsonrpc":"2.0"}`, InvalidRequest, "", ""},
		{`{"method":"x"}`, InvalidRequest, "", ""},
		{`{"jsonrpc":"2.0","method":1}`, InvalidRequest, "", ""},
		{`{"jsonrpc":"2.0","result":1}`, InvalidRequest, "", ""},

		// Answers.
		{`{"jsonrpc":"2.0","id":1,"result":1,"error":{}}`, InvalidRequest, "1", ""},
		{`{"jsonrpc":"2.0","id":1,"result":1,"result":2}`, InvalidRequest, "1", ""},
		{`{"jsonrpc":"2.0","id":1,"error":"bad"}`, InvalidRequest, "1", ""},
		{`{"jsonrpc":"2.0","id":null,"result":1}`, InvalidRequest, "", `{"id":null}`},
		{`{"jsonrpc":"2.0","id":1.5,"error":{}}`, InvalidRequest, "", `{"id":1.5}`},
	}
	for _, tt := range tests {
		name := tt.line
		if len(name) > 100 {
			name = name[:100]
		}
		t.Run(name, func(t *testing.T) {
			var m Message
			err := Scan([]byte(tt.line), &m)
			require.NotNil(t, err)
			assert.Equal(t, tt.kind, err.Data.Kind, err.Message)
			assert.Equal(t, tt.id, string(m.ID.Of([]byte(tt.line))), err.Message)
			assert.Equal(t, Invalid, m.Class)
			assert.NotEmpty(t, err.Message)
			if tt.detail == "" {
				assert.Nil(t, err.Data.Detail)
				return
			}
			detail, jsonErr := json.Marshal(err.Data.Detail)
			require.NoError(t, jsonErr)
			assert.Equal(t, tt.detail, string(detail))
		})
	}
}

func TestScanSaysWhere(t *testing.T) {
	tests := []struct{ line, want string }{
		{`{"a":NaN}`, "NaN is not JSON (byte 6)"},
		{`{"a":-Infinity}`, "Infinity is not JSON (byte 6)"},
		{"{\"abc\":\"xy\xff\"}", "not UTF-8 (byte 11)"},
		{`{"a":1`, "the line ends where there should be ',' or '}' after a member (byte 7)"},
		{`[]`, "no batches: one message a line"},
		{`{"id":1,"method":"x","jsonrpc":"2.0","method":"y"}`, "method stands twice"},
	}
	for _, tt := range tests {
		var m Message
		err := Scan([]byte(tt.line), &m)
		require.NotNil(t, err, tt.line)
		assert.Equal(t, tt.want, err.Message)
	}
}

func TestScanLongOffendingIDIsCut(t *testing.T) {
	var m Message
	err := Scan([]byte(`{"jsonrpc":"2.0","method":"x","id":["`+strings.Repeat("é", 100000)+`"]}`), &m)
	require.NotNil(t, err)
	answer := err.AppendAnswer(nil, nil)
	assert.Less(t, len(answer), 1000)
	assert.Nil(t, Scan(answer[:len(answer)-1], &m), "%s", answer)
	assert.Equal(t, Response, m.Class)
}

func TestIDKey(t *testing.T) {
	same := [][2]string{{`"a"`, `"\u0061"`}, {`"\ud83d\ude00"`, `"😀"`}, {`"a/b"`, `"a\/b"`}, {`0`, `-0`}, {`"\n"`, `"\u000A"`}, {`"\\"`, `"\u005c"`}}
	for _, p := range same {
		assert.Equal(t, IDKey([]byte(p[0])), IDKey([]byte(p[1])), p)
	}
	different := [][2]string{{`1`, `"1"`}, {`1`, `10`}, {`"a"`, `"A"`}, {`"\ud800"`, `"\udc00"`}, {`"\ud800"`, `"\ufffd"`}, {`""`, `"\u0000"`}}
	for _, p := range different {
		assert.NotEqual(t, IDKey([]byte(p[0])), IDKey([]byte(p[1])), p)
	}
}

func TestSplice(t *testing.T) {
	line := []byte(`{"jsonrpc":"2.0","params":{"_meta":{"progressToken":"tok"}},"method":"x","id":"client"}`)
	var m Message
	require.Nil(t, Scan(line, &m))
	got := Splice(nil, line, Edit{m.ID, []byte("17")}, Edit{m.ProgressToken, []byte("18")}, Edit{m.IdempotencyKey, []byte("unused")})
	assert.Equal(t, `{"jsonrpc":"2.0","params":{"_meta":{"progressToken":18}},"method":"x","id":17}`, string(got))
	assert.Equal(t, string(line), string(Splice(nil, line)))
	assert.Equal(t, "> "+string(line), string(Splice([]byte("> "), line, Edit{m.Result, []byte("1")})))
}

func TestUnquote(t *testing.T) {
	assert.Equal(t, "page 2\n", Unquote([]byte(`"page 2\n"`)))
	assert.Equal(t, "", Unquote([]byte(`12`)))
	assert.Equal(t, "", Unquote(nil))
}

func TestScanAndSpliceDoNotAllocate(t *testing.T) {
	line := []byte(`{"jsonrpc":"2.0","id":"abc","method":"notifications\/recognize","params":{"image":"/data/pé.png","nested":{"a":[1,2.5e3,true]},"_m\u0065ta":{"progressToken":1,"timeoutMs":60000}}}`)
	var m Message
	dst := make([]byte, 0, 1024)
	id := []byte("12345")
	assert.Zero(t, testing.AllocsPerRun(1000, func() {
		if Scan(line, &m) != nil {
			t.Fatal("the line is good")
		}
		dst = Splice(dst[:0], line, Edit{m.ID, id}, Edit{m.ProgressToken, id})
	}))
}
