package supervisor

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func testRecord(dir string) *record {
	return &record{
		Version: recordVersion, Instance: "0a1b2c3d", BootID: "boot", Slug: "ocr", N: 7, PID: 42, Start: 99, Run: "r",
		Socket: filepath.Join(dir, "ocr", "7.sock"), Log: "/log", Started: time.Unix(1, 0).UTC(), Restarts: 3,
	}
}

func TestRecordRoundTrip(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "ocr"), 0o700))
	r := testRecord(dir)
	require.NoError(t, r.save())
	require.NoError(t, r.save(), "over itself")
	got, errs := readRecords(dir, "0a1b2c3d", "boot")
	require.Empty(t, errs)
	require.Equal(t, []*record{r}, got)
	st, err := os.Stat(r.file())
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), st.Mode().Perm())
	left, err := os.ReadDir(filepath.Join(dir, "ocr"))
	require.NoError(t, err)
	require.Len(t, left, 1)
}

// A torn, foreign, misplaced or outlandish record is reported and hides no other; one of an earlier boot is nobody's.
func TestRecordsThatAreIgnored(t *testing.T) {
	bad := map[string]func(dir, whole string) (file, content string){
		"torn":           func(d, w string) (string, string) { return "8.json", w[:len(w)/2] },
		"empty":          func(d, w string) (string, string) { return "8.json", "" },
		"other instance": func(d, w string) (string, string) { return "8.json", strings.ReplaceAll(w, "0a1b2c3d", "ffffffff") },
		"other version": func(d, w string) (string, string) {
			return "8.json", strings.ReplaceAll(w, `"version":1`, `"version":2`)
		},
		"another's file":   func(d, w string) (string, string) { return "8.json", w },
		"stranger's":       func(d, w string) (string, string) { return "8.json", `{"x":1}` },
		"not what it says": func(d, w string) (string, string) { return "8.json", `["version"]` },
	}
	for name, make := range bad {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.Mkdir(filepath.Join(dir, "ocr"), 0o700))
			good := testRecord(dir)
			require.NoError(t, good.save())
			whole, err := os.ReadFile(good.file())
			require.NoError(t, err)
			file, content := make(dir, string(whole))
			require.NoError(t, os.WriteFile(filepath.Join(dir, "ocr", file), []byte(content), 0o600))
			got, errs := readRecords(dir, "0a1b2c3d", "boot")
			require.Len(t, errs, 1)
			require.Contains(t, errs[0].Error(), "8.json")
			require.Equal(t, []*record{good}, got)
		})
	}
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "ocr"), 0o700))
	require.NoError(t, testRecord(dir).save())
	got, errs := readRecords(dir, "0a1b2c3d", "another boot")
	require.Empty(t, got)
	require.Empty(t, errs)
}

// What a newer workerd notes besides is no reason to end its workers.
func TestRecordWithMembersOfANewerOne(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.Mkdir(filepath.Join(dir, "ocr"), 0o700))
	r := testRecord(dir)
	require.NoError(t, r.save())
	whole, err := os.ReadFile(r.file())
	require.NoError(t, err)
	newer := strings.Replace(string(whole), `"n":7`, `"n":7,"cpus":[1,2],"more":{"deep":true}`, 1)
	require.NoError(t, os.WriteFile(r.file(), []byte(newer), 0o600))
	got, errs := readRecords(dir, "0a1b2c3d", "boot")
	require.Empty(t, errs)
	require.Equal(t, []*record{r}, got)
}

// A recycled pid is nobody of ours: the start time tells.
func TestAdoptProcessChecksTheStartTime(t *testing.T) {
	_, err := adoptProcess(os.Getpid(), 1, nil)
	require.Error(t, err)
}
