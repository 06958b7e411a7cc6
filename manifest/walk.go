package manifest

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// walker copies decoded TOML values into Go values and reports everything that does not fit. A value with a problem
// leaves the Go value as it was, so that what is checked later is the default.
type walker struct {
	root    reflect.Type
	report  func(key, format string, args ...any)
	meant   func(key string)  // called with the known key that an unknown one was probably to be
	schemas map[string]string // key of a form:"schema" field given as a string -> that string
}

var (
	durationType = reflect.TypeFor[Duration]()
	bytesType    = reflect.TypeFor[Bytes]()
	bindType     = reflect.TypeFor[Bind]()
	stdDuration  = reflect.TypeFor[time.Duration]()
)

// table fills the struct v from the table raw at the path key.
func (w *walker) table(v reflect.Value, raw map[string]any, key string) {
	t := v.Type()
	fields := map[string]int{}
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("toml"); name != "" && name != "-" {
			fields[name] = i
		}
	}
	for _, name := range slices.Sorted(maps.Keys(raw)) {
		path := joinKey(key, name)
		i, ok := fields[name]
		if !ok {
			text, meant := unknownKey(name, t, w.root)
			w.report(path, "%s", text)
			if meant != "" {
				w.meant(joinKey(key, meant))
			}
			continue
		}
		w.value(v.Field(i), raw[name], path, t.Field(i).Tag)
	}
}

// value fills v from raw; tag is that of the field which v is or is an element of.
func (w *walker) value(v reflect.Value, raw any, key string, tag reflect.StructTag) {
	switch v.Type() {
	case durationType, stdDuration:
		w.duration(v, raw, key)
		return
	case bytesType:
		w.size(v, raw, key)
		return
	case bindType:
		w.bind(v, raw, key)
		return
	}
	switch v.Kind() {
	case reflect.String:
		w.str(v, raw, key, tag)
	case reflect.Bool:
		if b, ok := raw.(bool); ok {
			v.SetBool(b)
		} else {
			w.wrongType(key, "true or false", raw)
		}
	case reflect.Int, reflect.Int64:
		w.integer(v, raw, key, tag)
	case reflect.Float64:
		w.float(v, raw, key, tag)
	case reflect.Slice:
		w.array(v, raw, key, tag)
	case reflect.Map:
		w.dict(v, raw, key, tag)
	case reflect.Struct:
		if table, ok := raw.(map[string]any); ok {
			w.table(v, table, key)
		} else {
			w.wrongType(key, "a table", raw)
		}
	case reflect.Interface:
		v.Set(reflect.ValueOf(raw))
	default:
		panic(fmt.Sprintf("manifest: no decoding into %s", v.Type()))
	}
}

func (w *walker) str(v reflect.Value, raw any, key string, tag reflect.StructTag) {
	s, ok := raw.(string)
	if !ok {
		w.wrongType(key, "a string", raw)
		return
	}
	if enum := tag.Get("enum"); enum != "" {
		if words := strings.Split(enum, ","); !slices.Contains(words, s) {
			w.report(key, "%q is not known: write %s", s, oneOf(words))
			return
		}
	}
	v.SetString(s)
}

func (w *walker) integer(v reflect.Value, raw any, key string, tag reflect.StructTag) {
	n, ok := raw.(int64)
	switch {
	case !ok:
		w.wrongType(key, "an integer", raw)
	case v.OverflowInt(n):
		w.report(key, "%d is too large", n)
	case w.inRange(float64(n), key, tag):
		v.SetInt(n)
	}
}

func (w *walker) float(v reflect.Value, raw any, key string, tag reflect.StructTag) {
	var f float64
	switch n := raw.(type) {
	case float64:
		f = n
	case int64:
		f = float64(n)
	default:
		w.wrongType(key, "a number", raw)
		return
	}
	if math.IsNaN(f) || math.IsInf(f, 0) {
		w.report(key, "must be a finite number")
		return
	}
	if w.inRange(f, key, tag) {
		v.SetFloat(f)
	}
}

func (w *walker) inRange(n float64, key string, tag reflect.StructTag) bool {
	bound := func(name string, none float64) float64 {
		if text := tag.Get(name); text != "" {
			if b, err := strconv.ParseFloat(text, 64); err == nil {
				return b
			}
		}
		return none
	}
	low, high := bound("min", math.Inf(-1)), bound("max", math.Inf(1))
	switch {
	case n >= low && n <= high:
		return true
	case !math.IsInf(low, 0) && !math.IsInf(high, 0):
		w.report(key, "%v is out of range: write %v to %v", n, low, high)
	case n < low:
		w.report(key, "%v is too small: write %v or more", n, low)
	default:
		w.report(key, "%v is too large: write %v or less", n, high)
	}
	return false
}

