package main

import (
	"runtime"
	"runtime/debug"

	"github.com/spf13/cobra"

	"workerd/protocol"
)

// versionInfo is what the binary knows of its own making.
type versionInfo struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Time     string `json:"time,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
	CGO      bool   `json:"cgo"`
	Protocol int    `json:"protocol"`
}

func readVersion() versionInfo {
	v := versionInfo{Version: "unknown", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH, Protocol: protocol.Version}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	v.Version = info.Main.Version
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		case "CGO_ENABLED":
			v.CGO = s.Value == "1"
		}
	}
	return v
}

func (a *app) versionCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show the version",
		Long:  "Show the version of workerd, what it was built from, and the version of the worker protocol it speaks.",
		RunE: func(*cobra.Command, []string) error {
			v := readVersion()
			if a.json {
				return writeJSON(a.out, v)
			}
			a.printf("workerd %s", v.Version)
			if v.Revision != "" {
				a.printf(" (%.12s", v.Revision)
				if v.Modified {
					a.printf(", modified")
				}
				a.printf(")")
			}
			a.printf("\nprotocol %d, %s, %s", v.Protocol, v.Go, v.Platform)
			if !v.CGO {
				a.printf(", without cgo")
			}
			a.printf("\n")
			return nil
		},
	}
	a.jsonFlag(cmd)
	return cmd
}
