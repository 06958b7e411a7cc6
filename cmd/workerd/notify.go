package main

import (
	"fmt"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"
)

// Notifications to the service manager. Without one they do nothing; one that cannot be reached is no reason to stop.

func notifyReady()    { _, _ = daemon.SdNotify(false, daemon.SdNotifyReady) }
func notifyStopping() { _, _ = daemon.SdNotify(false, daemon.SdNotifyStopping) }

// notifyReloading announces a reload, which notifyReady ends. Type=notify-reload wants the time of it.
func notifyReloading() {
	var now unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) != nil {
		return
	}
	_, _ = daemon.SdNotify(false, fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, now.Nano()/1000))
}
