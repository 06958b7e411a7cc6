package control

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"workerd/protocol"
)

// Smoke is a provider's smoke test, the content of the file that its manifest names: one request, and what must be in its
// answer.
//
// Expect is a subset of the result, without which any result is good:
//   - an object matches an object that has all of its keys with matching values, whatever else is there;
//   - an array matches an array of the same length whose elements match one by one;
//   - {"$contains": X} matches a string that X is part of, and an array of which one element matches X;
//   - numbers match when equal, two of which one has a fraction or an exponent to nine significant digits;
//   - strings, booleans and null match when equal.
type Smoke struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"`
	Expect json.RawMessage `json:"expect"`
}

// SmokeResult is the outcome of one smoke test. Error is set where the request failed; Differences where it was answered
// with something else than expected.
type SmokeResult struct {
	Provider    string          `json:"provider"`
	Method      string          `json:"method"`
	Passed      bool            `json:"passed"`
	Seconds     float64         `json:"seconds"`
	Differences []Difference    `json:"differences"`
	Result      json.RawMessage `json:"result,omitempty"`
	Error       *protocol.Error `json:"error,omitempty"`
}

// Difference is one place in a result that is not as expected. Path is like "lines[2].text", "" for the result itself.
type Difference struct {
	Path    string `json:"path"`
	Message string `json:"message"`
}

// String puts the path in front of the message.
func (d Difference) String() string {
	if d.Path == "" {
		return "result: " + d.Message
	}
	return d.Path + ": " + d.Message
}

// readSmoke reads a smoke file strictly.
func readSmoke(file string) (Smoke, error) {
	var s Smoke
	data, err := os.ReadFile(file)
	if err != nil {
		return s, fmt.Errorf("smoke file: %w", err)
	}
	if err := decodeStrict(bytes.NewReader(data), &s); err != nil {
		return s, fmt.Errorf("smoke file %s: %w", file, err)
	}
	if s.Method == "" {
		return s, fmt.Errorf("smoke file %s: method: missing; name the method to call", file)
	}
	return s, nil
}

// judge fills in what follows from the answer to the smoke request.
func (s Smoke) judge(slug string, result json.RawMessage, callErr *protocol.Error, took time.Duration) SmokeResult {
	r := SmokeResult{Provider: slug, Method: s.Method, Seconds: took.Seconds(), Result: result, Error: callErr, Differences: []Difference{}}
	if callErr == nil && len(s.Expect) > 0 {
		r.Differences = append(r.Differences, compare(s.Expect, result)...)
	}
	r.Passed = callErr == nil && len(r.Differences) == 0
	return r
}

// compare lists where result is not what expect describes (see Smoke).
func compare(expect, result json.RawMessage) []Difference {
	want, err := decodeNumbers(expect)
	if err != nil {
		return []Difference{{Message: "expect is not JSON: " + err.Error()}}
	}
	got, err := decodeNumbers(result)
	if err != nil {
		return []Difference{{Message: "the result is not JSON: " + err.Error()}}
	}
	return differences("", want, got)
}

func differences(path string, want, got any) []Difference {
	differs := func(format string, args ...any) []Difference {
		return []Difference{{Path: path, Message: fmt.Sprintf(format, args...)}}
	}
	switch w := want.(type) {
	case map[string]any:
		if part, ok := w["$contains"]; ok && len(w) == 1 {
			if !contains(part, got) {
				return differs("%s does not contain %s", short(got), short(part))
			}
			return nil
		}
		g, ok := got.(map[string]any)
		if !ok {
			return differs("want an object, got %s", short(got))
		}
		return objectDifferences(path, w, g)
	case []any:
		g, ok := got.([]any)
		if !ok {
			return differs("want an array, got %s", short(got))
		}
		if len(g) != len(w) {
			return differs("want %d elements, got %d", len(w), len(g))
		}
		var all []Difference
		for i := range w {
			all = append(all, differences(fmt.Sprintf("%s[%d]", path, i), w[i], g[i])...)
		}
		return all
	case json.Number:
		if g, ok := got.(json.Number); ok && sameNumber(w, g) {
			return nil
		}
	default: // string, bool, nil: comparable
		if want == got {
			return nil
		}
	}
	return differs("want %s, got %s", short(want), short(got))
}

func objectDifferences(path string, want, got map[string]any) []Difference {
	keys := make([]string, 0, len(want))
	for k := range want {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	var all []Difference
	for _, k := range keys {
		at := k
		if path != "" {
			at = path + "." + k
		}
		g, ok := got[k]
		if !ok {
			all = append(all, Difference{Path: at, Message: "missing"})
			continue
		}
		all = append(all, differences(at, want[k], g)...)
	}
	return all
}

func contains(part, whole any) bool {
	switch w := whole.(type) {
	case string:
		p, ok := part.(string)
		return ok && strings.Contains(w, p)
	case []any:
		return slices.ContainsFunc(w, func(e any) bool { return len(differences("", part, e)) == 0 })
	}
	return false
}

// sameNumber compares integers exactly and others to nine significant digits: libraries of another version round the
// last ones differently.
func sameNumber(a, b json.Number) bool {
	if a == b {
		return true
	}
	if !strings.ContainsAny(string(a+b), ".eE") {
		return false
	}
	x, errX := a.Float64()
	y, errY := b.Float64()
	return errX == nil && errY == nil && fmt.Sprintf("%.9g", x) == fmt.Sprintf("%.9g", y)
}

// short renders a value for a message, cut where it is long.
func short(v any) string {
	data, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	const limit = 200
	if r := []rune(string(data)); len(r) > limit {
		return string(r[:limit]) + "..."
	}
	return string(data)
}

func decodeNumbers(data []byte) (any, error) {
	d := json.NewDecoder(bytes.NewReader(data))
	d.UseNumber()
	var v any
	if err := d.Decode(&v); err != nil {
		return nil, err
	}
	return v, nil
}

// decodeStrict reads exactly one JSON value without unknown keys.
func decodeStrict(r io.Reader, into any) error {
	d := json.NewDecoder(r)
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return fmt.Errorf("more than one JSON value")
	}
	return nil
}
