package manifest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// field is a key as the types have it, under the path that the reference uses.
type field struct {
	key   string
	typ   reflect.Type
	value reflect.Value // its default
	tag   reflect.StructTag
}

// keyFields lists all keys of the manifest, tables apart.
func keyFields(t reflect.Type, value reflect.Value, path string) (keys []field, tables []string) {
	for i := range t.NumField() {
		f := t.Field(i)
		name := f.Tag.Get("toml")
		if name == "-" {
			continue
		}
		key := joinKey(path, name)
		add := func(element reflect.Type, zero reflect.Value, path string) {
			moreKeys, moreTables := keyFields(element, zero, path)
			keys, tables = append(keys, moreKeys...), append(tables, moreTables...)
		}
		switch {
		case f.Type.Kind() == reflect.Struct:
			tables = append(tables, key)
			add(f.Type, value.Field(i), key)
		case f.Type == reflect.TypeFor[[]Bind]():
			keys = append(keys, field{key, f.Type, value.Field(i), f.Tag})
			add(bindType, reflect.ValueOf(Bind{Mode: DefaultBindMode}), key+"[]")
		case f.Type == reflect.TypeFor[[]Tool]():
			tables = append(tables, "["+key+"]")
			add(f.Type.Elem(), reflect.Zero(f.Type.Elem()), key+"[]")
		case f.Type.Kind() == reflect.Map && f.Type.Elem().Kind() == reflect.Struct:
			tables = append(tables, key)
			add(f.Type.Elem(), reflect.Zero(f.Type.Elem()), key+".NAME")
		case f.Type.Kind() == reflect.Map && f.Type.Elem().Kind() == reflect.String:
			tables = append(tables, key)
			keys = append(keys, field{key + ".NAME", f.Type.Elem(), reflect.Zero(f.Type.Elem()), f.Tag})
		default:
			keys = append(keys, field{key, f.Type, value.Field(i), f.Tag})
		}
	}
	return keys, tables
}

func manifestFields() ([]field, []string) {
	return keyFields(reflect.TypeFor[Manifest](), reflect.ValueOf(defaults()), "")
}

func TestReferenceHasEveryKey(t *testing.T) {
	fields, tables := manifestFields()
	var want, got []string
	for _, f := range fields {
		want = append(want, f.key)
	}
	for _, d := range keyDocs() {
		got = append(got, d.key)
		assert.NotEmpty(t, d.meaning, d.key)
	}
	slices.Sort(want)
	slices.Sort(got)
	assert.Equal(t, want, got, "the keys of MANIFEST.md are those of the types, each once")
	for _, table := range tables {
		assert.Contains(t, reference, "`["+table+"]`")
	}
}

// kindOf is the type column of a key.
func kindOf(f field) string {
	if enum := f.tag.Get("enum"); enum != "" {
		return "`" + strings.ReplaceAll(enum, ",", "` `") + "`"
	}
	switch f.typ {
	case durationType:
		return "duration"
	case bytesType:
		return "size"
	case reflect.TypeFor[[]Bind]():
		return "binds"
	}
	name := map[reflect.Kind]string{
		reflect.String: "string", reflect.Int: "integer", reflect.Float64: "number", reflect.Bool: "boolean", reflect.Slice: "strings", reflect.Map: "schema",
	}[f.typ.Kind()]
	if f.tag.Get("form") == "path" {
		name = strings.Replace(name, "string", "path", 1)
	}
	return name
}

// decoded decodes the TOML value text as the key f would be.
func decoded(t *testing.T, f field, text string) reflect.Value {
	t.Helper()
	var raw map[string]any
	_, err := toml.Decode("x = "+text, &raw)
	require.NoError(t, err, f.key)
	w := walker{
		root:    reflect.TypeFor[Manifest](),
		report:  func(_, format string, args ...any) { t.Errorf("%s: %s: %s", f.key, text, fmt.Sprintf(format, args...)) },
		meant:   func(string) {},
		schemas: map[string]string{},
	}
	v := reflect.New(f.typ).Elem()
	w.value(v, raw["x"], f.key, f.tag)
	return v
}

func TestReferenceIsRight(t *testing.T) {
	fields, _ := manifestFields()
	byKey := map[string]field{}
	for _, f := range fields {
		byKey[f.key] = f
	}
	computed := map[string]string{
		"slug":      "name of the file or folder",
		"paths.cwd": "the manifest's directory",

		"gpu.fault_patterns": "what CUDA and ROCm say",
		"restart.on_change":  fmt.Sprintf("`%q`; `%q` with an exclusive GPU", DefaultOnChange, DefaultOnChangeExclusive),
	}
	for _, d := range keyDocs() {
		f, ok := byKey[d.key]
		if !ok {
			continue // TestReferenceHasEveryKey tells
		}
		assert.Equal(t, kindOf(f), d.kind, d.key)
		assert.False(t, decoded(t, f, strings.Trim(d.example, "`")).IsZero() && d.example != "`0`" && f.typ.Kind() != reflect.Map, "example of %s", d.key)
		switch {
		case computed[d.key] != "":
			assert.Equal(t, computed[d.key], d.value, d.key)
			assert.True(t, f.value.IsZero(), d.key)
		case d.value == "unset":
			assert.True(t, f.value.IsZero(), d.key)
			assert.NotEqual(t, durationType, f.typ, d.key)
		default:
			assert.Equal(t, f.value.Interface(), decoded(t, f, strings.Trim(d.value, "`")).Interface(), "default of %s", d.key)
		}
	}
}

func TestReferenceKindsAreNamed(t *testing.T) {
	for _, d := range keyDocs() {
		name, ok := strings.CutPrefix(d.key, "env.")
		if !ok {
			continue
		}
		env := reflect.TypeFor[Env]()
		for i := range env.NumField() {
			tag := env.Field(i).Tag
			if tag.Get("toml") != name || tag.Get("kinds") == "" {
				continue
			}
			prefix := strings.ReplaceAll(tag.Get("kinds"), ",", ", ")
			if prefix == "docker, podman, apptainer" {
				prefix = "Containers"
			}
			assert.True(t, strings.HasPrefix(d.meaning, prefix), "%s is for %s: %s", d.key, prefix, d.meaning)
		}
	}
}
