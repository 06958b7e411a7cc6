package supervisor

import (
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
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

// slowListeners take their time to say whether they stay, as systemd's may.
type slowListeners struct {
	ownListeners
	until func()
}

func (l slowListeners) Stay() bool { l.until(); return false }

// Until a provider is closed, a stop is nothing that it sees: what it plans does not fail, and what waits to be booted is not.
func TestStopBeforeProvidersAreClosed(t *testing.T) {
	r := newRig(t)
	r.stop()
	r.listeners = slowListeners{until: func() { <-time.After(500 * time.Millisecond) }} // time to do what is wrong
	r.open(filepath.Dir(r.run))
	for range cap(r.sup.gate) {
		r.sup.gate <- struct{}{}
	}
	starts := filepath.Join(t.TempDir(), "starts")
	r.provider("boots", quick, "STARTS="+starts)
	r.load()
	text := strings.Replace(helperManifest(quick), "kind = \"venv\"", "kind = \"venv\"\nsetup = \"setup.sh\"", 1)
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "plans.toml"), []byte(text), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(r.dir, "setup.sh"), []byte("sleep 600\n"), 0o600))
	r.set = manifest.LoadDirs([]string{r.dir}, r.set, r.opt)
	r.sup.Apply(r.set)
	c := r.dial("plans")
	c.send(`{"jsonrpc":"2.0","id":1,"method":"echo","params":{}}`)
	r.until("plans", "waiting", func(s protocol.ProviderStatus) bool { return s.Queue.Waiting == 1 })
	go r.stop()
	a := c.next()
	assert.Equal(t, protocol.ShuttingDown, a.kind(), "%+v", a.Error)
	r.stop()
	require.Empty(t, lines(starts))
}

// fullListeners cannot make a listener for now.
type fullListeners struct {
	ownListeners
	full *atomic.Bool
}

func (l fullListeners) Listen(name, path string, ready func(string) error) (*net.UnixListener, error) {
	if l.full.Load() {
		return nil, syscall.ENOSPC
	}
	return l.ownListeners.Listen(name, path, ready)
}

// A front socket that could not be made is tried again, though no manifest changes meanwhile. What an earlier workerd left waits for it.
func TestFrontSocketIsTriedAgain(t *testing.T) {
	r := newRig(t)
	r.stop()
	var full atomic.Bool
	full.Store(true)
	r.listeners = fullListeners{full: &full}
	r.open(filepath.Dir(r.run))
	r.sup.leftovers = []*record{{Slug: "echo", N: 1}}
	r.provider("echo", quick)
	r.load()
	st := r.status("echo")
	require.Equal(t, "invalid", st.State)
	require.Contains(t, st.ManifestError[0].Message, "no space")
	r.sup.serveUnserved()
	require.Equal(t, "invalid", r.status("echo").State)
	r.sup.apply.Lock()
	require.Len(t, r.sup.leftovers, 1)
	r.sup.leftovers = nil
	r.sup.apply.Unlock()
	full.Store(false)
	r.sup.serveUnserved()
	r.state("echo", "ready")
	require.Nil(t, r.dial("echo").call("echo", `{}`).Error)
	require.Len(t, r.sup.Status(nil).Providers, 1)
}
