package execenv

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseContainers(t *testing.T) {
	const shape = `[{"Id":"abc","Name":"%s","Image":"sha256:0123","Created":"2026-11-30T10:22:36.123456789Z",` +
		`"Config":{"Labels":{"workerd.instance":"0a1b2c3d","workerd.slug":"ocr","workerd.worker":"7"}},"HostConfig":{"LogConfig":{"Type":"local"}},` +
		`"State":{"Status":"%s","Running":%v,"OOMKilled":false,"Pid":%d,"ExitCode":%d,"Error":"","StartedAt":"%s","FinishedAt":"%s"}}]`
	const never, then = "0001-01-01T00:00:00Z", "2026-11-30T10:22:40Z"
	code := func(n int) *int { return &n }
	for _, c := range []struct {
		status      string
		running     bool
		pid, exit   int
		start, stop string
		want        ContainerState
		code        *int
		started     bool
		finished    bool
	}{
		{"created", false, 0, 0, never, never, ContainerCreated, nil, false, false},
		{"created", false, 0, 127, never, never, ContainerCreated, nil, false, false},
		{"configured", false, 0, 0, never, never, ContainerCreated, nil, false, false},
		{"running", true, 42, 0, then, never, ContainerRunning, nil, true, false},
		{"running", true, 42, 137, then, then, ContainerRunning, nil, true, false}, // started again: what is left of the earlier run
		{"paused", true, 42, 0, then, never, ContainerRunning, nil, true, false},
		{"stopping", true, 42, 0, then, never, ContainerRunning, nil, true, false},
		{"exited", false, 0, 0, then, then, ContainerExited, code(0), true, true},
		{"exited", false, 0, 137, then, "nonsense", ContainerExited, code(137), true, false},
		{"stopped", false, 0, 143, then, then, ContainerExited, code(143), true, true},
		{"dead", false, 0, 1, then, then, ContainerExited, code(1), true, true},
		{"removing", false, 0, 1, then, then, ContainerExited, code(1), true, true},
	} {
		got, err := parseContainers(fmt.Appendf(nil, shape, "/workerd-0a1b2c3d-ocr-7", c.status, c.running, c.pid, c.exit, c.start, c.stop))
		require.NoError(t, err)
		require.Len(t, got, 1)
		assert.Equal(t, c.want, got[0].State, c.status)
		assert.Equal(t, c.code, got[0].ExitCode, c.status)
		assert.Equal(t, c.started, !got[0].Started.IsZero(), c.status)
		assert.Equal(t, c.finished, !got[0].Finished.IsZero(), c.status)
		assert.Equal(t, "0123", got[0].Image)
		slug, n, ok := got[0].Worker("0a1b2c3d")
		assert.True(t, ok)
		assert.Equal(t, "ocr7", fmt.Sprint(slug, n))
		_, _, ok = got[0].Worker("ffffffff")
		assert.False(t, ok)
		got[0].Name = "lab"
		_, _, ok = got[0].Worker("0a1b2c3d")
		assert.False(t, ok, "a stranger's, of an image that was made from a worker's container")
	}
	for _, bad := range []string{"", "{}", `[{"Id":""}]`, `[{"Id":"a","State":{}}]`, "[1]"} {
		_, err := parseContainers([]byte(bad))
		assert.Error(t, err, bad)
	}
}

func TestLineWriter(t *testing.T) {
	var got []string
	w := &lineWriter{take: func(s string) { got = append(got, s) }, tail: tail{limit: 8}}
	for _, s := range []string{"one\ntw", "o\r\n\x1b[32mthree\x1b[0m\rfour", "\n\n", "five"} {
		n, err := w.Write([]byte(s))
		require.NoError(t, err)
		assert.Equal(t, len(s), n)
	}
	w.flush()
	assert.Equal(t, []string{"one", "two", "three", "four", "five"}, got)
	assert.Equal(t, []byte("r\n\nfive")[0:7], w.bytes()[1:])
	got = nil
	_, _ = w.Write(bytes.Repeat([]byte("x"), 3*longestLine))
	w.flush()
	assert.Equal(t, 3*longestLine, len(strings.Join(got, "")))
}
