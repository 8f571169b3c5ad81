package main

import (
	"fmt"

	"github.com/replicad/replicad/internal/config"
	"github.com/spf13/cobra"
)

func newConfig(std stdio) *cobra.Command {
	return group("config", "Look at configurations", &cobra.Command{
		Use:   "check FILE",
		Short: "Report every fault of a configuration, with the harm of each, and warn of what is unwise",
		Args:  cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := config.Load(args[0])
			if err != nil {
				return coded(exitConfig, err)
			}
			for _, w := range c.Warnings() {
				fmt.Fprintf(std.err, "%s: warning: %v\n", args[0], w)
			}
			role := "a client of the voters"
			if c.IsVoter() {
				role = "a voter"
			}
			_, err = fmt.Fprintf(std.out, "%s: good: node %s on %s is %s (%d voter(s))\n", args[0], c.Node, c.Addr, role, len(c.Voters))
			return err
		},
	})
}
