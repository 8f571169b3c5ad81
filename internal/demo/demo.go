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
// It stands on chaos/cluster and must not import internal/node or any other adaptor: what it needs of them it has to get from
// the outside, as anybody would.
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
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/replicad/replicad/chaos/cluster"
)

// ErrDifferent says that the job's final state is not that of the undisturbed run.
var ErrDifferent = errors.New("the final weights differ from the undisturbed run's")

// UsageError says that the options can't work. Nothing was started.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

// Run runs the demo. It returns nil if every fault was recovered from and the verdict is bit-equal.
func Run(ctx context.Context, opt Options, stdout, stderr io.Writer) (err error) {
	opt, err = opt.withDefaults()
	if err != nil {
		return &UsageError{err}
	}
	if err := checkReportDir(opt.ReportDir); err != nil {
		return &UsageError{err}
	}
	dir, remove, err := workDir(opt)
	if err != nil {
		return &UsageError{err}
	}
	defer func() { err = errors.Join(err, remove()) }()
	if err := checkRoom(dir, opt.room()); err != nil {
		return err
	}
	unadopt, err := cluster.AdoptOrphans()
	if err != nil {
		return err
	}
	defer unadopt()

	spawn := cluster.NewSpawner()
	defer func() { err = errors.Join(err, spawn.Close()) }()
	j := cluster.NewJournal()
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
			err = errors.Join(err, checkRoom(dir, leastRoom))
			fmt.Fprintf(stderr, "\nreplicad demo failed: %v\n\nlast lines of every process:\n%s", err, spawn.Tails())
		}
		return err
	}
	v.print("\n" + table(res.Faults) + res.stored + res.verdict())
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
func perform(ctx context.Context, opt Options, dir string, spawn *cluster.Spawner, j *cluster.Journal, v *view) (*result, error) {
	began := time.Now()
	store, err := openStore(ctx, opt, dir, spawn)
	if err != nil {
		return nil, err
	}
	c, err := newCluster(opt, dir, store, spawn, j)
	if err != nil {
		return nil, err
	}
	defer c.Release()
	v.say(fmt.Sprintf("seed %d, %d steps, files in %s", opt.Seed, opt.Steps, dir))
	v.phase("undisturbed run, for the comparison")
	calm, on := cluster.NewJournal(), told{}
	on.hear(calm, "state")
	v.watchOther(calm, opt.Steps)
	want, err := cluster.Undisturbed(ctx, spawn, calm, c.Log("undisturbed"), 2*time.Minute+time.Duration(opt.Steps)*opt.step(), opt.World, opt.undisturbed())
	v.watchOther(j, opt.Steps)
	if err != nil {
		return nil, err
	}
	v.say("the undisturbed run is done; now with replicad")

	watching, endWatch := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { c.Watch(watching) })
	defer wg.Wait()
	defer endWatch()
	d := &driver{opt: opt, cluster: c, journal: j, view: v, job: jobName, rng: rand.New(rand.NewPCG(opt.Seed, 0xde30))}
	faults, trained, err := d.run(ctx)
	if err != nil {
		return nil, err
	}
	got, err := j.Digests(opt.World)
	if err != nil {
		return nil, err
	}
	var last *again
	if store != nil {
		if err := d.awaitOnDisk(ctx); err != nil {
			return nil, err
		}
		if last, err = d.goOn(ctx, store, calm, on); err != nil {
			return nil, fmt.Errorf("the last act, another world: %w", err)
		}
	}
	v.phase("stopping the cluster")
	c.Stop(3 * time.Second)
	r := d.result(faults, calm, got, want, began, trained)
	r.judge(last)
	if store != nil {
		r.stored, err = generations(ctx, opt, store)
	}
	return r, err
}

