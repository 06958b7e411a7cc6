package main

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
)

// unitName is the user unit that `workerd install` writes.
const unitName = "workerd.service"

// unit is what the systemd user unit depends on.
type unit struct {
	binary  string
	args    []string // of every command: where this workerd is
	serve   []string // of `serve`: the settings in effect
	environ []string // NAME=value: what a service would otherwise not have of the session that installs it
	systemd int      // version of the service manager
}

// Versions of systemd that brought what the unit uses where it is there.
const (
	systemdNotifyReload = 253 // Type=notify-reload
	systemdRestartSteps = 254 // RestartSteps=, RestartMaxDelaySec=

	systemdDelegateSubgroup = 254
)

// text returns the unit file. It is pure: the same unit is the same text.
func (u *unit) text() string {
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }

	line("[Unit]")
	line("Description=workerd, resident model workers behind stable sockets")
	line("# A user's own engines, where there are any.")
	line("After=docker.service podman.socket")
	line("# Never given up: its front sockets would refuse from then on.")
	line("StartLimitIntervalSec=0")
	line("")
	line("[Service]")
	if u.systemd >= systemdNotifyReload {
		line("Type=notify-reload")
	} else {
		line("Type=notify")
		line("ExecReload=%s", u.command("reload"))
	}
	line("NotifyAccess=main")
	line("ExecStart=%s", u.command("serve", u.serve...))
	for _, kv := range u.environ {
		line("Environment=%s", quoteUnit(kv, false))
	}
	line("")
	line("# After a crash. What ends by SIGTERM was told to.")
	line("Restart=on-failure")
	line("RestartSec=500ms")
	if u.systemd >= systemdRestartSteps {
		line("RestartSteps=10")
		line("RestartMaxDelaySec=30s")
	}
	line("# Fed while the control socket and the supervisor answer. What hangs prints its goroutines to the journal, and is restarted.")
	line("WatchdogSec=30s")
	line("TimeoutAbortSec=10s")
	line("")
	line("# Workers outlive a workerd that dies, and the next one takes them over. At a stop workerd ends them itself; how long that may")
	line("# take its manifests say, so it extends this time as they ask. What a stop that had to be cut short leaves is ended after it.")
	line("KillMode=process")
	line("TimeoutStopSec=2min")
	line("ExecStopPost=-%s", u.command(sweepName, u.serve...))
	line("# A worker that the kernel kills for its memory is no reason to stop the others.")
	line("OOMPolicy=continue")
	line("TasksMax=infinity")
	line("# Limits of workers: each gets a cgroup below this one.")
	line("Delegate=yes")
	if u.systemd >= systemdDelegateSubgroup {
		line("DelegateSubgroup=workerd")
	} else {
		line("# Or the next workerd could not be put beside workers that live on.")
		line("ExecStopPost=-%s", u.command(leaveCgroupName))
	}
	line("# The front sockets stay open while workerd restarts: who connects then waits.")
	line("FileDescriptorStoreMax=16384")
	line("")
	line("# NoNewPrivileges=, and whatever implies it for a user's service (SystemCallFilter=, Restrict*=, Private*=, Protect*=), is left")
	line("# out on purpose: newuidmap, fusermount3 and a setuid Apptainer would fail, and paths in workers would mean something else.")
	line("")
	line("[Install]")
	line("WantedBy=default.target")
	return b.String()
}

// command is a command line of this workerd as a unit has it.
func (u *unit) command(name string, more ...string) string {
	// The path of the program knows specifiers, but no variables.
	words := []string{quoteUnit(u.binary, false)}
	for _, arg := range u.args {
		words = append(words, quoteUnit(arg, true))
	}
	words = append(words, name)
	for _, arg := range more {
		words = append(words, quoteUnit(arg, true))
	}
	return strings.Join(words, " ")
}

// quoteUnit writes a word of a unit file so that systemd reads it back byte by byte. Words of a command line expand variables.
func quoteUnit(word string, variables bool) string {
	var b strings.Builder
	plain := word != ""
	for i := range len(word) {
		switch c := word[i]; {
		case c == '%':
			b.WriteString("%%")
		case c == '$' && variables:
			b.WriteString("$$")
		case c == '"' || c == '\\':
			plain = false
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c == 0x7f:
			plain = false
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			plain = plain && c != ' ' && c != '\'' && c != ';'
			b.WriteByte(c)
		}
	}
	if plain {
		return b.String()
	}
	return `"` + b.String() + `"`
}

// sealPrefix begins the first line of a unit file that `workerd install` wrote. The sum tells one that nobody has edited since.
const sealPrefix = "# Written by `workerd install`, which replaces it while it is unchanged; for changes of your own: systemctl --user edit workerd\n# sha256 "

// seal puts the sum of a unit file in front of it.
func seal(text string) string {
	return sealPrefix + sum(text) + "\n" + text
}

// sealed says whether a file is as `workerd install` wrote it, of whatever version.
func sealed(file string) bool {
	// The words of the seal may change; its last line may not.
	_, rest, found := strings.Cut(file, "# sha256 ")
	if !found {
		return false
	}
	have, text, found := strings.Cut(rest, "\n")
	return found && have == sum(text)
}

func sum(text string) string {
	s := sha256.Sum256([]byte(text))
	return hex.EncodeToString(s[:])
}
