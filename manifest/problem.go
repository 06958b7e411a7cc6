package manifest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one thing that is wrong in a file, with its place. Message says what is wrong and what would be right.
type Problem struct {
	File    string `json:"file"`
	Line    int    `json:"line"`   // from 1; 0 where the problem is the file itself
	Column  int    `json:"column"` // from 1, in bytes
	Key     string `json:"key"`    // full path, such as paths.binds[1].mode; "" where there is none
	Message string `json:"message"`
}

// Error formats p as path:line:column: key: message.
func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d:%d", p.Line, p.Column)
	}
	if p.Key != "" {
		b.WriteString(": " + p.Key)
	}
	b.WriteString(": " + p.Message)
	return b.String()
}

// Problems are all that is wrong with a file, in the order of the file.
type Problems []Problem

// Error joins the problems with newlines.
func (ps Problems) Error() string {
	lines := make([]string, len(ps))
	for i, p := range ps {
		lines[i] = p.Error()
	}
	return strings.Join(lines, "\n")
}

// err returns ps as an error that is nil where there is no problem.
func (ps Problems) err() error {
	if len(ps) == 0 {
		return nil
	}
	return ps
}

// sorted returns ps in the order of file, place and key, each once.
func (ps Problems) sorted() Problems {
	slices.SortStableFunc(ps, func(a, b Problem) int {
		return cmp.Or(
			cmp.Compare(a.File, b.File),
			cmp.Compare(a.Line, b.Line),
			cmp.Compare(a.Column, b.Column),
			cmp.Compare(a.Key, b.Key),
		)
	})
	return slices.Compact(ps)
}
