package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/protocol"
)

// However early or late workerd is told to stop, it ends in order; and however early or late it is killed, the next one
// serves. Nothing is left in either case.
func TestE2EStoppedAtAnyMoment(t *testing.T) {
	long(t)
	e := newE2E(t)
	for n := range 4 {
		e.provider(fmt.Sprintf("sdk%d", n), "")
		e.bare(fmt.Sprintf("bare%d", n), "")
	}
	seed := rand.Uint64()
	t.Log("seed", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for round := range 24 {
		e.launch()
		running := func() bool { return strings.Contains(e.log.String(), "msg=ready") }
		if round%2 == 0 { // before its first word it does not know yet that it can be told
			e.until("it is there", running)
		}
		<-time.After(time.Duration(random.Int64N(int64(400 * time.Millisecond))))
		if round%3 == 2 {
			e.kills()
		} else if took, err := e.signalled(syscall.SIGTERM); running() {
			require.NoError(t, err, "round %d", round)
			require.Less(t, took, soon(10*time.Second))
			e.leftNothing()
		}
		e.log.Reset()
	}
	e.start()
	for n := range 4 {
		e.call(e.dial(fmt.Sprintf("sdk%d", n)), "echo", "{}")
		e.call(e.dial(fmt.Sprintf("bare%d", n)), "echo", "{}")
	}
	e.until("each has one worker", func() bool { return len(e.marked("")) == 8 })
}

// Operators, editors, crashes and callers all at once: each caller gets an answer that makes sense, and afterwards there is
// one worker of the last version.
func TestE2EChaos(t *testing.T) {
	long(t)
	for _, change := range []string{"rolling", "stop-first"} {
		t.Run(change, func(t *testing.T) {
			e := newE2E(t)
			p := e.editable("x", undaunted+fmt.Sprintf("on_change = %q", change))
			e.start()
			p.runs(1)
			seed := rand.Uint64()
			t.Log("seed", seed)
			ctx, cancel := context.WithTimeout(t.Context(), 8*time.Second)
			defer cancel()
			counted := e.mostAlive(ctx, "x")
			calls := make(chan map[string]int, 1)
			go func() {
				calls <- gather(t, 4, func(i int, count func(string)) error { return e.pester(ctx, i%2 == 0, count) })
			}()
			done := make(chan error, 5)
			for i := range 5 {
				go func() { done <- p.meddle(ctx, i, rand.New(rand.NewPCG(seed, uint64(i)))) }()
			}
			for range 5 {
				require.NoError(t, <-done)
			}
			t.Log(<-calls)
			if most := <-counted; change == "stop-first" {
				require.Equal(t, 1, most)
			} else {
				require.LessOrEqual(t, most, 2)
			}
			replace(t, p.file, p.text(1_000_000))
			e.ok("reload")
			e.ok("start", "x")
			p.runs(1_000_000)
			e.until("one worker is left", func() bool { return len(e.marked("x/")) == 1 && len(e.status("x").Workers) == 1 })
			require.Equal(t, "ready", e.status("x").State)
		})
	}
}

// pester calls until ctx ends; the answer must be the right one, or say what an operator or a crash did.
func (e *e2e) pester(ctx context.Context, reconnect bool, count func(string)) error {
	w, err := connect(e.front("x"))
	for err == nil && ctx.Err() == nil {
		if reconnect {
			_ = w.conn.Close()
			if w, err = connect(e.front("x")); err != nil {
				break
			}
		}
		text := fmt.Sprintf("request %d of all", serial.Add(1))
		var m message
		m, err = w.try("echo", fmt.Sprintf(`{"text":%q,"sleep":0.002}`, text))
		switch kind := m.kind(); {
		case err != nil:
		case kind == "" && m.said().Text == text:
			count("answered")
		case kind == protocol.WorkerCrashed, kind == protocol.ProviderStopped:
			count(string(kind))
		default:
			err = fmt.Errorf("%q was answered %s, %v", text, m.Result, m.Error)
		}
	}
	return err
}

// meddle does one sort of thing to a provider until ctx ends.
func (p *edited) meddle(ctx context.Context, sort int, random *rand.Rand) error {
	pause := 300 * time.Millisecond
	if sort == 3 {
		pause = 2 * time.Second // a provider that is stopped all the time shows little
	}
	for version := 2; ctx.Err() == nil; version++ {
		var err error
		switch sort {
		case 0:
			if err = os.WriteFile(p.file+".tmp", []byte(p.text(version)), 0o600); err == nil {
				err = os.Rename(p.file+".tmp", p.file)
			}
		case 1:
			err = p.cmd.Process.Signal(syscall.SIGHUP)
		case 2:
			for _, w := range p.status(p.slug).Workers {
				if w.PID > 0 {
					_ = syscall.Kill(w.PID, syscall.SIGKILL)
				}
			}
		case 3: // the other orders may win: what comes of these is not ours to say
			_ = p.control().Stop(ctx, p.slug, random.IntN(2) == 0)
			_ = p.control().Start(ctx, p.slug, random.IntN(2) == 0)
		case 4:
			_ = p.control().Restart(ctx, p.slug, random.IntN(2) == 0)
			_, err = p.control().Reload(ctx)
			if ctx.Err() != nil {
				err = nil
			}
		}
		if err != nil {
			return err
		}
		select {
		case <-time.After(time.Duration(random.Int64N(int64(pause)))):
		case <-ctx.Done():
		}
	}
	return nil
}
