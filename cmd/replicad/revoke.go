package main

import (
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func newRevoke(std stdio) *cobra.Command {
	return group("revoke", "End the certificates of a node or of an operator",
		newRevokeVerb(std, "node", control.RevokeNode, `End the certificates of a node that have been issued until now: they were stolen, or the node is gone
for good.

Every daemon refuses them from then on, also after a restart, and ends their connections. The node is
dead to the jobs that run, and these go on from the copies of other nodes. A later certificate
(replicad pki renew NAME) is accepted again.

Without --force the order is refused, with the price, for the node that leads. It is also refused where
the remaining voters are no majority, where no node could take the ranks, or where a job would have fewer
copies.

A compromised node also has the gossip key and job_secret: change those as well (docs/nodes.md).`),
		newRevokeVerb(std, "operator", control.RevokeOperator, `End the certificates of an operator that have been issued until now: the leader takes no order from their holder any more.

A certificate that is issued later (replicad pki operator NAME) is valid. Without --force the order is
refused for the operator who signs it.`))
}

func newRevokeVerb(std stdio, role string, verb control.Verb, long string) *cobra.Command {
	var force bool
	var until uint64
	v := &ask{use: role + " NAME", args: 1, short: "End the certificates of " + map[string]string{"node": "a node", "operator": "an operator"}[role] + " that have been issued until now", long: long,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().BoolVar(&force, "force", false, "revoke whatever the price")
			cmd.Flags().Uint64Var(&until, "until", 0, "last revoked `EPOCH`, in seconds since 1970 (default: now)")
		},
		order: func(args []string) control.Order {
			o := control.Order{Verb: verb, Degrade: force, Until: replica.CertEpoch(until)}
			if until == 0 {
				o.Until = replica.CertEpoch(max(time.Now().Unix(), 0)) // it is not negative
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
