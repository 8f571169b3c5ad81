package main

import (
	"context"
	"fmt"
	"strings"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/usage"
	"github.com/spf13/cobra"
)

// run is the whole program but for the process around it.
func run(ctx context.Context, args []string, std stdio) int {
	root, began := newRoot(std), false
	root.PersistentPreRunE = func(cmd *cobra.Command, _ []string) error { // flags and arguments have been read
		err := cmd.ValidateFlagGroups()
		began = err == nil
		return err
	}
	root.SetArgs(args)
	cmd, err := root.ExecuteContextC(ctx)
	if err != nil && !began && cmd.HasSubCommands() { // the verb is wrong, whatever flags follow it
		if _, rest, _ := root.Find(args); len(rest) > 0 && !strings.HasPrefix(rest[0], "-") {
			err = unknownVerb(cmd, rest[:1])
		}
	}
	if err != nil && !began {
		err = usage.Wrong(fmt.Errorf("%w (see `%s --help`)", err, cmd.CommandPath()))
	}
	if err != nil && err.Error() != "" {
		console.Printf(std.err, "replicad: %v\n", console.Paragraph(err.Error()))
	}
	return exitCode(ctx, err)
}

func newRoot(std stdio) *cobra.Command {
	root := &cobra.Command{
		Use:   "replicad",
		Short: "Training state kept alive in the memory of other nodes",
		Long: "replicad copies the training state of a job's ranks into host memory, at every step. Daemons agree\n" +
			"through Raft on the last step that is complete on the whole job. A lost rank or node is restored from\n" +
			"the copies.\n\n" + exitCodesHelp,
		SilenceUsage: true, SilenceErrors: true,
		Version: built(),
		Args:    unknownVerb,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetVersionTemplate("{{.Version}}")
	root.SetIn(std.in)
	root.SetOut(std.out)
	root.SetErr(std.err)
	root.AddCommand(verbs(std)...)
	return root
}
