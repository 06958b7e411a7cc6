package manifest

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Set is what a list of directories holds at one moment. It is immutable.
type Set struct {
	Entries  []Entry  // sorted by slug, then file
	Problems Problems // of the directories themselves

	files   map[string]*fileState
	options string // identity of the options that the files were judged with
}

// Entry is one manifest file. Of the entries with one slug exactly one has ShadowedBy empty: that one is the provider.
type Entry struct {
	Slug       string
	File       string
	Manifest   *Manifest // nil if the file is invalid
	Warnings   []string
	Problems   Problems
	Sum        [32]byte // Manifest.Hash, zero if the file is invalid
	ShadowedBy string   // the file that keeps the slug instead of this one
}

// Lookup returns the entry that holds slug.
func (s *Set) Lookup(slug string) (Entry, bool) {
	for _, e := range s.Entries {
		if e.Slug == slug && e.ShadowedBy == "" {
			return e, true
		}
	}
	return Entry{}, false
}

// sameAs reports whether two sets say the same.
func (s *Set) sameAs(o *Set) bool {
	return slices.Equal(s.Problems, o.Problems) && slices.EqualFunc(s.Entries, o.Entries, func(a, b Entry) bool {
		return a.Slug == b.Slug && a.File == b.File && a.Sum == b.Sum && a.ShadowedBy == b.ShadowedBy &&
			(a.Manifest == nil) == (b.Manifest == nil) &&
			slices.Equal(a.Warnings, b.Warnings) && slices.Equal(a.Problems, b.Problems)
	})
}

// fileState is what is known of one manifest file. It is immutable and handed on from set to set.
type fileState struct {
	entry  Entry // as if it were the only file of its slug
	slugAt Problem
	stamp  stamp
	racy   bool     // read so soon after a change that a further one may have left the stamp as it was
	reads  []dep    // other files whose content counts
	awaits []string // missing paths that are a problem
	guess  bool     // the slug is taken from the file's name, since the file does not tell
}

// dep is a file that a manifest was judged by, as it was then.
type dep struct {
	file  string
	stamp stamp
}

// current reports whether nothing that the state was made from has changed.
func (f *fileState) current(now stamp) bool {
	return f.entry.Manifest != nil && !f.racy && f.stamp == now && len(f.awaits) == 0 &&
		!slices.ContainsFunc(f.reads, func(d dep) bool { return stampFile(d.file) != d.stamp })
}

// loading says how much of an earlier set a load may hand on.
type loading struct {
	fresh bool // nothing: read every file again
	// settled, if not nil, says whether a file may be taken as it is now (the zero stamp: gone). What is not settled
	// stays as it was in the earlier set.
	settled func(file string, now stamp) bool
}

// LoadDirs loads the manifests in dirs: dir/slug.toml and dir/slug/provider.toml. Directories are read in order, and an
// earlier one overrides a later one's slug. Within a directory the file that held the slug in prev keeps it, else the
// first one that claims it. A directory that does not exist is an empty one. prev, which may be nil, also saves reading
// files again that have not changed since.
func LoadDirs(dirs []string, prev *Set, opt Options) *Set {
	return loadDirs(dirs, prev, opt, loading{})
}

