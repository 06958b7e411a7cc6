package supervisor

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/execenv"
	"workerd/protocol"
)

func TestPipelineAndIDsComeBackAsTheyWere(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+"[serve]\nconcurrency = 2\n")
	c := r.dial("echo")
	c.send(`{"id":"a\u0062","method":"echo","params":{"text":"1"},"jsonrpc":"2.0"}`)
	c.send(`{"jsonrpc":"2.0","method":"echo","params":{"text":"2"},"id":-7}`)
	c.send(`{"jsonrpc":"2.0","id":12345678901234567890,"method":"echo","params":{"text":"3"}}`)
	got := map[string]string{}
	for range 3 {
		a := c.next()
		got[string(a.ID)] = string(a.Result)
	}
	require.Contains(t, got[`"a\u0062"`], `"1"`)
	require.Contains(t, got[`-7`], `"2"`)
	require.Contains(t, got[`12345678901234567890`], `"3"`)
}

func TestProgress(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	c := r.dial("echo")
	require.Nil(t, c.call("echo", `{}`).Error) // it waits for nothing any more
	c.send(`{"jsonrpc":"2.0","id":1,"method":"progress","params":{"steps":3,"_meta":{"progressToken":"tok"}}}`)
	for i := range 3 {
		a := c.next()
		require.Equal(t, protocol.NotifyProgress, a.Method)
		require.Equal(t, `"tok"`, string(a.Params.Token))
		require.EqualValues(t, i+1, a.Params.Progress)
	}
	require.Equal(t, `"done"`, string(c.next().Result))
}

// 88: a caller with a token hears of the cold start from the first moment.
func TestCase88ProgressWhileWaiting(t *testing.T) {
	r := newRig(t)
	r.serve("slow", "[start]\nwhen = \"request\"\n", "LOAD=1s")
	c := r.dial("slow")
	c.send(`{"jsonrpc":"2.0","id":1,"method":"echo","params":{"_meta":{"progressToken":9}}}`)
	var heard []string
	last := -1.0
	for {
		a := c.next()
		if a.Method == "" {
			require.Nil(t, a.Error)
			break
		}
		require.Equal(t, "9", string(a.Params.Token))
		require.Greater(t, a.Params.Progress, last, "progress must increase")
		last = a.Params.Progress
		heard = append(heard, a.Params.Message)
	}
	all := strings.Join(heard, "\n")
	require.Contains(t, all, "place 1")
	require.Contains(t, all, "starting")
	require.Contains(t, all, "shard 2/4")
}

func TestCancelRunning(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	c := r.dial("echo")
	pid := c.call("echo", `{}`).pid(t)
	file := filepath.Join(t.TempDir(), "c")
	c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":"x","method":"sleep","params":{"sec":60,"file":%q}}`, file))
	r.until("echo", "running", func(s protocol.ProviderStatus) bool { return s.InFlight == 1 })
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"x"}}`)
	a := c.next()
	require.Equal(t, `"x"`, string(a.ID))
	require.Equal(t, protocol.Cancelled, a.kind())
	eventually(t, func() bool { return len(lines(file)) == 1 }, func() string { return "the worker hears of it" })
	require.Equal(t, pid, c.call("echo", `{}`).pid(t), "a cancel never kills")
}

// A slot that is still busy with a cancelled request takes no other one.
func TestCancelDeafWorkerKeepsItsSlot(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+"[serve]\nqueue = 1\n")
	c := r.dial("echo")
	require.Nil(t, c.call("echo", `{}`).Error)
	begin := time.Now()
	c.send(`{"jsonrpc":"2.0","id":"x","method":"sleep","params":{"sec":3,"deaf":true}}`)
	r.until("echo", "running", func(s protocol.ProviderStatus) bool { return s.InFlight == 1 })
	c.send(`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":"x"}}`)
	require.Equal(t, protocol.Cancelled, c.next().kind())
	require.Equal(t, 1, r.status("echo").InFlight)
	require.Nil(t, c.call("echo", `{}`).Error)
	require.GreaterOrEqual(t, time.Since(begin), 3*time.Second)
}

