package supervisor

import (
	"context"
	"sync"

	"workerd/protocol"
)

// eventBacklog is how many events a subscriber may be behind before it loses some.
const eventBacklog = 256

// broadcaster hands events to subscribers. It never waits for one.
type broadcaster struct {
	mu      sync.Mutex
	subs    map[chan protocol.Event]struct{}
	dropped uint64
}

func newBroadcaster() *broadcaster {
	return &broadcaster{subs: map[chan protocol.Event]struct{}{}}
}

func (b *broadcaster) publish(e protocol.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for ch := range b.subs {
		select {
		case ch <- e:
		default:
			b.dropped++
		}
	}
}

// subscribe delivers events until ctx ends, and then closes the channel.
func (b *broadcaster) subscribe(ctx context.Context) <-chan protocol.Event {
	ch := make(chan protocol.Event, eventBacklog)
	b.mu.Lock()
	b.subs[ch] = struct{}{}
	b.mu.Unlock()
	context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		delete(b.subs, ch)
		close(ch) // publish sends under the same lock
	})
	return ch
}
