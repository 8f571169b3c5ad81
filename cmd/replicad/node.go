package main

import (
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func newNode(std stdio) *cobra.Command {
	return group("node", "Act on a node", newNodeLost(std), newNodeDrain(std), newNodeClear(std))
}

func newNodeLost(std stdio) *cobra.Command {
	var why string
	v := &ask{use: "lost NAME", args: 1, short: "Say that a node's memory is gone: recovery stops waiting for the copies it held", long: `Say that a node's memory is gone for good.

A node that has only fallen silent may come back with the newest state in its memory, so recovery waits holder_grace for it
before it gives up a committed step or reads disk. If you know better (the machine was powered off, reimaged, taken away),
this ends the wait. It can't be taken back: what that life of the node held is never used again. A node that is connected
and answers is refused.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&why, "why", "no reason given", "what the job's record says")
		},
		order: func(args []string) control.Order {
			return control.Order{Verb: control.Lost, Node: replica.NodeName(args[0]), Why: why}
		}}
	return v.command(std)
}

func newNodeDrain(std stdio) *cobra.Command {
	var degrade bool
	v := &ask{use: "drain NAME", args: 1, short: "Have a node's ranks move to others, and keep it out of the jobs that run", long: `Have the ranks of a node move to other nodes, or to a spare, in every job that runs; the jobs go on from the newest step that
memory holds whole. The node gets no rank and no copy of them from then on, until node clear lets them use it again; jobs that
are created later may use it. What it holds serves until the answer comes: then the node can be stopped. It is refused, and
nothing is done, where nobody offers processes for the ranks. It is refused without --degrade, with what it costs, where a job
would have fewer copies than it asks for, where all its ranks would run on one node, or where the node alone holds some part
of the committed step.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().BoolVar(&degrade, "degrade", false, "drain it although a job has fewer copies then, or runs on one node alone")
		},
		order: func(args []string) control.Order {
			return control.Order{Verb: control.Drain, Node: replica.NodeName(args[0]), Degrade: degrade}
		}}
	return v.command(std)
}

func newNodeClear(std stdio) *cobra.Command {
	v := &ask{use: "clear NAME", args: 1, short: "Let running jobs use a node again that was drained, or quarantined after a dispute",
		order: func(args []string) control.Order {
			return control.Order{Verb: control.Clear, Node: replica.NodeName(args[0])}
		}}
	return v.command(std)
}
