package main

import (
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/pki"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func newPKI(std stdio) *cobra.Command {
	return group("pki", "Make the cluster's certificates and gossip key",
		newPKIVerb(std, "init", "Make a cluster: its CA, its gossip key, the certificates of its nodes and one of an operator", pki.Init),
		newPKIVerb(std, "add", "Make certificates of further nodes of a cluster", pki.AddNodes),
		newPKIVerb(std, "renew", "Replace the certificates of nodes of a cluster before they end", pki.Renew), newPKIOperator(std))
}

func newPKIOperator(std stdio) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   "operator NAME",
		Short: "Make a certificate of a further operator of a cluster",
		Long: "Makes operator-NAME.pem and operator-NAME-key.pem, beside operator.pem and operator-key.pem of `pki init`. Who has both files may drain\n" +
			"nodes, change voters and end jobs, from any node: replicad signs these orders with them. They are of no use to a daemon; keep them\n" +
			"off the nodes, or readable to operators alone.",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			if err := replica.CheckName(args[0]); err != nil {
				return coded(exitUsage, err)
			}
			if err := pki.AddOperator(dir, args[0], time.Now()); err != nil {
				return coded(exitConfig, err)
			}
			_, err := fmt.Fprintf(std.out, "operator: operator-%s.pem and its key are in %s\n", args[0], dir)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "pki", "`FOLDER` of the cluster's identity")
	return cmd
}

func newPKIVerb(std stdio, verb, short string, do func(string, []replica.NodeName, time.Time) error) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   verb + " NODE...",
		Short: short,
		Long: short + ".\n\nEach node needs ca.pem, <node>.pem, <node>-key.pem and gossip.key from the folder. Keep ca-key.pem off the nodes: who has it\n" +
			"can make further nodes and operators of the cluster. operator.pem and operator-key.pem are for who drains nodes, changes voters and\n" +
			"ends jobs (--operator); no daemon needs them.",
		Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			nodes := make([]replica.NodeName, 0, len(args))
			for _, a := range args {
				if err := replica.CheckName(a); err != nil {
					return coded(exitUsage, err)
				}
				nodes = append(nodes, replica.NodeName(a))
			}
			if err := do(dir, nodes, time.Now()); err != nil {
				return coded(exitConfig, err)
			}
			_, err := fmt.Fprintf(std.out, "%s: certificates of %d node(s) for the cluster in %s\n", verb, len(nodes), dir)
			return err
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "pki", "`FOLDER` of the cluster's identity")
	return cmd
}
