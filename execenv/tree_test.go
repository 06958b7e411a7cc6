package execenv

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var treeTag atomic.Int64

// instance differs between test processes that run at once, as it does between workerds.
var instance = fmt.Sprintf("%08x", os.Getpid())

// tag returns an argument for sleep that no other process has, by which a test finds its processes again. What is left of
// them ends with the test.
func tag(t *testing.T) string {
	tg := fmt.Sprintf("7%d%03d", os.Getpid(), treeTag.Add(1))
	t.Cleanup(func() {
		for range 1000 {
			left := tagged(tg)
			if len(left) == 0 {
				return
			}
			for _, pid := range left {
				_ = unix.Kill(pid, unix.SIGKILL)
			}
		}
	})
	return tg
}

// sleeps lists the living "sleep <tag>".
func sleeps(tag string) []int {
	return living(func(cmdline string) bool { return cmdline == "sleep\x00"+tag+"\x00" })
}

// tagged lists the living processes with the tag as any argument.
func tagged(tag string) []int {
	return living(func(cmdline string) bool { return strings.Contains(cmdline, "\x00"+tag+"\x00") })
}

// worker starts a shell as a worker's own process, with its marker, and returns the tree that belongs to it.
func worker(t *testing.T, marker, script string, args ...string) (*exec.Cmd, Tree) {
	t.Helper()
	cmd := exec.Command("/bin/sh", append([]string{"-c", script, "sh"}, args...)...)
	cmd.Env = []string{"PATH=/usr/bin:/bin", MarkerVar + "=" + marker}
	start(t, cmd)
	pid := cmd.Process.Pid
	st, err := ReadStat(pid)
	require.NoError(t, err)
	return cmd, Tree{Marker: marker, Session: pid, Root: pid, RootStart: st.Start}
}

func count(t *testing.T, tag string, want int) {
	t.Helper()
	eventually(t, func() bool { return len(sleeps(tag)) == want }, "want %d processes of %s", want, tag)
}

// die kills a worker's own process and waits for its end, without reaping it.
func die(t *testing.T, cmd *exec.Cmd) {
	t.Helper()
	require.NoError(t, cmd.Process.Kill())
	waitExit(cmd.Process.Pid)
}

// Each script leaves processes of another kind behind, all named by the tag $1.
var leftovers = map[string]struct {
	script string
	n      int // processes with the tag
	// rootOnly: provable only as long as the worker's own process lives.
	rootOnly bool
}{
	"child":                       {script: `sleep $1 & wait`, n: 1},
	"setsid":                      {script: `setsid sleep $1 & wait`, n: 1},
	"double fork":                 {script: `(setsid sh -c "sleep $1 &" &); sleep $1`, n: 2},
	"cleared environment":         {script: `env -i sleep $1 & wait`, n: 1},
	"cleared below a marked one":  {script: `setsid sh -c "env -i setsid sleep $1 & sleep $1" & wait`, n: 2},
	"stopped":                     {script: `sleep $1 & until [ "$(cat /proc/$!/comm)" = sleep ]; do :; done; kill -STOP $!; wait`, n: 1},
	"cleared in its own session":  {script: `env -i setsid sleep $1 & wait`, n: 1, rootOnly: true},
	"many":                        {script: `for i in 1 2 3 4 5 6 7 8 9 10; do setsid sleep $1 & sleep $1 & done; wait`, n: 20},
	"ignores what can be ignored": {script: `setsid sh -c "trap '' TERM HUP INT; sleep $1" & wait`, n: 1},
}

func TestKillTreeOfALivingWorker(t *testing.T) {
	for name, l := range leftovers {
		for _, scope := range []Scope{Fast, Full} {
			t.Run(fmt.Sprint(name, scope), func(t *testing.T) {
				tg := tag(t)
				cmd, tree := worker(t, instance+"/ocr/1", l.script, tg)
				count(t, tg, l.n)
				killed := kids.KillTree(tree, scope)
				assert.Empty(t, sleeps(tg))
				assert.Contains(t, killed, cmd.Process.Pid)
				assert.GreaterOrEqual(t, len(killed), l.n)
			})
		}
	}
}