func loadDirs(dirs []string, prev *Set, opt Options, how loading) *Set {
	if prev == nil {
		prev = &Set{}
	}
	l := newLoader(opt)
	s := &Set{files: map[string]*fileState{}, options: l.identity()}
	if s.options != prev.options {
		how.fresh = true
	}
	var groups [][]*fileState
	for _, dir := range absoluteDirs(dirs) {
		files, problem := listManifests(dir)
		if problem == "" && len(files) > 0 {
			if err := l.trust.folder(dir); err != nil {
				problem = "not trusted: " + err.Error()
			}
		}
		if problem != "" {
			s.Problems = append(s.Problems, Problem{File: dir, Message: problem})
		}
		for file := range prev.files {
			// What a folder that cannot be read held before is invalid, not removed: workers may be running from it.
			if below(file, dir) && !slices.Contains(files, file) &&
				(problem != "" || how.settled != nil && !how.settled(file, stamp{})) {
				files = append(files, file)
			}
		}
		slices.Sort(files)
		var group []*fileState
		for _, file := range files {
			var f *fileState
			if problem != "" {
				f = failed(file, prev.files[file], Problems{{File: file, Message: "not read: " + dir + ": " + problem}})
				f.stamp = stampFile(file)
			} else {
				f = l.file(file, prev.files[file], how)
			}
			if f != nil {
				s.files[file] = f
				group = append(group, f)
			}
		}
		groups = append(groups, group)
	}
	s.assign(groups, prev)
	return s
}

// identity tells options apart that would judge the same file differently.
func (l *loader) identity() string {
	o := &l.opt
	pull := Duration(DefaultPullTimeout)
	if o.PullTimeout != nil {
		pull = *o.PullTimeout
	}
	return fmt.Sprintf("%q %q %q %d %q %d %q %q", o.Defaults, o.DefaultsTable, o.DefaultsFile, pull, o.Home, o.UID, o.TrustedGroups, o.RuntimeDir)
}

// racyAge is the age below which a file's times may not tell its next change: they advance with the kernel's tick.
const racyAge = 50 * time.Millisecond

// file returns the state of one file, nil if it is gone; old, which may be nil, is its state in the earlier set.
func (l *loader) file(file string, old *fileState, how loading) *fileState {
	now := stampFile(file)
	if how.settled != nil && !how.settled(file, now) {
		return old
	}
	if !how.fresh && old != nil && old.current(now) {
		return old
	}
	racy := time.Since(time.Unix(0, now.mtime)) < racyAge
	read, problems := l.read(file)
	if problems != nil {
		if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		f := failed(file, old, problems)
		f.stamp = now
		return f
	}
	if how.settled != nil && (read.stamp != now || !read.whole) {
		return old
	}
	doc, problems := parseDocument(read.data, file)
	if problems == nil {
		problems = l.broken
	}
	if problems != nil {
		f := failed(file, old, problems)
		f.stamp = now
		return f
	}
	f := l.judge(doc, file, old)
	f.stamp, f.racy = now, racy
	return f
}

func (l *loader) judge(doc *document, file string, old *fileState) *fileState {
	c := evaluate(l.layers(doc), file, &l.opt, l.trust)
	if len(c.problems) > 0 {
		f := failed(file, old, c.problems)
		f.entry.Warnings = texts(c.warnings)
		f.reads, f.awaits = c.reads, c.awaits
		if c.ok("slug") {
			f.entry.Slug, f.guess = c.m.Slug, false
		}
		f.slugAt = doc.problem("slug", "")
		return f
	}
	return &fileState{
		entry:  Entry{Slug: c.m.Slug, File: file, Manifest: c.m, Warnings: texts(c.warnings), Sum: c.m.Hash()},
		slugAt: doc.problem("slug", ""),
		reads:  c.reads,
		awaits: c.awaits,
	}
}

// failed returns the state of a file that is invalid. Its slug is what it was, or what the file's name says.
func failed(file string, old *fileState, problems Problems) *fileState {
	f := &fileState{
		entry:  Entry{Slug: nameSlug(file), File: file, Problems: problems},
		slugAt: Problem{File: file, Line: 1, Column: 1, Key: "slug"},
		guess:  true,
	}
	if old != nil {
		f.entry.Slug, f.guess = old.entry.Slug, old.guess
	}
	return f
}

