package supervisor

import (
	"fmt"
	"io"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// ask sends a request without waiting for its answer; its text is its id too.
func (c *caller) ask(method, text, more string) {
	c.t.Helper()
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%q,"method":%q,"params":{"text":%q%s}}`, text, method, text, more))
}

func waiting(r *rig, slug string, n int) {
	r.t.Helper()
	r.until(slug, fmt.Sprintf("%d wait", n), func(s protocol.ProviderStatus) bool { return s.Queue.Waiting == n })
}

// Whoever comes while another client has a long line waits for one request of that client, not for the line; the place that
// it is told is the one that it has.
func TestFloodStarvesNobody(t *testing.T) {
	r := newRig(t)
	runs := filepath.Join(t.TempDir(), "runs")
	r.serve("slow", "[start]\nwhen = \"request\"\n", "LOAD=4s", "RUNS="+runs)
	a, b := r.dial("slow"), r.dial("slow")
	for i := range 20 {
		a.ask("echo", fmt.Sprintf("a%d", i), "")
	}
	waiting(r, "slow", 20)
	for i := range 3 {
		b.ask("echo", fmt.Sprintf("b%d", i), `,"_meta":{"progressToken":"t"}`)
		place := fmt.Sprintf("place %d)", 2*i+2)
		for told := ""; !strings.Contains(told, place); {
			told = b.next().Params.Message
			require.Contains(t, told, "place ")
		}
	}
	for range 20 {
		require.Nil(t, a.next().Error)
	}
	ran := lines(runs)
	require.Equal(t, []string{"echo_a0", "echo_b0", "echo_a1", "echo_b1", "echo_a2", "echo_b2", "echo_a3", "echo_a4"}, ran[:8])
	require.Len(t, ran, 23)
}

// A client that asks for more than the queue takes leaves others their share of it: what it has in excess is refused, with
// the length of the queue, and no other client is.
func TestFloodBeyondTheQueue(t *testing.T) {
	r := newRig(t)
	runs := filepath.Join(t.TempDir(), "runs")
	r.serve("slow", "[start]\nwhen = \"request\"\n[serve]\nqueue = 5\n", "LOAD=4s", "RUNS="+runs)
	a, b := r.dial("slow"), r.dial("slow")
	for i := range 10 {
		a.ask("echo", fmt.Sprintf("a%d", i), "")
	}
	full := func(c *caller, id, message string, detail map[string]any) {
		t.Helper()
		n := c.next()
		require.Equal(t, protocol.QueueFull, n.kind())
		require.Equal(t, fmt.Sprintf("%q", id), string(n.ID))
		require.Contains(t, n.Error.Message, message)
		require.Subset(t, n.Error.Data.Detail, detail)
	}
	for i := 6; i < 10; i++ {
		full(a, fmt.Sprintf("a%d", i), "0 requests run and 6 wait, 6 of them on this connection",
			map[string]any{"queue": 5.0, "waiting": 6.0, "running": 0.0, "capacity": 1.0, "connection": 6.0})
	}
	for i := range 4 {
		b.ask("echo", fmt.Sprintf("b%d", i), "")
	}
	full(a, "a5", "6 wait, 6 of them", nil)
	full(a, "a4", "6 wait, 5 of them", nil)
	full(a, "a3", "6 wait, 4 of them", nil)
	full(b, "b3", "6 wait, 3 of them", nil)
	for range 3 {
		require.Nil(t, a.next().Error)
		require.Nil(t, b.next().Error)
	}
	require.Equal(t, []string{"echo_a0", "echo_b0", "echo_a1", "echo_b1", "echo_a2", "echo_b2"}, lines(runs))
}

// Joining a running request by its key takes no place in the queue, and yet cannot be had without end.
func TestFloodOfJoins(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+"[serve]\nqueue = 3\n")
	c := r.dial("echo")
	for i := range 10 {
		c.ask("sleep", fmt.Sprintf("j%d", i), `,"sec":3,"_meta":{"idempotencyKey":"k"}`)
	}
	kinds := map[protocol.Kind]int{}
	for range 10 {
		kinds[c.next().kind()]++
	}
	require.Equal(t, map[protocol.Kind]int{"": 4, protocol.QueueFull: 6}, kinds, "capacity and queue")
	require.Nil(t, c.call("echo", `{}`).Error)
}

// write writes what is taken within a second.
func (c *caller) write(data []byte) (int, error) {
	_ = c.c.SetWriteDeadline(time.Now().Add(time.Second))
	return c.c.Write(data)
}

// bigs asks for n answers of a size.
func bigs(n, size int) string {
	lines := make([]string, n)
	for i := range lines {
		lines[i] = fmt.Sprintf(`{"jsonrpc":"2.0","id":"%d","method":"big","params":{"size":%d}}`, i, size)
	}
	return strings.Join(lines, "\n")
}

// heap is what lives on the heap now.
func heap() int64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// A client that asks for much and reads nothing fills no memory: its requests wait until it reads, others are served
// meanwhile, and in the end it gets every answer.
func TestSlowReaderOfManyAnswers(t *testing.T) {
	const asked, size = 40, 512 << 10
	r := newRig(t)
	r.serve("echo", "[start]\nwhen = \"request\"\n[serve]\nqueue = 1000\n", "LOAD=3s")
	slow, other := r.dial("echo"), r.dial("echo")
	before := heap()
	slow.send(bigs(asked, size)) // at once: what is asked late is not read when answers lie unread
	r.until("echo", "the slow client is held", func(s protocol.ProviderStatus) bool {
		return s.State == "ready" && s.InFlight == 0 && s.Queue.Waiting > asked/2 && s.Queue.Waiting < asked
	})
	grown := heap() - before
	t.Logf("%d answers of %d bytes unread, %d bytes held", asked, size, grown)
	require.Less(t, grown, int64(10*size))
	for range 20 {
		require.Nil(t, other.call("echo", `{}`).Error)
	}
	require.Greater(t, r.status("echo").Queue.Waiting, asked/2, "still held")
	for i := range asked {
		a := slow.next()
		require.Nil(t, a.Error)
		require.Equal(t, fmt.Sprintf("%q", fmt.Sprint(i)), string(a.ID))
		require.Len(t, a.Result, size+2)
	}
	waiting(r, "echo", 0)
}

// Nor do floods of progress, and of lines that are no requests.
func TestSlowReaderOfFloods(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	r.state("echo", "ready")
	c := r.dial("echo")
	before := heap()
	c.ask("progress", "p", `,"steps":60000,"_meta":{"progressToken":"t"}`)
	r.until("echo", "all is sent", func(s protocol.ProviderStatus) bool { return s.InFlight == 0 })
	grown := heap() - before
	t.Logf("60,000 notifications unread, %d bytes held", grown)
	require.Less(t, grown, int64(3<<20))
	last := 0.0
	for {
		a := c.next()
		if a.Method == "" {
			require.Equal(t, `"done"`, string(a.Result))
			break
		}
		require.Greater(t, a.Params.Progress, last)
		last = a.Params.Progress
	}

	garbage := r.dial("echo")
	before = heap()
	var sent int
	line := []byte(strings.Repeat("no JSON\n", 1024))
	for sent = 0; sent < 64<<20; {
		n, err := garbage.write(line)
		sent += n
		if err != nil {
			break
		}
	}
	grown = heap() - before
	t.Logf("%d bytes of garbage taken, %d bytes held", sent, grown)
	require.Less(t, sent, 64<<20, "workerd stops reading")
	require.Less(t, grown, int64(8<<20))
}

// A slow client that goes away, or stays while workerd stops, leaves nothing behind.
func TestSlowReaderLeaves(t *testing.T) {
	r := newRig(t)
	r.serve("echo", "[serve]\nqueue = 1000\n[start]\nwhen = \"request\"\nidle_timeout = \"50ms\"\n", "LOAD=1s")
	held := func() *caller {
		c := r.dial("echo")
		c.send(bigs(20, 512<<10))
		return c
	}
	c := held()
	r.until("echo", "held", func(s protocol.ProviderStatus) bool {
		return s.InFlight == 0 && s.Queue.Waiting > 5 && s.Queue.Waiting < 20
	})
	r.until("echo", "a worker is not kept for who does not read", func(s protocol.ProviderStatus) bool { return s.State == "stopped" })
	got, err := io.ReadAll(io.LimitReader(c.r, 8<<20)) // reading again starts one
	require.NoError(t, err)
	require.Len(t, got, 8<<20)
	require.NoError(t, c.c.Close())
	waiting(r, "echo", 0)

	r.state("echo", "stopped")
	_ = held()
	r.until("echo", "held", func(s protocol.ProviderStatus) bool {
		return s.InFlight == 0 && s.Queue.Waiting > 5 && s.Queue.Waiting < 20
	})
	r.stop()
}
