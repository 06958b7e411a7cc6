package control

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestCompare(t *testing.T) {
	for _, tc := range []struct {
		name, expect, result string
		want                 []string
	}{
		{"subset of an object", `{"a":{"b":1}}`, `{"a":{"b":1,"c":2},"d":3}`, nil},
		{"missing and different keys", `{"a":1,"b":2,"c":{"d":true}}`, `{"b":3,"c":{}}`, []string{"a: missing", "b: want 2, got 3", "c.d: missing"}},
		{"object wanted", `{"a":1}`, `[1]`, []string{"result: want an object, got [1]"}},
		{"array elementwise", `[{"x":1},2]`, `[{"x":1,"y":2},3]`, []string{"[1]: want 2, got 3"}},
		{"array length", `[1]`, `[1,2]`, []string{"result: want 1 elements, got 2"}},
		{"array wanted", `{"a":[]}`, `{"a":"x"}`, []string{`a: want an array, got "x"`}},
		{"nested path", `{"lines":[{"text":"a"}]}`, `{"lines":[{"text":"b"}]}`, []string{`lines[0].text: want "a", got "b"`}},
		{"numbers by value", `{"a":1,"b":0.1}`, `{"a":1.0,"b":0.10000000000000001}`, nil},
		{"last digits", `63.6`, `63.60000000001`, nil},
		{"other digits", `63.6`, `63.6001`, []string{"result: want 63.6, got 63.6001"}},
		{"integers exactly", `12345678901234567`, `12345678901234568`, []string{"result: want 12345678901234567, got 12345678901234568"}},
		{"types differ", `"1"`, `1`, []string{`result: want "1", got 1`}},
		{"bool and null", `{"a":true,"b":null}`, `{"a":true,"b":null}`, nil},
		{"null is not absence", `{"b":null}`, `{}`, []string{"b: missing"}},
		{"contains in a string", `{"t":{"$contains":"fox"}}`, `{"t":"the quick fox"}`, nil},
		{"contains not", `{"t":{"$contains":"dog"}}`, `{"t":"fox"}`, []string{`t: "fox" does not contain "dog"`}},
		{"contains in an array", `{"t":{"$contains":{"x":1}}}`, `{"t":[{"x":2},{"x":1,"y":2}]}`, nil},
		{"contains in a number", `{"$contains":"1"}`, `1`, []string{`result: 1 does not contain "1"`}},
		{"broken expect", `{`, `1`, []string{"result: expect is not JSON: unexpected EOF"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			var got []string
			for _, d := range compare(json.RawMessage(tc.expect), json.RawMessage(tc.result)) {
				got = append(got, d.String())
			}
			require.Equal(t, tc.want, got)
		})
	}
}

func TestShortCutsLongValues(t *testing.T) {
	long := make([]any, 300)
	require.Len(t, []rune(short(long)), 203)
}
