package main

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/execenv"
	"workerd/manifest"
)

// Case 18: a workerd that was killed is followed by one that takes its workers over, ends those that nothing needs any more,
// and touches nothing that is not its own.
func TestLiveCase18KilledWorkerdAdopts(t *testing.T) {
	eachKind(t, allKinds, func(t *testing.T, l *live) {
		starts := filepath.Join(l.dir, "work/starts")
		l.add("same", fmt.Sprintf("[paths]\nwork_root = %q\n[env.variables]\nSTARTS = %q\n", filepath.Dir(starts), starts))
		l.add("edited", "[env.variables]\nVERSION = \"1\"\n")
		l.add("killed", "")
		removed := l.add("removed", "")
		l.start()
		before := map[string]int{}
		for _, slug := range []string{"same", "edited", "killed", "removed"} {
			before[slug] = l.worker(slug).PID
			require.Equal(t, 1, l.calls(slug))
		}
		require.Equal(t, inside(t, before["same"]), run[int](l, "same", "import os; answer = os.getpid()", nil), "status has the host's pid")
		container := l.worker("same").Container

		l.killsRecorded()
		l.edit("edited", "[env.variables]\nVERSION = \"2\"\n")
		require.NoError(t, os.Remove(removed))
		victim := before["killed"]
		if l.kind == manifest.Apptainer {
			victim = l.runner(victim) // then nobody but the next workerd ends what mounted the image
		}
		require.NoError(t, syscall.Kill(victim, syscall.SIGKILL))
		others := l.strangers()

		begin := time.Now()
		l.start()
		require.Equal(t, 2, l.calls("same"), "it is the same worker")
		t.Logf("answered %s after the start", time.Since(begin).Round(time.Millisecond))
		w := l.worker("same")
		require.Equal(t, before["same"], w.PID)
		require.Equal(t, container, w.Container)
		require.Equal(t, "1\n", string(mustRead(t, starts)), "the model was not loaded again")
		l.until("the edited one runs", func() bool {
			p := l.status("edited")
			return p.State == "ready" && p.Workers[0].PID != before["edited"]
		})
		require.Equal(t, 1, l.calls("edited"))
		require.Equal(t, 1, l.calls("killed"), "a new worker")
		for _, slug := range []string{"edited", "killed", "removed"} {
			l.until(slug+" is gone", func() bool { return !alive(before[slug]) })
		}
		l.until("only what is needed is left", func() bool {
			return !slices.Contains(engines, l.kind) || len(l.owned()) == 3+len(others.labelled)
		})
		for _, id := range others.all {
			require.True(t, l.running(id), "a stranger's container is not touched")
		}

		// Again and again: nothing piles up, and the death of an adopted worker is seen like any other's.
		for n := range 2 {
			l.killsRecorded()
			l.start()
			require.Equal(t, 3+n, l.calls("same"))
		}
		run[any](l, "same", "print('last words')", nil)
		begin = time.Now()
		require.NoError(t, syscall.Kill(before["same"], syscall.SIGKILL))
		l.until("the death is seen", func() bool { return l.status("same").LastExit != nil })
		t.Logf("death of an adopted worker seen after %s", time.Since(begin).Round(time.Millisecond))
		require.Less(t, time.Since(begin), soon(2*time.Second))
		exit := l.status("same").LastExit
		require.NotNil(t, exit.Signal, exit.Reason)
		require.Equal(t, "SIGKILL", *exit.Signal)
		require.Contains(t, exit.Output, "last words")
		require.Equal(t, 1, l.calls("same"))
		l.until("the dead one's container is removed", func() bool {
			return !slices.Contains(engines, l.kind) || len(l.owned()) == 3+len(others.labelled)
		})
		for _, id := range others.all {
			require.True(t, l.running(id), "a stranger's container is not touched")
		}
		others.remove()
	})
}

// others are containers that look like this workerd's, and are not.
type others struct {
	all, labelled []string
	remove        func()
}

// strangers leaves an orphan of this workerd's own, which no record tells of, and containers that only look like one.
func (l *live) strangers() (o others) {
	l.t.Helper()
	o.remove = func() {}
	if !slices.Contains(engines, l.kind) {
		return o
	}
	labels := func(slug string, n int) (flags []string) {
		for name, v := range map[string]string{
			execenv.LabelInstance: l.instance(), execenv.LabelSlug: slug, execenv.LabelWorker: fmt.Sprint(n),
		} {
			flags = append(flags, "--label", name+"="+v)
		}
		return flags
	}
	orphan := execenv.ContainerName(l.instance(), "orphan", 1)
	l.stranger(orphan, labels("orphan", 1)...) // ours
	l.engine(slices.Concat([]string{"create", "--network", "none", "--name", execenv.ContainerName(l.instance(), "unborn", 1)},
		labels("unborn", 1), []string{l.image("small"), "sleep", "600"})...)
	o.all = append(o.all, l.stranger(execenv.ContainerName(l.instance(), "same", 77))) // our name, no label
	name := strings.ReplaceAll(filepath.Base(l.dir), "/", "") + "-copy"
	o.labelled = append(o.labelled, l.stranger(name, labels("same", 1)...)) // our labels, another name: of an image made from a worker
	o.all = append(o.all, o.labelled...)
	o.remove = func() {
		for _, id := range o.all {
			l.engine("rm", "--force", id)
		}
	}
	return o
}
