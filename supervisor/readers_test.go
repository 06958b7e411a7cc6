package supervisor

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
)

func TestReaders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var none readers
		begin := time.Now()
		none.close(time.Minute)
		assert.Zero(t, time.Since(begin))
		assert.False(t, none.enter(), "it is gone")

		var r readers
		assert.True(t, r.enter())
		assert.True(t, r.enter())
		for _, d := range []time.Duration{time.Second, 3 * time.Second} {
			time.AfterFunc(d, r.leave)
		}
		r.close(time.Minute)
		assert.Equal(t, 3*time.Second, time.Since(begin), "until the last has left")

		var slow readers
		assert.True(t, slow.enter())
		begin = time.Now()
		slow.close(2 * time.Second)
		assert.Equal(t, 2*time.Second, time.Since(begin), "but not for ever")
		slow.leave()
	})
}
