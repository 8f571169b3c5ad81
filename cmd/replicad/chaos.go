package main

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/replicad/replicad/chaos"
	"github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/usage"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func newChaos(std stdio) *cobra.Command {
	return group("chaos", "Break a cluster on this machine at random, and check that its promises hold", newChaosRun(std), newChaosHostile(std), newChaosCluster(std), newChaosBecome(), newChaosMisbehave(std))
}

func newChaosRun(std stdio) *cobra.Command {
	var o chaos.Options
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Train under random faults for a while, and compare with an undisturbed run",
		Long: "Trains jobs on three voters and a spare on this machine, injects random faults, one or two at once or at a moment\n" +
			"that the slots' words show, and compares with an undisturbed run. Exit code 1 if any of these does not hold:\n\n" +
			"  - weights are bit-equal, and no committed step is lost\n" +
			"  - each rank has one owner, and no healthy process is killed\n" +
			"  - commits and recoveries are within bounds, and each job ends committed, with its launchers' exit code 0\n" +
			"  - the disk is read only where memory held nothing\n" +
			"  - nothing is left over\n\n" +
			"Faults: " + strings.Join(chaos.Known(), ", ") + ".",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			o.Again = chaosAgain
			err := chaos.Run(cmd.Context(), o, std.out)
			if errors.As(err, new(*chaos.UsageError)) {
				return usage.Wrong(err)
			}
			return err
		},
	}
	chaosFlags(cmd.Flags(), &o)
	return cmd
}

// chaosFlags are the flags of a run; what o has already is their default.
func chaosFlags(f *pflag.FlagSet, o *chaos.Options) {
	f.Uint64Var(&o.Seed, "seed", o.Seed, "of training and of the schedule (default: drawn, and printed)")
	f.DurationVar(&o.Duration, "duration", o.Duration, "how long faults are injected, in all layouts together (default 1m)")
	f.IntVar(&o.Kills, "kills", o.Kills, "end after so many kills of ranks, should that come first")
	f.Var(listOf(&o.Faults, ",", word), "faults", "`LIST` of kinds to draw from, separated by commas; a kind named twice comes twice as often (default: all)")
	f.StringVar(&o.Trainer, "trainer", o.Trainer, "`COMMAND` of the ranks, in words without spaces (default: textlm beside this program); docs/chaos.md says what it must print")
	f.StringVar(&o.Program, "program", o.Program, "replicad `FILE` to break, with a textlm beside it, as of an older version (default: this one)")
	f.BoolVar(&o.Ends, "ranks-end", o.Ends, "a rank's process of this trainer ends when it loses a peer; the default, textlm's, stays")
	f.Var(listOf(&o.Layouts, ",", word), "layouts", "`LIST` of layouts to go over: "+strings.Join(chaos.Layouts(), ", ")+" (default: all with textlm, in an order drawn by the seed; else the first)")
	f.IntVar(&o.World, "world", o.World, "ranks of a layout of your own (default 4)")
	f.Var(listOf(&o.Groups, ",", strconv.Atoi), "groups", "replica group of each rank of a layout of your own (default `0,1,0,1` and so on)")
	f.IntVar(&o.Shards, "shards", o.Shards, "ranks that share one replica of the model, in a layout of your own; the trainer gets the same flag")
	f.IntVar(&o.Slots, "slots", o.Slots, "generations that an arena holds, 2 to 4 (default: drawn by the seed with textlm, else the layout's)")
	f.IntVar(&o.StateMB, "state-mb", o.StateMB, "`MiB` added to each rank's state (default: drawn by the seed with textlm, else the layout's); the trainer gets the same flag")
	f.IntVar(&o.Steps, "steps", o.Steps, "optimizer steps of each job (default 300 in a layout with added state, else 1000)")
	f.DurationVar(&o.Pace, "pace", o.Pace, "shortest time of a step (default 60ms in a layout with added state, else 20ms)")
	f.IntVar(&o.Warm, "warm", o.Warm, "processes that each node keeps started, to wait until a rank needs one (default 0; 1 with the fault heir)")
	f.Var(listOf(&o.Flags, " ", word), "run-flags", "further `FLAGS` of replicad run, as \"--cadence 4\"")
	f.StringVar(&o.History, "history", o.History, "`FILE` of what recoveries took in earlier runs, one a line: a recovery far slower than those is a violation; this run's are added")
	f.StringVar(&o.ReportDir, "report", o.ReportDir, "`DIR` for the timeline, and after a failure logs and status")
	f.StringVar(&o.Dir, "dir", o.Dir, "`DIR` for sockets, state and logs (default: a temporary one)")
	f.BoolVar(&o.Keep, "keep", o.Keep, "leave --dir behind")
}

