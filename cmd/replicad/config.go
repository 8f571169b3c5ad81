package main

import (
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/node"
	"github.com/spf13/cobra"
)

func newConfig(std stdio) *cobra.Command {
	var fileOnly bool
	check := &cobra.Command{
		Use:   "check FILE",
		Short: "Report every fault of a configuration with its harm, and configuration warnings",
		Long: "Checks a configuration, and the keys and directories that it names, as the daemon does when it starts.\n" +
			"Run it on the node, as the daemon's user. It creates nothing, except that it writes a file into each\n" +
			"existing directory and removes the file.",
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := config.Load(args[0])
			if err != nil {
				return coded(exitConfig, err)
			}
			for _, w := range c.Warnings() {
				console.Printf(std.err, "%s: warning: %v\n", args[0], w)
			}
			if !fileOnly {
				if err := node.Check(cmd.Context(), c); err != nil {
					return coded(exitConfig, err)
				}
				room, unwise := node.Room(c)
				room = append(room, node.GossipKeys(c))
				if r := node.KeysUnread(c); r != "" {
					room = append(room, r)
				}
				reach, wide := node.Reach(c)
				if reach != "" {
					room = append(room, reach)
				}
				if wide != "" {
					unwise = append(unwise, wide)
				}
				if w := node.CertificateEnds(c); w != "" {
					unwise = append(unwise, w)
				}
				for _, w := range unwise {
					console.Printf(std.err, "%s: warning: %s\n", args[0], w)
				}
				for _, r := range room {
					console.Printf(std.out, "%s: %s\n", args[0], r)
				}
			}
			role := "a client of the voters"
			if c.IsVoter() {
				role = "a voter"
			}
			err = console.Write(std.out, "%s: good: node %s on %s is %s (%d voter(s))\n", args[0], c.Node, c.Addr, role, len(c.Voters))
			return err
		},
	}
	check.Flags().BoolVar(&fileOnly, "file-only", false, "check the file alone, not the keys and directories of this machine")
	return group("config", "Check configurations", check)
}
