package main

import (
	"time"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func newPKI(std stdio) *cobra.Command {
	return group("pki", "Make the cluster's certificates and gossip key",
		newPKIVerb(std, "init", "Make a cluster: its CA, its gossip key, the certificates of its nodes and one of an operator", nil, pki.Init),
		newPKIVerb(std, "add", "Make certificates of further nodes of a cluster", nil, pki.AddNodes),
		newPKIRenew(std), newPKIOperator(std), newGossipKey(std))
}

func newPKIRenew(std stdio) *cobra.Command {
	var after uint64
	return newPKIVerb(std, "renew", "Replace the certificates of nodes of a cluster before they end, or after they were revoked", func(cmd *cobra.Command) { addAfter(cmd, &after) },
		func(dir string, nodes []replica.NodeName, now time.Time) error {
			return pki.Renew(dir, nodes, now, replica.CertEpoch(after))
		})
}

func addAfter(cmd *cobra.Command, after *uint64) {
	cmd.Flags().Uint64Var(after, "after", 0, "last revoked `EPOCH` of these names: the new certificates get a later one even if this clock is behind")
}

// gossipSteps are those of a rotation, with what to do after each.
var gossipSteps = []struct {
	verb, short, next string
	do                func(dir string) ([][]byte, error)
}{
	{"add", "Make a new gossip key, which nodes accept but do not send with yet", "copy gossip.key to every node. Once `replicad status` shows the new key on every node, and no node's keys as unknown, run replicad pki gossip-key use", pki.AddGossipKey},
	{"use", "Let nodes send with the new gossip key", "copy gossip.key to every node. Once `replicad status` shows that every node sends with the new key, and no node's keys as unknown, run replicad pki gossip-key drop", pki.UseGossipKey},
	{"drop", "Drop every key but the one that nodes send with", "check `replicad status` before you copy gossip.key to every node: every node must send with this key, and no node's keys be unknown. Afterwards no node accepts the old key, and a node without this one is cut off", pki.DropGossipKeys},
}

func newGossipKey(std stdio) *cobra.Command {
	var steps []*cobra.Command
	for _, s := range gossipSteps {
		var dir string
		cmd := &cobra.Command{
			Use:   s.verb,
			Short: s.short,
			Long:  s.short + ": in the file gossip.key of the folder.\n\nA rotation is add, use, drop, and after each the file is copied to every node; daemons take it without a restart.",
			Args:  cobra.NoArgs,
			RunE: func(*cobra.Command, []string) error {
				keys, err := s.do(dir)
				if err != nil {
					return coded(exitConfig, err)
				}
				err = console.Write(std.out, "gossip keys in %s, the first is for sending: %s\nnow %s\n", dir, pki.Fingerprints(keys),
					s.next)
				return err
			},
		}
		cmd.Flags().StringVar(&dir, "dir", "pki", "`FOLDER` of the cluster's identity")
		steps = append(steps, cmd)
	}
	return group("gossip-key", "Change the cluster's gossip key while it runs: add, use, drop", steps...)
}

func newPKIOperator(std stdio) *cobra.Command {
	var dir string
	var after uint64
	cmd := &cobra.Command{
		Use:   "operator NAME",
		Short: "Make a certificate of a further operator of a cluster",
		Long: "Makes operator-NAME.pem and operator-NAME-key.pem, beside operator.pem and operator-key.pem of `pki init`.\n" +
			"The holder of both files may drain nodes, change voters and end jobs, from any node: replicad signs\n" +
			"these orders with them. No daemon needs them. Store them off the nodes, or readable to operators alone.",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := replica.CheckName(args[0]); err != nil {
				return usage.Wrong(err)
			}
			if err := pki.AddOperator(dir, args[0], time.Now(), replica.CertEpoch(after)); err != nil {
				return coded(exitConfig, err)
			}
			err := console.Write(std.out, "operator: operator-%s.pem and its key are in %s\n", args[0], dir)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "pki", "`FOLDER` of the cluster's identity")
	addAfter(cmd, &after)
	return cmd
}

func newPKIVerb(std stdio, verb, short string, flags func(*cobra.Command), do func(string, []replica.NodeName, time.Time) error) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   verb + " NODE...",
		Short: short,
		Long: short + ".\n\nEach node needs ca.pem, <node>.pem, <node>-key.pem and gossip.key from the folder. Keep ca-key.pem off\n" +
			"the nodes: its holder can make further nodes and operators of the cluster. operator.pem and\n" +
			"operator-key.pem are for people who drain nodes, change voters and end jobs (--operator). No daemon\n" +
			"needs them.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			nodes := make([]replica.NodeName, 0, len(args))
			for _, a := range args {
				if err := replica.CheckName(a); err != nil {
					return usage.Wrong(err)
				}
				nodes = append(nodes, replica.NodeName(a))
			}
			if err := do(dir, nodes, time.Now()); err != nil {
				return coded(exitConfig, err)
			}
			err := console.Write(std.out, "%s: certificates of %d node(s) for the cluster in %s\n", verb, len(nodes), dir)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "pki", "`FOLDER` of the cluster's identity")
	if flags != nil {
		flags(cmd)
	}
	return cmd
}
