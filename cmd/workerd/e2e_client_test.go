package main

import (
	"bufio"
	"embed"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

//go:embed testdata/e2e
var testWorkers embed.FS

// provider writes a provider that runs the SDK worker of testdata. toml is the rest of its manifest: top-level keys first,
// then tables; keys for [env] stand under that header.
func (e *e2e) provider(slug, toml string) string {
	e.t.Helper()
	return e.write(slug, "worker.py", e.manifest(`worker = "worker.py"`, fmt.Sprintf("python = %q", interpreter(e.t)), toml))
}

// bare writes a provider that runs the worker of testdata that does without the SDK.
func (e *e2e) bare(slug, toml string) string {
	e.t.Helper()
	command := fmt.Sprintf(`command = [%q, "-S", "-E", "bare.py"]`, interpreter(e.t))
	return e.write(slug, "bare.py", e.manifest(command, "", toml))
}

// manifest joins what a test says with what all manifests have.
func (e *e2e) manifest(what, env, toml string) string {
	env = "[env]\nkind = \"venv\"\n" + env + "\n"
	top, tables := toml, ""
	if i := strings.Index("\n"+toml, "\n["); i >= 0 {
		top, tables = toml[:i], toml[i:]
	}
	if strings.Contains(tables, "[env]\n") {
		return what + "\n" + top + "\n" + strings.Replace(tables, "[env]\n", env, 1)
	}
	return what + "\n" + top + "\n" + env + tables
}

// write makes a provider's folder with its worker, then its manifest by rename, and returns the manifest's path.
func (e *e2e) write(slug, worker, manifest string) string {
	e.t.Helper()
	folder := filepath.Join(e.manifests(), slug)
	require.NoError(e.t, os.MkdirAll(folder, 0o700))
	code, err := testWorkers.ReadFile("testdata/e2e/" + worker)
	require.NoError(e.t, err)
	require.NoError(e.t, os.WriteFile(filepath.Join(folder, worker), code, 0o600))
	file := filepath.Join(folder, "provider.toml")
	replace(e.t, file, manifest)
	return file
}

// replace writes a file as editors do: a new one, renamed over the old one.
func replace(t *testing.T, file, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(file+".tmp", []byte(text), 0o600))
	require.NoError(t, os.Rename(file+".tmp", file))
}

// wire is a tool server's connection to a front socket, as it is on the wire.
type wire struct {
	conn *net.UnixConn
	r    *bufio.Reader
	n    int

	excused func() bool // of the fault harness
}

// message is what comes from a front socket: an answer, or a progress notification.
type message struct {
	ID     json.RawMessage `json:"id"`
	Method string          `json:"method"`
	Result json.RawMessage `json:"result"`
	Error  *protocol.Error `json:"error"`
	Params struct {
		Token    json.RawMessage `json:"progressToken"`
		Progress float64         `json:"progress"`
		Message  string          `json:"message"`
	} `json:"params"`
}

// kind of the error, "" for a result.
func (m message) kind() protocol.Kind {
	if m.Error == nil {
		return ""
	}
	return m.Error.Data.Kind
}

// said is what the test workers answer.
type said struct {
	PID     int             `json:"pid"`
	Text    string          `json:"text"`
	Version string          `json:"version"`
	Seen    int             `json:"seen"`
	Params  json.RawMessage `json:"params"`
}

func (m message) said() said {
	var s said
	_ = json.Unmarshal(m.Result, &s)
	return s
}

func connect(path string) (*wire, error) {
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	return &wire{conn: conn, r: bufio.NewReader(conn)}, nil
}

// dial connects to a front socket until the end of the test.
func (e *e2e) dial(slug string) *wire {
	e.t.Helper()
	w, err := connect(e.front(slug))
	require.NoError(e.t, err)
	e.t.Cleanup(func() { _ = w.conn.Close() })
	return w
}

func (w *wire) send(line string) error {
	_, err := w.conn.Write([]byte(line + "\n"))
	return err
}

// request sends a request under the next number and returns that. meta may be empty.
func (w *wire) request(method, params string) (id int, err error) {
	w.n++
	return w.n, w.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":%q,"params":%s}`, w.n, method, params))
}

func (w *wire) read() (message, error) {
	var m message
	if err := w.conn.SetReadDeadline(time.Now().Add(patience)); err != nil {
		return m, err
	}
	line, err := w.r.ReadBytes('\n')
	if err != nil {
		return m, err
	}
	return m, json.Unmarshal(line, &m)
}

// answer reads the next answer; progress before it is given to heard, which may be nil.
func (w *wire) answer(heard func(message)) (message, error) {
	for {
		m, err := w.read()
		if err != nil || m.Method == "" {
			return m, err
		}
		if heard != nil {
			heard(m)
		}
	}
}

// try calls a method. It may be called from any goroutine; an answer to anything else is an error.
func (w *wire) try(method, params string) (message, error) {
	id, err := w.request(method, params)
	if err != nil {
		return message{}, err
	}
	m, err := w.answer(nil)
	if err == nil && string(m.ID) != fmt.Sprint(id) {
		err = fmt.Errorf("the answer to %s came in place of %d: %v", m.ID, id, m.Error)
	}
	return m, err
}

// call calls a method that must succeed.
func (e *e2e) call(w *wire, method, params string) said {
	e.t.Helper()
	m, err := w.try(method, params)
	require.NoError(e.t, err)
	require.Nil(e.t, m.Error, "%s %s", method, params)
	return m.said()
}

// silent checks that nothing more comes: the answer to a ping is the next line.
func (w *wire) silent() error {
	if err := w.send(`{"jsonrpc":"2.0","id":"last","method":"workerd.ping"}`); err != nil {
		return err
	}
	m, err := w.read()
	if err == nil && string(m.ID) != `"last"` {
		err = fmt.Errorf("one answer too many: id %s", m.ID)
	}
	return err
}

// gather runs n goroutines and returns what they counted together, or the first error of any.
func gather(t *testing.T, n int, run func(i int, count func(what string)) error) map[string]int {
	t.Helper()
	var mu sync.Mutex
	counts := map[string]int{}
	count := func(what string) {
		mu.Lock()
		defer mu.Unlock()
		counts[what]++
	}
	errs := make(chan error, n)
	for i := range n {
		go func() { errs <- run(i, count) }()
	}
	for range n {
		require.NoError(t, <-errs)
	}
	return counts
}
