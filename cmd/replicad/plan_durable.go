package main

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/memplan"
	"github.com/replicad/replicad/internal/usage"
	"github.com/spf13/cobra"
)

func newPlanDurable(std stdio) *cobra.Command {
	f := memoryFlags{own: 1 << 20}
	s := memplan.Store{Between: 24 * time.Hour, Grace: config.Default().Timing.StopGrace, Keep: max(config.Default().DurableKeep.Last, 1)}
	var rate config.Bytes
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "durable {--params 70e9 [--dtype bf16] [--shards N] | --job NAME} --rate 500MiB [--ranks-per-node N] [--between 24h]",
		Short: "Say what checkpoints of a job take on a store, how often they are worth while, and whether stop_grace lasts",
		Long: "Computes what a generation of a job has in bytes and objects, how long a node takes to write its share\n" +
			"at --rate, and with which interval --durable-every auto begins. It asks no daemon, or with --job that of a\n" +
			"node on which the job's ranks run.\n\n" +
			"It ends with 1 where timing.stop_grace is too short for the write that a stopping node may have to make.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			j, err := f.read(cmd)
			if err != nil {
				return err
			}
			s.Rate = uint64(rate)
			d, err := memplan.NewDurable(j, s)
			if err != nil {
				return usage.Wrong(err)
			}
			if asJSON {
				err = console.JSON(std.out, d)
			} else {
				err = printDurable(std.out, d, s)
			}
			if err == nil && !d.Fits {
				err = fmt.Errorf("timing.stop_grace %v is too short: a daemon may have to write %s when all nodes go down, %v at %s a second: set it to %v, and TimeoutStopSec of the service beyond it",
					s.Grace, console.Size(d.StopBytes), brief(d.Stop), console.Size(s.Rate), memplan.GraceFor(d.Stop))
			}
			return err
		},
	}
	f.addModel(cmd)
	v := cmd.Flags()
	v.TextVar(&rate, "rate", rate, "bytes that a node gives to the store in a second: durable_rate, or what was measured, as in 500MiB")
	v.DurationVar(&s.Between, "between", s.Between, "time from one fault of the job to the next; the leader begins with a day, and counts those that it sees")
	v.DurationVar(&s.Grace, "stop-grace", s.Grace, "timing.stop_grace of the configuration")
	v.IntVar(&s.Keep, "keep", s.Keep, "generations that are kept (durable_keep of the configuration)")
	v.BoolVar(&asJSON, "json", false, "print JSON, for programs")
	return cmd
}

// brief rounds a time to what people read.
func brief(d time.Duration) time.Duration {
	if d >= 10*time.Second {
		return d.Round(time.Second)
	}
	return d.Round(10 * time.Millisecond)
}

func printDurable(w io.Writer, d memplan.Durable, s memplan.Store) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	console.Printf(t, "job\t%d ranks on %d nodes\n", d.World, d.Nodes)
	console.Printf(t, "a generation\t%s in %d objects, an index and a commit\n", console.Size(d.Bytes), d.Objects)
	if d.Once > 0 {
		console.Printf(t, "kept once\t%s, of what no step changes, each file twice\n", console.Size(d.Once))
	}
	console.Printf(t, "on the store\t%s with %d generations kept, and one more while it is written\n", console.Size(d.Kept), s.Keep)
	console.Printf(t, "each node\twrites %s of a generation: %v at %s a second\n", console.Size(d.NodeBytes), brief(d.Write),
		console.Size(s.Rate))
	console.Printf(t, "--durable-every auto\tevery %v (Daly: a write takes %v, a fault in %v; between 2m and 30m)\n", d.Every,
		brief(d.Write), s.Between)
	if d.Fits {
		console.Printf(t, "on SIGTERM\tup to %s, %v: timing.stop_grace %v lasts\n", console.Size(d.StopBytes), brief(d.Stop), s.Grace)
	}
	return t.Flush()
}
