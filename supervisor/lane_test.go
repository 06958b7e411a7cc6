package supervisor

import (
	"bufio"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

func requestOf(t *testing.T, text string) *request {
	t.Helper()
	line := protocol.Line{Bytes: []byte(text)}
	m := new(protocol.Message)
	require.Nil(t, protocol.Scan(line.Bytes, m), "%.200s", text)
	return newRequest(&pool{}, &client{}, line, m)
}

// The worker gets the time until nobody waits any more.
func TestTimeLeftForAWorker(t *testing.T) {
	const line = `{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"timeoutMs":%s}}}`
	synctest.Test(t, func(t *testing.T) {
		left := func(r *request) string { return string(r.appendLeft(nil)) }
		r := requestOf(t, fmt.Sprintf(line, "60000"))
		require.Equal(t, "60000", left(r))
		<-time.After(50 * time.Second)
		require.Equal(t, "10000", left(r))

		longer := requestOf(t, fmt.Sprintf(line, "30000"))
		require.True(t, r.join(&longer.first))
		require.Equal(t, "30000", left(r))
		endless := requestOf(t, `{"jsonrpc":"2.0","id":1,"method":"x"}`)
		require.True(t, r.join(&endless.first))
		require.Equal(t, "null", left(r))

		// Who has got an answer waits no more.
		endless.first.finishLocked()
		longer.first.finishLocked()
		require.Equal(t, "10000", left(r))
		<-time.After(10*time.Second - time.Microsecond)
		require.Equal(t, "1", left(r))
		<-time.After(time.Second)
		require.Equal(t, "1", left(r))

		ages := requestOf(t, fmt.Sprintf(line, "1"+strings.Repeat("0", 320)))
		<-time.After(time.Second)
		require.Equal(t, fmt.Sprint(protocol.MaxTimeoutMs-1000), left(ages))
	})
}

// What a worker reads is the caller's line with other numbers, however its members are ordered and whether it is copied or not.
func TestSentLine(t *testing.T) {
	ends := socketPair(t)
	l := &lane{conn: protocol.NewConn(ends[0], 1<<20), num: 1234567}
	t.Cleanup(func() { _ = l.conn.Close() })
	in := bufio.NewReader(ends[1])
	for _, text := range []string{
		`{"jsonrpc":"2.0","id":1,"method":"x","params":{"pad":"$PAD"}}`,
		`{"jsonrpc":"2.0","id":1,"method":"x","params":{"_meta":{"progressToken":"t","timeoutMs":3600000,"other":1},"pad":"$PAD"}}`,
		`{"jsonrpc":"2.0","params":{"_meta":{"timeoutMs":3600000,"progressToken":"t"},"pad":"$PAD"},"method":"x","id":"one"}`,
		`{"params":{"pad":"$PAD","_meta":{"timeoutMs":3600000}},"id":"one","method":"x","jsonrpc":"2.0"}`,
	} {
		for _, size := range []int{1, 2 * smallLine} {
			pad := strings.Repeat("p", size)
			r := requestOf(t, strings.ReplaceAll(text, "$PAD", pad))
			r.first.until = time.Now().Add(30 * time.Minute) // it has waited as long
			sent := make(chan error, 1)
			go func() {
				l.mu.Lock()
				defer l.mu.Unlock()
				sent <- l.send(r)
			}()
			line, err := in.ReadBytes('\n')
			require.NoError(t, err)
			require.NoError(t, <-sent)
			got, want := map[string]any{}, map[string]any{}
			require.NoError(t, json.Unmarshal(line, &got), "%.300s", line)
			require.NoError(t, json.Unmarshal(r.line, &want))
			want["id"] = 1234567.0
			if meta, ok := want["params"].(map[string]any)["_meta"].(map[string]any); ok {
				if meta["progressToken"] != nil {
					meta["progressToken"] = 1234567.0
				}
				left := got["params"].(map[string]any)["_meta"].(map[string]any)["timeoutMs"].(float64)
				require.LessOrEqual(t, left, 1800000.0)
				require.Positive(t, left)
				meta["timeoutMs"] = left
			}
			require.Equal(t, want, got)
		}
	}
}

// A cold start is taken off the time that the worker is told of.
func TestTimeLeftAfterAColdStart(t *testing.T) {
	r := newRig(t)
	r.serve("slow", "[start]\nwhen = \"request\"\n", "LOAD=400ms")
	c := r.dial("slow")
	begin := time.Now()
	a := c.call("timeout", `{"_meta":{"timeoutMs":3600000}}`)
	took := time.Since(begin)
	require.Nil(t, a.Error)
	var left int64
	require.NoError(t, json.Unmarshal(a.Result, &left), "%s", a.Result)
	require.LessOrEqual(t, left, int64(3600000-400))
	require.GreaterOrEqual(t, left, 3600000-took.Milliseconds()-1)
	// As large as it may be, it is a number that every language takes.
	a = c.call("timeout", `{"_meta":{"timeoutMs":1`+strings.Repeat("0", 320)+`}}`)
	require.Nil(t, a.Error)
	require.NoError(t, json.Unmarshal(a.Result, &left), "%s", a.Result)
}
