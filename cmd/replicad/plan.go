package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"strings"
	"text/tabwriter"

	"github.com/replicad/replicad/internal/config"
	"github.com/replicad/replicad/internal/memplan"
	"github.com/replicad/replicad/replica"
	"github.com/spf13/cobra"
)

func newPlan(std stdio) *cobra.Command {
	return group("plan", "Say what a job will take, before it runs", newPlanMemory(std))
}

// memoryFlags are a plan's as they are typed.
type memoryFlags struct {
	params, frozen, dtype, moments string
	own, margin, room              config.Bytes
	job                            memplan.Job
}

func newPlanMemory(std stdio) *cobra.Command {
	f := memoryFlags{own: 1 << 20, margin: config.Default().MemoryMargin}
	var asJSON bool
	cmd := &cobra.Command{
		Use:   "memory --params 70e9 [--dtype bf16] [--shards N] [--ranks-per-node N] [--copies K] [--node-memory 1TiB]",
		Short: "Say how much host memory a node needs for arenas, mirrors and stages, and what each flag changes",
		Long: "Computes what the fullest node of a job needs of host memory beside training itself. It asks no daemon.\n" +
			"Arenas and mirrors are laid out as a daemon lays them out. Which node gets which mirrors is drawn when the\n" +
			"job is created: the fullest node of another draw may have a few more or fewer.\n\n" +
			"With --node-memory it ends with 1 where that does not suffice.",
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			j, err := f.read()
			if err != nil {
				return coded(exitUsage, err)
			}
			p, err := memplan.New(j)
			if err != nil {
				return coded(exitUsage, err)
			}
			if asJSON {
				e := json.NewEncoder(std.out)
				e.SetIndent("", "  ")
				err = e.Encode(p)
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
	v.IntVar(&f.job.Slots, "slots", 0, "slots of each arena, 2 to 4 (default: as of replicad run)")
	v.BoolVar(&f.job.Stages, "stages", true, "the state lies on a device and is copied by way of host memory")
	v.TextVar(&f.room, "node-memory", f.room, "memory of a node for all this, as in 512GiB: says whether it suffices")
	v.TextVar(&f.margin, "memory-margin", f.margin, "of --node-memory, that stays free (memory_margin of the configuration)")
	v.BoolVar(&asJSON, "json", false, "print JSON, for programs")
	return cmd
}

// dtypeNames are the types that a plan knows, by torch's short names.
var dtypeNames = map[string]replica.DType{"fp32": replica.F32, "bf16": replica.BF16, "fp16": replica.F16, "fp8": replica.F8E4M3}

// read takes the flags for a job.
func (f memoryFlags) read() (j memplan.Job, err error) {
	j = f.job
	var errs []error
	for _, n := range []struct {
		flag, text string
		into       *uint64
	}{{"--params", f.params, &j.Params}, {"--frozen", f.frozen, &j.Frozen}} {
		if *n.into, err = wholeNumber(n.text); err != nil {
			errs = append(errs, fmt.Errorf("%s %q: want a whole number, as in 70e9 or 8030261248", n.flag, n.text))
		}
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
	j.Own = uint64(f.own)
	if f.room > 0 {
		if f.room <= f.margin {
			errs = append(errs, fmt.Errorf("--node-memory %v: want more than --memory-margin, %v, which stays free", f.room, f.margin))
		}
		j.Room = uint64(f.room - f.margin)
	}
	if len(errs) == 0 {
		errs = append(errs, j.Check())
	}
	return j, errors.Join(errs...)
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
	fmt.Fprintf(t, "job\t%d ranks on %d nodes, %d a node; each part on %d nodes\n", p.World, p.Nodes, min(p.Job.RanksPerNode, p.World), p.Job.Copies)
	fmt.Fprintf(t, "state\t%s a rank at each step, %d slots: an arena of %s\n", size(p.Shard), p.Slots, size(p.Arena))
	fmt.Fprintf(t, "\nTHE FULLEST NODE\tCOUNT\tEACH\tBYTES\n")
	for _, n := range p.Needs {
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", n.What, n.Count, size(n.Each), size(n.Bytes))
	}
	fmt.Fprintf(t, "in all\t\t\t%s\n", size(p.Node))
	fmt.Fprintf(t, "\nONE CHANGE\tDIFFERENCE\tIN ALL\tBESIDES\n")
	for _, c := range p.Changes {
		sign, diff := "+", c.Diff
		if diff < 0 {
			sign, diff = "-", -diff
		}
		besides := c.Why
		if c.Fits != nil && *c.Fits != *p.Fits {
			besides += map[bool]string{true: "; fits", false: "; does not fit"}[*c.Fits]
		}
		fmt.Fprintf(t, "%s\t%s%s\t%s\t%s\n", c.Flag, sign, size(uint64(diff)), size(c.Node), besides)
	}
	if p.Fits != nil && *p.Fits {
		fmt.Fprintf(t, "\nfits\t%s of %s for copies; %s left\n", size(p.Node), size(p.Room), size(p.Room-p.Node))
	}
	return t.Flush()
}

// tooMuch says that a plan does not fit, and what would.
func tooMuch(p memplan.Plan) string {
	text := fmt.Sprintf("does not fit: a node needs %s and has %s for copies", size(p.Node), size(p.Room))
	if r := p.Remedy(); r != "" {
		return text + ": fits with " + r
	}
	return text + ": use more shards, fewer ranks on a node, or nodes with more memory"
}

// size is a number of bytes for people.
func size(n uint64) string {
	v, unit := float64(n), "B"
	for _, u := range strings.Fields("KiB MiB GiB TiB PiB") {
		if v < 1024 {
			break
		}
		v, unit = v/1024, u
	}
	if unit == "B" {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", v, unit)
}
