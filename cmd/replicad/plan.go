package main

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/console"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/memplan"
	"github.com/replicad/replicad/internal/usage"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func newPlan(std stdio) *cobra.Command {
	return group("plan", "Say what a job will take, before it runs", newPlanMemory(std), newPlanDurable(std))
}

// preloadedTorch is what the process that restarts fork from has where it has imported torch 2.15 with its compiler and optimizers.
const preloadedTorch = 384 << 20

// memoryFlags are a plan's as they are typed.
type memoryFlags struct {
	memplan.Model
	own, preloaded, margin, room config.Bytes
	spool                        config.Bytes
	job                          memplan.Job
	running                      string // the name of a job that runs
	daemon                       adminFlags
}

func newPlanMemory(std stdio) *cobra.Command {
	f := memoryFlags{own: 1 << 20, preloaded: preloadedTorch, margin: config.Default().MemoryMargin}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "memory {--params 70e9 [--dtype bf16] [--shards N] | --job NAME} [--ranks-per-node N] [--copies K] [--node-memory 1TiB]",
		Short: "Say how much host memory a node needs for arenas, mirrors and stages, and what each flag changes",
		Long: "Computes what the fullest node of a job needs of host memory beside training itself. It asks no daemon,\n" +
			"or with --job that of a node on which the job's ranks run, for the state that they registered.\n" +
			"Arenas and mirrors are laid out as a daemon lays them out.\n\n" +
			"With --node-memory it ends with 1 where that does not suffice.",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			j, err := f.read(cmd)
			if err != nil {
				return err
			}
			p, err := memplan.New(j)
			if err != nil {
				return usage.Wrong(err)
			}
			if asJSON {
				err = console.JSON(std.out, p)
			} else {
				err = printMemory(std.out, p)
			}
			if err == nil && p.Fits != nil && !*p.Fits {
				err = errors.New(tooMuch(p))
			}
			return err
		},
	}
	v := cmd.Flags()
	f.addModel(cmd)
	v.TextVar(&f.preloaded, "preloaded", f.preloaded, "the process that restarts fork from, as its launcher names its size; 0 with --preload none")
	v.TextVar(&f.spool, "spool-memory", f.spool, "copies of durable writes in host memory, at most (spool_memory of the configuration)")
	v.IntVar(&f.job.Slots, "slots", 0, "slots of each arena, 2 to 4 (default: as of replicad run)")
	v.BoolVar(&f.job.Stages, "stages", true, "the state lies on a device and is copied by way of host memory")
	v.TextVar(&f.room, "node-memory", f.room, "memory of a node for all this, as in 512GiB: says whether it suffices")
	v.TextVar(&f.margin, "memory-margin", f.margin, "of --node-memory, that stays free (memory_margin of the configuration)")
	v.BoolVar(&asJSON, "json", false, "print JSON, for programs")
	return cmd
}

// addModel adds the flags that say what a job's state is, and where it lies.
func (f *memoryFlags) addModel(cmd *cobra.Command) {
	v := cmd.Flags()
	v.StringVar(&f.running, "job", "", "`NAME` of a job that runs: state, ranks, copies and slots are its own, but for --ranks-per-node, --copies and --slots that are given")
	v.StringVar(&f.Params, "params", "", "parameters of the whole model, as in 70e9")
	v.StringVar(&f.Frozen, "frozen", "0", "of these, that are not trained (adapters)")
	v.StringVar(&f.Dtype, "dtype", "bf16",
		"type of the parameters where they are sharded: fp32, bf16, fp16, fp8 (FSDP with mixed precision: fp32)")
	v.StringVar(&f.job.Optimizer, "optimizer", "adamw", "adamw and adam keep two moments of each trained parameter, lion and momentum one, sgd and none none")
	v.StringVar(&f.Moments, "moments-dtype", "fp32", "type of the moments (torch's optimizers keep them in that of the parameters)")
	v.BoolVar(&f.job.Master, "master-weights", false, "the optimizer keeps an fp32 copy of the trained parameters")
	v.TextVar(&f.own, "own", f.own, "a rank's own part: generators, loader, buffers")
	v.IntVar(&f.job.Shards, "shards", 1, "shards of the state: 1 is DDP, N is FSDP over N ranks")
	v.IntVar(&f.job.Replicas, "replicas", 0, "ranks that compute each shard (default 1; --copies with one shard)")
	v.IntVar(&f.job.RanksPerNode, "ranks-per-node", 1, "ranks on each node")
	v.IntVar(&f.job.Copies, "copies", replica.DefaultMinCopies, "nodes that hold each part (replicad run --min-copies)")
	f.daemon.addFlags(cmd)
	for _, flag := range strings.Fields("params frozen dtype optimizer moments-dtype master-weights own shards replicas") {
		cmd.MarkFlagsMutuallyExclusive("job", flag)
	}
}

