// Command textlm trains a small character model on Newton's Opticks and shows how replicad goes under a training loop.
//
//	replicad run --job NAME --world 4 --groups 0,1,0,1 -- textlm       four ranks: two replicas of a model in two shards
//	textlm --baseline                                                  the same training in one process, without replicad
//
// The loop is in train.go, opening the session and registering the state in replicated.go: that is all of replicad that a
// training program sees. A run that begins from another one's generation (`replicad run --from`) reads it in begin.go, over source.go. The mathematics is in package model, the sums over ranks are in package collective; neither knows
// of replicad.
//
// Standard output carries one JSON object a line (events.go). This program must not import anything of replicad but its
// binding and the binding's vocabulary (replica): it is what a user could write.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/replicad/replicad/examples/textlm/data"
	"github.com/replicad/replicad/examples/textlm/model"
	"github.com/replicad/replicad/libreplicad"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdout, os.Stderr)) }

// options are the flags; all ranks of a run must have the same.
type options struct {
	steps, seed uint64
	stateMB     int
	shards      int
	digests     uint64
	batch       int // of all replicas together; 0: so many for each as the model's default says
	baseline    bool
	world       int // of the baseline
	pace        time.Duration
	faultDir    string
	positions   string
	tune        func(*model.Config) // nil but in tests: another size
}

// run is main without globals. Exit codes: 0 done, 1 failed, 2 wrong usage, 3 this rank was superseded or its job ended.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	var o options
	flags := flag.NewFlagSet("textlm", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Uint64Var(&o.steps, "steps", 1000, "optimizer steps")
	flags.Uint64Var(&o.seed, "seed", 1, "of weights, dropout and shuffling")
	flags.IntVar(&o.stateMB, "state-mb", 0, "further MiB of state that every step changes")
	flags.IntVar(&o.shards, "shards", 2, "ranks that share one replica of the model")
	flags.IntVar(&o.batch, "batch", 0, "examples of a step over all replicas (default 32 for each)")
	flags.Uint64Var(&o.digests, "digests", 0, "tell the state's digests each so many steps, not at the end alone")
	flags.BoolVar(&o.baseline, "baseline", false, "train without replicad, all ranks in this process")
	flags.IntVar(&o.world, "world", 4, "ranks of the baseline")
	flags.DurationVar(&o.pace, "pace", 0, "shortest time from step to step: stands for a larger model")
	flags.StringVar(&o.positions, "positions", "frozen", "how the table of positions is registered: frozen, as it is meant, or window, as in a model without frozen state")
	if err := flags.Parse(args); err != nil {
		return 2
	}
	if o.positions != "frozen" && o.positions != "window" {
		fmt.Fprintf(stderr, "textlm: --positions %q: want frozen or window\n", o.positions)
		return 2
	}
	o.faultDir = os.Getenv("TEXTLM_FAULT_DIR")
	if flags.NArg() > 0 || o.steps == 0 || o.shards < 1 || o.batch < 0 || o.stateMB < 0 || o.baseline && (o.world < o.shards || o.world%o.shards != 0) { // with replicad the launcher says how many ranks there are
		fmt.Fprintf(stderr, "textlm: --steps %d, --shards %d, --batch %d, --state-mb %d, --world %d, arguments %q: want at least one step, whole replicas (world a multiple of shards), and no arguments\n",
			o.steps, o.shards, o.batch, o.stateMB, o.world, flags.Args())
		return 2
	}
	var err error
	if o.baseline {
		err = baseline(ctx, o, stdout)
	} else {
		err = replicated(ctx, o, stdout)
	}
	switch {
	case err == nil:
		return 0
	case errors.Is(err, libreplicad.ErrStopped):
		fmt.Fprintf(stderr, "textlm: %v\n", err)
		return 3
	}
	fmt.Fprintf(stderr, "textlm: %v\n", err)
	return 1
}

// newModel makes the shard and replica of the model that a rank trains.
func newModel(o options, rank, world int, alloc model.Alloc) (*model.Model, error) {
	corpus := data.Opticks()
	cfg := model.Default()
	cfg.Seed, cfg.Steps, cfg.Vocab, cfg.PadBytes = o.seed, o.steps, corpus.Vocab, o.stateMB<<20
	cfg.Thawed = o.positions == "window"
	cfg.Shards, cfg.Shard = o.shards, rank%o.shards
	cfg.Replicas, cfg.Replica = world/o.shards, rank/o.shards
	if o.batch > 0 {
		if o.batch%cfg.Replicas != 0 {
			return nil, fmt.Errorf("--batch %d over %d replicas: want a multiple", o.batch, cfg.Replicas)
		}
		cfg.Batch = o.batch / cfg.Replicas
	}
	if o.tune != nil {
		o.tune(&cfg)
	}
	return model.New(cfg, corpus.Tokens, alloc)
}
