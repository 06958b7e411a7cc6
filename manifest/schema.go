package manifest

import (
	_ "embed"
	"encoding/json"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/google/jsonschema-go/jsonschema"
)

// reference is where keys are described; the JSON Schema takes its descriptions from there.
//
//go:embed MANIFEST.md
var reference string

// keyDoc is a row of the reference.
type keyDoc struct{ key, kind, value, example, meaning string }

// keyDocs returns the rows of the reference's key tables.
func keyDocs() []keyDoc {
	var docs []keyDoc
	for line := range strings.Lines(reference) {
		cells := strings.Split(strings.Trim(strings.TrimSpace(line), "|"), "|")
		if len(cells) != 5 || !strings.HasPrefix(cells[0], " `") {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		docs = append(docs, keyDoc{strings.Trim(cells[0], "`"), cells[1], cells[2], cells[3], cells[4]})
	}
	return docs
}

// Schema returns the JSON Schema (draft 2020-12) of the manifest.
func Schema() ([]byte, error) {
	b := schemaBuilder{docs: map[string]string{}}
	for _, d := range keyDocs() {
		b.docs[d.key] = d.meaning
	}
	s := b.table(reflect.TypeFor[Manifest](), reflect.ValueOf(defaults()), "")
	s.Schema = "https://json-schema.org/draft/2020-12/schema"
	s.Title = "workerd provider manifest"
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return nil, fmt.Errorf("marshal the schema: %w", err)
	}
	return append(data, '\n'), nil
}

type schemaBuilder struct{ docs map[string]string }

const (
	durationSchema = `^(0|([0-9]+(\.[0-9]+)?(ns|us|µs|ms|s|m|h))+)$`
	sizeSchema     = `^[0-9]+(\.[0-9]+)?([KMGT]iB|[KMGT]B|kB|B)$`
	variableSchema = `^[A-Za-z_][A-Za-z0-9_]*$`
)

// table describes a struct; value holds its defaults.
func (b *schemaBuilder) table(t reflect.Type, value reflect.Value, path string) *jsonschema.Schema {
	s := &jsonschema.Schema{
		Type:                 "object",
		Properties:           map[string]*jsonschema.Schema{},
		AdditionalProperties: never(),
	}
	for i := range t.NumField() {
		name := t.Field(i).Tag.Get("toml")
		if name == "-" {
			continue
		}
		key := joinKey(path, name)
		p := b.field(t.Field(i).Type, value.Field(i), key, t.Field(i).Tag)
		p.Description = b.docs[key]
		s.Properties[name] = p
		s.PropertyOrder = append(s.PropertyOrder, name)
	}
	return s
}

// never is the schema that is written false.
func never() *jsonschema.Schema { return &jsonschema.Schema{Not: &jsonschema.Schema{}} }

func (b *schemaBuilder) field(t reflect.Type, value reflect.Value, key string, tag reflect.StructTag) *jsonschema.Schema {
	switch t {
	case durationType:
		return withDefault(&jsonschema.Schema{Type: "string", Pattern: durationSchema}, value)
	case bytesType:
		return withDefault(&jsonschema.Schema{AnyOf: []*jsonschema.Schema{
			{Type: "integer", Minimum: jsonschema.Ptr(0.0)},
			{Type: "string", Pattern: sizeSchema},
		}}, value)
	case bindType:
		table := b.table(t, reflect.ValueOf(Bind{Mode: DefaultBindMode}), key)
		table.Required = []string{"path"}
		return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "string"}, table}}
	}
	switch t.Kind() {
	case reflect.Struct:
		s := b.table(t, value, key)
		switch t {
		case reflect.TypeFor[Tool]():
			s.Required = []string{"name", "method"}
		case reflect.TypeFor[Secret]():
			s.MinProperties, s.MaxProperties = jsonschema.Ptr(1), jsonschema.Ptr(1)
		}
		return s
	case reflect.Slice:
		element := b.field(t.Elem(), reflect.Zero(t.Elem()), key+"[]", tag)
		return &jsonschema.Schema{Type: "array", Items: element}
	case reflect.Map:
		if tag.Get("form") == "schema" {
			return &jsonschema.Schema{AnyOf: []*jsonschema.Schema{{Type: "string"}, {Type: "object"}}}
		}
		element := b.field(t.Elem(), reflect.Zero(t.Elem()), key+".NAME", "")
		if element.Description == "" {
			element.Description = b.docs[key+".NAME"]
		}
		return &jsonschema.Schema{
			Type:                 "object",
			PropertyNames:        &jsonschema.Schema{Pattern: variableSchema},
			AdditionalProperties: element,
		}
	}
	return scalarSchema(t, value, key, tag)
}

func scalarSchema(t reflect.Type, value reflect.Value, key string, tag reflect.StructTag) *jsonschema.Schema {
	s := &jsonschema.Schema{}
	switch t.Kind() {
	case reflect.String:
		s.Type = "string"
		if enum := tag.Get("enum"); enum != "" {
			for word := range strings.SplitSeq(enum, ",") {
				s.Enum = append(s.Enum, word)
			}
		}
		if key == "slug" {
			s.Pattern = slugPattern.String()
			s.Not = &jsonschema.Schema{Const: jsonschema.Ptr[any](reservedSlug)}
		}
	case reflect.Bool:
		s.Type = "boolean"
	case reflect.Int:
		s.Type = "integer"
	case reflect.Float64:
		s.Type = "number"
	default:
		panic("manifest: no schema for " + t.String())
	}
	s.Minimum, s.Maximum = bound(tag.Get("min")), bound(tag.Get("max"))
	return withDefault(s, value)
}

func bound(text string) *float64 {
	if f, err := strconv.ParseFloat(text, 64); err == nil {
		return &f
	}
	return nil
}

// withDefault notes the default where there is one. A zero means unset, but for booleans and durations.
func withDefault(s *jsonschema.Schema, value reflect.Value) *jsonschema.Schema {
	if value.IsZero() && value.Kind() != reflect.Bool && value.Type() != durationType {
		return s
	}
	if data, err := json.Marshal(value.Interface()); err == nil {
		s.Default = data
	}
	return s
}
