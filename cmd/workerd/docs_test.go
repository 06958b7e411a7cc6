package main

import (
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/execenv"
	"workerd/manifest"
)

// These tests hold the documents to what they show: manifests and settings are valid, keys exist, commands parse, links lead
// somewhere. What a document shows stands in fenced blocks (```toml, ```diff), indented blocks and `inline code`.

const repository = "../.."

// documents returns the text of the repository's documents, by path below the repository.
func documents(t *testing.T) map[string]string {
	t.Helper()
	docs := map[string]string{}
	for _, pattern := range []string{"*.md", "docs/*.md", "manifest/*.md", "protocol/*.md", "providers/*/*.md"} {
		files, err := filepath.Glob(filepath.Join(repository, pattern))
		require.NoError(t, err)
		require.NotEmpty(t, files, pattern)
		for _, file := range files {
			name, err := filepath.Rel(repository, file)
			require.NoError(t, err)
			docs[name] = string(mustRead(t, file))
		}
	}
	return docs
}

var fence = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// fenced returns the fenced blocks of a language.
func fenced(text, language string) (blocks []string) {
	for _, m := range fence.FindAllStringSubmatch(text, -1) {
		if m[1] == language {
			blocks = append(blocks, m[2])
		}
	}
	return blocks
}

// sandbox is the world that a document's manifest is checked in: every path that it names lies below a temporary directory,
// and exists. "/x" becomes <dir>/root/x, "~/x" is <dir>/home/x, ${NAME} is <dir>/var/NAME, and a relative path is the
// manifest's. What the name of a path ends in says what is made there: a program for python, python3 and server, a file for
// what has one of the endings below, and else a folder, of a venv.
type sandbox struct {
	t   *testing.T
	dir string
}

var sandboxFiles = map[string]string{
	".py": "", ".sh": "", ".sif": "", ".json": `{"method": "m"}`, ".toml": "",
}

