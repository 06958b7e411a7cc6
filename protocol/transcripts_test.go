package protocol_test

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
	"workerd/protocol/prototest"
)

// TestWorkerTranscripts plays what workerd says to a worker against the Python SDK, over a plain connection.
func TestWorkerTranscripts(t *testing.T) {
	files, err := filepath.Glob("testdata/worker-*.jsonl")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			t.Parallel()
			hold := filepath.Join(t.TempDir(), "hold")
			var env []string
			var hooks []prototest.Hook
			held := func(name, what string) {
				require.NoError(t, os.WriteFile(hold, nil, 0o600))
				env = append(env, name+"="+hold)
				hooks = append(hooks, prototest.Hook{Name: what + " ends", Func: func() { require.NoError(t, os.Remove(hold)) }})
			}
			switch {
			case strings.Contains(file, "handshake"):
				held("TRANSCRIPT_HOLD_LOAD", "the load")
			case strings.Contains(file, "standby"):
				held("TRANSCRIPT_HOLD_PRELOAD", "the preload")
				env = append(env, "WORKERD_STANDBY=warm")
			}
			prototest.Replay(t, transcriptWorker(t, env...), file, hooks...)
		})
	}
}

// transcriptWorker starts testdata/worker.py and connects to it.
func transcriptWorker(t *testing.T, env ...string) net.Conn {
	t.Helper()
	dir, err := os.MkdirTemp("", "wt") // short: the socket's path has at most 107 bytes
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	socket := filepath.Join(dir, "s")
	cmd := exec.Command("python3", "testdata/worker.py")
	cmd.Env = append(append(os.Environ(), "PYTHONPATH=pysdk", "PYTHONDONTWRITEBYTECODE=1", "WORKERD_SOCKET="+socket), env...)
	cmd.Stderr = os.Stderr
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	var conn net.Conn
	require.Eventually(t, func() bool {
		conn, err = net.Dial("unix", socket)
		return err == nil
	}, 30*time.Second, 2*time.Millisecond, "the worker does not listen")
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// TestTranscriptsInTheDocument keeps the transcripts that PROTOCOL.md shows in step with the files. WORKERD_TEST_UPDATE=1
// writes them.
func TestTranscriptsInTheDocument(t *testing.T) {
	const document = "PROTOCOL.md"
	text, err := os.ReadFile(document)
	require.NoError(t, err)
	files, err := filepath.Glob("testdata/*.jsonl")
	require.NoError(t, err)
	block := regexp.MustCompile("(?s)<!-- testdata/(\\S+) -->\n```text\n(.*?)```\n")
	shown := map[string]bool{}
	updated := block.ReplaceAllStringFunc(string(text), func(found string) string {
		name := block.FindStringSubmatch(found)[1]
		shown[name] = true
		steps, err := prototest.Load(filepath.Join("testdata", name))
		require.NoError(t, err)
		rendered, err := prototest.Render(steps)
		require.NoError(t, err)
		return "<!-- testdata/" + name + " -->\n```text\n" + rendered + "```\n"
	})
	for _, file := range files {
		require.True(t, shown[filepath.Base(file)], "%s does not show %s", document, file)
	}
	if os.Getenv("WORKERD_TEST_UPDATE") != "" {
		require.NoError(t, os.WriteFile(document, []byte(updated), 0o644))
		return
	}
	require.Equal(t, updated, string(text), "run the test with WORKERD_TEST_UPDATE=1")
}

// TestErrorsInTheDocument compares the table of errors in PROTOCOL.md with that of this package.
func TestErrorsInTheDocument(t *testing.T) {
	text, err := os.ReadFile("PROTOCOL.md")
	require.NoError(t, err)
	rows := regexp.MustCompile("(?m)^\\| `(\\w+)` \\| (-\\d+) \\| (.*?) \\|").FindAllStringSubmatch(string(text), -1)
	require.Len(t, rows, 18)
	for _, row := range rows {
		kind := protocol.Kind(row[1])
		require.Equal(t, strconv.Itoa(kind.Code()), row[2], kind)
		require.Equal(t, kind.Retryable(), row[3] == "yes", kind)
	}
}
