package manifest

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseDuration(t *testing.T) {
	for text, want := range map[string]time.Duration{
		"0s": 0, "0": 0, "200ms": 200 * time.Millisecond, "1h30m": 90 * time.Minute, "1.5s": 1500 * time.Millisecond,
	} {
		got, err := parseDuration(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got.D(), text)
	}
	for text, hint := range map[string]string{
		"10 minutes": `"10m"`, "30": `"30s"`, "2 Days": `"48h"`, "1hr": `"1h"`, "500 msec": `"500ms"`, "-1s": "negative",
		"": "not a duration", "soon": "not a duration", "1 fortnight": "not a duration", "9999999999h": "too long",
	} {
		_, err := parseDuration(text)
		require.Error(t, err, text)
		assert.Contains(t, err.Error(), hint, text)
	}
}

func TestDurationString(t *testing.T) {
	for d, want := range map[time.Duration]string{
		0: "0s", time.Second: "1s", 10 * time.Minute: "10m", time.Hour: "1h", 90 * time.Minute: "1h30m",
		time.Hour + 5*time.Second: "1h0m5s", 20*time.Hour + 10*time.Minute: "20h10m", 200 * time.Millisecond: "200ms",
	} {
		assert.Equal(t, want, Duration(d).String())
		data, err := json.Marshal(Duration(d))
		require.NoError(t, err)
		var back Duration
		require.NoError(t, json.Unmarshal(data, &back))
		assert.Equal(t, d, back.D())
	}
}

func TestParseBytes(t *testing.T) {
	for text, want := range map[string]Bytes{
		"0B": 0, "512B": 512, "1KiB": 1 << 10, "64MiB": 64 << 20, "24GiB": 24 << 30, "8GB": 8e9, "1.5GiB": 3 << 29, "1kB": 1000,
		"8388607TiB": 8388607 << 40,
	} {
		got, err := parseBytes(text)
		require.NoError(t, err, text)
		assert.Equal(t, want, got, text)
	}
	for text, hint := range map[string]string{
		"64M": `"64MiB"`, "64 MiB": `"64MiB"`, "24gb": `"24GB"`, "1024": `"1024B"`, "8g": `"8GiB"`, "1gib": `"1GiB"`,
		"-1GiB": "negative", "": "not a size", "lots": "not a size", "8388608TiB": "too large", "99999999.5TiB": "too large",
		"GiB": "not a size", "1XiB": "not a size", "10iB": "not a size",
	} {
		_, err := parseBytes(text)
		require.Error(t, err, text)
		assert.Contains(t, err.Error(), hint, text)
	}
}

func TestBytesString(t *testing.T) {
	for b, want := range map[Bytes]string{0: "0B", 1: "1B", 1024: "1KiB", 3 << 29: "1536MiB", 8e9: "7812500KiB", 1 << 40: "1TiB"} {
		assert.Equal(t, want, b.String())
		var back Bytes
		require.NoError(t, back.UnmarshalText([]byte(b.String())))
		assert.Equal(t, b, back)
	}
}
