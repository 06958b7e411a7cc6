package supervisor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"workerd/protocol"
)

// handshake connects to the new worker and reports its state; a failure ends the worker.
func (f *life) handshake() { f.openLane(f.p.onConnected) }

// openLane connects to the worker, has the provider take the new lane in, and serves it; a failure ends the worker.
func (f *life) openLane(take func(*life, *lane, *protocol.InitializeResult)) {
	conn, init, err := f.connect(f.ctx)
	if err != nil {
		if f.ctx.Err() == nil {
			f.killFor(err)
		}
		return
	}
	l := newLane(f, conn)
	f.wg.Add(1)
	f.p.post(func() { take(f, l, init) })
	l.serve()
}

// killFor ends a worker whose handshake went wrong.
func (f *life) killFor(err error) {
	c := causeConnection
	if isProtocolMismatch(err) {
		c = causePermanent
	}
	f.kill(c, err.Error())
}

// addLanes opens the further connections that concurrency allows; each takes requests as soon as it is there.
func (f *life) addLanes(from int) {
	for range f.spec.manifest.Serve.Concurrency - from {
		f.wg.Go(func() { f.openLane(f.p.onLane) })
	}
}

// connect dials the worker's socket until it accepts, and says initialize. It ends with ctx. The wait between two tries
// grows to 50 ms: a worker binds its socket when its interpreter is up, and no event would tell of listen(2).
//
// A connection that ends before initialize is answered is tried again: its worker may be dying, which its pidfd is to say.
func (f *life) connect(ctx context.Context) (*protocol.Conn, *protocol.InitializeResult, error) {
	wait := time.Millisecond
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		uc, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: f.paths.socket, Net: "unix"})
		if err == nil {
			var conn *protocol.Conn
			var init *protocol.InitializeResult
			conn, init, err = f.initialize(ctx, uc)
			if _, lost := errors.AsType[*lostError](err); !lost {
				return conn, init, err
			}
		}
		select {
		case <-ctx.Done():
			return nil, nil, fmt.Errorf("the worker does not accept on its socket: %w", err)
		case <-timer.C:
			wait = min(wait*3/2, 50*time.Millisecond)
			timer.Reset(wait)
		}
	}
}

// initialize performs the handshake of one connection.
func (f *life) initialize(ctx context.Context, uc *net.UnixConn) (*protocol.Conn, *protocol.InitializeResult, error) {
	if authorize := f.p.sup.cfg.AuthorizeWorker; authorize != nil {
		if err := authorize(uc); err != nil {
			_ = uc.Close()
			return nil, nil, err
		}
	}
	f.peer.CompareAndSwap(0, peerPID(uc))
	serve := f.spec.manifest.Serve
	conn := protocol.NewConn(uc, int(serve.MaxMessage))
	id := f.number()
	answer, err := exchange(ctx, conn, initializeLine(id, serve.Concurrency, int64(serve.MaxMessage)))
	if err != nil {
		_ = conn.Close()
		return nil, nil, &lostError{err}
	}
	init, err := parseInitialize(answer, id)
	if err != nil {
		_ = conn.Close()
		return nil, nil, err
	}
	return conn, init, nil
}
