package prototest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strings"
)

// Match says where a line differs from a pattern, nil where it matches.
//
// An object matches one that has its members, and perhaps others; an array one of its length, or any that begins so where its
// last element is "$more"; other values match themselves. In place of a value may stand "$any", "$string", "$integer",
// "$matches RE" (a string in which the expression is found) and, as a member, "$absent".
func Match(pattern, line []byte) error {
	var want, got any
	for _, each := range []struct {
		text []byte
		into *any
		what string
	}{{pattern, &want, "pattern"}, {line, &got, "line"}} {
		d := json.NewDecoder(bytes.NewReader(each.text))
		d.UseNumber()
		if err := d.Decode(each.into); err != nil {
			return fmt.Errorf("the %s is not JSON: %w", each.what, err)
		}
		if d.More() {
			return fmt.Errorf("the %s is more than one JSON value", each.what)
		}
	}
	return match("line", want, got)
}

func match(at string, want, got any) error {
	switch want := want.(type) {
	case string:
		return matchString(at, want, got)
	case json.Number:
		if n, ok := got.(json.Number); ok && sameNumber(want, n) {
			return nil
		}
	case map[string]any:
		if have, ok := got.(map[string]any); ok {
			return matchObject(at, want, have)
		}
	case []any:
		if have, ok := got.([]any); ok {
			return matchArray(at, want, have)
		}
	default: // null, true, false
		if want == got {
			return nil
		}
	}
	return differ(at, want, got)
}

func matchObject(at string, want, got map[string]any) error {
	for name, w := range want {
		g, there := got[name]
		switch {
		case w == "$absent":
			if there {
				return fmt.Errorf("%s.%s: should not be there", at, name)
			}
		case !there:
			return fmt.Errorf("%s.%s: is missing", at, name)
		default:
			if err := match(at+"."+name, w, g); err != nil {
				return err
			}
		}
	}
	return nil
}

func matchArray(at string, want, got []any) error {
	if n := len(want); n > 0 && want[n-1] == "$more" {
		want, got = want[:n-1], got[:min(n-1, len(got))]
	}
	if len(want) != len(got) {
		return differ(at, want, got)
	}
	for i := range want {
		if err := match(fmt.Sprintf("%s[%d]", at, i), want[i], got[i]); err != nil {
			return err
		}
	}
	return nil
}

func matchString(at, want string, got any) error {
	text, isString := got.(string)
	number, isNumber := got.(json.Number)
	ok := false
	switch {
	case want == "$any":
		ok = true
	case want == "$string":
		ok = isString
	case want == "$integer":
		ok = isNumber && !strings.ContainsAny(number.String(), ".eE")
	case strings.HasPrefix(want, "$matches "):
		re, err := regexp.Compile(strings.TrimPrefix(want, "$matches "))
		if err != nil {
			return err
		}
		ok = isString && re.MatchString(text)
	default:
		ok = isString && text == want
	}
	if ok {
		return nil
	}
	return differ(at, want, got)
}

func sameNumber(a, b json.Number) bool {
	if a == b {
		return true
	}
	x, err1 := a.Float64()
	y, err2 := b.Float64()
	return err1 == nil && err2 == nil && x == y
}

func differ(at string, want, got any) error {
	w, _ := json.Marshal(want) // decoded from JSON: cannot fail
	g, _ := json.Marshal(got)
	return fmt.Errorf("%s: want %s, got %s", at, w, g)
}
