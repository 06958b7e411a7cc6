package manifest

import (
	"fmt"
	"maps"
	"reflect"
	"regexp"
	"slices"
	"strings"
)

// How a string value expands is its field's form tag:
//
//	path     ${NAME} and a leading ~; relative to the manifest's directory; no byte besides is changed
//	program  an array whose first element is a program: a path if it holds a slash, else a name for PATH
//	script   an array whose first element is a path
//	text     ${NAME} only
//	(none)   ${NAME} and a leading ~, as in a shell's argument
//
// Words of an enum, the names of tables and an inline input_schema are taken as they stand.

// expandAll expands the strings of the manifest in place. Keys that the chosen kind does not use stay as written, so that
// a variable which only another kind needs may be unset.
func (c *checker) expandAll() {
	c.expandTable(reflect.ValueOf(c.m).Elem(), "")
	for key, file := range c.schemas {
		c.schemas[key] = c.expandString(file, "path", key)
	}
}

func (c *checker) expandTable(v reflect.Value, key string) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		name := field.Tag.Get("toml")
		if name == "-" || !c.usesKinds(field.Tag.Get("kinds")) {
			continue
		}
		c.expandValue(v.Field(i), joinKey(key, name), field.Tag)
	}
}

func (c *checker) expandValue(v reflect.Value, key string, tag reflect.StructTag) {
	form := tag.Get("form")
	switch v.Kind() {
	case reflect.String:
		if tag.Get("enum") == "" {
			v.SetString(c.expandString(v.String(), form, key))
		}
	case reflect.Struct:
		c.expandTable(v, key)
	case reflect.Slice:
		for i := range v.Len() {
			item := indexKey(key, i)
			if (form == "program" || form == "script") && v.Index(i).Kind() == reflect.String {
				v.Index(i).SetString(c.expandString(v.Index(i).String(), elementForm(form, i), item))
				continue
			}
			c.expandValue(v.Index(i), item, tag)
		}
	case reflect.Map:
		if v.Type().Elem().Kind() == reflect.Interface {
			return
		}
		for _, name := range v.MapKeys() {
			element := reflect.New(v.Type().Elem()).Elem()
			element.Set(v.MapIndex(name))
			c.expandValue(element, joinKey(key, name.String()), tag)
			v.SetMapIndex(name, element)
		}
	}
}

// elementForm returns the form of element i of a program or script array.
func elementForm(form string, i int) string {
	switch {
	case i > 0:
		return ""
	case form == "script":
		return "path"
	}
	return form
}

func (c *checker) expandString(s, form, key string) string {
	if s == "" {
		return ""
	}
	home, rest := "", s
	if form != "text" && (s == "~" || strings.HasPrefix(s, "~/")) {
		home, rest = c.opt.Home, s[1:]
		if home == "" {
			c.report(key, "~ has no meaning here: the home directory is not known; write an absolute path")
			return s
		}
	}
	expanded, err := expandVariables(rest, c.opt.LookupEnv)
	if err != nil {
		c.report(key, "%v", err)
		return s
	}
	expanded = home + expanded
	if strings.IndexByte(expanded, 0) >= 0 {
		c.report(key, "holds a NUL byte, which no path, argument or variable can")
		return s
	}
	switch {
	case form == "path", form == "program" && strings.Contains(expanded, "/"):
		if expanded == "" {
			c.report(key, "%q expands to nothing", s)
			return s
		}
		if strings.Contains(expanded, "\n") {
			c.report(key, "holds a newline, which is refused in paths")
			return s
		}
		return absolute(expanded, c.m.Dir)
	}
	return expanded
}

// absolute puts dir before a relative path and changes nothing else: even cleaning away a .. may change which file a path
// with symlinks names.
func absolute(path, dir string) string {
	if strings.HasPrefix(path, "/") {
		return path
	}
	for strings.HasPrefix(path, "./") {
		path = strings.TrimLeft(path[1:], "/")
	}
	if path == "" || path == "." {
		return dir
	}
	return strings.TrimSuffix(dir, "/") + "/" + path
}

var variableName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// expandVariables replaces each ${NAME}; $${ stands for a literal ${.
func expandVariables(s string, lookup func(string) (string, bool)) (string, error) {
	var b strings.Builder
	var unset []string
	for {
		i := strings.Index(s, "${")
		if i < 0 {
			b.WriteString(s)
			break
		}
		if i > 0 && s[i-1] == '$' {
			b.WriteString(s[:i-1] + "${")
			s = s[i+2:]
			continue
		}
		b.WriteString(s[:i])
		name, rest, closed := strings.Cut(s[i+2:], "}")
		if !closed {
			return "", fmt.Errorf("%q has no closing brace: write ${NAME}, or $${ for a literal ${", s[i:])
		}
		if !variableName.MatchString(name) {
			return "", fmt.Errorf("${%s} is no variable: only ${NAME} expands; write $${ for a literal ${", name)
		}
		value, ok := lookup(name)
		if !ok && !slices.Contains(unset, name) {
			unset = append(unset, name)
		}
		b.WriteString(value)
		s = rest
	}
	if len(unset) > 0 {
		verb, them := "is", "it"
		if len(unset) > 1 {
			verb, them = "are", "them"
		}
		return "", fmt.Errorf("${%s} %s not set in workerd's environment: set %s, or write the value",
			strings.Join(unset, "} and ${"), verb, them)
	}
	return b.String(), nil
}

// usesKinds reports whether the chosen kind uses a field with this kinds tag.
func (c *checker) usesKinds(kinds string) bool {
	return kinds == "" || c.kindKnown && slices.Contains(strings.Split(kinds, ","), c.m.Env.Kind)
}

// sortedKeys returns the keys of m in order.
func sortedKeys[V any](m map[string]V) []string { return slices.Sorted(maps.Keys(m)) }
