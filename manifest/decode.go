package manifest

import (
	"errors"
	"fmt"
	"maps"
	"reflect"

	"github.com/BurntSushi/toml"
)

// document is one TOML file as generic values, with the places of its keys. It is immutable.
type document struct {
	file   string
	prefix string // what stands before the keys of raw in the file: "defaults." where raw is that table
	raw    map[string]any
	at     positions
	keys   map[string]bool // every key of raw, by full path less prefix
}

// parseDocument checks the syntax of data. BurntSushi/toml reports only the first syntax error of a file.
func parseDocument(data []byte, file string) (*document, Problems) {
	if at := tooDeep(data); at >= 0 {
		place := positionAt(lineStarts(data), at)
		return nil, Problems{{File: file, Line: place.line, Column: place.column,
			Message: fmt.Sprintf("arrays and tables are nested more than %d deep", maxDepth)}}
	}
	d := &document{file: file, keys: map[string]bool{}}
	_, err := toml.Decode(string(data), &d.raw)
	var syntax toml.ParseError
	switch {
	case errors.As(err, &syntax):
		at := positionAt(lineStarts(data), min(max(syntax.Position.Start, 0), len(data)))
		return nil, Problems{{File: file, Line: at.line, Column: at.column, Key: syntax.LastKey, Message: syntax.Message}}
	case err != nil:
		return nil, Problems{{File: file, Line: 1, Column: 1, Message: err.Error()}}
	}
	d.at = locate(data)
	listKeys(d.raw, "", d.keys)
	return d, nil
}

// maxDepth bounds how deep values may be nested. The parser recurses, and a file of nothing but brackets would overflow
// the stack, which ends the whole process.
const maxDepth = 5000

// tooDeep returns where data opens more brackets than maxDepth, -1 if nowhere. It counts those in strings and comments
// too: no text that people write has so many that are not closed.
func tooDeep(data []byte) int {
	depth := 0
	for i, c := range data {
		switch c {
		case '[', '{':
			if depth++; depth > maxDepth {
				return i
			}
		case ']', '}':
			depth = max(0, depth-1)
		}
	}
	return -1
}

// listKeys adds the paths of all keys and elements below raw.
func listKeys(raw any, path string, keys map[string]bool) {
	if path != "" {
		keys[path] = true
	}
	switch r := raw.(type) {
	case map[string]any:
		for name, value := range r {
			listKeys(value, joinKey(path, name), keys)
		}
	case []any:
		for i, value := range r {
			listKeys(value, indexKey(path, i), keys)
		}
	case []map[string]any:
		for i, value := range r {
			listKeys(value, indexKey(path, i), keys)
		}
	}
}

// table returns the document that the table name of d is, without keys where d has no such table.
func (d *document) table(name string) *document {
	sub := &document{file: d.file, prefix: d.prefix + name + ".", at: d.at, keys: map[string]bool{}}
	sub.raw, _ = d.raw[name].(map[string]any)
	listKeys(sub.raw, "", sub.keys)
	return sub
}

// problem makes a problem of the key, at its place or the place of what encloses it.
func (d *document) problem(key, message string) Problem {
	at := d.at.find(d.prefix + key)
	return Problem{File: d.file, Line: at.line, Column: at.column, Key: d.prefix + key, Message: message}
}

// layers is a manifest's document with the site's defaults, which may be nil, laid under it.
type layers struct {
	manifest *document
	defaults *document
	// pullTimeout, if not nil, is the default of env.pull_timeout.
	pullTimeout *Duration
}

// source returns the document that a key comes from: the manifest for a key that neither has.
func (l layers) source(key string) *document {
	if l.defaults != nil && !l.manifest.keys[key] && l.defaults.keys[key] {
		return l.defaults
	}
	return l.manifest
}

func (l layers) problem(key, message string) Problem {
	return l.source(key).problem(key, message)
}

// merged returns the keys of both: tables merge key by key and the manifest wins.
func (l layers) merged() map[string]any {
	if l.defaults == nil {
		return l.manifest.raw
	}
	under := maps.Clone(l.defaults.raw)
	// A manifest has one of worker and command: its own choice takes the other one of the defaults away.
	for own, other := range map[string]string{"worker": "command", "command": "worker"} {
		if _, ok := l.manifest.raw[own]; ok {
			delete(under, other)
			if own == "command" {
				delete(under, "args")
			}
		}
	}
	return merge(under, l.manifest.raw, "")
}

func merge(under, over map[string]any, path string) map[string]any {
	out := maps.Clone(under)
	if out == nil {
		out = map[string]any{}
	}
	for name, value := range over {
		lower, lowerTable := out[name].(map[string]any)
		upper, upperTable := value.(map[string]any)
		// A secret is one value in the form of a table: { file } over { env } replaces it.
		if lowerTable && upperTable && path != "env.secrets" {
			out[name] = merge(lower, upper, joinKey(path, name))
		} else {
			out[name] = value
		}
	}
	return out
}

// decode copies the layers into a manifest that has the defaults, without any I/O. schemas are the input_schema keys that
// name a file.
func (l layers) decode(report func(key, format string, args ...any), meant func(key string)) (m *Manifest, schemas map[string]string) {
	filled := defaults()
	if l.pullTimeout != nil {
		filled.Env.PullTimeout = *l.pullTimeout
	}
	w := walker{root: reflect.TypeFor[Manifest](), report: report, meant: meant, schemas: map[string]string{}}
	w.table(reflect.ValueOf(&filled).Elem(), l.merged(), "")
	return &filled, w.schemas
}

// DecodeStrict decodes a TOML file into the struct that into points to, with the rules of manifests: a key that the struct
// does not have, a wrong type, a word that the field's enum tag does not list, a number outside its min and max tags are
// problems, all reported at once as Problems. Keys that the file does not have leave their fields as they are. Supported
// are strings, booleans, int, int64, float64, Duration, time.Duration, Bytes, slices, maps by string, structs and any.
func DecodeStrict(data []byte, file string, into any) error {
	v := reflect.ValueOf(into)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		panic("manifest: DecodeStrict needs a pointer to a struct")
	}
	d, problems := parseDocument(data, file)
	if d == nil {
		return problems.err()
	}
	w := walker{
		root: v.Elem().Type(),
		report: func(key, format string, args ...any) {
			problems = append(problems, d.problem(key, fmt.Sprintf(format, args...)))
		},
		meant:   func(string) {},
		schemas: map[string]string{},
	}
	w.table(v.Elem(), d.raw, "")
	return problems.sorted().err()
}
