// Package chaos is `replicad chaos run`: it trains jobs on a cluster on this machine, breaks it at random moments for as long as it
// is told to, and compares what it sees with an undisturbed run. Every decision follows from a seed, so that a run can be had again.
//
// What it breaks lies in schedule.go and inject.go, what must hold in judge.go, both as an outsider sees them: processes, logs, what
// ranks print, admin sockets, files. The goroutine of Run owns the cluster and all faults; readers of output call the judge and the
// recorder, which have locks. When Run returns, every process that it started is gone; should it be killed, the kernel ends them.
//
// It stands on chaos/cluster and must not import the daemon or any adaptor.
package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
	"github.com/replicad/replicad/chaos/netfault"
	"github.com/replicad/replicad/internal/config"
)

// ErrFailed says that a promise did not hold. What and when has been printed.
var ErrFailed = errors.New("the run failed")

// UsageError says that the options can't work. Nothing was started.
type UsageError struct{ Err error }

func (e *UsageError) Error() string { return e.Err.Error() }
func (e *UsageError) Unwrap() error { return e.Err }

var nodes = []string{"n1", "n2", "n3", "n4"} // the last is a spare

const (
	voters       = 3
	durableEvery = 50 // steps
)

// bounds are what is too slow, measured on a job without faults.
type bounds struct {
	recovery time.Duration // from the end of a fault to a whole cluster
	commits  time.Duration // without one, while ranks train
}

// runner is one run.
type runner struct {
	opt     Options
	dir     string
	spawn   *cluster.Spawner
	cluster *cluster.Cluster
	durable *durable
	network Network
	rec     *recorder
	kinds   []string
	want    []cluster.Digests
	losses  map[rankStep]float64
	bounds  bounds
	next    int // of the schedule
	faults  map[string]int
	kills   int
	jobs    int

	// Of the job that runs.
	job     cluster.Job
	journal *cluster.Journal
	judge   *judge
}

// Run runs it. It returns nil if everything held, ErrFailed if not.
func Run(ctx context.Context, opt Options, stdout io.Writer) (err error) {
	opt, err = opt.withDefaults()
	if err != nil {
		return &UsageError{err}
	}
	dir, remove, err := workDir(opt)
	if err != nil {
		return &UsageError{err}
	}
	defer func() { err = errors.Join(err, remove()) }()
	unadopt, err := cluster.AdoptOrphans()
	if err != nil {
		return err
	}
	defer unadopt()
	rec, err := newRecorder(stdout, filepath.Join(dir, "timeline.txt"))
	if err != nil {
		return err
	}
	r := &runner{opt: opt, dir: dir, spawn: cluster.NewSpawner(), rec: rec, losses: map[rankStep]float64{}, faults: map[string]int{}}
	err = r.perform(ctx)
	if e := r.spawn.Close(); e != nil {
		r.rec.violated(violation{left, e.Error()})
	}
	if err != nil && !errors.As(err, new(violation)) { // that one has been reported
		r.rec.say("broke off: %v", err)
	}
	found := rec.violations()
	r.conclude(found, err)
	if opt.ReportDir != "" {
		if e := copyOut(dir, opt.ReportDir, len(found) > 0 || err != nil); e != nil {
			rec.say("report: %v", e)
		}
	}
	if len(found) > 0 {
		return ErrFailed
	}
	return err
}

func (r *runner) conclude(found []violation, err error) {
	var kinds []string
	for _, k := range Known() {
		if r.faults[k] > 0 {
			kinds = append(kinds, fmt.Sprintf("%d %s", r.faults[k], k))
		}
	}
	r.rec.say("faults: %s", strings.Join(kinds, ", "))
	verdict := "held"
	if len(found) > 0 || err != nil {
		verdict = "FAILED"
	}
	r.rec.say("verdict: %s after %d jobs and %d rank kills; %s (seed %d)", verdict, r.jobs, r.kills, totals(found), r.opt.Seed)
	for _, v := range found {
		r.rec.say("  %v", v)
	}
	if verdict != "held" {
		at := r.dir
		if r.opt.ReportDir != "" {
			at = r.opt.ReportDir
		} else if !r.opt.Keep {
			at = "gone: give --report DIR"
		}
		r.rec.say("again: replicad chaos run --seed %d --duration %v --steps %d --pace %v --faults %s --trainer %q; timeline and logs: %s",
			r.opt.Seed, r.opt.Duration, r.opt.Steps, r.opt.Pace, strings.Join(r.kinds, ","), r.opt.Trainer, at)
	}
}

