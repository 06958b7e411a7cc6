package gpu

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestLane(t *testing.T) {
	defer goleak.VerifyNone(t)
	l := lane{name: "it"}
	require.NoError(t, l.wait(t.Context()))
	ran := 0
	require.NoError(t, l.run(t.Context(), func() { ran++ }))

	release := make(chan struct{})
	short, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	err := l.run(short, func() { <-release; ran++ })
	require.ErrorContains(t, err, "it does not answer since ")
	began := time.Now()
	for range 3 {
		require.EqualError(t, l.run(t.Context(), func() { t.Error("a second call") }), err.Error())
	}
	require.Less(t, time.Since(began), 10*time.Second)
	require.Equal(t, err, l.wait(short))
	close(release)
	require.NoError(t, l.wait(t.Context()))
	require.NoError(t, l.run(t.Context(), func() { ran++ }))
	require.Equal(t, 3, ran)
}