func (w *walker) duration(v reflect.Value, raw any, key string) {
	switch d := raw.(type) {
	case string:
		parsed, err := parseDuration(d)
		if err != nil {
			w.report(key, "%v", err)
			return
		}
		v.SetInt(int64(parsed))
	case int64:
		w.report(key, "must be a duration, not an integer: write %s; did you mean %q?", durationForm, fmt.Sprintf("%ds", d))
	default:
		w.report(key, "must be a duration, not %s: write %s", typeName(raw), durationForm)
	}
}

func (w *walker) size(v reflect.Value, raw any, key string) {
	switch n := raw.(type) {
	case string:
		parsed, err := parseBytes(n)
		if err != nil {
			w.report(key, "%v", err)
			return
		}
		v.SetInt(int64(parsed))
	case int64:
		if n < 0 {
			w.report(key, "%d is negative: write a size of 0 or more", n)
			return
		}
		v.SetInt(n)
	default:
		w.report(key, "must be a size, not %s: write %s", typeName(raw), bytesForm)
	}
}

// bind accepts "/path", "/path:ro", "/path:rw" and a table. Only a trailing :ro or :rw is a mode: a path may hold colons.
func (w *walker) bind(v reflect.Value, raw any, key string) {
	b := Bind{Mode: DefaultBindMode}
	switch r := raw.(type) {
	case string:
		b.Path = r
		for _, mode := range []string{"ro", "rw"} {
			if path, ok := strings.CutSuffix(r, ":"+mode); ok {
				b.Path, b.Mode = path, mode
			}
		}
		v.Set(reflect.ValueOf(b))
	case map[string]any:
		v.Set(reflect.ValueOf(b))
		w.table(v, r, key)
	default:
		w.wrongType(key, `a path, "path:ro", "path:rw" or a table { path, mode, create }`, raw)
	}
}

func (w *walker) array(v reflect.Value, raw any, key string, tag reflect.StructTag) {
	var elements []any
	switch a := raw.(type) {
	case []any:
		elements = a
	case []map[string]any: // [[array of tables]]
		for _, table := range a {
			elements = append(elements, table)
		}
	default:
		w.wrongType(key, "an array", raw)
		return
	}
	if len(elements) == 0 {
		v.SetZero() // so that a default written out makes no difference
		return
	}
	out := reflect.MakeSlice(v.Type(), len(elements), len(elements))
	for i, e := range elements {
		w.value(out.Index(i), e, indexKey(key, i), tag)
	}
	v.Set(out)
}

func (w *walker) dict(v reflect.Value, raw any, key string, tag reflect.StructTag) {
	table, ok := raw.(map[string]any)
	if !ok {
		if s, isString := raw.(string); isString && tag.Get("form") == "schema" {
			w.schemas[key] = s
			return
		}
		want := "a table"
		if tag.Get("form") == "schema" {
			want = "a file name or a table"
		}
		w.wrongType(key, want, raw)
		return
	}
	if len(table) == 0 && tag.Get("form") != "schema" {
		v.SetZero()
		return
	}
	out := reflect.MakeMapWithSize(v.Type(), len(table))
	for _, name := range slices.Sorted(maps.Keys(table)) {
		element := reflect.New(v.Type().Elem()).Elem()
		w.value(element, table[name], joinKey(key, name), tag)
		out.SetMapIndex(reflect.ValueOf(name), element)
	}
	v.Set(out)
}

// wrongType reports a value of another type than wanted, with the likely fix.
func (w *walker) wrongType(key, want string, raw any) {
	hint := ""
	switch r := raw.(type) {
	case int64:
		if want == "a string" {
			hint = fmt.Sprintf(`: write "%d"`, r)
		}
	case float64:
		if want == "a string" {
			hint = fmt.Sprintf(`: write "%v"`, r)
		}
	case bool:
		if want == "a string" {
			hint = fmt.Sprintf(`: write "%v"`, r)
		}
	case string:
		_, numeric := strconv.ParseFloat(r, 64)
		switch {
		case want == "an array":
			hint = fmt.Sprintf(": write [%q]", r)
		case numeric == nil && (want == "an integer" || want == "a number"),
			want == "true or false" && (r == "true" || r == "false"):
			hint = fmt.Sprintf(": write %s without quotes", r)
		}
	}
	w.report(key, "must be %s, not %s%s", want, typeName(raw), hint)
}

func typeName(raw any) string {
	switch raw.(type) {
	case string:
		return "a string"
	case int64:
		return "an integer"
	case float64:
		return "a number with a fraction"
	case bool:
		return "a boolean"
	case time.Time:
		return "a date"
	case []any:
		return "an array"
	case []map[string]any:
		return "an array of tables"
	case map[string]any:
		return "a table"
	}
	return fmt.Sprintf("a %T", raw)
}

// oneOf lists words as an author would: "a", "b" or "c".
func oneOf(words []string) string {
	quoted := make([]string, len(words))
	for i, word := range words {
		quoted[i] = strconv.Quote(word)
	}
	if len(quoted) == 1 {
		return quoted[0]
	}
	return strings.Join(quoted[:len(quoted)-1], ", ") + " or " + quoted[len(quoted)-1]
}
