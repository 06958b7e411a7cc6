package execenv

import (
	"fmt"
	"strings"

	"workerd/manifest"
)

// CheckSupported lists every key of a manifest that asks for what this version cannot do. Such a provider is refused: it would
// otherwise run in another way than its manifest says. The problems have key and message, and no place in the file.
func CheckSupported(m *manifest.Manifest) manifest.Problems {
	var ps manifest.Problems
	add := func(key, format string, args ...any) {
		ps = append(ps, manifest.Problem{File: m.File, Key: key, Message: fmt.Sprintf(format, args...)})
	}
	if s := m.Serve.Protocol; s != "" && s != manifest.DefaultProtocol {
		add("serve.protocol", "this version of workerd does not speak protocol = %q to workers, only \"jsonrpc\"", s)
	}
	return ps
}

func unsupportedError(ps manifest.Problems) *Error {
	msgs := make([]string, len(ps))
	for i, p := range ps {
		msgs[i] = p.Key + ": " + p.Message
	}
	return &Error{Kind: Unsupported, Msg: strings.Join(msgs, "; "), Err: nil}
}
