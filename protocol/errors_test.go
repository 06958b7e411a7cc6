package protocol

import (
	"encoding/json"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestKinds(t *testing.T) {
	codes := map[int]Kind{}
	for kind, info := range kinds {
		assert.Equal(t, info.code, kind.Code())
		assert.Equal(t, info.retryable, kind.Retryable())
		assert.Empty(t, codes[info.code], "two kinds with code %d", info.code)
		codes[info.code] = kind
	}
	assert.Equal(t, -32603, Kind("unheard of").Code())
	assert.False(t, Kind("unheard of").Retryable())
}

func TestKindOf(t *testing.T) {
	e := Errorf(QueueFull, "%d wait", 64)
	assert.Equal(t, QueueFull, KindOf(fmt.Errorf("call: %w", e)))
	assert.Equal(t, Kind(""), KindOf(errors.New("x")))
	assert.EqualError(t, e, "queue_full: 64 wait")
	assert.EqualError(t, &Error{Code: 3, Message: "m"}, "error 3: m")
}

func TestAppendAnswer(t *testing.T) {
	tests := []struct {
		err  *Error
		id   string
		want string
	}{
		{Errorf(WorkerCrashed, "gone").From("ocr", "ocr/1").WithDetail(map[string]any{"signal": "SIGKILL"}), `"a"`,
			`{"jsonrpc":"2.0","id":"a","error":{"code":-32010,"message":"gone","data":{"kind":"worker_crashed","retryable":true,"provider":"ocr","worker":"ocr/1","detail":{"signal":"SIGKILL"}}}}`},
		{Errorf(InvalidRequest, "dup").WithDetail(IDDetail([]byte("7"))), "",
			`{"jsonrpc":"2.0","id":null,"error":{"code":-32600,"message":"dup","data":{"kind":"invalid_request","retryable":false,"detail":{"id":7}}}}`},
		{Errorf(WorkerError, "m").WithDetail(func() {}), "1", ""}, // cannot be marshalled: goes out all the same
	}
	for _, tt := range tests {
		got := tt.err.AppendAnswer([]byte("> "), []byte(tt.id))
		require.Equal(t, "> ", string(got[:2]))
		line := got[2 : len(got)-1]
		require.Equal(t, byte('\n'), got[len(got)-1])
		require.True(t, json.Valid(line), "%s", line)
		if tt.want != "" {
			require.Equal(t, tt.want, string(line))
		}
	}
}
