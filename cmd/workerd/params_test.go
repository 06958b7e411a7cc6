package main

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestTypedValue(t *testing.T) {
	for _, tc := range []struct {
		text  string
		types []string
		want  string // "" is an error
	}{
		// Without a schema: JSON if it parses, else a string.
		{"1", nil, `1`},
		{"true", nil, `true`},
		{"[1,2]", nil, `[1,2]`},
		{`"quoted"`, nil, `"quoted"`},
		{"plain text", nil, `"plain text"`},
		{"", nil, `""`},
		{"1E10", nil, `1E10`},
		{"NaN", nil, `"NaN"`},
		{"01", nil, `"01"`},
		// With one, what it says.
		{"1E10", []string{"string"}, `"1E10"`},
		{"true", []string{"string"}, `"true"`},
		{`"quoted"`, []string{"string"}, `"\"quoted\""`},
		{"null", []string{"string"}, `"null"`},
		{"a<b", []string{"string"}, `"a\u003cb"`},
		{"5", []string{"integer"}, `5`},
		{"5.0", []string{"integer"}, `5.0`},
		{"5.5", []string{"integer"}, ``},
		{"5", []string{"number"}, `5`},
		{"5e-3", []string{"number"}, `5e-3`},
		{"five", []string{"number"}, ``},
		{"true", []string{"boolean"}, `true`},
		{"1", []string{"boolean"}, ``},
		{"[1]", []string{"array"}, `[1]`},
		{"1,2", []string{"array"}, ``},
		{`{"a":1}`, []string{"object"}, `{"a":1}`},
		// A union: the value's own type where that is allowed, else a string where that is.
		{"null", []string{"string", "null"}, `null`},
		{"7", []string{"string", "null"}, `"7"`},
		{"7", []string{"string", "integer"}, `7`},
		{"7x", []string{"string", "integer"}, `"7x"`},
		{"x", []string{"null", "integer"}, ``},
		{"99999999999999999999999", []string{"integer"}, `99999999999999999999999`},
	} {
		got, err := typedValue(tc.text, tc.types)
		if tc.want == "" {
			require.ErrorContains(t, err, "does not fit", "%q %v", tc.text, tc.types)
			continue
		}
		require.NoError(t, err, "%q %v", tc.text, tc.types)
		require.Equal(t, tc.want, string(got), "%q %v", tc.text, tc.types)
	}
}

func TestPropertyTypes(t *testing.T) {
	require.Equal(t, map[string][]string{
		"a": {"string"}, "b": {"string", "null"}, "c": {"integer", "null"}, "d": nil, "e": {"string", "string"}, "f": nil, "g": {"number", "boolean"},
	}, propertyTypes(json.RawMessage(`{"type":"object","properties":{
		"a":{"type":"string"},
		"b":{"type":["string","null"]},
		"c":{"anyOf":[{"type":"integer"},{"type":"null"}]},
		"d":{},
		"e":{"enum":["x","y"]},
		"f":{"anyOf":[{"type":"string"},{}]},
		"g":{"oneOf":[{"type":"number"},{"type":"boolean"}]}}}`)))
	require.Empty(t, propertyTypes(nil))
	require.Empty(t, propertyTypes(json.RawMessage(`true`)))
}

func TestArguments(t *testing.T) {
	r := newRig(t)
	file := r.write("p.json", " {\"from\": \"file\"}\n")
	noSchema := func() (json.RawMessage, error) { return nil, nil }
	for _, tc := range []struct {
		args []string
		in   string
		want string
		says string // of the error
	}{
		{args: nil, want: `{}`},
		{args: []string{`{"a": 1}`}, want: `{"a": 1}`},
		{args: []string{"@" + file}, want: `{"from": "file"}`},
		{args: []string{"-"}, in: `{"from":"stdin"}`, want: `{"from":"stdin"}`},
		{args: []string{"a=1", "b=x=y", "c="}, want: `{"a":1,"b":"x=y","c":""}`},
		{args: []string{`a={"x":"="}`}, want: `{"a":{"x":"="}}`},
		{args: []string{"[1]"}, says: "want one JSON object"},
		{args: []string{"word"}, says: "want one JSON object"},
		{args: []string{""}, says: "want one JSON object"},
		{args: []string{"{"}, says: "want one JSON object"},
		{args: []string{"-"}, says: "want one JSON object"},
		{args: []string{"@" + filepath.Join(r.dir, "none")}, says: "no such file"},
		{args: []string{`{"a":1}`, "b=2"}, says: "must all be KEY=VALUE"},
		{args: []string{"a=1", "b"}, says: "must all be KEY=VALUE"},
		{args: []string{"=1"}, says: "must all be KEY=VALUE"},
		{args: []string{"a=1", "a=2"}, says: "given twice"},
	} {
		r.in = tc.in
		given, err := r.app().readArgs(t.Context(), tc.args)
		var got json.RawMessage
		if err == nil {
			got, err = given.params(noSchema)
		}
		if tc.says != "" {
			require.ErrorContains(t, err, tc.says, "%q", tc.args)
			var usage *usageError
			require.ErrorAs(t, err, &usage)
			continue
		}
		require.NoError(t, err, "%q", tc.args)
		require.Equal(t, tc.want, string(got))
	}
}

func TestSchemaIsAskedForOnlyForPairs(t *testing.T) {
	asked := errors.New("asked")
	ask := func() (json.RawMessage, error) { return nil, asked }
	_, err := arguments{object: json.RawMessage(`{}`)}.params(ask)
	require.NoError(t, err)
	_, err = arguments{pairs: []string{"a=1"}}.params(ask)
	require.ErrorIs(t, err, asked)
}

// Who thinks better of typing the parameters ends the call with one signal.
func TestInterruptWhileParametersAreRead(t *testing.T) {
	r := newRig(t)
	typed, in := io.Pipe()
	t.Cleanup(func() { _ = in.Close() })
	a := r.app()
	a.in = typed
	ctx, interrupt := context.WithCancel(t.Context())
	done := make(chan int, 1)
	go func() { done <- a.runContext(ctx, []string{"call", "x", "y", "-"}) }()
	_, err := in.Write([]byte("{")) // it reads
	require.NoError(t, err)
	interrupt()
	select {
	case code := <-done:
		require.Equal(t, exitFailed, code)
	case <-time.After(60 * time.Second):
		t.Fatal("it goes on reading")
	}
	require.Contains(t, r.err.String(), "canceled")
}
