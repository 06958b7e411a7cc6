package main

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// propertyTypes returns the JSON types that a schema allows for each property; a property that says nothing has none.
func propertyTypes(schema json.RawMessage) map[string][]string {
	var s struct {
		Properties map[string]json.RawMessage `json:"properties"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return nil
	}
	types := map[string][]string{}
	for name, property := range s.Properties {
		types[name] = schemaTypes(property)
	}
	return types
}

// schemaTypes returns the types that one schema allows: of "type", a name or a list, and of each branch of "anyOf" and "oneOf".
// A branch without a type allows any, so then nothing is known.
func schemaTypes(schema json.RawMessage) []string {
	var s struct {
		Type  json.RawMessage   `json:"type"`
		Enum  []json.RawMessage `json:"enum"`
		AnyOf []json.RawMessage `json:"anyOf"`
		OneOf []json.RawMessage `json:"oneOf"`
	}
	if json.Unmarshal(schema, &s) != nil {
		return nil
	}
	var one string
	var types []string
	switch {
	case json.Unmarshal(s.Type, &one) == nil && one != "":
		return []string{one}
	case json.Unmarshal(s.Type, &types) == nil && len(types) > 0:
		return types
	case len(s.Enum) > 0:
		for _, v := range s.Enum {
			types = append(types, jsonType(v))
		}
		return types
	}
	for _, branch := range append(s.AnyOf, s.OneOf...) {
		of := schemaTypes(branch)
		if of == nil {
			return nil
		}
		types = append(types, of...)
	}
	return types
}

// jsonType names the type of a valid JSON value, "" for what is none.
func jsonType(v json.RawMessage) string {
	var value any
	if json.Unmarshal(v, &value) != nil {
		return ""
	}
	switch n := value.(type) {
	case nil:
		return "null"
	case bool:
		return "boolean"
	case string:
		return "string"
	case float64:
		if n == float64(int64(n)) && n > -1e15 && n < 1e15 || !strings.ContainsAny(string(v), ".eE") {
			return "integer"
		}
		return "number"
	case []any:
		return "array"
	}
	return "object"
}

// typedValue turns the text of a KEY=VALUE pair into JSON. A text that is JSON of an allowed type is that; else, where a string
// is allowed, it is one as it stands: 1E10 stays a name where the schema says string.
func typedValue(text string, types []string) (json.RawMessage, error) {
	asString, err := json.Marshal(text)
	if err != nil {
		return nil, err
	}
	kind := jsonType(json.RawMessage(text))
	if len(types) == 0 {
		if kind == "" {
			return asString, nil
		}
		return json.RawMessage(text), nil
	}
	fits := slices.Contains(types, kind) || kind == "integer" && slices.Contains(types, "number")
	mayBeString := slices.Contains(types, "string")
	switch {
	case fits && kind != "string", fits && !mayBeString:
		return json.RawMessage(text), nil
	case mayBeString:
		return asString, nil
	}
	return nil, fmt.Errorf("%s does not fit the method's schema: want %s", text, strings.Join(types, " or "))
}