func TestKillTreeOfADeadWorker(t *testing.T) {
	for name, l := range leftovers {
		for _, scope := range []Scope{Fast, Full} {
			if l.rootOnly {
				continue
			}
			t.Run(fmt.Sprint(name, scope), func(t *testing.T) {
				tg := tag(t)
				cmd, tree := worker(t, instance+"/ocr/2", l.script, tg)
				count(t, tg, l.n)
				die(t, cmd)
				kids.KillTree(tree, scope)
				assert.Empty(t, sleeps(tg))
				st, err := ReadStat(cmd.Process.Pid)
				require.NoError(t, err, "the worker's own process is left to whoever waits for it")
				assert.True(t, st.Dead())
			})
		}
	}
}

// What cannot be proven to be the worker's is left alone, however near it is: a helper of an engine is an unregistered child
// too.
func TestKillTreeLeavesStrangersAlone(t *testing.T) {
	for _, scope := range []Scope{Fast, Full} {
		t.Run(fmt.Sprint(scope), func(t *testing.T) {
			mine, strange := tag(t), tag(t)
			// Another worker of the same provider, whose marker begins alike.
			worker(t, instance+"/ocr/12", `setsid sleep $1 & wait`, strange)
			// A helper that was orphaned: our child, unregistered, with no marker.
			helper := exec.Command("/bin/sh", "-c", `(setsid sleep $1 >/dev/null 2>&1 &)`, "sh", strange)
			helper.Env = []string{"PATH=/usr/bin:/bin", "NOTE=WORKERD_WORKER=" + instance + "/ocr/1"}
			output(t, helper)
			count(t, strange, 2)
			eventually(t, func() bool { return len(kids.Orphans()) >= 1 }, "the helper is our child")

			cmd, tree := worker(t, instance+"/ocr/1", `setsid sleep $1 & wait`, mine)
			count(t, mine, 1)
			die(t, cmd)
			killed := kids.KillTree(tree, scope)
			assert.Len(t, killed, 1)
			assert.Empty(t, sleeps(mine))
			assert.Len(t, sleeps(strange), 2)
		})
	}
}

func TestKillInstance(t *testing.T) {
	mine, kept, strange := tag(t), tag(t), tag(t)
	for marker, tg := range map[string]string{
		instance + "/ocr/1": mine, instance + "/fold/2": mine, instance + "/ocr/3": kept, "not" + instance + "/ocr/1": strange,
	} {
		worker(t, marker, `setsid sleep $1 & wait`, tg)
	}
	count(t, mine, 2)
	count(t, kept, 1)
	count(t, strange, 1)
	// Started by an earlier life: the workers themselves are nobody's to wait for, unlike here.
	killed := kids.KillInstance(instance, func(marker string) bool { return marker == instance+"/ocr/3" })
	assert.Len(t, killed, 2)
	assert.Empty(t, sleeps(mine))
	assert.Len(t, sleeps(kept), 1)
	assert.Len(t, sleeps(strange), 1)
}

