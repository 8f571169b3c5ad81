package main

import (
	"errors"
	"io"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/node"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func newVoter(std stdio) *cobra.Command {
	list := &ask{use: "list", short: "Who keeps the replicated log and votes", order: func([]string) control.Order {
		return control.Order{Verb: control.Voters}
	}}
	add := &ask{use: "add NAME ADDR", short: "Let a new node vote, which was started with `daemon --join`", args: 2, long: `Let a new node vote.

The node's own configuration names it among the voters, with the addr that is given here, and its daemon was started with --join: it
waits until it is added. It is asked at that address, gets the log as a node without a vote, and votes once it has it; if it does not
answer, or does not catch up in time, nothing has changed. A name that has voted before, and lost its log, must not be used again.`,
		order: func(args []string) control.Order {
			return control.Order{Verb: control.AddVoter, Node: replica.NodeName(args[0]), Addr: args[1]}
		}}
	remove := &ask{use: "remove NAME", short: "Take a voter out for good: it lost its disk, or goes away", args: 1, long: `Take a voter out for good.

The majority is counted without it from then on; it is refused where the voters that are left have no majority that answers. Its name
must never vote again: a node that comes back in its place has another.`,
		order: func(args []string) control.Order {
			return control.Order{Verb: control.RemoveVoter, Node: replica.NodeName(args[0])}
		}}
	return group("voter", "Look at the nodes that vote, and change them", list.command(std), add.command(std), remove.command(std), newVoterRecover(std))
}

func newVoterRecover(std stdio) *cobra.Command {
	var t target
	var acceptLoss bool
	cmd := &cobra.Command{
		Use:   "recover",
		Short: "Make this voter the only one, when most voters are lost for good",
		Long: `Make this node's voter the only one of its cluster, when a majority of the voters is lost for good.

Its daemon must not run. Without --accept-loss nothing is changed: it prints what this voter's log holds and what nobody can tell from it.
Run it so on every voter that is left, and with --accept-loss on the one whose log reaches farthest.`,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			c, err := t.load(noDevCluster)
			if err != nil {
				return err
			}
			text, err := node.RecoverVoter(c, acceptLoss)
			_, werr := io.WriteString(std.out, text)
			return errors.Join(err, werr)
		},
	}
	t.addFlags(cmd)
	cmd.Flags().BoolVar(&acceptLoss, "accept-loss", false, "do it, though what other voters knew beyond this log is lost")
	return cmd
}