func (s sandbox) create(path string) {
	s.t.Helper()
	write := func(path, text string, mode os.FileMode) {
		require.NoError(s.t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(s.t, os.WriteFile(path, []byte(text), mode))
	}
	if _, err := os.Lstat(path); err == nil {
		return
	}
	content, isFile := sandboxFiles[filepath.Ext(path)]
	switch base := filepath.Base(path); {
	case isFile:
		write(path, content, 0o644)
	case base == "python" || base == "python3" || base == "server":
		write(path, "#!/bin/sh\n", 0o755)
	case strings.HasSuffix(base, "_token"):
		write(path, "secret", 0o600)
	default:
		write(filepath.Join(path, "bin/python"), "#!/bin/sh\n", 0o755)
	}
}

var (
	quoted   = regexp.MustCompile(`"((?:[^"\\\n]|\\.)*)"`)
	withMode = regexp.MustCompile(`:(ro|rw)$`)
)

// settle makes what a TOML text names and returns the text with absolute paths moved.
func (s sandbox) settle(text string) string {
	return quoted.ReplaceAllStringFunc(text, func(q string) string {
		path := withMode.ReplaceAllString(strings.Trim(q, `"`), "")
		switch {
		case strings.HasPrefix(path, "/"):
			s.create(filepath.Join(s.dir, "root", path))
			return `"` + filepath.Join(s.dir, "root") + q[1:]
		case strings.HasPrefix(path, "~/"):
			s.create(filepath.Join(s.dir, "home", path[2:]))
		case sandboxFiles[filepath.Ext(path)] != "" || slices.Contains(slices.Collect(maps.Keys(sandboxFiles)), filepath.Ext(path)) || strings.HasPrefix(path, "./"):
			s.create(filepath.Join(s.dir, "m", path))
		}
		return q
	})
}

func (s sandbox) options() manifest.Options {
	return manifest.Options{
		Home: filepath.Join(s.dir, "home"), UID: os.Geteuid(),
		LookupEnv: func(name string) (string, bool) {
			path := filepath.Join(s.dir, "var", name)
			s.create(path)
			return path, true
		},
	}
}

// wholeManifest adds to a part of a manifest what every one needs: a worker, and where it runs.
func wholeManifest(text string) string {
	var top, tables string
	if i := regexp.MustCompile(`(?m)^\[`).FindStringIndex(text); i != nil {
		top, tables = text[:i[0]], text[i[0]:]
	} else {
		top = text
	}
	if !regexp.MustCompile(`(?m)^(worker|command) *=`).MatchString(top) {
		top = "worker = \"worker.py\"\n" + top
	}
	if !regexp.MustCompile(`(?m)^\[env\]`).MatchString(tables) {
		tables += "\n[env]\npython = \"/usr/bin/python3\"\n"
	}
	return top + tables
}

// A block is of workerd.toml if it has a key of that at its top, or a table of [defaults].
func isSettings(text string) bool {
	top, _, _ := strings.Cut("\n"+text, "\n[")
	return strings.Contains(text, "[defaults") || slices.ContainsFunc(options, func(o option) bool {
		return regexp.MustCompile(`(?m)^` + o.key + ` *=`).MatchString(top)
	})
}

func TestManifestsInDocumentsAreValid(t *testing.T) {
	shown := 0
	for name, text := range documents(t) {
		for i, block := range fenced(text, "toml") {
			shown++
			s := sandbox{t, t.TempDir()}
			file := filepath.Join(s.dir, "m/provider.toml")
			s.create(file)
			s.create(filepath.Join(s.dir, "m/worker.py"))
			if isSettings(block) {
				into := defaultSettings()
				require.NoError(t, manifest.DecodeStrict([]byte(block), file, into), "%s, block %d", name, i+1)
				require.NoError(t, manifest.CheckDefaults(manifest.Options{Defaults: []byte(block), DefaultsTable: "defaults", DefaultsFile: file}), name)
				continue
			}
			text := s.settle(wholeManifest(block))
			_, warnings, err := manifest.Parse([]byte(text), file, s.options())
			assert.NoError(t, err, "%s, block %d:\n%s", name, i+1, text)
			assert.Empty(t, warnings, "%s, block %d:\n%s", name, i+1, text)
		}
	}
	require.Greater(t, shown, 15)
}

// manifestKeys are the keys of the manifest as MANIFEST.md has them, which a test of its own holds to the types.
func manifestKeys(t *testing.T) (keys map[string]bool) {
	t.Helper()
	keys = map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `([a-z_.\\[\\]A-Z]+)` \\|").FindAllStringSubmatch(string(mustRead(t, filepath.Join(repository, "manifest/MANIFEST.md"))), -1) {
		keys[m[1]] = true
	}
	require.Contains(t, keys, "env.kind")
	return keys
}

var (
	inline = regexp.MustCompile("`([^`\n]+)`")
	dotted = regexp.MustCompile(`^(env|weights|paths|gpu|limits|start|restart|serve|health)\.[a-z_]+(\.[A-Za-z_.]+)?( = .*)?$`)
	tabled = regexp.MustCompile(`^\[\[?([a-z.]+)\]?\]$`)
)

func TestKeysInDocumentsExist(t *testing.T) {
	keys := manifestKeys(t)
	tables := map[string]bool{"defaults": true, "table": true, "engine": true} // engine: of podman's containers.conf
	for key := range keys {
		for i := range key {
			if key[i] == '.' || key[i] == '[' {
				tables[key[:i]] = true
			}
		}
	}
	for name, text := range documents(t) {
		for _, m := range inline.FindAllStringSubmatch(text, -1) {
			code := m[1]
			key, _, _ := strings.Cut(code, " ")
			switch table := tabled.FindStringSubmatch(code); {
			case dotted.MatchString(code):
				assert.True(t, keys[key] || tables[key], "%s: there is no key %s", name, key)
			case table != nil:
				assert.True(t, tables[table[1]], "%s: there is no table %s", name, code)
			}
		}
	}
}

// Settings that docs/ names in prose are keys of workerd.toml: "the setting `log_max_size`".
func TestSettingsInDocumentsExist(t *testing.T) {
	named := 0
	for name, text := range documents(t) {
		for _, m := range regexp.MustCompile("settings?\\s+`([a-z_]+)`").FindAllStringSubmatch(text, -1) {
			named++
			assert.True(t, slices.ContainsFunc(options, func(o option) bool { return o.key == m[1] }), "%s: there is no setting %s", name, m[1])
		}
	}
	require.Greater(t, named, 5)
}

