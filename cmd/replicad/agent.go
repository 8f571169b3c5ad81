package main

import (
	"errors"
	"os"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/launch"
	"github.com/spf13/cobra"
)

// newAgent stands for one of torchrun's agents. It is hidden: what it speaks is between this program and the package of its release.
func newAgent(std stdio) *cobra.Command {
	var f runFlags
	var nodes int
	cmd := &cobra.Command{
		Use: "agent --job NAME --world N --nodes N [flags]", Short: "Stand for an agent of torchrun, over standard input and output", Hidden: true, Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			self, err := os.Executable()
			if err != nil {
				return err
			}
			opt, err := f.job(cmd.Context(), []string{self}, std)
			if err != nil {
				return err
			}
			opt.Logf = func(format string, args ...any) { console.Printf(std.err, "replicad: "+format+"\n", args...) }
			code, err := launch.Agent(cmd.Context(), opt, nodes, std.in, std.out)
			if errors.Is(err, launch.ErrNoDaemon) {
				code = exitNobody
			}
			if code != 0 || err != nil {
				return &codedError{code, err}
			}
			return nil
		},
	}
	f.addJobFlags(cmd)
	cmd.Flags().IntVar(&nodes, "nodes", 1, "agents that a round takes")
	return cmd
}
