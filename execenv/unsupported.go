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
	if p := m.GPU.Policy; p == "shared" || p == "exclusive" {
		add("gpu.policy", "this version of workerd places no GPUs, so policy = %q cannot be kept; none and auto can, which here is no GPU", p)
	}
	if s := m.Serve.Standby; s != "" && s != manifest.DefaultStandby {
		add("serve.standby", "this version of workerd keeps no standby worker, so standby = %q cannot be kept; only \"none\"", s)
	}
	if s := m.Serve.Protocol; s != "" && s != manifest.DefaultProtocol {
		add("serve.protocol", "this version of workerd does not speak protocol = %q to workers, only \"jsonrpc\"", s)
	}
	if len(m.Serve.Allow.Users) > 0 {
		add("serve.allow.users", "this version of workerd lets only the same uid and root connect, not %s", strings.Join(m.Serve.Allow.Users, ", "))
	}
	if len(m.Serve.Allow.Groups) > 0 {
		add("serve.allow.groups", "this version of workerd lets only the same uid and root connect, not %s", strings.Join(m.Serve.Allow.Groups, ", "))
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
