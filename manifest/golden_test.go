package manifest

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// golden compares text with a file next to the test data, in which DIR stands for the folder of the data.
func golden(t *testing.T, file, text string) {
	t.Helper()
	dir, err := filepath.Abs(filepath.Dir(file))
	require.NoError(t, err)
	text = strings.ReplaceAll(text, dir, "DIR")
	if *update {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err, "run the tests with -update to write it")
	assert.Equal(t, string(want), text)
}

func goldenOptions() Options {
	return testOptions("SET", "set", "EMPTY", "", "LANG_NAME", "eng")
}

func TestInvalid(t *testing.T) {
	files, err := filepath.Glob("testdata/invalid/*.toml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			m, _, err := Parse(data, file, goldenOptions())
			require.Error(t, err)
			assert.Nil(t, m)
			assert.IsType(t, Problems{}, err)
			golden(t, strings.TrimSuffix(file, ".toml")+".err", err.Error()+"\n")
		})
	}
}

func TestValid(t *testing.T) {
	files, err := filepath.Glob("testdata/valid/*.toml")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			data, err := os.ReadFile(file)
			require.NoError(t, err)
			m, warnings, err := Parse(data, file, goldenOptions())
			require.NoError(t, err)
			effective, err := json.MarshalIndent(map[string]any{"manifest": m, "warnings": warnings}, "", "  ")
			require.NoError(t, err)
			golden(t, strings.TrimSuffix(file, ".toml")+".golden", string(effective)+"\n")
		})
	}
}
