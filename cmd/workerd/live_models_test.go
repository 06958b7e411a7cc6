package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// The same provider gives the same answers, byte by byte, wherever it runs; and what a worker writes is the caller's.
func TestLivePagesReadTheSameInEachKind(t *testing.T) {
	var want json.RawMessage
	eachKind(t, allKinds, func(t *testing.T, l *live) {
		if l.kind != manifest.Venv {
			l.has("ocr")
		}
		file := l.real("ocr", "tesserocr, PIL")
		text := string(mustRead(t, file))
		l.has("small")
		keys := l.envKeys("ocr")
		if l.kind == manifest.Venv {
			keys = "kind = \"venv\"\npython = \"/usr/bin/python3\"\n"
		}
		edited := 0
		for line := range strings.Lines(text) { // the lines of [env] are all that differs
			if f := strings.Fields(line); len(f) > 0 && (f[0] == "kind" || f[0] == "python") {
				text = strings.Replace(text, line, "", 1)
				edited++
			}
		}
		require.Equal(t, 2, edited)
		replace(t, file, strings.Replace(text, "[env]\n", "[env]\n"+keys, 1))
		l.start()
		require.Contains(t, l.ok("smoke", "ocr"), "ocr: passed")
		var answers []string
		for _, page := range []string{"pages/letter.png", "pages/photo.jpg", "pages/scan.png"} {
			m, err := l.dial("ocr").try("recognize", fmt.Sprintf(`{"image":%q}`, filepath.Join(filepath.Dir(file), page)))
			require.NoError(t, err)
			require.Nil(t, m.Error)
			answers = append(answers, string(m.Result))
		}
		got, err := json.Marshal(answers)
		require.NoError(t, err)
		if want == nil {
			want = got
		}
		require.Equal(t, string(want), string(got))
		require.Greater(t, len(got), 10_000)
	})
}

// Case 4: outputs are the caller's, with the caller's umask, and nothing becomes root's.
func TestLiveCase4OutputsAreTheCallers(t *testing.T) {
	old := syscall.Umask(0o027)
	t.Cleanup(func() { syscall.Umask(old) })
	eachKind(t, allKinds, func(t *testing.T, l *live) {
		work := filepath.Join(l.dir, "data/work")
		made := filepath.Join(l.dir, "data/made")
		l.add("x", fmt.Sprintf("[paths]\nwork_root = %q\nbinds = [{ path = %q, mode = \"rw\", create = true }]\n", work, made))
		l.start()
		names := strings.Fields("TMPDIR XDG_CACHE_HOME HF_HOME TORCH_HOME NUMBA_CACHE_DIR MPLCONFIGDIR")
		if l.kind != manifest.Venv { // which keeps the caller's own
			names = append(names, "HOME")
		}
		run[any](l, "x", `
import os, pathlib
root = pathlib.Path(os.environ["WORKERD_WORK_ROOT"])
(root / "out.txt").write_text("out")
(root / "folder").mkdir()
(pathlib.Path(made) / "out.txt").write_text("out")
for name in names:
    d = pathlib.Path(os.environ[name]) / "a" / "b"
    d.mkdir(parents=True)
    (d / "file").write_text(name)
`, map[string]any{"made": made, "names": names})
		mode := func(path string) os.FileMode {
			fi, err := os.Stat(path)
			require.NoError(t, err)
			return fi.Mode().Perm()
		}
		require.Equal(t, os.FileMode(0o640), mode(filepath.Join(work, "out.txt")))
		require.Equal(t, os.FileMode(0o750), mode(filepath.Join(work, "folder")))
		require.Equal(t, os.FileMode(0o750), mode(work), "made less the umask")
		require.Equal(t, os.FileMode(0o700), mode(made))
		require.Equal(t, os.FileMode(0o640), mode(filepath.Join(made, "out.txt")))
		l.ok("restart", "x")
		out, err := exec.Command("find", l.dir, "(", "!", "-uid", strconv.Itoa(os.Getuid()), "-o", "!", "-gid", strconv.Itoa(os.Getgid()), ")").CombinedOutput()
		require.NoError(t, err, string(out))
		require.Empty(t, string(out), "somebody else's files")
	})
}