func (d *driver) result(faults []Fault, calm *cluster.Journal, got, want []cluster.Digests, began time.Time, trained time.Duration) *result {
	r := &result{opt: d.opt, when: began, differs: cluster.Compare(got, want, d.opt.Groups)}
	r.Faults = faults
	sum := sha256.New()
	for _, g := range got {
		fmt.Fprintln(sum, g[0])
	}
	r.digest = hex.EncodeToString(sum.Sum(nil))
	d.journal.View(func() {
		r.loss = d.journal.Loss
		r.Figures = figures(faults, d.journal, time.Since(began), trained, d.opt)
		r.dropped = d.journal.Dropped
		if n := d.journal.Differs; n > 0 {
			r.differs = append(r.differs, fmt.Sprintf("%d losses were reported otherwise when a rank trained a step again", n))
		}
	})
	if r.Verdict = bitEqual; len(r.differs) > 0 {
		r.Verdict = different
	}
	calm.View(func() { r.baseline = calm.Loss })
	return r
}

// verdict is the last word.
func (r *result) verdict() string {
	kept := ""
	if r.dropped > 0 {
		kept = fmt.Sprintf("%d events of the daemons' logs were not kept: rows of the table may lack something.\n", r.dropped)
	}
	if r.Verdict == bitEqual {
		return kept + r.Again.text() + fmt.Sprintf("\nverdict: bit-equal. Weights, optimizer, statistics and random numbers of all ranks are those of the undisturbed run\n(seed %d, step %d, SHA-256 over the weights' digests %s).\n", r.opt.Seed, r.opt.Steps, r.digest)
	}
	s := kept + r.Again.text() + fmt.Sprintf("\nverdict: different (seed %d)\n", r.opt.Seed)
	for _, d := range r.differs {
		s += "  " + d + "\n"
	}
	return s
}

const (
	demoRoom  = 32 << 20 // more than a demo of 1,500 steps without --state-mb writes: Raft's logs, the daemons', durable generations
	stepRoom  = 4 << 10  // logs of a step
	leastRoom = 1 << 20  // with less something has failed, or is about to
)

// room is how many bytes the demo may write to its directory.
func (o Options) room() uint64 {
	copies := 4 // of each rank's state: the two durable generations that stay, one being written, one being removed
	if o.Durable != "" {
		copies *= 2 // and those of the last act's job
	}
	return demoRoom + stepRoom*uint64(o.Steps) + uint64(copies)*uint64(o.World)*uint64(o.StateMB)<<20
}

// checkRoom tells whether the file system of dir has room.
func checkRoom(dir string, want uint64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		return nil //nolint:nilerr // it was looked at for a better message alone
	}
	if free := st.Bavail * uint64(st.Bsize); free < want {
		return fmt.Errorf("no space: %s are free in %s, and the demo may need %s: free some, or choose another folder with TMPDIR or --dir", bytesText(free), dir, bytesText(want))
	}
	return nil
}

// checkReportDir makes the folder for the report and tries to write there, before a run of a minute or more is for nothing.
func checkReportDir(dir string) error {
	if dir == "" {
		return nil
	}
	err := os.MkdirAll(dir, 0o755)
	if err == nil {
		var f *os.File
		if f, err = os.CreateTemp(dir, ".replicad-demo-"); err == nil {
			err = errors.Join(f.Close(), os.Remove(f.Name()))
		}
	}
	if err != nil {
		return fmt.Errorf("--report %s: %w: choose a folder that you may write", dir, err)
	}
	return nil
}

// workDir makes the demo's directory; remove takes it away again unless it is to be kept.
func workDir(opt Options) (dir string, remove func() error, err error) {
	if opt.Dir == "" {
		dir, err = os.MkdirTemp("", "replicad-demo-")
	} else if dir, err = filepath.Abs(opt.Dir); err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err != nil {
		return "", nil, fmt.Errorf("demo directory: %w (it must not exist, in a folder that you may write; TMPDIR or --dir choose another)", err)
	}
	if err := cluster.CheckSockets(dir, homes[0]); err != nil {
		return "", nil, errors.Join(fmt.Errorf("demo directory: %w", err), os.Remove(dir))
	}
	return dir, func() error {
		if opt.Keep {
			return nil
		}
		return os.RemoveAll(dir)
	}, nil
}
