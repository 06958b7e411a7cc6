package supervisor

import (
	"fmt"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIsDoomed(t *testing.T) {
	line := func(state string, flags, threads, pending int) string {
		fields := strings.Fields(strings.Repeat("7 ", 50))
		fields[0] = state
		fields[9-3], fields[20-3], fields[31-3] = fmt.Sprint(flags), fmt.Sprint(threads), fmt.Sprint(pending)
		return "42 (a) name 9) " + strings.Join(fields, " ") + "\n"
	}
	for name, k := range map[string]struct {
		stat string
		want bool
	}{
		"sleeps":                       {line("S", 0x400000, 1, 0), false},
		"SIGTERM pending":              {line("S", 0x400000, 1, 1<<14), false},
		"SIGKILL pending":              {line("D", 0x400000, 3, 1<<8|1), true},
		"dies of a signal":             {line("R", 0x400404, 3, 0), true},
		"its only thread ends":         {line("R", 0x400004, 1, 0), true},
		"one of its threads ended":     {line("Z", 0x400004, 2, 0), false},
		"a zombie":                     {line("Z", 0, 1, 0), true},
		"torn":                         {"42 (a) S 1 1", false},
		"nothing":                      {"", false},
		"not what this is written for": {"42 (a) S x y z", false},
	} {
		require.Equal(t, k.want, isDoomed([]byte(k.stat)), name)
	}
}

// A process that was sent SIGKILL is known to end from that moment on, before it has.
func TestDoomedFromTheSignalOn(t *testing.T) {
	for range 20 {
		cmd := exec.Command("sleep", "60")
		require.NoError(t, cmd.Start())
		var o omen
		require.False(t, o.look(cmd.Process.Pid))
		require.NoError(t, syscall.Kill(cmd.Process.Pid, syscall.SIGKILL))
		// But for the moment between its taking the signal and its mark of that, which only a busy machine shows.
		eventually(t, func() bool { return o.look(cmd.Process.Pid) }, func() string { return "it does not seem to end" })
		require.Error(t, cmd.Wait())
		require.True(t, o.look(cmd.Process.Pid), "reaped")
		o.close()
		require.False(t, o.look(cmd.Process.Pid), "nobody asks any more")
	}
}