func TestCancelWaiting(t *testing.T) {
	r := newRig(t)
	runs := filepath.Join(t.TempDir(), "runs")
	r.serve("slow", "[start]\nwhen = \"request\"\n", "LOAD=1s", "RUNS="+runs)
	c := r.dial("slow")
	c.send(`{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":"never"}}` + "\n" +
		`{"jsonrpc":"2.0","id":2,"method":"echo","params":{"text":"runs"}}` + "\n" +
		`{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}`)
	a := c.next()
	require.Equal(t, protocol.Cancelled, a.kind())
	require.Equal(t, "1", string(a.ID))
	require.Equal(t, "2", string(c.next().ID))
	require.Equal(t, []string{"echo_runs"}, lines(runs))
}

// 75: past its deadline a request is answered at once; a worker that goes on beyond cancel_grace is killed.
func TestCase75Deadlines(t *testing.T) {
	for name, how := range map[string]struct{ body, meta string }{
		"request_timeout": {"request_timeout = \"3s\"\n", ""},
		"timeoutMs":       {"", `,"_meta":{"timeoutMs":3000}`},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.serve("echo", quick+"[serve]\ncancel_grace = \"300ms\"\n"+how.body)
			c := r.dial("echo")
			pid := c.call("echo", `{}`).pid(t)
			start := time.Now()
			a := c.call("sleep", `{"sec":60,"deaf":true`+how.meta+`}`)
			require.Equal(t, protocol.DeadlineExceeded, a.kind())
			require.Equal(t, name, a.Error.Data.Detail.(map[string]any)["limit"])
			require.Less(t, time.Since(start), 20*time.Second)
			next := c.call("echo", `{}`).pid(t)
			require.NotEqual(t, pid, next)
			require.Contains(t, r.status("echo").LastExit.Reason, "deadline")
			r.serve("echo", quick+"[serve]\ncancel_grace = \"30s\"\n"+how.body)
			require.Equal(t, protocol.DeadlineExceeded, c.call("sleep", `{"sec":60`+how.meta+`}`).kind())
			require.Equal(t, next, c.call("echo", `{}`).pid(t), "one that hears cancel lives")
		})
	}
}

// 76: the caller's timeoutMs bounds the cold start as well; request_timeout does not.
func TestCase76LoadTimeIsNotRequestTime(t *testing.T) {
	r := newRig(t)
	r.serve("slow", "[start]\nwhen = \"request\"\n[serve]\nrequest_timeout = \"3s\"\n", "LOAD=4s")
	c := r.dial("slow")
	a := c.call("echo", `{"_meta":{"timeoutMs":100}}`)
	require.Equal(t, protocol.DeadlineExceeded, a.kind())
	require.Nil(t, c.call("echo", `{}`).Error)
	require.Equal(t, 0, r.status("slow").Workers[0].Restarts, "a departed caller cancels no start")
}

// 87: a caller that goes away has its request cancelled within a second; on_disconnect = "finish" lets it run.
func TestCase87CallerGoesAway(t *testing.T) {
	for _, mode := range []string{"cancel", "finish"} {
		t.Run(mode, func(t *testing.T) {
			r := newRig(t)
			r.serve("echo", quick+"[serve]\non_disconnect = \""+mode+"\"\n")
			require.Nil(t, r.dial("echo").call("echo", `{}`).Error)
			file := filepath.Join(t.TempDir(), "c")
			c := r.dial("echo")
			sec := map[string]int{"cancel": 60, "finish": 3}[mode]
			c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":1,"method":"sleep","params":{"sec":%d,"file":%q}}`, sec, file))
			r.until("echo", "running", func(s protocol.ProviderStatus) bool { return s.InFlight == 1 })
			require.NoError(t, c.c.Close())
			r.until("echo", "free", func(s protocol.ProviderStatus) bool { return s.InFlight == 0 })
			require.Equal(t, mode == "cancel", len(lines(file)) == 1)
		})
	}
}

