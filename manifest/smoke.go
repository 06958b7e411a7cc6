package manifest

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Smoke is a smoke file: a request and what its result must hold.
type Smoke struct {
	Method string          `json:"method"`
	Params json.RawMessage `json:"params,omitempty"` // an object
	Expect map[string]any  `json:"expect,omitempty"`
}

// ReadSmoke reads the smoke file that a manifest names.
func ReadSmoke(file string) (*Smoke, error) {
	c, err := readRegular(file, maxJSON)
	if err != nil {
		return nil, errors.New(whyUnusable(file, err))
	}
	s := &Smoke{}
	if err := decodeJSON(c.data, file, s); err != nil {
		return nil, err
	}
	if s.Method == "" {
		return nil, fmt.Errorf("%s: method is missing: write %s", file, smokeForm)
	}
	if params := bytes.TrimSpace(s.Params); len(params) > 0 && params[0] != '{' {
		return nil, fmt.Errorf("%s: params must be an object: write %s", file, smokeForm)
	}
	return s, nil
}

const smokeForm = `{"method": "...", "params": {...}, "expect": {...}}`

// decodeJSON decodes one JSON value strictly; its errors begin with file:line:column.
func decodeJSON(data []byte, file string, into any) error {
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	err := dec.Decode(into)
	if err == nil {
		if _, more := dec.Token(); !errors.Is(more, io.EOF) {
			err = errors.New("something follows the JSON value")
		}
	}
	if err == nil {
		return nil
	}
	offset := dec.InputOffset()
	var syntax *json.SyntaxError
	var wrongType *json.UnmarshalTypeError
	switch {
	case errors.As(err, &syntax):
		offset = syntax.Offset
	case errors.As(err, &wrongType):
		offset = wrongType.Offset
		err = fmt.Errorf("%s cannot be a JSON %s", cmp.Or(wrongType.Field, "the value"), wrongType.Value)
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		err = errors.New("the JSON ends too early")
		offset = int64(len(data))
	}
	at := positionAt(lineStarts(data), max(0, min(int(offset)-1, len(data))))
	return fmt.Errorf("%s:%d:%d: %s", file, at.line, at.column, strings.TrimPrefix(err.Error(), "json: "))
}