// assign decides which file keeps each slug. groups are the files of each directory, in order.
func (s *Set) assign(groups [][]*fileState, prev *Set) {
	held := map[string]string{} // slug -> file that held it
	for _, e := range prev.Entries {
		if e.ShadowedBy == "" {
			held[e.Slug] = e.File
		}
	}
	owner := map[string]string{}
	for _, group := range groups {
		keepers := keepers(group, held)
		for slug, keeper := range keepers {
			if owner[slug] == "" {
				owner[slug] = keeper
			}
		}
		for _, f := range group {
			e := f.entry
			if keeper := keepers[e.Slug]; keeper != e.File {
				problem := f.slugAt
				problem.Message = fmt.Sprintf("%q is the slug of %s already, which keeps it: give this one another slug", e.Slug, keeper)
				e.Problems = append(slices.Clone(e.Problems), problem)
				e.Manifest, e.Sum = nil, [32]byte{}
			}
			if owner[e.Slug] != e.File {
				e.ShadowedBy = owner[e.Slug]
			}
			s.Entries = append(s.Entries, e)
		}
	}
	slices.SortFunc(s.Entries, func(a, b Entry) int {
		return cmp.Or(cmp.Compare(a.Slug, b.Slug), cmp.Compare(a.File, b.File))
	})
}

// keepers returns the file of one directory that keeps each slug: the one that held it, else the first one that says it
// has it, else the first one whose name says so.
func keepers(group []*fileState, held map[string]string) map[string]string {
	rank := func(f *fileState) int {
		switch {
		case held[f.entry.Slug] == f.entry.File:
			return 2
		case !f.guess:
			return 1
		}
		return 0
	}
	best := map[string]*fileState{}
	for _, f := range group {
		if b := best[f.entry.Slug]; b == nil || rank(f) > rank(b) {
			best[f.entry.Slug] = f
		}
	}
	files := map[string]string{}
	for slug, f := range best {
		files[slug] = f.entry.File
	}
	return files
}

// absoluteDirs returns dirs as absolute paths, each once.
func absoluteDirs(dirs []string) []string {
	var out []string
	for _, dir := range dirs {
		if abs, err := filepath.Abs(dir); err == nil {
			dir = abs
		}
		if !slices.ContainsFunc(out, func(o string) bool { return sameFolder(o, dir) }) {
			out = append(out, dir)
		}
	}
	return out
}

// below reports whether file is one that the manifest directory dir would list.
func below(file, dir string) bool {
	parent, name := filepath.Dir(file), filepath.Base(file)
	if parent == dir {
		return strings.HasSuffix(name, ".toml") && !ignored(name)
	}
	return name == folderManifest && filepath.Dir(parent) == dir && !ignored(filepath.Base(parent))
}

// ignored reports whether a name in a manifest directory is an editor's or a program's passing file.
func ignored(name string) bool {
	return strings.HasPrefix(name, ".") || strings.HasPrefix(name, "#") ||
		strings.HasSuffix(name, "~") || strings.HasSuffix(name, ".swp") || strings.HasSuffix(name, ".tmp")
}

// listManifests returns the manifest files of dir, or why it has none to offer though it exists.
func listManifests(dir string) (files []string, problem string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && danglingTarget(dir) == "" {
			return nil, ""
		}
		if info, err := os.Stat(dir); err == nil && !info.IsDir() {
			return nil, "is no folder"
		}
		return nil, whyUnusable(dir, err)
	}
	for _, entry := range entries {
		name := entry.Name()
		if ignored(name) {
			continue
		}
		file := filepath.Join(dir, name)
		if isFolder(file, entry) {
			file = filepath.Join(file, folderManifest)
			if _, err := os.Lstat(file); err == nil || errors.Is(err, fs.ErrPermission) {
				files = append(files, file)
			}
		} else if strings.HasSuffix(name, ".toml") {
			files = append(files, file)
		}
	}
	return files, ""
}

func isFolder(path string, entry fs.DirEntry) bool {
	if entry.Type()&fs.ModeSymlink == 0 {
		return entry.IsDir()
	}
	info, err := os.Stat(path)
	return err == nil && info.IsDir()
}