// read takes the flags for a job, and what a daemon knows of one that runs.
func (f memoryFlags) read(cmd *cobra.Command) (j memplan.Job, err error) {
	j = f.job
	if f.running != "" {
		var s control.Status
		if _, err = f.daemon.find(); err == nil {
			s, err = f.daemon.Status(cmd.Context())
		}
		if err == nil {
			if j, err = memplan.Running(s, f.running); err != nil {
				err = fmt.Errorf("--job %q: %w", f.running, err)
			}
		}
		if err != nil {
			return j, err
		}
		for flag, to := range map[string]struct {
			to    *int
			value int
		}{"ranks-per-node": {&j.RanksPerNode, f.job.RanksPerNode}, "copies": {&j.Copies, f.job.Copies}, "slots": {&j.Slots, f.job.Slots}} {
			if cmd.Flags().Changed(flag) {
				*to.to = to.value
			}
		}
		j.Stages, j.Preloaded, j.SpoolMemory = f.job.Stages, uint64(f.preloaded), uint64(f.spool)
		err = f.readRoom(&j)
	} else {
		err = f.readModel(&j)
	}
	if err == nil {
		err = j.Check()
	}
	if err != nil {
		err = usage.Wrong(err)
	}
	return j, err
}

// readModel takes what the flags say of a model.
func (f memoryFlags) readModel(j *memplan.Job) error {
	err := f.Model.Read(j)
	j.Own, j.Preloaded, j.SpoolMemory = uint64(f.own), uint64(f.preloaded), uint64(f.spool)
	return errors.Join(err, f.readRoom(j))
}

// readRoom takes what a node has.
func (f memoryFlags) readRoom(j *memplan.Job) error {
	if f.room == 0 {
		return nil
	}
	if f.room <= f.margin {
		return fmt.Errorf("--node-memory %v: want more than --memory-margin, %v, which stays free", f.room, f.margin)
	}
	j.Room = uint64(f.room - f.margin)
	return nil
}

// printMemory writes a plan for people.
func printMemory(w io.Writer, p memplan.Plan) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	console.Printf(t, "job\t%d ranks on %d nodes, %d a node; each part on %d nodes\n", p.World, p.Nodes, min(p.Job.RanksPerNode, p.World),
		p.Job.Copies)
	console.Printf(t, "state\t%s a rank at each step, %d slots: an arena of %s\n", console.Size(p.Shard), p.Slots, console.Size(p.Arena))
	console.Printf(t, "\nTHE FULLEST NODE\tCOUNT\tEACH\tBYTES\n")
	for _, n := range p.Needs {
		console.Printf(t, "%s\t%d\t%s\t%s\n", n.What, n.Count, console.Size(n.Each), console.Size(n.Bytes))
	}
	console.Printf(t, "in all\t\t\t%s\n", console.Size(p.Node))
	console.Printf(t, "\ndurable writes\treplicad plan durable says what they take\n")
	console.Printf(t, "\nONE CHANGE\tDIFFERENCE\tIN ALL\tBESIDES\n")
	for _, c := range p.Changes {
		sign, diff := "+", c.Diff
		if diff < 0 {
			sign, diff = "-", -diff
		}
		besides := c.Why
		if c.Fits != nil && *c.Fits != *p.Fits {
			besides += map[bool]string{true: "; fits", false: "; does not fit"}[*c.Fits]
		}
		console.Printf(t, "%s\t%s%s\t%s\t%s\n", c.Flag, sign, console.Size(uint64(diff)), console.Size(c.Node), besides)
	}
	if p.Fits != nil && *p.Fits {
		console.Printf(t, "\nfits\t%s of %s for copies; %s left\n", console.Size(p.Node), console.Size(p.Room), console.Size(p.Room-p.Node))
	}
	return t.Flush()
}

// tooMuch says that a plan does not fit, and what would.
func tooMuch(p memplan.Plan) string {
	text := fmt.Sprintf("does not fit: a node needs %s and has %s for copies", console.Size(p.Node), console.Size(p.Room))
	if r := p.Remedy(); r != "" {
		return text + ": fits with " + r
	}
	return text + ": use more shards, fewer ranks on a node, or nodes with more memory"
}
