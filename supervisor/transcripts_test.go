package supervisor

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"workerd/protocol/prototest"
)

// The conversations of a tool server with workerd that PROTOCOL.md shows, against a real front socket and a Python worker.
func TestFrontTranscripts(t *testing.T) {
	python, err := exec.LookPath("python3")
	require.NoError(t, err)
	sdk, err := filepath.Abs("../protocol/pysdk")
	require.NoError(t, err)
	worker, err := os.ReadFile("../protocol/testdata/worker.py")
	require.NoError(t, err)
	files, err := filepath.Glob("../protocol/testdata/front-*.jsonl")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".jsonl"), func(t *testing.T) {
			r := newRig(t)
			require.NoError(t, os.WriteFile(filepath.Join(r.dir, "worker.py"), worker, 0o600))
			text := fmt.Sprintf("worker = \"worker.py\"\n[env]\nkind = \"venv\"\npython = %q\n[env.variables]\nPYTHONPATH = %q\n[serve]\nmax_message = \"64KiB\"\n", python, sdk)
			require.NoError(t, os.WriteFile(filepath.Join(r.dir, "transcript.toml"), []byte(text), 0o600))
			r.load()
			conn, err := net.Dial("unix", filepath.Join(r.run, "front", "transcript", "sock"))
			require.NoError(t, err)
			defer func() { _ = conn.Close() }()
			prototest.Replay(t, conn, file)
		})
	}
}
