package manifest

import (
	"testing"

	"github.com/stretchr/testify/assert"
)

func TestLocate(t *testing.T) {
	at := locate([]byte(`title = "x"
a.b . "c d" = 1
list = [ 1, # one
  "two", [3, 4],
  { k = 5, l.m = 6 } ]
[ env.variables ]
  FOO = "bar"
[[tools]]
name = "a"
[[tools]]
[tools.input_schema]
type = "object"
[[tools.x]]
y = 1
[[tools.x]]
y = 2
text = """
[no.table]
"""
`))
	for key, want := range map[string]position{
		"title": {1, 1}, "a": {2, 1}, "a.b": {2, 3}, `a.b."c d"`: {2, 7},
		"list": {3, 1}, "list[0]": {3, 10}, "list[1]": {4, 3}, "list[2][1]": {4, 14}, "list[3].k": {5, 5}, "list[3].l.m": {5, 14},
		"env": {6, 3}, "env.variables": {6, 7}, "env.variables.FOO": {7, 3},
		"tools": {8, 3}, "tools[0]": {8, 3}, "tools[0].name": {9, 1}, "tools[1]": {10, 3},
		"tools[1].input_schema": {11, 8}, "tools[1].input_schema.type": {12, 1},
		"tools[1].x[0].y": {14, 1}, "tools[1].x[1].y": {16, 1}, "tools[1].x[1].text": {17, 1},
	} {
		assert.Equal(t, want, at[key], key)
	}
	assert.NotContains(t, at, "no")
}

func TestLocateFallsBackToWhatEncloses(t *testing.T) {
	at := locate([]byte("[env]\nkind = 1\n[[tools]]\nname = \"a\"\n"))
	assert.Equal(t, position{1, 2}, at.find("env.python"))
	assert.Equal(t, position{3, 3}, at.find("tools[0].input_schema.x[3]"))
	assert.Equal(t, position{1, 1}, at.find("worker"))
	assert.Equal(t, position{1, 2}, at.find(`env."a.b[0]".c`))

	// Text that the second parser gives up on keeps the positions before that.
	at = locate([]byte("a = 1\nb = = 2\nc = 3\n"))
	assert.Equal(t, positions{"a": {1, 1}}, at)
	assert.Empty(t, locate(nil))
}

func TestParentKey(t *testing.T) {
	for key, want := range map[string]string{
		"": "", "a": "", "a.b": "a", "a.b[1]": "a.b", "a[0].b": "a[0]", `a."b.c"`: "a", `a."b\".c[0]".d`: `a."b\".c[0]"`,
	} {
		assert.Equal(t, want, parentKey(key), key)
	}
	assert.Equal(t, "b", leafKey("a.b"))
	assert.Equal(t, "a", leafKey("a"))
	assert.Equal(t, `x."a\nb"[2]`, indexKey(joinKey("x", "a\nb"), 2))
	assert.Equal(t, `""`, joinKey("", ""))
}

func TestNearest(t *testing.T) {
	known := []string{"kind", "python", "image", "pull", "pull_timeout", "sif", "network", "variables"}
	for typo, want := range map[string]string{
		"knid": "kind", "pyhton": "python", "Python": "python", "imgae": "image", "variablse": "variables", "pull_timout": "pull_timeout",
		"x": "", "frobnicate": "", "si": "sif", "colour": "",
	} {
		assert.Equal(t, want, nearest(typo, known), typo)
	}
}
