package manifest

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestExpandVariables(t *testing.T) {
	lookup := testOptions("A", "1", "B", "${A}", "EMPTY", "", "_x9", "u").LookupEnv
	for text, want := range map[string]string{
		"": "", "plain": "plain", "${A}": "1", "x${A}y${A}": "x1y1", "${B}": "${A}", "[${EMPTY}]": "[]", "${_x9}": "u",
		"$A": "$A", "$(A)": "$(A)", "$": "$", "$$": "$$", "a$": "a$", "{A}": "{A}", "%h*?\\": "%h*?\\",
		"$${A}": "${A}", "$${": "${", "$$${A}": "$${A}", "$${A}${A}": "${A}1", "${A}$${A}": "1${A}", "$${${A}": "${1",
	} {
		got, err := expandVariables(text, lookup)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for text, want := range map[string]string{
		"${NO}":            "${NO} is not set",
		"${NO}${A}${NEIN}": "${NO} and ${NEIN} are not set",
		"${NO}${NO}":       "${NO} is not set",
		"${A":              "no closing brace",
		"${}":              "${} is no variable",
		"${A:-b}":          "${A:-b} is no variable",
		"${1A}":            "is no variable",
		"${A B}":           "is no variable",
	} {
		_, err := expandVariables(text, lookup)
		require.Error(t, err, text)
		assert.Contains(t, err.Error(), want, text)
	}
}

func TestAbsolute(t *testing.T) {
	for path, want := range map[string]string{
		"/a/../b//c/": "/a/../b//c/", "a": "/dir/a", "./a": "/dir/a", ".//./a": "/dir/a", "../a": "/dir/../a",
		".": "/dir", "./": "/dir", ".a": "/dir/.a", "a/": "/dir/a/", " a ": "/dir/ a ",
	} {
		assert.Equal(t, want, absolute(path, "/dir"), path)
	}
	assert.Equal(t, "/a", absolute("a", "/"))
}

func TestCase15PathsKeepTheirBytes(t *testing.T) {
	dir := t.TempDir()
	names := []string{
		`ws\back`, "a b ", " lead", "q$HOME", "~", "x~y", "%h", "*", "a,source=b", `quo"te`, "co:lon", "co:ro", "ümläut", "tab\there", "$(id)", "${", "a//b",
	}
	var text string
	for _, name := range names {
		require.NoError(t, os.MkdirAll(filepath.Join(dir, name), 0o755))
		written := name
		if name == "${" {
			written = "$${"
		}
		text += fmt.Sprintf("{ path = %q }, ", "./"+written)
	}
	require.NoError(t, os.Symlink("q$HOME", filepath.Join(dir, "link")))
	text += `"link:rw", "./~:ro", "co:ro:ro"`
	m, _, problems := parse(t, dir, command("paths.binds = ["+text+"]\n"), testOptions())
	require.Empty(t, problems)
	for i, name := range names {
		assert.Equal(t, Bind{Path: dir + "/" + name, Mode: "ro"}, m.Paths.Binds[i])
	}
	assert.Equal(t, []Bind{
		{Path: dir + "/link", Mode: "rw"}, {Path: dir + "/~", Mode: "ro"}, {Path: dir + "/co:ro", Mode: "ro"},
	}, m.Paths.Binds[len(names):])
}

func TestHome(t *testing.T) {
	opt := testOptions()
	opt.Home = ""
	_, _, problems := parse(t, t.TempDir(), command("paths.work_root = '~/x'\n"), opt)
	require.Len(t, problems, 1)
	assert.Contains(t, problems[0].Message, "the home directory is not known")

	opt.Home = t.TempDir()
	program := writeProgram(t, filepath.Join(opt.Home, "bin/server"))
	m, _, problems := parse(t, t.TempDir(), `command = ["~/bin/server", "~", "~/x", "~user", "a~"]
title = "~"
env.variables.A = "~/a"
paths.work_root = "~"
`, opt)
	require.Empty(t, problems)
	assert.Equal(t, []string{program, opt.Home, opt.Home + "/x", "~user", "a~"}, m.Command)
	assert.Equal(t, "~", m.Title)
	assert.Equal(t, opt.Home+"/a", m.Env.Variables["A"])
	assert.Equal(t, opt.Home, m.Paths.WorkRoot)
}

func TestUnsetVariableCountsOnlyWhereUsed(t *testing.T) {
	dir := t.TempDir()
	write(t, filepath.Join(dir, "w.py"), "")
	const text = `worker = "w.py"
[env]
kind = %q
python = "${VENV}/bin/python"
image = "${IMAGE}"
sif = "${SIF}"
`
	for kind, set := range map[string]string{Venv: "VENV", Docker: "IMAGE", Podman: "IMAGE", Apptainer: "SIF"} {
		_, _, problems := parse(t, dir, fmt.Sprintf(text, kind), testOptions())
		require.Len(t, problems, 1, kind)
		assert.Contains(t, problems[0].Message, "${"+set+"} is not set", kind)
	}
	_, _, problems := parse(t, dir, fmt.Sprintf(text, Docker), testOptions("IMAGE", "lab/x"))
	assert.Empty(t, problems)
}
