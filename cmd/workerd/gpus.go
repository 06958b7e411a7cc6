package main

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"workerd/protocol"
)

func (a *app) gpusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gpus",
		Short: "Show GPUs, who uses them and who waits for one",
		Long: `Show the GPUs that workers are placed on: their memory, what is reserved, the workers and other
processes on each, and the workers that wait for one.

FREE is what the next worker can have: the total less what is used and what workers have reserved and do
not use yet. A device is cordoned for an hour when workers met three faults on it within ten minutes.`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := a.client()
			if err != nil {
				return err
			}
			g, err := c.GPUs(cmd.Context())
			if err != nil {
				return err
			}
			if a.json {
				return writeJSON(a.out, g)
			}
			a.printGPUs(g, time.Now())
			return nil
		},
	}
	a.jsonFlag(cmd)
	return cmd
}

func (a *app) printGPUs(g protocol.GPUs, now time.Time) {
	if g.Problem != "" {
		a.printf("%s %s\n", a.paint(yellow, "warning:"), g.Problem)
	}
	if len(g.Devices) == 0 {
		a.printf("no GPUs\n")
	} else {
		rows := [][]cell{{{"GPU", bold}, {"NAME", bold}, {"USED", bold}, {"RESERVED", bold}, {"FREE", bold}, {"TOTAL", bold}, {"STATE", bold}, {"UUID", bold}}}
		for _, d := range g.Devices {
			rows = append(rows, []cell{
				{indexText(d), ""}, {d.Name, ""}, {size(d.UsedBytes), ""}, {size(d.ReservedBytes), ""}, {knownSize(d, d.FreeBytes), ""}, {knownSize(d, d.TotalBytes), ""},
				{d.State, gpuColor(d.State)}, {d.UUID, dim},
			})
		}
		a.printTable(rows)
	}
	for _, d := range g.Devices {
		a.printGPU(d)
	}
	for i, w := range g.Waiting {
		if i == 0 {
			a.printf("\n%s\n", a.paint(bold, "waiting"))
		}
		need := fmt.Sprintf("%d GPU", w.Count)
		if w.MemoryBytes > 0 {
			need += " with " + size(w.MemoryBytes)
		}
		a.printf("  %s for %s: %s; %s\n", w.ID, age(now.Sub(w.Since)), need, w.Reason)
	}
}

// printGPU lists who is on a device.
func (a *app) printGPU(d protocol.GPUStatus) {
	if len(d.Workers)+len(d.Others) == 0 && d.Reason == "" {
		return
	}
	a.printf("\n%s\n", a.paint(bold, "GPU "+indexText(d)))
	if d.Reason != "" {
		a.printf("  %s: %s\n", a.paint(gpuColor(d.State), d.State), d.Reason)
	}
	for _, w := range d.Workers {
		words := []string{usedText(w.UsedBytes) + " used", size(w.ReservedBytes) + " reserved"}
		for _, flag := range []struct {
			is   bool
			word string
		}{{w.Exclusive, "exclusive"}, {w.Standby, "standby"}, {w.Pinned, "pinned"}, {w.Idle && !w.Standby, "idle"}, {w.Leaving, "makes room"}} {
			if flag.is {
				words = append(words, flag.word)
			}
		}
		if w.Priority != 0 {
			words = append(words, fmt.Sprintf("priority %d", w.Priority))
		}
		a.printf("  %s: %s\n", w.ID, strings.Join(words, ", "))
	}
	for _, o := range d.Others {
		of := ""
		if o.Worker != "" {
			of = ", left by " + o.Worker
		}
		a.printf("  pid %d (%s): %s used%s\n", o.PID, orDash(o.Name), usedText(o.UsedBytes), of)
	}
}

func indexText(d protocol.GPUStatus) string {
	switch {
	case d.Index < 0:
		return "-"
	case d.Card != "":
		return fmt.Sprintf("%d MIG", d.Index)
	}
	return fmt.Sprint(d.Index)
}

func knownSize(d protocol.GPUStatus, n int64) string {
	if d.TotalBytes == 0 {
		return "unknown"
	}
	return size(n)
}

func usedText(n int64) string {
	if n < 0 {
		return "unknown"
	}
	return size(n)
}

func gpuColor(state string) string {
	switch state {
	case protocol.GPUUsable:
		return green
	case protocol.GPUSplit:
		return dim
	}
	return red
}
