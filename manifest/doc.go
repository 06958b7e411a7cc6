// Package manifest reads provider manifests: the TOML files that say which model services exist and how they run.
//
// A manifest becomes a [Manifest] in four steps. The syntax is parsed (BurntSushi/toml) into generic values; a strict
// walker copies those into the structs over the defaults; strings are expanded and paths made absolute; then everything is
// checked against the file system. Each step goes on after a problem, so that an author sees all of them at once, each a
// [Problem] with file, line, column and the full path of the key. Positions come from a second parser, since the first one
// knows them only for broken syntax; where the two disagree, a problem points at the enclosing table.
//
// Decoding does no I/O. [Parse] checks a text, [Load] a file together with who may write to it, [LoadDirs] whole
// directories: the result is a [Set], in which a broken file is an entry of its own and hides no other. [Watcher] follows
// directories: events of the file system are its hints, the content of the files is what counts.
//
// A Manifest and a Set are immutable once returned and may be shared between goroutines.
package manifest
