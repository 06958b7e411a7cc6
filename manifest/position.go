package manifest

import (
	"bytes"
	"strconv"
	"strings"

	"github.com/pelletier/go-toml/v2/unstable"
)

// position is a place in a file, both from 1; the column counts bytes.
type position struct{ line, column int }

// positions maps the full path of a key to where the file has it.
type positions map[string]position

// locate finds the keys of a TOML document. It reports what it understood: a document that this parser takes for broken
// and the decoder does not yields the positions up to there.
func locate(data []byte) (at positions) {
	at = positions{}
	// A parser of someone else's text that indexes raw ranges: a slip there must cost positions, not the process.
	defer func() { _ = recover() }()
	l := locator{at: at, lines: lineStarts(data), tables: map[string]int{}}
	l.parser.Reset(data)
	prefix := ""
	for l.parser.NextExpression() {
		switch n := l.parser.Expression(); n.Kind {
		case unstable.Table, unstable.ArrayTable:
			prefix = l.header(n)
		case unstable.KeyValue:
			l.keyValue(n, prefix)
		}
	}
	return at
}

type locator struct {
	parser unstable.Parser
	at     positions
	lines  []int          // offset at which each line starts
	tables map[string]int // array of tables -> how many of its tables were seen
}

// header notes a [table] or [[array]] header and returns the path of the keys that follow it.
func (l *locator) header(n *unstable.Node) string {
	path := ""
	for it := n.Key(); it.Next(); {
		part := it.Node()
		path = joinKey(path, string(part.Data))
		l.note(path, part)
		count := l.tables[path]
		if n.Kind == unstable.ArrayTable && it.IsLast() {
			l.tables[path]++
			path = indexKey(path, count)
			l.note(path, part)
		} else if count > 0 {
			path = indexKey(path, count-1)
		}
	}
	return path
}

func (l *locator) keyValue(n *unstable.Node, prefix string) {
	path := prefix
	for it := n.Key(); it.Next(); {
		path = joinKey(path, string(it.Node().Data))
		l.note(path, it.Node())
	}
	l.value(n.Value(), path)
}

// value notes what lies inside an array or an inline table.
func (l *locator) value(n *unstable.Node, path string) {
	switch n.Kind {
	case unstable.InlineTable:
		for it := n.Children(); it.Next(); {
			if it.Node().Kind == unstable.KeyValue {
				l.keyValue(it.Node(), path)
			}
		}
	case unstable.Array:
		i := 0
		for it := n.Children(); it.Next(); {
			element := it.Node()
			if element.Kind == unstable.Comment {
				continue
			}
			item := indexKey(path, i)
			i++
			if first := firstRaw(element); first != nil {
				l.note(item, first)
			}
			l.value(element, item)
		}
	}
}

// firstRaw returns the first node at or below n that has a place of its own: arrays and inline tables have none.
func firstRaw(n *unstable.Node) *unstable.Node {
	if n.Raw.Length > 0 {
		return n
	}
	for it := n.Children(); it.Next(); {
		if found := firstRaw(it.Node()); found != nil {
			return found
		}
	}
	return nil
}

func (l *locator) note(path string, n *unstable.Node) {
	if _, seen := l.at[path]; !seen {
		l.at[path] = l.position(int(n.Raw.Offset))
	}
}

func (l *locator) position(offset int) position {
	return positionAt(l.lines, offset)
}

func lineStarts(data []byte) []int {
	starts := []int{0}
	for i := 0; ; {
		next := bytes.IndexByte(data[i:], '\n')
		if next < 0 {
			return starts
		}
		i += next + 1
		starts = append(starts, i)
	}
}

func positionAt(lines []int, offset int) position {
	low, high := 0, len(lines)
	for high-low > 1 {
		if mid := (low + high) / 2; lines[mid] <= offset {
			low = mid
		} else {
			high = mid
		}
	}
	return position{low + 1, offset - lines[low] + 1}
}

// find returns the position of key, or of what encloses it, or of the start of the file.
func (at positions) find(key string) position {
	for ; key != ""; key = parentKey(key) {
		if p, ok := at[key]; ok {
			return p
		}
	}
	return position{1, 1}
}

// joinKey appends a part to the path of a table, quoted where TOML would need it.
func joinKey(table, part string) string {
	if !bareKey(part) {
		part = strconv.Quote(part)
	}
	if table == "" {
		return part
	}
	return table + "." + part
}

func indexKey(array string, i int) string { return array + "[" + strconv.Itoa(i) + "]" }

func bareKey(s string) bool {
	for _, c := range []byte(s) {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-') {
			return false
		}
	}
	return s != ""
}

// parentKey returns the path of the table or array that holds key, "" for a top-level key.
func parentKey(key string) string {
	cut, quoted := 0, false
	for i := 0; i < len(key); i++ {
		switch c := key[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case !quoted && (c == '.' || c == '['):
			cut = i
		}
	}
	return key[:cut]
}

// leafKey returns the last part of a path.
func leafKey(key string) string {
	return strings.TrimPrefix(strings.TrimPrefix(key, parentKey(key)), ".")
}
