package manifest

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// brief describes a set: slug, file below top, and what became of it.
func brief(top string, s *Set) []string {
	var out []string
	for _, e := range s.Entries {
		rel := func(file string) string {
			short, err := filepath.Rel(top, file)
			if err != nil {
				return file
			}
			return short
		}
		line := e.Slug + " " + rel(e.File)
		if e.Manifest == nil {
			line += " invalid"
		}
		if e.ShadowedBy != "" {
			line += " behind " + rel(e.ShadowedBy)
		}
		out = append(out, line)
	}
	return out
}

func TestLoadDirs(t *testing.T) {
	top := t.TempDir()
	a, b, missing := filepath.Join(top, "a"), filepath.Join(top, "b"), filepath.Join(top, "missing")
	write(t, filepath.Join(a, "flat.toml"), command(""))
	write(t, filepath.Join(a, "folder/provider.toml"), command(""))
	write(t, filepath.Join(a, "named.toml"), command("slug = 'other'\n"))
	write(t, filepath.Join(a, "broken.toml"), "slug = 'known'\n= 1\n")
	write(t, filepath.Join(a, "wrong.toml"), command("slug = 'right'\nserve.queue = 'x'\n"))
	write(t, filepath.Join(a, "empty/readme.txt"), "")
	write(t, filepath.Join(a, "provider.toml"), command(""))
	require.NoError(t, os.Symlink("nowhere", filepath.Join(a, "dangling.toml")))
	for _, name := range []string{".hidden.toml", "#x.toml#", "x.toml~", "x.toml.swp", "x.toml.tmp", "x.tmp", "4913", "notes.txt", ".d/provider.toml", "old~/provider.toml"} {
		write(t, filepath.Join(a, name), command(""))
	}
	write(t, filepath.Join(b, "flat.toml"), command(""))
	write(t, filepath.Join(b, "broken.toml"), command(""))
	write(t, filepath.Join(b, "only.toml"), command(""))

	s := LoadDirs([]string{a, missing, b, a + "/", a}, nil, testOptions())
	assert.Empty(t, s.Problems)
	assert.Equal(t, []string{
		"a a/provider.toml",
		"broken a/broken.toml invalid",
		"broken b/broken.toml behind a/broken.toml",
		"dangling a/dangling.toml invalid",
		"flat a/flat.toml",
		"flat b/flat.toml behind a/flat.toml",
		"folder a/folder/provider.toml",
		"only b/only.toml",
		"other a/named.toml",
		"right a/wrong.toml invalid",
	}, brief(top, s))
	for _, e := range s.Entries {
		if e.Manifest != nil {
			assert.Equal(t, e.Manifest.Hash(), e.Sum)
			assert.Empty(t, e.Problems)
		} else {
			assert.Zero(t, e.Sum)
			assert.NotEmpty(t, e.Problems)
		}
	}
	e, ok := s.Lookup("flat")
	require.True(t, ok)
	assert.Equal(t, filepath.Join(a, "flat.toml"), e.File)
	_, ok = s.Lookup("none")
	assert.False(t, ok)
}

func TestLoadDirsOneSlugTwice(t *testing.T) {
	top := t.TempDir()
	first := write(t, filepath.Join(top, "a.toml"), command("slug = 'x'\n"))
	second := write(t, filepath.Join(top, "b.toml"), command("\nslug = 'x'\n"))
	opt := testOptions()
	s := LoadDirs([]string{top}, nil, opt)
	assert.Equal(t, []string{"x a.toml", "x b.toml invalid behind a.toml"}, brief(top, s))
	require.Len(t, s.Entries[1].Problems, 1)
	assert.Equal(t, second+`:3:1: slug: "x" is the slug of `+first+` already, which keeps it: give this one another slug`, s.Entries[1].Problems[0].Error())

	// The one that goes leaves the slug to the other, and then that one keeps it.
	require.NoError(t, os.Rename(first, first+"~"))
	s = LoadDirs([]string{top}, s, opt)
	assert.Equal(t, []string{"x b.toml"}, brief(top, s))
	require.NoError(t, os.Rename(first+"~", first))
	s = LoadDirs([]string{top}, s, opt)
	assert.Equal(t, []string{"x a.toml invalid behind b.toml", "x b.toml"}, brief(top, s))
	// A broken edit does not lose it.
	write(t, second, "= 1\n")
	s = LoadDirs([]string{top}, s, opt)
	assert.Equal(t, []string{"x a.toml invalid behind b.toml", "x b.toml invalid"}, brief(top, s))
	// Another slug does.
	write(t, second, command("slug = 'y'\n"))
	s = LoadDirs([]string{top}, s, opt)
	assert.Equal(t, []string{"x a.toml", "y b.toml"}, brief(top, s))
}

