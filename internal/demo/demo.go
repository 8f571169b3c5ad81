// Package demo is `replicad demo`: it runs a training job on four nodes on this machine, breaks things while it trains, and
// compares the final weights, bit by bit, with those of an undisturbed run.
//
// It is a driver from outside. Keepers, daemons, launchers and ranks are real processes, each node on loopback addresses and
// in a directory of its own; the demo knows of them what an operator could know: their logs, what ranks print, and the admin
// sockets. Faults are SIGKILLs, silent ports, and, for ranks that are to die at a certain place, a file that has them stop there.
//
// Owners: the goroutine of Run owns nodes and faults; a goroutine for each stream of output adds to the journal; the view
// has one that draws. All of them have ended, and every process that was started is gone, when Run returns: after a verdict,
// an error, Ctrl-C or a panic. Should the demo itself be killed, the kernel ends its children.
//
// It imports internal/pki and replica and must not import internal/node or any other adaptor: what it needs of them it has
// to get from the outside, as anybody would.
package demo

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"sync"
	"time"
)

// ErrDifferent says that the job's final state is not that of the undisturbed run.
var ErrDifferent = errors.New("the final weights differ from the undisturbed run's")

// Run runs the demo. It returns nil if every fault was recovered from and the verdict is bit-equal.
func Run(ctx context.Context, opt Options, stdout, stderr io.Writer) (err error) {
	opt, err = opt.withDefaults()
	if err != nil {
		return err
	}
	dir, remove, err := workDir(opt)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, remove()) }()
	unadopt, err := adoptOrphans()
	if err != nil {
		return err
	}
	defer unadopt()

	spawn := newSpawner()
	defer func() { err = errors.Join(err, spawn.close()) }()
	j := newJournal()
	v := newView(stdout, j, opt)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() { v.run(stop) })
	halt := sync.OnceFunc(func() { close(stop); wg.Wait() })
	defer halt()

	res, err := perform(ctx, opt, dir, spawn, j, v)
	halt()
	if err != nil {
		if ctx.Err() == nil {
			fmt.Fprintf(stderr, "\nreplicad demo failed: %v\n\nlast lines of every process:\n%s", err, spawn.tails())
		}
		return err
	}
	v.print("\n" + table(res.Faults) + res.verdict())
	if opt.ReportDir != "" {
		if err := res.write(opt.ReportDir); err != nil {
			return err
		}
		v.print(fmt.Sprintf("report: %s/report.html, report.json\n", opt.ReportDir))
	}
	if res.Verdict != bitEqual {
		return ErrDifferent
	}
	return nil
}

// perform makes the undisturbed run, then the disturbed one.
func perform(ctx context.Context, opt Options, dir string, spawn *spawner, j *journal, v *view) (*result, error) {
	began := time.Now()
	c, err := newCluster(opt, dir, spawn, j)
	if err != nil {
		return nil, err
	}
	defer c.release()
	v.say(fmt.Sprintf("seed %d, %d steps, files in %s", opt.Seed, opt.Steps, dir))
	v.phase("undisturbed run, for the comparison")
	calm := newJournal()
	v.watchOther(calm)
	want, err := undisturbed(ctx, opt, dir, spawn, calm)
	v.watchOther(j)
	if err != nil {
		return nil, err
	}
	v.say("the undisturbed run is done; now with replicad")

	watching, endWatch := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { c.watch(watching) })
	defer wg.Wait()
	defer endWatch()
	d := &driver{opt: opt, cluster: c, journal: j, view: v, rng: rand.New(rand.NewPCG(opt.Seed, 0xde30))}
	faults, trained, err := d.run(ctx)
	if err != nil {
		return nil, err
	}
	got, err := d.digests()
	if err != nil {
		return nil, err
	}
	v.phase("stopping the cluster")
	c.stop()
	return d.result(faults, calm, got, want, began, trained), nil
}

func (d *driver) result(faults []Fault, calm *journal, got, want [][3]string, began time.Time, trained time.Duration) *result {
	r := &result{opt: d.opt, when: began, differs: compare(got, want, d.opt.Groups)}
	r.Verdict, r.Faults = bitEqual, faults
	if len(r.differs) > 0 {
		r.Verdict = different
	}
	sum := sha256.New()
	for _, g := range got {
		fmt.Fprintln(sum, g[0])
	}
	r.digest = hex.EncodeToString(sum.Sum(nil))
	d.journal.view(func() {
		r.loss = d.journal.loss
		r.Figures = figures(faults, d.journal.commits, d.journal.lags, d.journal.repeats, time.Since(began), trained, d.opt)
	})
	calm.view(func() { r.baseline = calm.loss })
	return r
}

// verdict is the last word.
func (r *result) verdict() string {
	if r.Verdict == bitEqual {
		return fmt.Sprintf("\nverdict: bit-equal. Weights, optimizer, statistics and random numbers of all ranks are those of the undisturbed run\n(seed %d, step %d, SHA-256 over the weights' digests %s).\n", r.opt.Seed, r.opt.Steps, r.digest)
	}
	s := fmt.Sprintf("\nverdict: different (seed %d)\n", r.opt.Seed)
	for _, d := range r.differs {
		s += "  " + d + "\n"
	}
	return s
}

// workDir makes the demo's directory; remove takes it away again unless it is to be kept.
func workDir(opt Options) (dir string, remove func() error, err error) {
	if opt.Dir == "" {
		dir, err = os.MkdirTemp("", "replicad-demo-")
	} else {
		dir, err = opt.Dir, os.Mkdir(opt.Dir, 0o700)
	}
	if err != nil {
		return "", nil, fmt.Errorf("demo directory: %w (it must not exist, in a folder that you may write; TMPDIR or --dir choose another)", err)
	}
	return dir, func() error {
		if opt.Keep {
			return nil
		}
		return os.RemoveAll(dir)
	}, nil
}
