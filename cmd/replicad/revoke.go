package main

import (
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func newRevoke(std stdio) *cobra.Command {
	return group("revoke", "End the certificates of a node or of an operator",
		newRevokeVerb(std, "node", control.RevokeNode, `End the certificates of a node that have been issued until now: they were stolen, or the node is gone for good.

Every daemon refuses them from then on, also after a restart, and ends their connections. The node is dead to the jobs that run, which go on
from what others hold. One with a later certificate (replicad pki renew NAME) is let in again. It is refused without --force, with what it
costs, where the voters that are left are no majority, where nobody could take the node's ranks, where a job would have fewer copies, and
for the node that leads. A node that is compromised has the gossip key and job_secret too: change those as well (docs/nodes.md).`),
		newRevokeVerb(std, "operator", control.RevokeOperator, `End the certificates of an operator that have been issued until now: the leader takes no order from their holder any more.

One that is issued later (replicad pki operator NAME) is good. The operator who signs this order is refused without --force.`))
}

func newRevokeVerb(std stdio, role string, verb control.Verb, long string) *cobra.Command {
	var force bool
	var until uint64
	v := &ask{use: role + " NAME", args: 1, short: "End the certificates of " + map[string]string{"node": "a node", "operator": "an operator"}[role] + " that have been issued until now", long: long,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().BoolVar(&force, "force", false, "do it whatever it costs")
			cmd.Flags().Uint64Var(&until, "until", 0, "the last `EPOCH`, in seconds since 1970, that is revoked (default: now)")
		},
		order: func(args []string) control.Order {
			o := control.Order{Verb: verb, Degrade: force, Until: replica.CertEpoch(until)}
			if until == 0 {
				o.Until = replica.CertEpoch(max(time.Now().Unix(), 0)) //nolint:gosec // it is not negative
			}
			if verb == control.RevokeOperator {
				o.Operator = args[0]
			} else {
				o.Node = replica.NodeName(args[0])
			}
			return o
		}}
	return v.command(std)
}
