package supervisor

import (
	"slices"
	"strconv"

	"workerd/protocol"
)

// send writes r's line with the lane's number for its id and progress token, and the time that is left for its timeoutMs.
// l.mu must be held.
func (l *lane) send(r *request) error {
	var digits [40]byte
	num := strconv.AppendUint(digits[:0], l.num, 10)
	edits := [...]protocol.Edit{{At: r.msg.ID, With: num}, {At: r.msg.ProgressToken, With: num}, {At: r.msg.Timeout}}
	if !r.msg.Timeout.Empty() {
		edits[2].With = r.appendLeft(num[len(num):])
	}
	if len(r.line) <= smallLine && len(r.files) == 0 {
		l.out = append(protocol.Splice(l.out[:0], r.line, edits[:]...), '\n')
		return l.conn.Write(nil, l.out)
	}
	// A large line is not copied: its pieces go out as they lie.
	slices.SortFunc(edits[:], func(a, b protocol.Edit) int { return a.At.Start - b.At.Start })
	parts, at := make([][]byte, 0, 8), 0
	for _, e := range edits {
		if !e.At.Empty() {
			parts = append(parts, r.line[at:e.At.Start], e.With)
			at = e.At.End
		}
	}
	return l.conn.Write(dupFiles(r.files), append(parts, r.line[at:], newline)...)
}

var newline = []byte{'\n'}

func (l *lane) sendCancel() {
	l.asked = false
	line := append(l.out[:0], `{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":`...)
	line = strconv.AppendUint(line, l.num, 10)
	line = append(line, "}}\n"...)
	l.out = line
	_ = l.conn.Write(nil, line) // a lost connection is the reader's to see
}
