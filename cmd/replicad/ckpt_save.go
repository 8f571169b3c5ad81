package main

import (
	"github.com/replicad/replicad/internal/control"
	"github.com/spf13/cobra"
)

// ckptSave asks the daemons, as no other verb of ckpt does: what it saves is in their memory.
func ckptSave(std stdio) *cobra.Command {
	var keep string
	v := &ask{use: "save JOB", args: 1, short: "Write what a running job has committed now", long: `Write what a running job has committed to the durable tier now, from the daemons' memory. The command
waits until that is on disk, and says which step is there. Training goes on.

` + unsigned,
		order: func(args []string) control.Order {
			return control.Order{Verb: control.SaveJob, Job: args[0], Why: keep}
		},
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&keep, "keep", "", "`WHY` to keep that checkpoint for good, as \"epoch 3\"; replicad ckpt unpin --as save lets it go")
		},
		follow: followSave}
	return v.command(std)
}
