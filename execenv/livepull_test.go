package execenv

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/protocol/prototest"
)

// startRegistry starts a registry on the loopback interface and returns its address.
func startRegistry(t *testing.T) string {
	t.Helper()
	bin, err := exec.LookPath("docker-registry")
	if err != nil {
		prototest.Needs(t, "docker", "no docker-registry: "+err.Error())
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := l.Addr().String()
	require.NoError(t, l.Close())
	dir := t.TempDir()
	config := filepath.Join(dir, "config.yml")
	require.NoError(t, os.WriteFile(config, fmt.Appendf(nil, "version: 0.1\nstorage: {filesystem: {rootdirectory: %s}}\nhttp: {addr: %s}\n", dir, addr), 0o600))
	start(t, exec.Command(bin, "serve", config))
	eventually(t, func() bool {
		c, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			_ = c.Close()
		}
		return err == nil
	}, "the registry listens")
	return addr
}

// An image comes from a registry, with the engine's words on the way, and is known at once.
func TestLivePull(t *testing.T) {
	addr := startRegistry(t)
	eachKind(t, func(t *testing.T, r *rig) {
		conf := filepath.Join(t.TempDir(), "registries.conf")
		require.NoError(t, os.WriteFile(conf, []byte("[[registry]]\nlocation = \""+addr+"\"\ninsecure = true\n"), 0o600))
		r.h.Environ = append(r.h.Environ, "CONTAINERS_REGISTRIES_CONF="+conf)
		r.replan()
		e := r.engine()
		engine := func(args ...string) {
			cmd := exec.Command(e.Bin(), args...)
			cmd.Env = r.h.Environ
			output(t, cmd)
		}
		image := addr + "/lab/small:1"
		engine("tag", r.m.Env.Image, image)
		engine("push", image)
		engine("rmi", image)
		r.m.Env.Image, r.m.Env.Pull = image, "missing"
		_, err := r.p.Plan(t.Context(), r.m)
		require.True(t, IsEngineError(err, EngineImageMissing), "%v", err)

		var lines []string
		require.NoError(t, e.Pull(t.Context(), image, time.Minute, func(line string) { lines = append(lines, line) }))
		t.Cleanup(func() { engine("rmi", image) })
		assert.NotEmpty(t, lines)
		for _, line := range lines {
			assert.False(t, strings.ContainsAny(line, "\r\n\x1b"), "%q", line)
		}
		assert.NotEmpty(t, r.plan().ImageID, "the answer of before is forgotten")

		err = e.Pull(t.Context(), addr+"/lab/nosuch:1", time.Minute, nil)
		assert.True(t, IsEngineError(err, EnginePullFailed), "%v", err)
	}, engineKinds...)
}

// A pull that does not end is bounded by its own timeout.
func TestPullHasItsOwnTimeout(t *testing.T) {
	b := newFakeBin(t, map[string]string{"docker": "echo 'abc: Pulling fs layer'\nread x </dev/zero"})
	h := b.host(t)
	h.EngineTimeout = time.Nanosecond
	e, err := testPlanner(h).Engine("docker")
	require.NoError(t, err)
	var got bytes.Buffer
	err = e.Pull(t.Context(), "x", 3*time.Second, func(line string) { got.WriteString(line) })
	assert.True(t, IsEngineError(err, EnginePullFailed), "%v", err)
	assert.ErrorContains(t, err, "no end within 3s")
	assert.ErrorContains(t, err, "env.pull_timeout")
	assert.Equal(t, "abc: Pulling fs layer", got.String())
}
