package main

import (
	"github.com/spf13/cobra"

	"workerd/execenv"
)

// leaveCgroupName is the command that the unit runs when workerd has ended, where systemd needs it.
const leaveCgroupName = "leave-cgroup"

// leaveCgroupCommand is for a service's ExecStopPost=. It is hidden: nobody calls it by hand.
func (a *app) leaveCgroupCommand() *cobra.Command {
	return &cobra.Command{
		Use:    leaveCgroupName,
		Hidden: true,
		Short:  "Make room in a service's cgroup for the next workerd",
		Long: `Take the controllers back from the cgroups of workers that go on without workerd, so that systemd can put
the next workerd into the service's cgroup. That one hands them on again, and sets the limits anew. Needed
as ExecStopPost= with a systemd before 254, which has no DelegateSubgroup=workerd.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error { return execenv.LeaveCgroups(execenv.FindCgroups("/", a.uid)) },
	}
}
