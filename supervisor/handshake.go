package supervisor

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"

	"golang.org/x/sys/unix"

	"workerd/protocol"
)

// mismatchError: the worker speaks another version of the protocol.
type mismatchError struct{ worker int }

func (e *mismatchError) Error() string {
	return fmt.Sprintf("the worker speaks protocol version %d, this workerd speaks %d: update the worker's SDK or workerd", e.worker, protocol.Version)
}

func isProtocolMismatch(err error) bool {
	_, ok := errors.AsType[*mismatchError](err)
	return ok
}

// parseInitialize reads the answer to initialize with the given id.
func parseInitialize(line []byte, id uint64) (*protocol.InitializeResult, error) {
	var m struct {
		ID     uint64                     `json:"id"`
		Result *protocol.InitializeResult `json:"result"`
		Error  *protocol.Error            `json:"error"`
	}
	if err := json.Unmarshal(line, &m); err != nil {
		return nil, fmt.Errorf("the answer to initialize is not valid: %w: %s", err, excerpt(line))
	}
	switch {
	case m.Error != nil:
		return nil, fmt.Errorf("the worker refused initialize: %w", m.Error)
	case m.ID != id || m.Result == nil:
		return nil, fmt.Errorf("the worker's first line is no answer to initialize: %s", excerpt(line))
	case m.Result.Protocol != protocol.Version:
		return nil, &mismatchError{m.Result.Protocol}
	}
	switch m.Result.State {
	case protocol.StateLoading, protocol.StateReady, protocol.StateBusy, protocol.StatePreloaded:
		return m.Result, nil
	}
	return nil, fmt.Errorf("the worker answered initialize with the state %q; loading, ready, busy and preloaded are known", m.Result.State)
}

// peerPID returns the pid of the process that listens where uc is connected to; 0 where it cannot be known.
func peerPID(uc *net.UnixConn) int32 {
	raw, err := uc.SyscallConn()
	if err != nil {
		return 0
	}
	pid := int32(0)
	_ = raw.Control(func(fd uintptr) {
		if cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = cred.Pid
		}
	})
	return pid
}

// lostError: a connection ended before initialize was answered.
type lostError struct{ err error }

func (e *lostError) Error() string { return "no answer to initialize: " + e.err.Error() }
func (e *lostError) Unwrap() error { return e.err }

func initializeLine(id uint64, concurrency int, maxMessage int64) []byte {
	line, _ := json.Marshal(map[string]any{
		"jsonrpc": "2.0", "id": id, "method": protocol.MethodInitialize,
		"params": protocol.Initialize{Protocol: protocol.Version, Concurrency: concurrency, MaxMessage: maxMessage},
	}) // plain values: cannot fail
	return append(line, '\n')
}

// exchange writes one line and reads one, at most until ctx ends.
func exchange(ctx context.Context, conn *protocol.Conn, line []byte) ([]byte, error) {
	stop := context.AfterFunc(ctx, conn.Interrupt)
	defer stop()
	if err := conn.Write(nil, line); err != nil {
		return nil, err
	}
	answer, err := conn.Read()
	if err == nil && !stop() {
		err = ctx.Err() // interrupted already, so the connection is of no use
	}
	if err == nil && answer.Partial {
		err = io.ErrUnexpectedEOF
	}
	if err != nil {
		answer.Close()
		return nil, err
	}
	return answer.Bytes, nil
}
