package supervisor

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"workerd/execenv"
)

// slowEngine is an engine that takes its time for a start and goes on with it when its client has been killed.
type slowEngine struct {
	takes time.Duration

	mu      sync.Mutex
	running map[string]bool // by name
	most    int
}

func (e *slowEngine) Run(ctx context.Context, c execenv.Command) (string, error) {
	made := make(chan struct{})
	time.AfterFunc(e.takes, func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.running[c.Path] = true
		e.most = max(e.most, len(e.running))
		close(made)
	})
	select {
	case <-made:
		return c.Path, nil
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func (e *slowEngine) Inspect(_ context.Context, id string) (execenv.Container, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.running[id] {
		return execenv.Container{}, &execenv.EngineError{Kind: execenv.EngineNoContainer}
	}
	return execenv.Container{ID: id, Name: id, State: execenv.ContainerRunning, Labels: map[string]string{
		execenv.LabelInstance: "me", execenv.LabelSlug: "x", execenv.LabelWorker: "7",
	}}, nil
}

func (e *slowEngine) Remove(_ context.Context, id string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	delete(e.running, id)
	return nil
}

func (e *slowEngine) Kill(context.Context, string, string) error { return nil }
func (e *slowEngine) Logs(context.Context, string, execenv.LogOptions, io.Writer) error {
	return nil
}
func (e *slowEngine) List(context.Context, map[string]string) ([]execenv.Container, error) {
	return nil, nil
}

func (e *slowEngine) left() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.running)
}

// A start that is given up leaves no container: one that the engine makes in time is removed before anybody hears that the start is
// over, and one that comes up after its client was killed when it does.
func TestStartsThatAreGivenUpLeaveNothing(t *testing.T) {
	for _, c := range []struct{ takes, over, gone time.Duration }{
		{takes: 100 * time.Millisecond, over: 100 * time.Millisecond, gone: 0},
		{takes: settleWithin - time.Second, over: settleWithin - time.Second, gone: 0},
		{takes: settleWithin + 5*time.Second, over: time.Millisecond + settleWithin, gone: settleWithin + time.Second},
		{takes: 5 * settleWithin, over: time.Millisecond + settleWithin, gone: 7*settleWithin + time.Second},
	} {
		t.Run(c.takes.String(), func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "7.log")
			synctest.Test(t, func(t *testing.T) {
				s := &Supervisor{cfg: Config{Instance: "me"}, log: slog.New(slog.DiscardHandler)}
				s.ctx, s.cancel = context.WithCancel(t.Context())
				e := &slowEngine{takes: c.takes, running: map[string]bool{}}
				ctx, cancel := context.WithCancel(t.Context())
				begin := time.Now()
				time.AfterFunc(time.Millisecond, cancel)
				name := execenv.ContainerName("me", "x", 7)
				_, err := s.runOn(ctx, e, &execenv.Plan{Kind: "docker", Slug: "x"}, 7, execenv.Command{Path: name}, log)
				require.ErrorIs(t, err, context.Canceled)
				require.Equal(t, c.over, time.Since(begin))
				<-time.After(c.gone) // of the bubble's clock
				require.Zero(t, e.left())
				require.Equal(t, 1, e.most, "it did come up")
				require.Empty(t, s.strays.of("x"))
				_, err = s.runOn(ctx, e, &execenv.Plan{Kind: "docker", Slug: "x"}, 7, execenv.Command{Path: name}, log)
				require.ErrorIs(t, err, context.Canceled)
				require.Zero(t, e.left(), "what was given up before is not even begun")
				s.cancel()
				s.wg.Wait()
			})
		})
	}
}
