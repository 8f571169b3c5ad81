package main

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func newNode(std stdio) *cobra.Command {
	return group("node", "Act on a node", newNodeLost(std), newNodeDrain(std), newNodeClear(std))
}

func newNodeLost(std stdio) *cobra.Command {
	var why string
	v := &ask{use: "lost NAME", args: 1, short: "Declare a node's memory gone: recovery stops waiting for the copies that it held", long: `Declare a node's memory gone for good.

A silent node may come back with the newest state in its memory. Recovery therefore waits holder_grace
for it before giving up a committed step or reading disk. This order ends the wait, for example when the
machine was powered off, reimaged or taken away. It can't be undone: copies that this incarnation of the
node held are never used again. The order is refused for a node that is connected and answers.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&why, "why", "no reason given", "reason for the job's record")
		},
		order: func(args []string) control.Order {
			return control.Order{Verb: control.Lost, Node: replica.NodeName(args[0]), Why: why}
		}}
	return v.command(std)
}

func newNodeDrain(std stdio) *cobra.Command {
	var degrade bool
	var within time.Duration
	v := &ask{use: "drain NAME", args: 1, short: "Move a node's ranks to other nodes, and exclude the node from the jobs that run", long: `Move the ranks of a node to other nodes, or to a spare, in every job that runs. The jobs go on from the
newest step that memory holds whole.

From then on these jobs give the node no rank and no copy, until node clear. Jobs that are created later
may use the node. Its copies are in use until this command ends with 0: then the node can be stopped.
A drain that has not ended after --timeout goes on, and the command ends with 1. The same command waits
for it again; node clear takes it back.

The order is refused where no other node offers processes for the ranks. Without --degrade it is also
refused, with the price, where a job would have fewer copies than it asks for, where all its ranks would
run on one node, or where the node alone holds some part of the committed step.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().BoolVar(&degrade, "degrade", false, "drain even if a job then has fewer copies, or runs on one node alone")
			cmd.Flags().DurationVar(&within, "timeout", control.DrainTimeout, "how long to wait until the ranks run elsewhere, at most "+control.MaxWithin.String())
		},
		check: func() error {
			if within < time.Second || within > control.MaxWithin {
				return fmt.Errorf("--timeout %v: want 1s to %v", within, control.MaxWithin)
			}
			return nil
		},
		order: func(args []string) control.Order {
			return control.Order{Verb: control.Drain, Node: replica.NodeName(args[0]), Degrade: degrade, Within: within}
		}}
	return v.command(std)
}

func newNodeClear(std stdio) *cobra.Command {
	v := &ask{use: "clear NAME", args: 1, short: "Let running jobs use a drained node again, or one that was quarantined after a dispute",
		order: func(args []string) control.Order {
			return control.Order{Verb: control.Clear, Node: replica.NodeName(args[0])}
		}}
	return v.command(std)
}