func workDir(opt Options) (dir string, remove func() error, err error) {
	if opt.ReportDir != "" {
		if err := os.MkdirAll(opt.ReportDir, 0o755); err != nil {
			return "", nil, fmt.Errorf("--report: %w", err)
		}
	}
	if opt.Dir == "" {
		dir, err = os.MkdirTemp("", "replicad-chaos-")
	} else if dir, err = filepath.Abs(opt.Dir); err == nil {
		err = os.Mkdir(dir, 0o700)
	}
	if err == nil {
		err = cluster.CheckSockets(dir, nodes[0])
	}
	if err != nil {
		return "", nil, fmt.Errorf("a folder for the run: %w (TMPDIR or --dir choose another)", err)
	}
	return dir, func() error {
		if opt.Keep {
			return nil
		}
		return os.RemoveAll(dir)
	}, nil
}

// perform makes the undisturbed runs, then jobs under faults until the time is over.
func (r *runner) perform(ctx context.Context) error {
	if err := r.build(); err != nil {
		return err
	}
	defer r.release()
	r.rec.say("seed %d, %d steps a job, %d ranks, trainer %s; files in %s", r.opt.Seed, r.opt.Steps, r.opt.World, r.opt.Trainer, r.dir)
	if err := r.undisturbed(ctx); err != nil {
		return err
	}
	watching, end := context.WithCancel(ctx)
	r.cluster.Follow(cluster.NewJournal())
	var wg sync.WaitGroup
	wg.Go(func() { r.cluster.Watch(watching) })
	err := r.jobsUntil(ctx)
	end()
	wg.Wait()
	if ctx.Err() == nil {
		r.rec.violatedAll(left, r.leftOver(err == nil))
	}
	return err
}

// build makes the cluster's files and its network, and finds out which faults there can be.
func (r *runner) build() (err error) {
	if r.durable, err = newDurable(r.spawn, filepath.Join(r.dir, "disk")); err != nil {
		return fmt.Errorf("the durable directory: %w", err)
	}
	var ports []netfault.Node
	plan := cluster.Plan{Dir: r.dir, Program: r.opt.Program, Nodes: nodes, Voters: voters, Silence: r.silence, Change: func(c *config.Config) {
		c.DurableDir = r.durable.dir
		ports = append(ports, behind(c))
	}}
	if r.cluster, err = cluster.New(plan, r.spawn, nil); err != nil {
		return err
	}
	if err := r.connect(ports); err != nil {
		return err
	}
	asked := r.opt.Faults
	if len(asked) == 0 {
		asked = Known()
	}
	for _, k := range asked {
		why := r.durable.lacks(k)
		if why != "" {
			r.rec.say("SKIPPED   fault %s: %s", k, why)
			continue
		}
		r.kinds = append(r.kinds, k)
	}
	if len(r.kinds) == 0 {
		return errors.New("no fault is left that can be had here")
	}
	if slices.Contains(r.kinds, heir) {
		set(&r.opt.Warm, 1)
	}
	return nil
}

func (r *runner) release() {
	r.cluster.Release()
	if r.network != nil {
		if err := r.network.Close(); err != nil {
			r.rec.violated(violation{left, err.Error()})
		}
	}
}

// undisturbed trains without replicad, for the final state and the losses.
func (r *runner) undisturbed(ctx context.Context) (err error) {
	j := cluster.NewJournal()
	j.OnRank = func(e cluster.RankEvent) {
		if e.Event == "step" && e.Loss != nil {
			r.losses[rankStep{e.Rank, e.Step}] = *e.Loss
		}
	}
	began := time.Now()
	r.want, err = cluster.Undisturbed(ctx, r.spawn, j, r.cluster.Log("undisturbed"), 2*time.Minute+time.Duration(r.opt.Steps)*time.Second, r.opt.World, r.opt.trainer())
	if err == nil {
		r.rec.say("the undisturbed run is done after %.1f s: weights %.16s of rank 0, %d losses", time.Since(began).Seconds(), r.want[0][0], len(r.losses))
	}
	return err
}

