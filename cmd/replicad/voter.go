package main

import (
	"errors"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/node"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func newVoter(std stdio) *cobra.Command {
	list := &ask{use: "list", short: "List the nodes that store the replicated log and vote", order: func([]string) control.Order {
		return control.Order{Verb: control.Voters}
	}}
	add := &ask{use: "add NAME ADDR", short: "Let a new node vote; its daemon was started with --join", args: 2, long: `Let a new node vote.

The node's own configuration must name it among the voters, with the same ADDR. Its daemon was started
with --join, and waits until it is added. The leader asks the node at ADDR and sends it the log; the
node votes once it has the log. If it does not answer, or does not catch up in time, nothing changes.

A voter that has lost its log needs no such order: start its daemon again.`,
		order: func(args []string) control.Order {
			return control.Order{Verb: control.AddVoter, Node: replica.NodeName(args[0]), Addr: args[1]}
		}}
	remove := &ask{use: "remove NAME", short: "Remove a voter for good", args: 1, long: `Remove a voter for good.

From then on the majority is counted without it. The order is refused where the remaining voters have no
majority that answers. The name must never vote again: a node that comes back in its place needs another
name.`,
		order: func(args []string) control.Order {
			return control.Order{Verb: control.RemoveVoter, Node: replica.NodeName(args[0])}
		}}
	return group("voter", "List the nodes that vote, and change them", list.command(std), add.command(std), remove.command(std), newVoterRecover(std))
}

func newVoterRecover(std stdio) *cobra.Command {
	var t target
	var acceptLoss bool
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Make this voter the only one, when most voters are lost for good",
		Long: `Make this node's voter the only one of its cluster, when a majority of the voters is lost for good.

Stop its daemon first. Without --accept-loss nothing changes: the command prints what this voter's log
holds, and what the log can't tell. Run it like that on every voter that is left. Then run it with
--accept-loss on the voter whose log reaches farthest.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := t.load(nil)
			if err != nil {
				return err
			}
			text, err := node.RecoverVoter(c, acceptLoss)
			werr := console.Write(std.out, "%s", console.Paragraph(text))
			return errors.Join(err, werr)
		},
	}
	t.addFlags(cmd)
	cmd.Flags().BoolVar(&acceptLoss, "accept-loss", false, "change the cluster; entries that only other voters have are lost")
	return cmd
}
