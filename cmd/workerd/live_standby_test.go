package main

import (
	"fmt"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A standby in each kind of environment: it takes over, another one is raised, and a workerd that was killed finds it again. A warm
// one has loaded nothing until then.
func TestLiveStandby(t *testing.T) {
	for _, mode := range []string{"hot", "warm"} {
		eachKind(t, allKinds, func(t *testing.T, l *live) {
			starts := filepath.Join(l.dir, "work/starts")
			l.add("x", fmt.Sprintf("[paths]\nwork_root = %q\n[serve]\nstandby = %q\n[env.variables]\nSTARTS = %q\n", filepath.Dir(starts), mode, starts))
			l.start()
			p := &prepared{e2e: l.e2e, slug: "x"}
			loaded := func() int { return strings.Count(string(mustRead(t, starts)), "\n") }
			each := map[string]int{"hot": 1, "warm": 0}[mode]

			serving, standby := p.stands(1)
			require.Equal(t, 1+each, loaded())
			require.Equal(t, inside(t, serving[0]), run[int](l, "x", "import os; answer = os.getpid()", nil), "the standby does not serve")
			begin := time.Now()
			require.NoError(t, syscall.Kill(serving[0], syscall.SIGKILL))
			require.Equal(t, inside(t, standby), run[int](l, "x", "import os; answer = os.getpid()", nil))
			t.Logf("%s: answered %s after the kill", mode, time.Since(begin).Round(time.Millisecond))
			serving, standby = p.stands(1)
			require.Equal(t, 2+each, loaded())

			l.killsRecorded()
			l.start()
			again, still := p.stands(1)
			require.Equal(t, serving, again)
			require.Equal(t, standby, still)
			require.NoError(t, syscall.Kill(serving[0], syscall.SIGKILL))
			require.Equal(t, inside(t, standby), run[int](l, "x", "import os; answer = os.getpid()", nil))
			p.stands(1)
			require.Equal(t, 3+each, loaded())
		})
	}
}
