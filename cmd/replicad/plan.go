package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"math/big"
	"slices"
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
	params, frozen, dtype, moments string
	own, preloaded, margin, room   config.Bytes
	spool                          config.Bytes
	job                            memplan.Job
	running                        string // the name of a job that runs
	daemon                         adminFlags
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
	v.StringVar(&f.params, "params", "", "parameters of the whole model, as in 70e9")
	v.StringVar(&f.frozen, "frozen", "0", "of these, that are not trained (adapters)")
	v.StringVar(&f.dtype, "dtype", "bf16", "type of the parameters where they are sharded: fp32, bf16, fp16, fp8 (FSDP with mixed precision: fp32)")
	v.StringVar(&f.job.Optimizer, "optimizer", "adamw", "adamw and adam keep two moments of each trained parameter, lion and momentum one, sgd and none none")
	v.StringVar(&f.moments, "moments-dtype", "fp32", "type of the moments (torch's optimizers keep them in that of the parameters)")
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

// dtypeNames are the types that a plan knows, by torch's short names.
var dtypeNames = map[string]replica.DType{"fp32": replica.F32, "bf16": replica.BF16, "fp16": replica.F16, "fp8": replica.F8E4M3}

// read takes the flags for a job, and what a daemon knows of one that runs.
func (f memoryFlags) read(cmd *cobra.Command) (j memplan.Job, err error) {
	j = f.job
	if f.running != "" {
		var s control.Status
		if _, err = f.daemon.find(); err == nil {
			s, err = f.daemon.Status(cmd.Context())
		}
		if err == nil {
			j, err = runningJob(s, f.running)
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

// runningJob is a job as the node sees it on which some of its ranks run.
func runningJob(s control.Status, name string) (j memplan.Job, err error) {
	at := slices.IndexFunc(s.Jobs, func(x control.JobStatus) bool { return x.Name == name && x.Phase != "ended" })
	if at < 0 {
		return j, fmt.Errorf("--job %q: node %s knows no job of that name that runs: replicad status lists them", name, s.Node)
	}
	x := s.Jobs[at]
	of := slices.IndexFunc(s.Sizes, func(z control.SizeStatus) bool { return z.Job == x.ID })
	if of < 0 {
		return j, fmt.Errorf("--job %q: no rank of it has registered its state on node %s: ask the daemon of a node that it trains on", name, s.Node)
	}
	groups, nodes := map[replica.GroupID]bool{}, map[replica.NodeName]int{}
	for _, r := range x.Ranks {
		groups[r.Group] = true
		if r.Node != "" {
			nodes[r.Node]++
		}
		j.RanksPerNode = max(j.RanksPerNode, nodes[r.Node])
	}
	if len(nodes) == 0 {
		return j, fmt.Errorf("--job %q: node %s knows on which nodes no rank runs (%s): ask again, or another node's daemon", name, s.Node, cmp.Or(x.LeftOut, "the leader may not answer"))
	}
	z := s.Sizes[of]
	j.Shards = len(groups)
	j.Replicas = (len(x.Ranks) + j.Shards - 1) / j.Shards
	j.Copies, j.Slots, j.ChunkBytes, j.Own = x.Copies, z.Slots, z.ChunkBytes, z.Own
	j.Measured = &memplan.Measured{Trained: z.Trained, Common: z.Common, Frozen: z.Frozen, Shards: j.Shards}
	return j, nil
}

// readModel takes what the flags say of a model.
func (f memoryFlags) readModel(j *memplan.Job) error {
	var errs []error
	for _, n := range []struct {
		flag, text string
		into       *uint64
	}{{"--params", f.params, &j.Params}, {"--frozen", f.frozen, &j.Frozen}} {
		v, err := wholeNumber(n.text)
		if err != nil {
			errs = append(errs, fmt.Errorf("%s %q: want a whole number, as in 70e9 or 8030261248", n.flag, n.text))
		}
		*n.into = v
	}
	for _, n := range []struct {
		flag, text string
		into       *replica.DType
	}{{"--dtype", f.dtype, &j.DType}, {"--moments-dtype", f.moments, &j.Moments}} {
		var ok bool
		if *n.into, ok = dtypeNames[n.text]; !ok {
			errs = append(errs, fmt.Errorf("%s %q: want fp32, bf16, fp16 or fp8", n.flag, n.text))
		}
	}
	if j.Replicas == 0 {
		if j.Replicas = 1; j.Shards == 1 {
			j.Replicas = j.Copies * j.RanksPerNode
		}
	}
	j.Own, j.Preloaded, j.SpoolMemory = uint64(f.own), uint64(f.preloaded), uint64(f.spool)
	return errors.Join(append(errs, f.readRoom(j))...)
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

// wholeNumber reads 70e9 and 70000000000.
func wholeNumber(text string) (uint64, error) {
	if len(text) > 40 {
		return 0, errors.New("too long")
	}
	n, _, err := big.ParseFloat(text, 10, 128, big.ToNearestEven)
	if err != nil || !n.IsInt() || n.Sign() < 0 {
		return 0, errors.New("no whole number")
	}
	v, _ := n.Uint64()
	if n.Cmp(new(big.Float).SetUint64(v)) != 0 {
		return 0, errors.New("too large")
	}
	return v, nil
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
