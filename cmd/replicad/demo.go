package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/replicad/replicad/internal/demo"
	"github.com/replicad/replicad/internal/launch"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func newDemo(std stdio) *cobra.Command {
	var o demo.Options
	var faults, groups string
	cmd := &cobra.Command{
		Use:   "demo",
		Short: "Train on four nodes on this machine, break things, and compare with an undisturbed run",
		Long: "Trains a small language model on four nodes on this machine. Meanwhile it kills ranks, a daemon, whole\n" +
			"nodes and every holder of a replica group. It compares the final weights, bit by bit, with those of an\n" +
			"undisturbed run. Exit code 1 if they differ.\n\n" +
			"Faults, in the order in which they come unless --faults says otherwise: " + strings.Join(demo.AllFaults(), ", ") + ".\n" +
			"All: " + strings.Join(demo.KnownFaults(), ", ") + ".",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if faults != "" {
				o.Faults = strings.Split(faults, ",")
			}
			if cmd.Flags().Changed("faults") && faults == "" {
				return usage.Wrong(errors.New("--faults: name at least one, or give --no-faults"))
			}
			list, err := launch.ParseList[replica.GroupID](groups)
			if err != nil {
				return usage.Wrong(fmt.Errorf("--groups: %w", err))
			}
			for _, g := range list {
				o.Groups = append(o.Groups, int(g))
			}
			for name, zero := range map[string]bool{"steps": o.Steps == 0, "pace": o.Pace == 0} {
				if zero {
					return usage.Wrong(fmt.Errorf("--%s %v: want more than 0", name, cmd.Flag(name).Value))
				}
			}
			err = demo.Run(cmd.Context(), o, std.out, std.err)
			if errors.As(err, new(*demo.UsageError)) {
				return usage.Wrong(err)
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&faults, "faults", "", "`LIST` of faults to inject, in order, separated by commas (default: "+strings.Join(demo.AllFaults(), ",")+"; known: "+strings.Join(demo.KnownFaults(), ",")+")")
	flags.BoolVar(&o.NoFaults, "no-faults", false, "train undisturbed")
	flags.IntVar(&o.Steps, "steps", demo.DefaultSteps, "optimizer steps")
	flags.IntVar(&o.StateMB, "state-mb", 0, "`MiB` added to each rank's state, to see larger transfers")
	flags.IntVar(&o.Shards, "shards", 0, "ranks that share one replica of the model (default 2 with textlm); with as many as ranks each group's part is mirrored")
	flags.IntVar(&o.Slots, "slots", 0, "generations a rank's arena holds, 2 to 4 (default: as of replicad run): each is a copy of its state")
	flags.StringVar(&o.Durable, "durable", "", "directory, file:// or s3:// `URL` for durable generations (default: a directory in --dir); the faults end with fleet then, and\n`replicad ckpt ls` of it is printed. The demo starts the bucket's server unless AWS_ENDPOINT_URL_S3 names one")
	flags.IntVar(&o.Copies, "copies", 0, "nodes that must hold each part before a step is committed (default 2; 3 with the fault holder)")
	flags.Uint64Var(&o.Seed, "seed", 0, "of training and of the moments of the faults (default: drawn, and printed)")
	flags.DurationVar(&o.Pace, "pace", demo.DefaultPace, "shortest time of a step")
	flags.StringVar(&o.ReportDir, "report", "", "`DIR` for report.html and report.json")
	flags.StringVar(&o.Dir, "dir", "", "`DIR` for sockets, state and logs (default: a temporary one)")
	flags.BoolVar(&o.Keep, "keep", false, "leave --dir behind")
	flags.StringVar(&o.Trainer, "trainer", "", "`COMMAND` of the ranks, in words without spaces (default: textlm beside this program); it prints the\nevents that examples/textlm does, and knows --steps, --seed, --pace, --baseline and --world")
	flags.IntVar(&o.World, "world", 0, "ranks (default 4, or as many as --shards)")
	flags.StringVar(&groups, "groups", "", "replica group of each rank, as `0,1,0,1` (default: rank r in group r mod --shards; with another trainer than textlm all in one)")
	flags.StringVar(&o.Preload, "preload", launch.PreloadAuto, "auto: restarts of a Python trainer fork from a process that has its imports; none: each restart imports; ready: auto, and faults wait until it can be")
	flags.IntVar(&o.Warm, "warm", 0, "processes that each node keeps started, to wait until a rank needs one")
	flags.BoolVar(&o.Plain, "plain", false, "plain lines even on a terminal")
	flags.StringVar(&o.LogLevel, "log-level", "", "`LEVEL` of the daemons' logs: info or debug, with --keep (default info)")
	if err := flags.MarkHidden("log-level"); err != nil {
		panic(err) // the flag is defined a line above
	}
	return cmd
}
