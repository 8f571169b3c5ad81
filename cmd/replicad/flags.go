package main

import (
	"errors"
	"slices"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/usage"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// usual are the flags of `replicad run` and of its kin that most jobs need.
var usual = []string{"job", "world", "groups", "min-copies", "warm", "spare", "resume", "from", "durable-every", "dev", "config", "help"}

// fewFlags has --help list the usual flags alone, and all of them with --all: who begins reads a dozen lines and not thirty.
func fewFlags(cmd *cobra.Command) {
	all := cmd.Flags().Bool("all", false, "with --help: every flag")
	_ = cmd.Flags().MarkHidden("all") // it is there; the last line of the help names it
	help := cmd.HelpFunc()
	cmd.SetHelpFunc(func(c *cobra.Command, args []string) {
		more := 0
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if !*all && !f.Hidden && !slices.Contains(usual, f.Name) {
				f.Hidden = true
				more++
			}
		})
		help(c, args)
		if more > 0 {
			console.Printf(c.OutOrStdout(), "\n%d more flags, for rarer needs: %s --help --all\n", more, c.CommandPath())
		}
	})
	cmd.PreRunE = func(*cobra.Command, []string) error {
		if *all {
			return usage.Wrong(errors.New("--all goes with --help"))
		}
		return nil
	}
}
