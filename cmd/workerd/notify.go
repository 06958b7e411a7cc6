package main

import (
	"fmt"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// Notifications to the service manager. Without one they do nothing; one that cannot be reached is no reason to stop.

func notifyReady()    { _, _ = daemon.SdNotify(false, daemon.SdNotifyReady) }
func notifyWatchdog() { _, _ = daemon.SdNotify(false, daemon.SdNotifyWatchdog) }

// notifyStopping announces the stop, and how long it may take where that is known: the unit's own limit cannot know what the
// manifests say.
func notifyStopping(within time.Duration) {
	state := daemon.SdNotifyStopping
	if within > 0 {
		state += fmt.Sprintf("\nEXTEND_TIMEOUT_USEC=%d", within.Microseconds())
	}
	_, _ = daemon.SdNotify(false, state)
}

// notifyReloading announces a reload, which notifyReady ends. Type=notify-reload wants the time of it.
func notifyReloading() {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return
	}
	_, _ = daemon.SdNotify(false, fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/1000))
}
