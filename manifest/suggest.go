package manifest

import (
	"fmt"
	"reflect"
	"slices"
	"strings"
)

// nearest returns the candidate that s most likely meant, "" if none is near.
func nearest(s string, candidates []string) string {
	best, bestDistance := "", max(2, len(s)/3)+1
	for _, c := range candidates {
		if d := editDistance(strings.ToLower(s), c); d < bestDistance && d < len(s) && d < len(c) {
			best, bestDistance = c, d
		}
	}
	return best
}

// editDistance counts the insertions, deletions, replacements and swaps of neighbours between a and b.
func editDistance(a, b string) int {
	before, last := make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range last {
		last[j] = j
	}
	for i := 1; i <= len(a); i++ {
		row := make([]int, len(b)+1)
		row[0] = i
		for j := 1; j <= len(b); j++ {
			cost := 1
			if a[i-1] == b[j-1] {
				cost = 0
			}
			row[j] = min(last[j]+1, row[j-1]+1, last[j-1]+cost)
			if i > 1 && j > 1 && a[i-1] == b[j-2] && a[i-2] == b[j-1] {
				row[j] = min(row[j], before[j-2]+1)
			}
		}
		before, last = last, row
	}
	return last[len(b)]
}

// unknownKey says what was probably meant by the key name in a table of type t of a file of type root. meant is the key of
// that table, if it is one of them.
func unknownKey(name string, t, root reflect.Type) (text, meant string) {
	known := fieldNames(t)
	if near := nearest(name, known); near != "" {
		return fmt.Sprintf("unknown key; did you mean %q?", near), near
	}
	for _, path := range leafPaths(root, "") {
		if leafKey(path) != name {
			continue
		}
		if table := parentKey(path); table != "" {
			return fmt.Sprintf("unknown key here; %s belongs into [%s]", name, table), ""
		}
		return fmt.Sprintf("unknown key here; %s is a top-level key: write it above the first [table]", name), ""
	}
	return "unknown key; the keys here are " + strings.Join(known, ", "), ""
}

// fieldNames lists the keys of a table.
func fieldNames(t reflect.Type) []string {
	var names []string
	for i := range t.NumField() {
		if name := t.Field(i).Tag.Get("toml"); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// leafPaths lists the paths of all keys of t that lie in plain tables.
func leafPaths(t reflect.Type, prefix string) []string {
	var paths []string
	for i := range t.NumField() {
		name := t.Field(i).Tag.Get("toml")
		if name == "" || name == "-" {
			continue
		}
		path := joinKey(prefix, name)
		paths = append(paths, path)
		if f := t.Field(i).Type; f.Kind() == reflect.Struct {
			paths = append(paths, leafPaths(f, path)...)
		}
	}
	return paths
}
