package manifest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/BurntSushi/toml"
	"github.com/google/jsonschema-go/jsonschema"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func resolvedSchema(t *testing.T) *jsonschema.Resolved {
	t.Helper()
	data, err := Schema()
	require.NoError(t, err)
	var s jsonschema.Schema
	require.NoError(t, json.Unmarshal(data, &s))
	assert.Equal(t, "https://json-schema.org/draft/2020-12/schema", s.Schema)
	resolved, err := s.Resolve(&jsonschema.ResolveOptions{ValidateDefaults: true})
	require.NoError(t, err)
	return resolved
}

// asJSON decodes TOML as a JSON validator sees it.
func asJSON(t *testing.T, text string) any {
	t.Helper()
	var raw map[string]any
	_, err := toml.Decode(text, &raw)
	require.NoError(t, err)
	data, err := json.Marshal(raw)
	require.NoError(t, err)
	var v any
	require.NoError(t, json.Unmarshal(data, &v))
	return v
}

func TestSchemaAcceptsWhatIsValid(t *testing.T) {
	s := resolvedSchema(t)
	files, err := filepath.Glob("testdata/valid/*.toml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.NoError(t, s.Validate(asJSON(t, string(data))), file)
	}
}

func TestSchemaRefusesWhatIsNot(t *testing.T) {
	s := resolvedSchema(t)
	for _, text := range []string{
		"titel = 'x'", "slug = 'No'", "slug = 'workerd'", "args = 'x'", "title = 3", "env.kind = 'vm'", "env.variables.A = 1",
		"env.variables.'a b' = 'x'", "env.secrets.A = {}", "env.secrets.A = { file = 'x', env = 'Y' }", "start.timeout = '10 minutes'",
		"start.timeout = 10", "limits.memory = '64M'", "limits.memory = -1", "serve.replicas = 0", "serve.http.port = 65536",
		"paths.binds = [{ mode = 'rw' }]", "paths.binds = [{ path = '/x', mode = 'rx' }]", "paths.binds = [3]",
		"tools = [{ name = 'x' }]", "tools = [{ name = 'x', method = 'm', input_schema = 3 }]", "serve.allow.user = []", "gpu.pinned = 'yes'",
	} {
		assert.Error(t, s.Validate(asJSON(t, text)), text)
	}
}

func TestSchemaHasEveryKey(t *testing.T) {
	data, err := Schema()
	require.NoError(t, err)
	var schema map[string]any
	require.NoError(t, json.Unmarshal(data, &schema))
	at := func(key string) map[string]any {
		node := schema
		for _, part := range strings.Split(key, ".") {
			name, element := strings.CutSuffix(part, "[]")
			if part == "NAME" {
				node, _ = node["additionalProperties"].(map[string]any)
				continue
			}
			properties, _ := node["properties"].(map[string]any)
			node, _ = properties[name].(map[string]any)
			if !element {
				continue
			}
			node, _ = node["items"].(map[string]any)
			if forms, ok := node["anyOf"].([]any); ok { // a bind: a string or a table
				node, _ = forms[1].(map[string]any)
			}
		}
		return node
	}
	fields, tables := manifestFields()
	for _, f := range fields {
		node := at(f.key)
		require.NotNil(t, node, f.key)
		assert.NotEmpty(t, node["description"], f.key)
		if enum := f.tag.Get("enum"); enum != "" {
			assert.Len(t, node["enum"], strings.Count(enum, ",")+1, f.key)
		}
		if !f.value.IsZero() {
			assert.NotNil(t, node["default"], f.key)
		}
	}
	for _, table := range tables {
		assert.NotNil(t, at(strings.Trim(table, "[]")), table)
	}
}
