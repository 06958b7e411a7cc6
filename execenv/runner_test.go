package execenv

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func shell(script string, args ...string) Probe {
	return Probe{Argv: append([]string{"/bin/sh", "-c", script, "sh"}, args...), Env: []string{"PATH=/usr/bin:/bin"}}
}

func TestOSRunner(t *testing.T) {
	r := OSRunner{&kids}
	tests := []struct {
		name   string
		script string
		want   ProbeResult
	}{
		{"streams", `echo out; echo err >&2; printf 'a\000b' >&3; exit 3`,
			ProbeResult{Code: 3, Stdout: []byte("out\n"), Stderr: []byte("err\n"), FD3: []byte("a\x00b")}},
		{"signal", `kill -9 $$`, ProbeResult{Code: 137, FD3: []byte{}}},
		{"no input", `cat; echo $?; pwd`, ProbeResult{Stdout: []byte("0\n/\n"), FD3: []byte{}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := r.Run(context.Background(), shell(tt.script))
			require.NoError(t, err)
			assert.Equal(t, tt.want, got)
		})
	}
	_, err := r.Run(context.Background(), Probe{Argv: []string{"/nonexistent"}})
	assert.Error(t, err)
}

func TestOSRunnerBoundsOutput(t *testing.T) {
	got, err := OSRunner{&kids}.Run(context.Background(),
		shell(`head -c 1000000 /dev/zero | tr '\0' x; echo end; head -c 5000000 /dev/zero >&3; echo last >&2`))
	require.NoError(t, err)
	assert.Len(t, got.Stdout, streamLimit)
	assert.True(t, strings.HasSuffix(string(got.Stdout), "xend\n"))
	assert.Len(t, got.FD3, fd3Limit)
	assert.True(t, got.FD3Cut)
	assert.Equal(t, "last\n", string(got.Stderr))
}

// At the deadline everything that the probe started goes, whatever session it is in, and nobody waits for its pipes.
func TestOSRunnerKillsAtTheDeadline(t *testing.T) {
	tg := tag(t)
	ctx, cancel := context.WithCancelCause(context.Background())
	reason := errors.New("enough")
	type result struct {
		res ProbeResult
		err error
	}
	done := make(chan result, 1)
	go func() {
		res, err := OSRunner{&kids}.Run(ctx, shell(`echo begun >&2; trap '' TERM; sleep $1 & setsid sleep $1 & env -i setsid sleep $1 & wait`, tg))
		done <- result{res, err}
	}()
	count(t, tg, 3)
	cancel(reason)
	got := <-done
	require.ErrorIs(t, got.err, reason)
	assert.Equal(t, "begun\n", string(got.res.Stderr))
	assert.Empty(t, sleeps(tg))
}

// A probe that ends leaves none of its group behind; what holds its pipes from elsewhere delays it for a bounded time.
func TestOSRunnerEndsItsGroup(t *testing.T) {
	tg, daemon := tag(t), tag(t)
	begin := time.Now()
	got, err := OSRunner{&kids}.Run(context.Background(), shell(`sleep $1 & setsid sleep $2 & until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done; echo ready`, tg, daemon))
	require.NoError(t, err)
	assert.Equal(t, "ready\n", string(got.Stdout))
	assert.Less(t, time.Since(begin), 10*time.Second)
	count(t, tg, 0)
	assert.Len(t, sleeps(daemon), 1, "a daemon that a setup starts on purpose lives on")
}

func TestOSRunnerCancelledBefore(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := OSRunner{&kids}.Run(ctx, shell("true"))
	require.ErrorIs(t, err, context.Canceled)
}