// chaosPlaces are the flags that say where a run leaves its files: another run leaves them elsewhere.
var chaosPlaces = []string{"history", "report", "dir", "keep"}

// chaosAgain is the command line of a run with these options: each flag that is not as it is by itself.
func chaosAgain(o chaos.Options) string {
	f, unset := new(pflag.FlagSet), new(pflag.FlagSet)
	chaosFlags(f, &o)
	chaosFlags(unset, new(chaos.Options))
	line := "replicad chaos run"
	f.VisitAll(func(flag *pflag.Flag) {
		value := flag.Value.String()
		if slices.Contains(chaosPlaces, flag.Name) || value == unset.Lookup(flag.Name).Value.String() {
			return
		}
		if strings.ContainsAny(value, " \t\"'$") {
			value = "'" + strings.ReplaceAll(value, "'", `'\''`) + "'"
		}
		line += " --" + flag.Name + "=" + value
	})
	return line
}

// list is a flag whose values are separated by a word; empty: none.
type list[T any] struct {
	to    *[]T
	sep   string
	parse func(string) (T, error)
}

func listOf[T any](to *[]T, sep string, parse func(string) (T, error)) *list[T] {
	return &list[T]{to, sep, parse}
}

func word(s string) (string, error) { return s, nil }

func (l *list[T]) String() string {
	if l.to == nil { // pflag asks a zero value
		return ""
	}
	var words []string
	for _, v := range *l.to {
		words = append(words, fmt.Sprint(v))
	}
	return strings.Join(words, l.sep)
}

func (l *list[T]) Set(text string) error {
	*l.to = nil
	for _, s := range strings.FieldsFunc(text, func(r rune) bool { return string(r) == l.sep }) {
		v, err := l.parse(s)
		if err != nil {
			return err
		}
		*l.to = append(*l.to, v)
	}
	return nil
}

func (l *list[T]) Type() string { return "list" }

// newChaosCluster is how tests in other languages have a cluster.
func newChaosCluster(std stdio) *cobra.Command {
	var plan cluster.Plan
	var hang time.Duration
	cmd := &cobra.Command{Use: "cluster --nodes LIST --dir DIR", Short: "Run the nodes of a cluster on this machine until standard input ends", Hidden: true, Args: cobra.NoArgs,
		Long: "Standard output is JSON lines: an event \"node\" for each node with its files and processes, what keepers and daemons log, and answers.\n" +
			"A line \"kill NODE\" of standard input ends keeper and daemon of a node and makes its addresses silent; the answer is an event \"killed\".",
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			plan.Voters = len(plan.Nodes)
			plan.Change = func(c *config.Config) { c.Timing.HangLeast, c.Timing.HangFirst = hang, hang }
			if plan.Program, err = os.Executable(); err != nil {
				return err
			}
			return cluster.Serve(cmd.Context(), plan, std.in, std.out)
		}}
	cmd.Flags().StringSliceVar(&plan.Nodes, "nodes", nil, "`NAMES` of the nodes, all of them voters")
	cmd.Flags().StringVar(&plan.Dir, "dir", "", "`DIR` for sockets, state and logs: an absolute path of a folder that exists")
	cmd.Flags().DurationVar(&hang, "hang", 0, "how long a rank may stand still (default: the configuration's)")
	cmd.MarkFlagsOneRequired("nodes")
	cmd.MarkFlagsOneRequired("dir")
	return cmd
}

// newChaosBecome is what chaos run puts in front of a rank's trainer.
func newChaosBecome() *cobra.Command {
	var dir string
	var wait bool
	cmd := &cobra.Command{Use: "become --dir DIR -- COMMAND [ARGUMENT...]", Short: "Take the time that a fault asks for, then become a trainer", Hidden: true, Args: cobra.MinimumNArgs(1),
		RunE: func(_ *cobra.Command, args []string) error { return chaos.Become(dir, wait, args) }}
	cmd.Flags().StringVar(&dir, "dir", "", "where faults are asked for")
	cmd.Flags().BoolVar(&wait, "wait", false, "learn the rank from a launcher's --warm")
	return cmd
}
