package execenv

import (
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"workerd/manifest"
)

// Case 36: what a worker in Apptainer forked goes with it, and so does the helper that serves its image.
func TestLiveCase36ApptainerLeavesNothing(t *testing.T) {
	r := newRig(t, manifest.Apptainer, "small")
	r.worker("import os, time\nif os.fork() == 0:\n  os.setsid()\n  if os.fork() == 0: time.sleep(600)\n  os._exit(0)\nos.wait()\nprint('ready', flush=True)\ntime.sleep(600)\n")
	c, err := r.p.Command(r.plan(), r.params())
	require.NoError(t, err)
	cmd := toExec(c)
	pipe, err := cmd.StdoutPipe()
	require.NoError(t, err)
	start(t, cmd)
	buf := make([]byte, 6)
	_, err = pipe.Read(buf)
	require.NoError(t, err)
	marker := Marker(r.h.Instance, "ocr", r.n)
	marked := func() (names []string) {
		for _, pid := range allPIDs() {
			if has, _ := HasMarker(pid, marker); has {
				if st, err := ReadStat(pid); err == nil && !st.Dead() {
					names = append(names, st.Comm)
				}
			}
		}
		return names
	}
	pid := cmd.Process.Pid
	session := func() (names []string) {
		for _, p := range allPIDs() {
			if st, err := ReadStat(p); err == nil && !st.Dead() && st.Session == pid {
				names = append(names, st.Comm)
			}
		}
		return names
	}
	// The helper that serves the image carries no marker; it shares the session.
	assert.Equal(t, 2, countOf(marked(), "python3"))
	assert.NotContains(t, marked(), "squashfuse_ll")
	assert.Contains(t, session(), "squashfuse_ll")
	require.NoError(t, cmd.Process.Kill())
	waitExit(pid)
	kids.KillTree(Tree{Marker: marker, Session: pid, Root: pid}, Full)
	kids.Done(pid, func() { _ = cmd.Wait() })
	assert.Empty(t, marked())
	assert.Empty(t, session())
}

func countOf(list []string, what string) (n int) {
	for _, s := range list {
		if s == what {
			n++
		}
	}
	return n
}

// A worker that a workerd was starting when it was killed is ended by the next one, however far Apptainer has come with it: for a
// while nothing but the runner's configuration says whose it is.
func TestLiveApptainerStartIsEndedAtAnyMoment(t *testing.T) {
	r := newRig(t, manifest.Apptainer, "small")
	r.worker("import time\ntime.sleep(600)\n")
	for wait := time.Duration(0); wait < 500*time.Millisecond; wait += 15 * time.Millisecond {
		c, err := r.p.Command(r.plan(), r.params())
		require.NoError(t, err)
		cmd := toExec(c)
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
		require.NoError(t, cmd.Start()) // nobody's child that is known, as after the death of who started it
		<-time.After(wait)
		(&Children{}).KillInstance(r.h.Instance, nil)
		for _, pid := range allPIDs() {
			if st, err := ReadStat(pid); err == nil && !st.Dead() && st.Session == cmd.Process.Pid {
				t.Errorf("left after %s: %s (%d)", wait, st.Comm, pid)
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		_ = cmd.Wait() // it may have been reaped as an orphan
	}
}

// What Apptainer refuses is told from what a worker ended with.
func TestLiveApptainerRefusals(t *testing.T) {
	r := newRig(t, manifest.Apptainer, "small")
	for _, args := range [][]string{{"--no-such-flag"}, {"--memory", "1000000"}, {"--overlay", "/no/such/overlay"}} {
		r.m.Env.ExtraArgs = args
		pl := r.plan()
		code, out := r.foreground(pl)
		e := pl.RunFailure(code, []byte(out))
		require.NotNil(t, e, "%d %s", code, out)
		assert.Equal(t, EngineRefused, e.Kind, e)
		assert.NotContains(t, e.Msg, "Options for exec")
	}
	r.m.Env.ExtraArgs = nil
	broken := r.m.Dir + "/broken.sif"
	require.NoError(t, os.WriteFile(broken, []byte("junk"), 0o644))
	r.m.Env.SIF = broken
	_, err := r.p.Plan(t.Context(), r.m)
	assert.ErrorContains(t, err, "no image, or a damaged one")
}
