package supervisor

import (
	"net"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// keptListeners outlive a supervisor, as those in a service manager's descriptor store.
type keptListeners struct {
	t  *testing.T
	mu sync.Mutex

	files map[string]*os.File
	ids   map[string]string
	stay  bool
}

func (k *keptListeners) Listen(name, path string, ready func(string) error) (*net.UnixListener, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if f := k.files[name]; f != nil {
		return protocol.Inherit(f, path, k.ids[name])
	}
	l, err := protocol.ListenReady(path, 0o600, ready)
	if err != nil {
		return nil, err
	}
	k.files[name], err = l.File()
	require.NoError(k.t, err)
	k.ids[name], err = protocol.SocketID(path)
	require.NoError(k.t, err)
	return l, nil
}

func (k *keptListeners) Forget(name string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if f := k.files[name]; f != nil {
		_ = f.Close()
		delete(k.files, name)
	}
}

func (k *keptListeners) Stay() bool { return k.stay }

func (k *keptListeners) names() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	var names []string
	for name := range k.files {
		names = append(names, name)
	}
	return names
}

func TestListenersThatStayRefuseNobodyOverARestart(t *testing.T) {
	r := newRig(t)
	r.stop()
	k := &keptListeners{t: t, files: map[string]*os.File{}, ids: map[string]string{}, stay: true}
	r.listeners = k
	base := filepath.Dir(r.run)
	r.open(base)
	r.serve("echo", quick)
	r.provider("gone", quick)
	r.load()
	r.state("echo", "ready")
	busy := r.dial("echo")
	r.stop()
	require.FileExists(t, filepath.Join(r.run, "front/echo/sock"))
	require.FileExists(t, filepath.Join(r.run, "echo.sock"), "the link leads somewhere")
	_ = busy.c.SetReadDeadline(time.Now().Add(10 * time.Second))
	_, err := busy.r.ReadByte()
	require.Error(t, err, "connections of the old one end")

	waiting := r.dial("echo") // nobody accepts now
	answer := make(chan answerLine, 1)
	go func() {
		a, err := waiting.try("echo", `{"text":"meanwhile"}`)
		answer <- answerLine{a.kind(), err}
	}()
	require.NoError(t, os.Remove(filepath.Join(r.dir, "gone.toml")))
	r.open(base)
	r.load()
	require.Equal(t, answerLine{}, <-answer)
	require.Equal(t, []string{"echo"}, k.names(), "what no manifest names any more is forgotten")
	require.NoFileExists(t, filepath.Join(r.run, "front/gone/sock"))

	k.stay = false
	r.stop()
	require.NoFileExists(t, filepath.Join(r.run, "front/echo/sock"))
	require.NoFileExists(t, filepath.Join(r.run, "echo.sock"))
	require.Empty(t, k.names())
}

type answerLine struct {
	kind protocol.Kind
	err  error
}
