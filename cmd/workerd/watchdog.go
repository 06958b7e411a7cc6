package main

import (
	"context"
	"time"

	"workerd/protocol/control"
)

// feedWatchdog tells the service manager that workerd lives, for as long as it does: a new connection to the control socket is
// answered, and so is the supervisor. It ends with ctx.
func (i *instance) feedWatchdog(ctx context.Context) {
	pause := i.watchdog / 3
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		if err := i.alive(ctx, pause); err == nil {
			notifyWatchdog()
		} else if ctx.Err() == nil {
			i.log.Error("liveness check: the watchdog is not fed", "err", err)
		}
	}
}

// alive says why workerd would not do its work.
func (i *instance) alive(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := control.NewClient(i.socket()).Health(ctx); err != nil {
		return err
	}
	return i.sup.Check(ctx)
}