// The end of input is not departure: a half-closed client gets its answers, then the end.
func TestHalfClose(t *testing.T) {
	r := newRig(t)
	r.serve("slow", "[start]\nwhen = \"request\"\n", "LOAD=200ms")
	c := r.dial("slow")
	c.send(`{"jsonrpc":"2.0","id":1,"method":"echo","params":{"text":"one"}}`)
	_, err := c.c.Write([]byte(`{"jsonrpc":"2.0","id":2,"method":"echo","params":{"text":"two"}}`)) // no newline
	require.NoError(t, err)
	require.NoError(t, c.c.CloseWrite())
	require.Contains(t, string(c.next().Result), "one")
	require.Contains(t, string(c.next().Result), "two")
	_, err = c.read()
	require.ErrorIs(t, err, io.EOF)
}

func TestQueueFull(t *testing.T) {
	r := newRig(t)
	r.serve("slow", "[start]\nwhen = \"request\"\n[serve]\nqueue = 2\n", "LOAD=2s")
	c := r.dial("slow")
	for i := range 5 {
		c.send(fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"echo","params":{}}`, i))
	}
	full := 0
	for range 5 {
		if a := c.next(); a.Error != nil {
			require.Equal(t, protocol.QueueFull, a.kind())
			require.EqualValues(t, 2, a.Error.Data.Detail.(map[string]any)["queue"])
			full++
		}
	}
	require.Equal(t, 2, full, "one runs, two wait")
}

// queue = 0 serves one after the other without ever refusing the only caller.
func TestQueueZero(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+"[serve]\nqueue = 0\n")
	c := r.dial("echo")
	for range 500 {
		require.Nil(t, c.call("echo", `{}`).Error)
	}
}

func TestIdempotencyKeyJoins(t *testing.T) {
	r := newRig(t)
	runs := filepath.Join(t.TempDir(), "runs")
	r.serve("echo", quick+"[serve]\nconcurrency = 4\n", "RUNS="+runs)
	a, b := r.dial("echo"), r.dial("echo")
	line := `{"jsonrpc":"2.0","id":%q,"method":"sleep","params":{"sec":3,"text":"once","_meta":{"idempotencyKey":"k"}}}`
	a.send(fmt.Sprintf(line, "a"))
	r.until("echo", "running", func(s protocol.ProviderStatus) bool { return s.InFlight == 1 })
	b.send(fmt.Sprintf(line, "b"))
	b.send(`{"jsonrpc":"2.0","id":"other","method":"echo","params":{"_meta":{"idempotencyKey":"k"}}}`)
	require.Equal(t, protocol.InvalidRequest, b.next().kind())
	require.NoError(t, a.c.Close()) // the other one still waits: nothing is cancelled
	ans := b.next()
	require.Equal(t, `"b"`, string(ans.ID))
	require.Contains(t, string(ans.Result), `"slept":3`)
	require.Equal(t, []string{"sleep_once"}, lines(runs))
}

// Whatever a worker answers, its caller gets one answer, and the next caller a right one.
func TestMisbehavingAnswers(t *testing.T) {
	cases := map[string]struct {
		raw  string
		kind protocol.Kind
	}{
		"not JSON":      {"Loading checkpoint 3/4\n", protocol.InvalidResponse},
		"NaN":           {`{"jsonrpc":"2.0","id":$ID,"result":NaN}` + "\n", protocol.InvalidResponse},
		"invalid UTF-8": {`{"jsonrpc":"2.0","id":$ID,"result":"$FF"}` + "\n", protocol.InvalidResponse},
		"wrong id":      {`{"jsonrpc":"2.0","id":99999,"result":1}` + "\n", protocol.InvalidResponse},
		"a request":     {`{"jsonrpc":"2.0","id":1,"method":"echo"}` + "\n", protocol.InvalidResponse},
		"both":          {`{"jsonrpc":"2.0","id":$ID,"result":1,"error":{"code":1,"message":"m"}}` + "\n", protocol.InvalidResponse},
		"twice":         {`{"jsonrpc":"2.0","id":$ID,"result":1}` + "\n" + `{"jsonrpc":"2.0","id":$ID,"result":2}` + "\n", ""},
		"then garbage":  {`{"jsonrpc":"2.0","id":$ID,"result":1}` + "\nbye\n", ""},
		"too large":     {`{"jsonrpc":"2.0","id":$ID,"result":"` + strings.Repeat("x", 20) + `$KIB"}` + "\n", protocol.TooLarge},
	}
	r := newRig(t)
	r.serve("echo", quick+"[serve]\nmax_message = \"16KiB\"\n")
	c := r.dial("echo")
	for name, k := range cases {
		t.Run(name, func(t *testing.T) {
			a := c.call("raw", fmt.Sprintf(`{"raw":%q}`, k.raw))
			require.Equal(t, k.kind, a.kind(), "%s", a.Result)
			for i := range 3 {
				b := c.call("echo", fmt.Sprintf(`{"text":"after %s %d"}`, name, i))
				if name == "then garbage" && i == 0 && b.kind() == protocol.InvalidResponse {
					continue // a line that is no answer is taken for that of the request that runs when it comes
				}
				require.Nil(t, b.Error, "%+v", b.Error)
				require.Contains(t, string(b.Result), fmt.Sprintf("after %s %d", name, i))
			}
		})
	}
	require.Equal(t, 0, r.status("echo").Workers[0].Restarts)
}

// A worker that closes its connection but lives is dialled again; the request may have run.
func TestWorkerHangsUp(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	c := r.dial("echo")
	pid := c.call("echo", `{}`).pid(t)
	require.Equal(t, protocol.WorkerCrashed, c.call("hangup", `{}`).kind())
	require.Equal(t, pid, c.call("echo", `{}`).pid(t))
}

func TestRetryOnCrash(t *testing.T) {
	r := newRig(t)
	runs := filepath.Join(t.TempDir(), "runs")
	r.serve("echo", quick+"[serve]\nretry_on_crash = true\n", "RUNS="+runs)
	a := r.dial("echo").call("crash", `{"code":1}`)
	require.Equal(t, protocol.WorkerCrashed, a.kind())
	require.Len(t, lines(runs), 2, "once more, then the answer")
}

// 86: sizes around the buffers' edges, both ways, and a line beyond the limit, after which the connection is usable.
func TestCase86Sizes(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+"[serve]\nmax_message = \"8MiB\"\n")
	c := r.dial("echo")
	for _, n := range []int{1, 65535, 65536, 65537, 1 << 20, 7 << 20} {
		text := strings.Repeat("y", n)
		a := c.call("echo", `{"text":"`+text+`"}`)
		require.Nil(t, a.Error)
		require.Contains(t, string(a.Result), text)
	}
	big := make(chan error, 1)
	go func() {
		w := bufio.NewWriter(c.c)
		_, _ = w.WriteString(`{"jsonrpc":"2.0","id":"big","method":"echo","params":{"text":"`)
		for range 9 << 10 {
			_, _ = w.WriteString(strings.Repeat("z", 1024))
		}
		_, _ = w.WriteString("\"}}\n")
		big <- w.Flush()
	}()
	a := c.next()
	require.NoError(t, <-big)
	require.Equal(t, "null", string(a.ID))
	require.Equal(t, protocol.TooLarge, a.kind())
	require.Equal(t, "big", a.Error.Data.Detail.(map[string]any)["id"])
	require.Nil(t, c.call("echo", `{}`).Error)
}

func TestBuiltins(t *testing.T) {
	r := newRig(t)
	r.serve("cold", "[start]\nwhen = \"request\"\n")
	c := r.dial("cold")
	require.JSONEq(t, `{}`, string(c.call("workerd.ping", `{}`).Result))
	require.JSONEq(t, `{"methods":[]}`, string(c.call("workerd.methods", `{}`).Result))
	require.Contains(t, string(c.call("workerd.status", `{}`).Result), `"state":"stopped"`)
	require.JSONEq(t, `{"methods":[{"name":"echo"}]}`, string(c.call("workerd.methods", `{"wait":true}`).Result))
	require.Contains(t, string(c.call("workerd.status", `{}`).Result), `"state":"ready"`)
	require.Equal(t, protocol.MethodNotFound, c.call("workerd.nope", `{}`).kind())
}

// A worker that is stopped by SIGSTOP holds its request until the deadline, then it is removed; a waiting one is served.
func TestStoppedProcess(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick+"[serve]\nrequest_timeout = \"5s\"\ncancel_grace = \"100ms\"\n")
	c := r.dial("echo")
	pid := c.call("echo", `{}`).pid(t)
	require.NoError(t, syscall.Kill(pid, syscall.SIGSTOP))
	require.Eventually(t, func() bool { // the signal is on its way when kill returns
		st, err := execenv.ReadStat(pid)
		return err == nil && st.State == 'T'
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, protocol.DeadlineExceeded, c.call("echo", `{}`).kind())
	require.NotEqual(t, pid, c.call("echo", `{}`).pid(t))
}

func TestPingFailureOfAnIdleWorker(t *testing.T) {
	r := newRig(t)
	r.serve("mute", quick+"[health]\ninterval = \"20ms\"\ntimeout = \"100ms\"\n", "MODE=no-ping")
	st := r.until("mute", "killed", func(s protocol.ProviderStatus) bool { return s.LastExit != nil })
	require.Contains(t, st.LastExit.Reason, "ping")
}

// 65, 90: what a worker prints goes to its log, also when nobody reads it.
func TestLogs(t *testing.T) {
	r := newRig(t)
	r.serve("echo", quick)
	pid := r.dial("echo").call("echo", `{}`).pid(t)
	require.NotZero(t, pid)
	var b strings.Builder
	require.NoError(t, r.sup.Logs(t.Context(), "echo", 10, false, &b))
	require.Contains(t, b.String(), "helper worker starts")
	require.ErrorIs(t, r.sup.Logs(t.Context(), "nope", 10, false, &b), protocol.ErrNoProvider)
	out, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/1", pid))
	require.NoError(t, err)
	require.Contains(t, out, "/logs/echo/")
}

// params are checked against the input_schema that a tool declares; the worker never sees what does not fit.
func TestToolSchemas(t *testing.T) {
	r := newRig(t)
	runs := filepath.Join(t.TempDir(), "runs")
	body := quick + `[[tools]]
name = "say"
method = "echo"
description = "Says it."
input_schema = { type = "object", properties = { text = { type = "string" } }, required = ["text"], additionalProperties = false }
`
	r.serve("echo", body, "RUNS="+runs)
	c := r.dial("echo")
	require.Nil(t, c.call("echo", `{"text":"fits","_meta":{"timeoutMs":60000}}`).Error)
	for _, bad := range []string{`{}`, `{"text":1}`, `{"text":"x","more":1}`} {
		a := c.call("echo", bad)
		require.Equal(t, protocol.InvalidParams, a.kind(), bad)
	}
	require.Equal(t, protocol.MethodNotFound, c.call("other", `{"anything":1}`).kind())
	require.Equal(t, []string{"echo_fits", "other_"}, lines(runs))
}

// 88: a caller with a token hears something all along, while its request waits and while it runs without a word of its own.
func TestCase88Heartbeat(t *testing.T) {
	r := newRig(t)
	r.serve("quiet", "[start]\nwhen = \"request\"\n")
	r.sup.lookup("quiet").pool.beat.Store(int64(100 * time.Millisecond))
	c := r.dial("quiet")
	c.send(`{"jsonrpc":"2.0","id":1,"method":"sleep","params":{"sec":3,"_meta":{"progressToken":"t"}}}`)
	running, last := 0, -1.0
	for {
		a := c.next()
		if a.Method == "" {
			require.Nil(t, a.Error)
			break
		}
		require.Greater(t, a.Params.Progress, last)
		last = a.Params.Progress
		if a.Params.Message == "running" {
			running++
		}
	}
	require.GreaterOrEqual(t, running, 3)
}
