package manifest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func FuzzParse(f *testing.F) {
	for _, pattern := range []string{"testdata/valid/*.toml", "testdata/invalid/*.toml"} {
		files, err := filepath.Glob(pattern)
		if err != nil {
			f.Fatal(err)
		}
		for _, file := range files {
			data, err := os.ReadFile(file)
			if err != nil {
				f.Fatal(err)
			}
			f.Add(data)
		}
	}
	for _, text := range []string{
		"a.b.c = { d = [ { e = 1 }, [ [ 2 ] ] ] }", "[[tools]]\n[tools.input_schema]\n[[tools]]\nname='\\u0000'", "[env]\n[env.variables]\n\"a.b\" = '''x\ny'''",
		"[[a]]\n[[a.b]]\n[a.b.c]\n[[a.b]]", "paths.binds = [\n# comment\n'/x:rw', # more\n]", "\xef\xbb\xbftitle = 1", "\xff\xfet\x00", "x = 1979-05-27T07:32:00Z",
		"env.python = '${A}$${B}~'", "title = \"\"\"\\\n  x\"\"\"", "\"\" = 1", "gpu.count = 0x7fffffffffffffff", "limits.cpus = inf", "tools = [[]]", "env = []",
	} {
		f.Add([]byte(text))
	}
	opt := testOptions("A", "a")
	f.Fuzz(func(t *testing.T, data []byte) {
		m, warnings, err := Parse(data, "/nonexistent/fuzz.toml", opt)
		if (m == nil) == (err == nil) {
			t.Fatalf("manifest %v and error %v", m, err)
		}
		lines := bytes.Count(data, []byte("\n")) + 1
		if m != nil {
			if m.Slug == "" || m.Paths.Cwd == "" || m.Hash() == [32]byte{} {
				t.Fatalf("incomplete: %+v", m)
			}
			for _, w := range warnings {
				if !strings.HasPrefix(w, m.File+":") {
					t.Fatalf("warning without a place: %s", w)
				}
			}
			return
		}
		problems, ok := err.(Problems)
		if !ok || len(problems) == 0 {
			t.Fatalf("error %T: %v", err, err)
		}
		for _, p := range problems {
			if p.File != "/nonexistent/fuzz.toml" || p.Line < 1 || p.Line > lines || p.Column < 1 || p.Column > len(data)+1 || p.Message == "" {
				t.Fatalf("implausible problem %+v of %d lines", p, lines)
			}
		}
	})
}

func FuzzExpandVariables(f *testing.F) {
	for _, s := range []string{"", "$", "${A}", "$${A}", "${", "${A:-b}", "a${A}b$${c}$$${A}"} {
		f.Add(s)
	}
	lookup := testOptions("A", "value").LookupEnv
	f.Fuzz(func(t *testing.T, s string) {
		got, err := expandVariables(s, lookup)
		if err == nil && !strings.Contains(s, "${") && got != s {
			t.Fatalf("%q became %q", s, got)
		}
		// Whatever a text is, it can be written so that it is taken as it stands.
		if strings.Contains(s, "$${") {
			return
		}
		literal := strings.ReplaceAll(s, "${", "$${")
		if got, err := expandVariables(literal, lookup); err != nil || got != s {
			t.Fatalf("%q gives %q, %v", literal, got, err)
		}
	})
}