// shellWords splits a command line as a shell does, as far as documents need it.
func shellWords(line string) (words []string) {
	var word strings.Builder
	var quote rune
	in := false
	for _, r := range line {
		switch {
		case quote != 0 && r == quote:
			quote = 0
		case quote != 0:
			word.WriteRune(r)
		case r == '\'' || r == '"':
			quote, in = r, true
		case unicode.IsSpace(r):
			if in {
				words = append(words, word.String())
			}
			word.Reset()
			in = false
		case r == '#' && !in, r == '&', r == '|', r == '>', r == ';':
			if in {
				words = append(words, word.String())
			}
			return words
		default:
			word.WriteRune(r)
			in = true
		}
	}
	if in {
		words = append(words, word.String())
	}
	return words
}

// shownCommands returns the command lines of workerd that a document shows: lines of blocks, and inline code.
func shownCommands(text string) (lines []string) {
	for line := range strings.Lines(text) {
		code := strings.TrimSpace(line)
		if code = strings.TrimPrefix(code, "sudo "); strings.HasPrefix(line, "    ") && strings.HasPrefix(code, "workerd ") {
			lines = append(lines, code)
		}
	}
	for _, m := range inline.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		if strings.HasPrefix(m[1], "workerd ") {
			lines = append(lines, m[1])
		}
	}
	return lines
}

// parses says whether the command line would take a line: the command exists, its flags do, and the number of arguments is
// right.
func parses(line string) error {
	a := newApp()
	root := a.rootCommand()
	cmd, args, err := root.Find(shellWords(line)[1:])
	if err != nil {
		return err
	}
	if err := cmd.ParseFlags(args); err != nil {
		return err
	}
	if cmd == root && cmd.Flags().NArg() > 0 {
		return cobra.NoArgs(cmd, cmd.Flags().Args())
	}
	return cmd.ValidateArgs(cmd.Flags().Args())
}

func TestCommandsInDocumentsParse(t *testing.T) {
	require.Error(t, parses("workerd stats"))
	require.Error(t, parses("workerd status --no-such-flag"))
	require.Error(t, parses("workerd explain"))
	shown := 0
	for name, text := range documents(t) {
		for _, line := range shownCommands(text) {
			shown++
			// In prose an argument may be left out: what is meant is the command.
			if err := parses(line); err != nil && parses(line+" SLUG") != nil && parses(line+" SLUG METHOD") != nil {
				assert.NoError(t, err, "%s: %s", name, line)
			}
		}
	}
	require.Greater(t, shown, 60)
}

var (
	link    = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	heading = regexp.MustCompile(`(?m)^#+ (.*)$`)
)

// anchors are what a document's headings can be linked by.
func anchors(text string) (found []string) {
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		found = append(found, strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case unicode.IsLetter(r) || unicode.IsDigit(r) || r == '-' || r == '_':
				return unicode.ToLower(r)
			}
			return -1
		}, m[1]))
	}
	return found
}

func TestLinksInDocumentsLeadSomewhere(t *testing.T) {
	docs := documents(t)
	for name, text := range docs {
		for _, m := range link.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			path := name
			if target != "" {
				path = filepath.Join(filepath.Dir(name), target)
			}
			_, err := os.Stat(filepath.Join(repository, path))
			if assert.NoError(t, err, "%s links to %s", name, m[1]) && anchor != "" {
				assert.Contains(t, anchors(docs[path]), anchor, "%s links to %s", name, m[1])
			}
		}
	}
	for name := range docs {
		if filepath.Dir(name) == "docs" {
			led := strings.Contains(docs["README.md"], "]("+name+")") || strings.Contains(docs["docs/environments.md"], "]("+filepath.Base(name)+")")
			assert.True(t, led, "nothing leads to %s", name)
		}
	}
}

// The page about what to do when an engine fails has every way in which engines fail.
func TestEveryEngineErrorIsDocumented(t *testing.T) {
	_, table, found := strings.Cut(documents(t)["docs/environments.md"], "## When it fails")
	require.True(t, found)
	kinds := 0
	for kind := execenv.EngineErrorKind(0); kind.String() != ""; kind++ {
		kinds++
		assert.Contains(t, table, kind.String())
	}
	require.Greater(t, kinds, 10)
}
