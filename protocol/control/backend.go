package control

import (
	"context"
	"encoding/json"
	"io"

	"workerd/protocol"
)

// Backend is what the operator API needs of the supervisor. Every method is safe for concurrent use. A slug that no
// manifest declares gives an error that wraps protocol.ErrNoProvider; a failure of the provider is a *protocol.Error.
type Backend interface {
	// Status describes the providers with these slugs, all where there are none. Unknown slugs are left out.
	Status(slugs []string) protocol.Status

	// Start, Stop and Restart return when done: the new worker ready, the old one and its process tree gone. Without wait
	// they return as soon as the order is taken.
	Start(ctx context.Context, slug string, wait bool) error
	Stop(ctx context.Context, slug string, wait bool) error
	Restart(ctx context.Context, slug string, wait bool) error

	// Call sends one request as a client of the front socket would, and calls progress (nil: nobody wants it) on every report.
	Call(ctx context.Context, slug, method string, params json.RawMessage, progress func(protocol.Progress)) (json.RawMessage, error)

	// SmokeFile names the provider's smoke input; protocol.ErrNoSmoke where its manifest has none.
	SmokeFile(slug string) (string, error)

	// Logs writes the last lines that the provider's workers printed, and with follow what comes, until ctx ends.
	Logs(ctx context.Context, slug string, lines int, follow bool, w io.Writer) error

	// Events delivers what happens from now on and closes the channel after ctx ended. It never waits for the reader: who
	// is too slow loses events.
	Events(ctx context.Context) <-chan protocol.Event

	// GPUs looks at the GPUs and says who has them and who waits for one; where that takes longer than ctx, as of the last look.
	GPUs(ctx context.Context) protocol.GPUs

	// Reload reads the manifest directories again and returns when what they say is applied (not: when workers are ready).
	Reload(ctx context.Context) error
}
