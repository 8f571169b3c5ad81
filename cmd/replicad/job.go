package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func newJob(std stdio) *cobra.Command {
	return group("job", "Act on a job", newJobEnd(std), newJobToken(std))
}

func newJobEnd(std stdio) *cobra.Command {
	var reason string
	const unsaid = "ended by an operator"
	v := &ask{use: "end NAME", args: 1, short: "End a job: its epoch is closed, its ranks are stopped and its memory is freed", long: `End a job: its epoch is closed, its ranks are stopped and its memory is freed.

Without an operator's certificate a job can be ended on the node that it was created on, and on the
nodes that hold its ranks.`,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&reason, "reason", unsaid, "reason for the job's record")
		},
		order: func(args []string) control.Order {
			return control.Order{Verb: control.EndJob, Job: args[0], Why: cmp.Or(reason, unsaid)}
		}}
	return v.command(std)
}

// newJobToken needs the secret of the configuration, not the daemon: a token is made before there is a job.
func newJobToken(std stdio) *cobra.Command {
	var t target
	cmd := &cobra.Command{
		Use:   "token NAME",
		Short: "Print the token that launchers and ranks of a job present",
		Long: "Prints the token of the job of that name, derived from the configuration's job_secret. Put the token\n" +
			"into a file that only the job's user can read, for replicad run --token-file, or into REPLICAD_TOKEN.\n" +
			"The token is valid on every node with that secret, and for no other job.",
		Args: cobra.ExactArgs(1),
		RunE: func(_ *cobra.Command, args []string) error {
			c, err := t.load(noDevCluster)
			if err != nil {
				return err
			}
			if err := replica.CheckName(args[0]); err != nil {
				return coded(exitUsage, fmt.Errorf("job %w", err))
			}
			token := c.JobToken(args[0])
			if token == "" {
				return coded(exitConfig, errors.New("the configuration has no job_secret: jobs have no tokens; set one on all nodes (16 to 256 printable characters) and start their daemons again"))
			}
			fmt.Fprintln(std.out, token)
			return nil
		},
	}
	t.addFlags(cmd)
	return cmd
}
