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
		newPKIVerb(std, "init", "Make a cluster: its CA, its gossip key and the certificates of its nodes", pki.Init),
		newPKIVerb(std, "add", "Make certificates of further nodes of a cluster", pki.AddNodes))
}

func newPKIVerb(std stdio, verb, short string, do func(string, []replica.NodeName, time.Time) error) *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:   verb + " NODE...",
		Short: short,
		Long: short + ".\n\nEach node needs ca.pem, <node>.pem, <node>-key.pem and gossip.key from the folder. Keep ca-key.pem off the nodes: who has it\n" +
			"can make further nodes of the cluster.",
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