// What mounted the image of a worker goes with its runner, which may have no title yet, or only its configuration, or be stopped.
func TestKillInstanceEndsRunners(t *testing.T) {
	for name, env := range map[string]string{
		"early":  "APPTAINERENV_" + MarkerVar + "=" + instance + "/sif/1",
		"config": `ENGINE_CONFIG1={"apptainerEnv":{"USER":"u","` + MarkerVar + `":"` + instance + `/sif/1","X":"y"}}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			helper := filepath.Join(dir, "squashfuse_ll")
			require.NoError(t, os.Symlink("/bin/sleep", helper))
			tg := tag(t)
			runner := start(t, &exec.Cmd{Path: "/bin/sh", Args: []string{"sh", "-c", `env -i "$0" $1 & wait`, helper, tg}, Env: []string{env}})
			eventually(t, func() bool {
				mounted := ChildPIDs(runner.Process.Pid)
				if len(mounted) != 1 {
					return false
				}
				st, err := ReadStat(mounted[0])
				return err == nil && st.Comm == "squashfuse_ll"
			}, "it has mounted")
			require.NoError(t, runner.Process.Signal(unix.SIGSTOP))
			kids.KillInstance(instance, func(marker string) bool { return marker != instance+"/sif/1" }) // whose own child it is only here
			kids.Done(runner.Process.Pid, func() { assert.Error(t, runner.Wait()) })
			eventually(t, func() bool { return len(tagged(tg)) == 0 }, "its helper is gone")
		})
	}
}

// A session number or a root that is not the worker's any more proves nothing.
func TestKillTreeRefusesAFalseRoot(t *testing.T) {
	tg := tag(t)
	cmd, tree := worker(t, instance+"/other/1", `sleep $1 & wait`, tg)
	count(t, tg, 1)
	sid, err := unix.Getsid(0)
	require.NoError(t, err)
	for _, false1 := range []Tree{
		{Marker: instance + "/ocr/3", Root: cmd.Process.Pid, RootStart: tree.RootStart + 1},
		{Marker: instance + "/ocr/3", Session: sid},
		{Marker: ""},
		{},
	} {
		assert.Empty(t, kids.KillTree(false1, Full))
	}
	count(t, tg, 1)
}

// Processes that fork as fast as they can, and chains of which each link forks the next and exits, are caught all the same.
func TestKillTreeForkStorm(t *testing.T) {
	defer func(usual time.Duration) { treeBudget = usual }(treeBudget)
	treeBudget = 30 * time.Second // a storm leaves a slow machine no time
	scripts := map[string]string{
		"wide":  `for i in 1 2 3 4; do (while :; do setsid sleep $1 & sleep 0.005; done) & done; wait`,
		"chain": `for i in 1 2 3 4; do setsid sh -c "$2" sh $1 "$2" & done; sleep $1`,
	}
	const link = `sh -c "$2" sh $1 "$2" & exit`
	for name, script := range scripts {
		for _, scope := range []Scope{Fast, Full} {
			t.Run(name+strconv.Itoa(int(scope)), func(t *testing.T) {
				tg := tag(t)
				cmd, tree := worker(t, instance+"/storm/1", script, tg, link)
				reaped := 0
				eventually(t, func() bool {
					reaped += kids.ReapOrphans() // as workerd does: the dead of a storm use pids up
					return len(sleeps(tg)) >= 10 || reaped >= 20
				}, "the storm rages")
				die(t, cmd)
				begin := time.Now()
				kids.KillTree(tree, scope)
				t.Logf("ended after %s", time.Since(begin))
				assert.Empty(t, tagged(tg))
			})
		}
	}
}

func TestReapOrphans(t *testing.T) {
	tg := tag(t)
	cmd, _ := worker(t, instance+"/ocr/4", `(sleep $1 &) ; (setsid sleep $1 &); exec sleep $1`, tg)
	count(t, tg, 3)
	var orphans []int
	eventually(t, func() bool {
		orphans = nil
		for _, pid := range sleeps(tg) {
			if pid != cmd.Process.Pid {
				orphans = append(orphans, pid)
			}
		}
		return len(orphans) == 2
	}, "two orphans")
	assert.Subset(t, kids.Orphans(), orphans)
	assert.NotContains(t, kids.Orphans(), cmd.Process.Pid)

	// The registered child dies too, and is not reaped: its status is for whoever waits for it.
	require.NoError(t, cmd.Process.Kill())
	for _, pid := range orphans {
		require.NoError(t, unix.Kill(pid, unix.SIGKILL))
	}
	reaped := 0
	eventually(t, func() bool {
		reaped += kids.ReapOrphans()
		for _, pid := range orphans {
			if _, err := ReadStat(pid); err == nil {
				return false
			}
		}
		return true
	}, "the orphans are reaped")
	assert.GreaterOrEqual(t, reaped, 2)
	var err error
	kids.Done(cmd.Process.Pid, func() { err = cmd.Wait() })
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	assert.False(t, kids.Known(cmd.Process.Pid))
}

// Children that end at once are never taken for orphans, whatever is reaped meanwhile.
func TestReapOrphansRacesWithStart(t *testing.T) {
	stop, reaper := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(reaper)
		for {
			select {
			case <-stop:
				return
			default:
				kids.ReapOrphans()
			}
		}
	}()
	const each = 60
	errs := make(chan error, 4)
	for range 4 {
		go func() {
			var first error
			for range each {
				cmd := exec.Command("/bin/sh", "-c", "exit 7")
				pid, err := kids.Start(func() (int, error) {
					if err := cmd.Start(); err != nil {
						return 0, err
					}
					return cmd.Process.Pid, nil
				})
				if err == nil {
					kids.Done(pid, func() { err = cmd.Wait() })
					if code := cmd.ProcessState.ExitCode(); code == 7 {
						err = nil
					}
				}
				if first == nil {
					first = err
				}
			}
			errs <- first
		}()
	}
	for range 4 {
		require.NoError(t, <-errs)
	}
	close(stop)
	<-reaper
}

// A fork that takes its time holds up neither the reaping of others nor the end of a tree, and its own child is not taken for
// an orphan meanwhile.
func TestForkUnderWay(t *testing.T) {
	tg := tag(t)
	old, tree := worker(t, instance+"/ocr/5", `(setsid sleep $1 &); exec sleep $1`, tg)
	count(t, tg, 2)
	self, err := ReadStat(old.Process.Pid)
	require.NoError(t, err)
	eventually(t, func() bool { return bootTicks() > self.Start+1 }, "what follows is younger")

	began, forked, proceed := make(chan int), make(chan error, 1), make(chan struct{})
	cmd := exec.Command("/bin/sh", "-c", "exit 9")
	go func() {
		pid, err := kids.Start(func() (int, error) {
			if err := cmd.Start(); err != nil {
				return 0, err
			}
			began <- cmd.Process.Pid
			<-proceed
			return cmd.Process.Pid, nil
		})
		if err == nil {
			kids.Done(pid, func() { err = cmd.Wait() })
		}
		forked <- err
	}()
	pid := <-began
	waitExit(pid)
	kids.ReapOrphans()
	_, err = ReadStat(pid)
	require.NoError(t, err, "it has ended, is not registered yet, and still not reaped")
	assert.NotContains(t, kids.Orphans(), pid)
	die(t, old)
	assert.NotEmpty(t, kids.KillTree(tree, Fast))
	assert.Empty(t, sleeps(tg))

	// An orphan as young as that child is reaped when the fork is over.
	young := tag(t)
	worker(t, instance+"/ocr/6", `(setsid sleep $1 &); exec sleep 600`, young)
	count(t, young, 1)
	orphan := sleeps(young)[0]
	eventually(t, func() bool { st, err := ReadStat(orphan); return err == nil && st.PPID == os.Getpid() }, "it is an orphan")
	require.NoError(t, unix.Kill(orphan, unix.SIGKILL))
	waitExit(orphan)
	kids.ReapOrphans()
	_, err = ReadStat(orphan)
	require.NoError(t, err)

	close(proceed)
	var exit *exec.ExitError
	require.ErrorAs(t, <-forked, &exit)
	assert.Equal(t, 9, exit.ExitCode())
	_, err = ReadStat(orphan)
	assert.ErrorIs(t, err, ErrNoProcess)
}

func TestStartThatFailsRegistersNothing(t *testing.T) {
	var c Children
	_, err := c.Start(func() (int, error) { return 0, os.ErrPermission })
	require.ErrorIs(t, err, os.ErrPermission)
	assert.False(t, c.Known(0))
}
