package main

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func newJob(std stdio) *cobra.Command {
	return group("job", "Act on a job", newJobEnd(std), newJobStop(std), newJobToken(std))
}

const unsigned = "Without an operator's certificate it can be given on the node that the job was created on, and on the\nnodes that hold its ranks."

func newJobEnd(std stdio) *cobra.Command {
	var reason string
	var now bool
	const unsaid = "ended by an operator"
	v := &ask{use: "end NAME", args: 1, short: "End a job: its epoch is closed, its ranks are stopped and its memory is freed", long: `End a job: its epoch is closed, its ranks are stopped and its memory is freed.

Of a job that writes to the durable tier the newest commit is written first, and the command says which
step is on disk. --now ends the job without that.

` + unsigned,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&reason, "reason", unsaid, "reason for the job's record")
			cmd.Flags().BoolVar(&now, "now", false, "do not write the newest commit: free the memory at once")
		},
		order: func(args []string) control.Order {
			return control.Order{Verb: control.EndJob, Job: args[0], Why: cmp.Or(reason, unsaid), Now: now}
		},
		follow: followWrite}
	return v.command(std)
}

func newJobStop(std stdio) *cobra.Command {
	var reason string
	const unsaid = "stopped by an operator"
	v := &ask{use: "stop NAME", args: 1, short: "Stop a job that is to go on later: its newest commit is written, its launchers end, its memory is kept", long: `Stop a job that is to go on later. Its ranks end the step that they are in, its launchers end with 0,
and its newest commit is written to the durable tier, where the job writes there.

The state stays in memory for timing.abandoned: the same replicad run goes on with it. Then the job
ends and its memory is freed; replicad run --resume goes on from disk.

` + unsigned,
		flags: func(cmd *cobra.Command) {
			cmd.Flags().StringVar(&reason, "reason", unsaid, "reason for the job's record")
		},
		order: func(args []string) control.Order {
			return control.Order{Verb: control.StopJob, Job: args[0], Why: cmp.Or(reason, unsaid)}
		},
		follow: followWrite}
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
			c, err := t.load(nil)
			if err != nil {
				return err
			}
			if err := replica.CheckJobName(args[0]); err != nil {
				return usage.Wrong(fmt.Errorf("job %w", err))
			}
			token := c.JobToken(args[0])
			if token == "" {
				return coded(exitConfig, errors.New("the configuration has no job_secret: jobs have no tokens; set one on all nodes (16 to 256 printable characters) and start their daemons again"))
			}
			console.Printf(std.out, "%s\n", token)
			return nil
		},
	}
	t.addFlags(cmd)
	return cmd
}