// jobsUntil runs a first job without faults, for the bounds, then others with them.
func (r *runner) jobsUntil(ctx context.Context) error {
	for _, n := range r.cluster.Nodes {
		if err := r.cluster.Start(n); err != nil {
			return err
		}
	}
	if err := r.calm(ctx); err != nil {
		return err
	}
	until := time.Now().Add(r.opt.Duration)
	over := func() bool { return time.Now().After(until) || r.opt.Kills > 0 && r.kills >= r.opt.Kills }
	for !over() {
		if err := r.disturbed(ctx, over); err != nil {
			return err
		}
	}
	return nil
}

// calm is the job without faults.
func (r *runner) calm(ctx context.Context) error {
	began := time.Now()
	r.open()
	// Ranks must be able to start at once: how long that takes is measured.
	if err := r.await(ctx, 2*time.Minute, "daemons that agree about a leader", r.led); err != nil {
		return err
	}
	up := time.Now()
	if err := r.launchAll(ctx, 5*time.Minute); err != nil {
		return err
	}
	start := time.Since(up)
	if err := r.finish(ctx, time.Duration(r.opt.Steps)*time.Second+5*time.Minute); err != nil {
		return err
	}
	r.judge.mu.Lock()
	defer r.judge.mu.Unlock()
	r.bounds = bounds{recovery: 60*time.Second + 10*start, commits: max(15*time.Second, 10*r.judge.gap)}
	r.rec.say("a job without faults under replicad took %.1f s: first step after %.1f s, at most %.2f s and %d steps without a commit. Bounds: recovery %.0f s, commits %.0f s",
		time.Since(began).Seconds(), start.Seconds(), r.judge.gap.Seconds(), r.judge.lag, r.bounds.recovery.Seconds(), r.bounds.commits.Seconds())
	return nil
}

// disturbed is a job with faults, to its end.
func (r *runner) disturbed(ctx context.Context, over func() bool) error {
	r.open()
	if err := r.await(ctx, r.bounds.recovery, "daemons that agree about a leader", r.led); err != nil {
		return err
	}
	if err := r.launchAll(ctx, r.bounds.recovery); err != nil {
		return err
	}
	watching, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { r.watchCommits(watching) })
	defer wg.Wait()
	defer end()
	for !over() && !r.nearEnd() {
		select {
		case <-r.rec.fatal:
			return r.broken()
		default:
		}
		f := Schedule(r.opt.Seed, r.kinds, r.next)
		r.next++
		if err := r.pause(ctx, f.Gap); err != nil {
			return err
		}
		if r.nearEnd() {
			break
		}
		if err := r.inject(ctx, f); err != nil {
			return err
		}
	}
	return r.finish(ctx, r.bounds.recovery+time.Duration(r.opt.Steps)*max(4*r.opt.Pace, time.Second/2))
}

// open begins the next job's books.
func (r *runner) open() {
	r.jobs++
	name := fmt.Sprintf("chaos-%d", r.jobs)
	r.journal = cluster.NewJournal()
	r.judge = newJudge(name, r.losses, r.rec.violated, r.rec.note)
	r.judge.ends = r.opt.Ends
	r.journal.OnLog, r.journal.OnRank = r.judge.log, r.judge.rank
	command := append([]string{r.opt.Program, "chaos", "become"}, "--dir", r.dir)
	if r.opt.Warm > 0 {
		command = append(command, "--wait")
	}
	r.job = cluster.Job{Name: name, World: r.opt.World, Groups: r.opt.groupList(), Flags: append([]string{"--durable-every", fmt.Sprint(durableEvery)}, r.opt.Flags...),
		Command: append(append(command, "--"), r.opt.trainer("--pace", r.opt.Pace.String())...)}
	if r.opt.Warm > 0 {
		r.job.Flags = append(r.job.Flags, "--warm", fmt.Sprint(r.opt.Warm))
	}
	r.cluster.Follow(r.journal)
}

// launch starts a node's launcher, for ranks of its own or as a spare.
func (r *runner) launch(i int, spare bool) error {
	var ranks []string
	for rank := i; i < voters && rank < r.opt.World && !spare; rank += voters {
		ranks = append(ranks, fmt.Sprint(rank))
	}
	return r.cluster.Launch(r.cluster.Nodes[i], r.job, strings.Join(ranks, ","))
}

