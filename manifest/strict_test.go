package manifest

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type settings struct {
	Providers []string       `toml:"providers"`
	Listen    string         `toml:"listen"`
	Format    string         `toml:"log_format" enum:"text,json"`
	Engine    Duration       `toml:"engine_timeout"`
	Plain     time.Duration  `toml:"plain"`
	Size      Bytes          `toml:"log_max_size"`
	Files     int            `toml:"log_max_files" min:"1"`
	Ratio     float64        `toml:"ratio" max:"1"`
	On        bool           `toml:"on"`
	Defaults  map[string]any `toml:"defaults"`
	Free      any            `toml:"free"`
	Internal  string
	Hidden    string `toml:"-"`
}

func TestDecodeStrict(t *testing.T) {
	s := settings{Listen: "kept", Files: 3}
	require.NoError(t, DecodeStrict([]byte(`
providers = ["a", "b"]
log_format = "json"
engine_timeout = "60s"
plain = "1s"
log_max_size = "1MiB"
ratio = 1
on = true
free = [1, "x"]
[defaults.env]
kind = "docker"
`), "f.toml", &s))
	assert.Equal(t, settings{
		Providers: []string{"a", "b"}, Listen: "kept", Format: "json", Engine: Duration(time.Minute), Plain: time.Second, Size: 1 << 20,
		Files: 3, Ratio: 1, On: true, Free: []any{int64(1), "x"}, Defaults: map[string]any{"env": map[string]any{"kind": "docker"}},
	}, s)

	err := DecodeStrict([]byte("lisen = 'x'\nlog_format = 'xml'\nlog_max_files = 0\nratio = 1.5\nInternal = 'x'\nHidden = 'x'\nplain = 3\nratio2 = nan\n"), "f.toml", &s)
	require.IsType(t, Problems{}, err)
	assert.Equal(t, `f.toml:1:1: lisen: unknown key; did you mean "listen"?
f.toml:2:1: log_format: "xml" is not known: write "text" or "json"
f.toml:3:1: log_max_files: 0 is too small: write 1 or more
f.toml:4:1: ratio: 1.5 is too large: write 1 or less
f.toml:5:1: Internal: unknown key; the keys here are defaults, engine_timeout, free, listen, log_format, log_max_files, log_max_size, on, plain, providers, ratio
f.toml:6:1: Hidden: unknown key; the keys here are defaults, engine_timeout, free, listen, log_format, log_max_files, log_max_size, on, plain, providers, ratio
f.toml:7:1: plain: must be a duration, not an integer: write a number with a unit, such as "200ms", "30s", "10m" or "1h30m"; "0s" means none; did you mean "3s"?
f.toml:8:1: ratio2: unknown key; did you mean "ratio"?`, err.Error())
	assert.Equal(t, "json", s.Format, "what is wrong is left alone")

	err = DecodeStrict([]byte("ratio = nan\n"), "f.toml", &s)
	assert.EqualError(t, err, "f.toml:1:1: ratio: must be a finite number")
	err = DecodeStrict([]byte("a = \n"), "f.toml", &s)
	assert.ErrorContains(t, err, "f.toml:1:5: ")
	assert.EqualError(t, DecodeStrict([]byte("a = 1\nx = "+strings.Repeat("[", 1<<20)), "f.toml", &s),
		"f.toml:2:5005: arrays and tables are nested more than 5000 deep")
	assert.Panics(t, func() { _ = DecodeStrict(nil, "f.toml", s) })
	assert.NoError(t, DecodeStrict(nil, "f.toml", &s))
	assert.Error(t, DecodeStrict([]byte("listen = '\xff'\n"), "f.toml", &s))
}
