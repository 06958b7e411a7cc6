package supervisor

import (
	"encoding/json"
	"log/slog"

	"github.com/google/jsonschema-go/jsonschema"

	"workerd/manifest"
	"workerd/protocol"
)

// schemas are the input schemas that a manifest's [[tools]] declare, by method.
type schemas map[string]*jsonschema.Resolved

// compileSchemas resolves the schemas of a manifest; nil where there are none. One that cannot be resolved is left out with
// a warning: it must not take the provider down.
func compileSchemas(m *manifest.Manifest, log *slog.Logger) *schemas {
	out := schemas{}
	for _, t := range m.Tools {
		if t.InputSchema == nil {
			continue
		}
		resolved, err := resolveSchema(t.InputSchema)
		if err != nil {
			log.Warn("input_schema is not used", "tool", t.Name, keyError, err)
			continue
		}
		out[t.Method] = resolved
	}
	if len(out) == 0 {
		return nil
	}
	return &out
}

func resolveSchema(raw map[string]any) (*jsonschema.Resolved, error) {
	text, err := json.Marshal(raw)
	if err != nil {
		return nil, err
	}
	var s jsonschema.Schema
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, err
	}
	return s.Resolve(nil)
}

// check says what is wrong with the params of a method; nil where nothing is, or where the method has no schema.
func (s schemas) check(method string, params []byte) *protocol.Error {
	resolved := s[method]
	if resolved == nil {
		return nil
	}
	var v map[string]any
	if len(params) > 0 {
		if err := json.Unmarshal(params, &v); err != nil {
			return protocol.Errorf(protocol.InvalidParams, "params: %s", err)
		}
	}
	if v == nil {
		v = map[string]any{}
	}
	delete(v, "_meta") // the transport's, not the method's
	if err := resolved.Validate(v); err != nil {
		return protocol.Errorf(protocol.InvalidParams, "params do not fit the input_schema of the manifest: %s", err)
	}
	return nil
}

// setSchemas brings the schemas of an edited manifest into force.
func (p *pool) setSchemas(s *schemas) { p.schemas.Store(s) }