func (r *runner) launchAll(ctx context.Context, patience time.Duration) error {
	for i := range r.cluster.Nodes {
		if err := r.launch(i, false); err != nil {
			return err
		}
	}
	return r.await(ctx, patience, "the first step of every rank", func() bool {
		n := 0
		for _, s := range r.journal.Ranks {
			if s.Step > 0 {
				n++
			}
		}
		return n == r.opt.World
	})
}

// led tells whether all daemons know one leader. The journal is locked.
func (r *runner) led() bool {
	leader := ""
	for _, n := range r.cluster.Names() {
		s := r.journal.Status[n]
		if s == nil || s.Leader == "" || leader != "" && s.Leader != leader || len(s.Nodes) < len(nodes) {
			return false
		}
		leader = s.Leader
	}
	return true
}

func (r *runner) allDoneLocked() bool {
	n := 0
	for _, s := range r.journal.Ranks {
		if s.Done {
			n++
		}
	}
	return n == r.opt.World
}

// nearEnd tells whether the job might be over before the next fault has been survived: a launcher that is started after that
// would begin a new one.
func (r *runner) nearEnd() (near bool) {
	r.journal.View(func() {
		_, step := r.journal.LatestLocked()
		near = step+uint64(max(100, 4*time.Second/r.opt.Pace)) > uint64(r.opt.Steps)
	})
	return near
}

// finish waits for the job's end and looks at what it leaves.
func (r *runner) finish(ctx context.Context, patience time.Duration) error {
	if err := r.await(ctx, patience, fmt.Sprintf("the end of job %s at step %d", r.job.Name, r.opt.Steps), r.allDoneLocked); err != nil {
		return err
	}
	got, err := r.journal.Digests(r.opt.World)
	if err != nil {
		return err
	}
	for _, d := range cluster.Compare(got, r.want, r.opt.Groups) {
		r.rec.violated(violation{wrong, d})
	}
	end := time.NewTimer(r.leave())
	defer end.Stop()
	for _, n := range r.cluster.Nodes {
		select {
		case <-n.Launcher.Gone:
		case <-end.C:
			return r.fail(slow, fmt.Errorf("the launcher of %s has not ended %v after the job", n.Name, r.leave()))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	if err := r.forget(ctx); err != nil {
		return err
	}
	r.rec.say("job %s is done, its digests compared, its memory given back", r.job.Name)
	return r.broken()
}

// leave is how long processes and memory may stay after a job.
func (r *runner) leave() time.Duration { return 60 * time.Second }

// forget waits until no keeper holds memory of a job that is over.
func (r *runner) forget(ctx context.Context) error {
	for end := time.Now().Add(r.leave()); ; {
		var held []string
		for _, n := range r.cluster.Nodes {
			if k := memoryOf(n.Keeper.PID()); k > 0 {
				held = append(held, fmt.Sprintf("%d arenas on %s", k, n.Name))
			}
		}
		if len(held) == 0 {
			return nil
		}
		if time.Now().After(end) {
			r.rec.violated(violation{left, strings.Join(held, ", ") + " after job " + r.job.Name})
			return nil
		}
		if err := r.pause(ctx, 100*time.Millisecond); err != nil {
			return err
		}
	}
}

// await waits for something that the journal shows. What does not come in time, and a process that ends by itself, fail the run.
func (r *runner) await(ctx context.Context, patience time.Duration, what string, ok func() bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan struct{})
	defer close(done)
	go func() {
		select {
		case <-r.rec.fatal:
			cancel(errFatal)
		case <-done:
		}
	}()
	began := time.Now()
	err := r.journal.Await(ctx, patience, what, ok)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errFatal):
		return r.broken()
	case ctx.Err() != nil:
		return err
	case time.Since(began) >= patience:
		return r.fail(slow, err)
	}
	return r.fail(ended, err)
}

var errFatal = errors.New("a promise did not hold")

// fail reports what ends the run, and keeps every daemon's view of it.
func (r *runner) fail(class string, err error) error {
	v := violation{class, err.Error()}
	r.rec.violated(v)
	r.keepStatus()
	return v
}

// broken is the first violation that ends a run; nil if there is none.
func (r *runner) broken() error {
	select {
	case <-r.rec.fatal:
		r.keepStatus()
		return r.rec.violations()[0]
	default:
		return nil
	}
}

func (r *runner) pause(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-r.rec.fatal:
		return r.broken()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
