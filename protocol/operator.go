package protocol

import "errors"

// Sentinels of the operator API that are no kind of a request's failure. Whoever serves it (the supervisor) returns them
// wrapped; protocol/control turns them into problem documents and its client back into these.
var (
	// ErrNoProvider: no manifest declares that slug.
	ErrNoProvider = errors.New("no such provider")
	// ErrInvalidManifest: the provider's manifest is invalid and nothing of it can run.
	ErrInvalidManifest = errors.New("invalid manifest")
	// ErrNoSmoke: the provider's manifest names no smoke test.
	ErrNoSmoke = errors.New("no smoke test")
)
