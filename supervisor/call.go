package supervisor

import (
	"context"
	"encoding/json"

	"workerd/protocol"
)

// Call sends one request over the provider's front socket, as a tool server would.
func (s *Supervisor) Call(ctx context.Context, slug, method string, params json.RawMessage, progress func(protocol.Progress)) (json.RawMessage, error) {
	p, err := s.find(slug)
	if err != nil {
		return nil, err
	}
	c, err := protocol.Dial(ctx, p.front.path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = c.Close() }()
	var opts []protocol.CallOption
	if progress != nil {
		opts = append(opts, protocol.WithProgress(progress))
	}
	return c.Call(ctx, method, params, opts...)
}
