package protocol

import (
	"bytes"
	"encoding/json"
)

// Edit replaces one span of a line.
type Edit struct {
	At   Span
	With []byte
}

// Splice appends line to dst with edits made; the spans must not overlap. An edit whose span is empty is left out, so that
// the token of a request that has none needs no case of its own. It does not allocate where dst has room.
func Splice(dst, line []byte, edits ...Edit) []byte {
	at := 0
	for range edits { // two or three edits: looking for the next one beats sorting
		next := -1
		for i := range edits {
			if e := &edits[i]; !e.At.Empty() && e.At.Start >= at && (next < 0 || e.At.Start < edits[next].At.Start) {
				next = i
			}
		}
		if next < 0 {
			break
		}
		e := &edits[next]
		dst = append(dst, line[at:e.At.Start]...)
		dst = append(dst, e.With...)
		at = e.At.End
	}
	return append(dst, line[at:]...)
}

// IDKey returns the canonical form of a raw id or token, by which ids are told apart: "a" and "\u0061" are one id, 1 and "1"
// are two. It is no JSON.
func IDKey(raw []byte) string {
	switch {
	case len(raw) >= 2 && raw[0] == '"':
		text := raw[1 : len(raw)-1]
		if bytes.IndexByte(text, '\\') < 0 {
			return string(raw[:len(raw)-1])
		}
		return string(appendUnescaped([]byte{'"'}, text))
	case string(raw) == "-0":
		return "0"
	}
	return string(raw)
}

// Unquote returns the text of a raw JSON string (a span of a scanned line), "" for anything else. Lone surrogates become the
// replacement character.
func Unquote(raw []byte) string {
	var text string
	if json.Unmarshal(raw, &text) != nil {
		return ""
	}
	return text
}