func TestLoadDirsGuessYieldsToClaim(t *testing.T) {
	top := t.TempDir()
	write(t, filepath.Join(top, "a.toml"), "= 1\n")
	write(t, filepath.Join(top, "b.toml"), command("slug = 'a'\n"))
	s := LoadDirs([]string{top}, nil, testOptions())
	assert.Equal(t, []string{"a a.toml invalid behind b.toml", "a b.toml"}, brief(top, s))
}

func TestLoadDirsBrokenFileKeepsItsSlug(t *testing.T) {
	top := t.TempDir()
	file := write(t, filepath.Join(top, "a.toml"), command("slug = 'mine'\n"))
	s := LoadDirs([]string{top}, nil, testOptions())
	for _, text := range []string{"= 1\n", command("slug = 'NOT'\n"), "slug = 3\n" + command("")} {
		write(t, file, text)
		s = LoadDirs([]string{top}, s, testOptions())
		assert.Equal(t, []string{"mine a.toml invalid"}, brief(top, s), text)
	}
}

func TestLoadDirsOfAnUnusableDirectory(t *testing.T) {
	top := t.TempDir()
	open, good := filepath.Join(top, "open"), filepath.Join(top, "good")
	write(t, filepath.Join(open, "a.toml"), command("slug = 'x'\n"))
	write(t, filepath.Join(good, "b.toml"), command(""))
	dirs := []string{open, good, write(t, filepath.Join(top, "file"), "")}
	s := LoadDirs(dirs, nil, testOptions())
	require.Len(t, s.Problems, 1)
	assert.Equal(t, filepath.Join(top, "file")+": is no folder", s.Problems[0].Error())

	require.NoError(t, os.Chmod(open, 0o777))
	s = LoadDirs(dirs, s, testOptions())
	require.Len(t, s.Problems, 2)
	assert.Contains(t, s.Problems[0].Error(), open+": not trusted: "+open+" is world-writable")
	assert.Equal(t, []string{"b good/b.toml", "x open/a.toml invalid"}, brief(top, s), "still known by its slug")
	assert.Contains(t, s.Entries[1].Problems[0].Message, "is world-writable")

	require.NoError(t, os.Chmod(open, 0o755))
	s = LoadDirs(dirs, s, testOptions())
	assert.Equal(t, []string{"b good/b.toml", "x open/a.toml"}, brief(top, s))
}

func TestLoadDirsReusesWhatHasNotChanged(t *testing.T) {
	top := t.TempDir()
	past := time.Now().Add(-time.Hour)
	old := func(path string) {
		t.Helper()
		require.NoError(t, os.Chtimes(path, past, past))
	}
	a := write(t, filepath.Join(top, "a.toml"), command(""))
	schema := write(t, filepath.Join(top, "s.json"), `{"type": "object"}`)
	b := write(t, filepath.Join(top, "b.toml"), command("[[tools]]\nname = 't'\nmethod = 'm'\ninput_schema = 's.json'\n"))
	old(a)
	old(b)
	opt := testOptions()
	first := LoadDirs([]string{top}, nil, opt)
	second := LoadDirs([]string{top}, first, opt)
	assert.Same(t, first.Entries[0].Manifest, second.Entries[0].Manifest)
	assert.Same(t, first.Entries[1].Manifest, second.Entries[1].Manifest)
	assert.True(t, first.sameAs(second))

	write(t, schema, `{"type": "object", "title": "other"}`)
	third := LoadDirs([]string{top}, second, opt)
	assert.Same(t, first.Entries[0].Manifest, third.Entries[0].Manifest)
	assert.NotEqual(t, first.Entries[1].Sum, third.Entries[1].Sum)

	// Other options judge anew.
	opt.Defaults = []byte("serve.queue = 1\n")
	fourth := LoadDirs([]string{top}, third, opt)
	assert.Equal(t, 1, fourth.Entries[0].Manifest.Serve.Queue)

	// A file changed right after it was read may keep its stamp: one that is that new is read again.
	write(t, a, command("title = 'x'\n"))
	soon := time.Now().Add(time.Minute) // new, however long this machine takes to look
	require.NoError(t, os.Chtimes(a, soon, soon))
	fifth := LoadDirs([]string{top}, fourth, opt)
	assert.True(t, fifth.files[a].racy)
	sixth := LoadDirs([]string{top}, fifth, opt)
	assert.NotSame(t, fifth.Entries[0].Manifest, sixth.Entries[0].Manifest)
}

func TestLoadDirsMissingThings(t *testing.T) {
	top := t.TempDir()
	write(t, filepath.Join(top, "a.toml"), command("weights.root = 'w'\n"))
	s := LoadDirs([]string{top}, nil, testOptions())
	assert.Equal(t, []string{"a a.toml invalid"}, brief(top, s))
	require.NoError(t, os.Mkdir(filepath.Join(top, "w"), 0o755))
	s = LoadDirs([]string{top}, s, testOptions())
	assert.Equal(t, []string{"a a.toml"}, brief(top, s), "the manifest is unchanged, the file that it lacked is there")
}
