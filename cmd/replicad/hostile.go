package main

import (
	"errors"
	"os"
	"strings"
	"time"

	"github.com/replicad/replicad/chaos/hostile"
	"github.com/replicad/replicad/internal/usage"
	"github.com/spf13/cobra"
)

func newChaosHostile(std stdio) *cobra.Command {
	var o hostile.Options
	var patterns, table string
	cmd := &cobra.Command{
		Use:   "hostile",
		Short: "Train beside strangers, peers and ranks that misbehave, and check that the promises hold",
		Long: "Trains jobs on three voters on this machine. Meanwhile a stranger, a peer with a node's certificate, a\n" +
			"rank or a user of the host misbehaves, in one way after another. Exit code 1 if any of these does not\n" +
			"hold:\n\n" +
			"  - every daemon's memory stays within its budget\n" +
			"  - no link of the others is lost, and the leader stays\n" +
			"  - the daemons go on committing steps\n" +
			"  - weights are bit-equal to those of an undisturbed run\n\n" +
			"Patterns: " + strings.Join(hostile.Names(), ", ") + ".",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if patterns != "" {
				o.Patterns = strings.Split(patterns, ",")
			}
			report, err := hostile.Run(cmd.Context(), o, std.out)
			if table != "" {
				f, ferr := os.Create(table)
				if ferr == nil {
					report.Table(f)
					ferr = f.Close()
				}
				err = errors.Join(err, ferr)
			}
			if errors.As(err, new(*hostile.UsageError)) {
				return usage.Wrong(err)
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&patterns, "patterns", "", "`LIST` of patterns, separated by commas (default: all)")
	f.BoolVar(&o.Brief, "brief", false, "the few that tests run")
	f.DurationVar(&o.Hold, "hold", 0, "how long a pattern of load lasts (default 4s)")
	f.StringVar(&o.Trainer, "trainer", "", "`COMMAND` of the ranks, in words without spaces (default: textlm beside this program)")
	f.IntVar(&o.Steps, "steps", 0, "optimizer steps of each job (default 3000)")
	f.IntVar(&o.Tries, "tries", 0, "how often a pattern that failed is tried (default 1)")
	f.StringVar(&o.Report, "report", "", "`FILE` for the outcome as JSON")
	f.StringVar(&table, "table", "", "`FILE` for the outcome as a table of Markdown")
	return cmd
}

// newChaosMisbehave is the process that misbehaves.
func newChaosMisbehave(std stdio) *cobra.Command {
	t := hostile.Target{}
	var rank string
	cmd := &cobra.Command{Use: "misbehave PATTERN --dir DIR --victim NODE", Short: "Misbehave in one way, and report what came of it", Hidden: true, Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if rank != "" {
				return hostile.BeRank(rank, t.Hold, std.out)
			}
			if t.Program, err = os.Executable(); err != nil {
				return err
			}
			return hostile.Misbehave(cmd.Context(), strings.Join(args, ""), t, std.out)
		}}
	cmd.Flags().StringVar(&t.Dir, "dir", "", "of the cluster")
	cmd.Flags().StringVar(&t.Victim, "victim", "", "the node")
	cmd.Flags().StringVar(&t.Job, "job", "", "that trains")
	cmd.Flags().StringVar(&rank, "rank", "", "how a rank misbehaves")
	cmd.Flags().DurationVar(&t.Hold, "hold", 4*time.Second, "how long a pattern of load lasts")
	return cmd
}
