package main

import (
	"errors"
	"fmt"
	"os/exec"
	"syscall"

	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/launch"
	"github.com/replicad/replicad/internal/usage"
	"github.com/spf13/cobra"
)

func newExec(std stdio) *cobra.Command {
	var f runFlags
	cmd := &cobra.Command{
		Use:   "exec --job NAME --world N [flags] -- COMMAND [ARGUMENT...]",
		Short: "Become another launcher, for example torchrun, whose processes are ranks of a job",
		Long: "Creates the job unless it runs already. Puts REPLICAD_SOCKET, REPLICAD_JOB, REPLICAD_TOKEN,\n" +
			"REPLICAD_GROUPS and REPLICAD_HOST into the environment, and replaces itself by COMMAND. COMMAND starts\n" +
			"and restarts the ranks by its own rules, and gives each its number in RANK and WORLD_SIZE, as torchrun\n" +
			"does. Give the same flags on every node:\n\n" +
			"  replicad exec --config replicad.yaml --job lm --world 4 -- \\\n" +
			"    torchrun --nnodes 2 --nproc-per-node 2 --max-restarts 100 train.py",
		Args: cobra.MinimumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			opt, err := f.job(cmd.Context(), args, std)
			defer func() { f.lease.End() }() // not behind the exec: it ends by itself, when the ranks have long read
			if err != nil {
				return err
			}
			opt.Logf = func(format string, args ...any) { console.Printf(std.err, "replicad exec: "+format+"\n", args...) }
			program, err := exec.LookPath(args[0])
			if err != nil {
				return usage.Wrong(fmt.Errorf("command %q: %w", args[0], err))
			}
			if err := launch.Create(cmd.Context(), opt); errors.Is(err, launch.ErrNoDaemon) {
				return coded(exitNobody, err)
			} else if err != nil {
				return err
			}
			return fmt.Errorf("%s: %w", program, syscall.Exec(program, args, opt.Environ()))
		},
	}
	f.addJobFlags(cmd)
	cmd.Flags().BoolVar(&f.opt.UnlessEnded, "unless-ended", false, "don't create the job where the newest of its name has ended unfinished")
	_ = cmd.Flags().MarkHidden("unless-ended") // it is there; for connect() of a process that is started again by a rule
	fewFlags(cmd)
	return cmd
}
