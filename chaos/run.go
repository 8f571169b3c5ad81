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
	"math"
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

// runner is one run of a layout.
type runner struct {
	opt     Options
	lay     Layout
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
	clock   *served // that the bounds go by
	history *history
	next    int // of the schedule
	faults  map[string]int
	hits    map[string]int // of aimed ones: the moment was still there when the signal had come
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
	past, err := readHistory(opt.History)
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
	t := total{faults: map[string]int{}, hits: map[string]int{}}
	spawn := cluster.NewSpawner()
	for i, name := range opt.Layouts {
		sub := filepath.Join(dir, fmt.Sprint(i))
		if err = os.Mkdir(sub, 0o700); err != nil {
			break
		}
		r := &runner{opt: opt, lay: opt.layout(name).paced(), dir: sub, spawn: spawn, rec: rec, losses: map[rankStep]float64{}, clock: newServed(coreWaits), history: past, faults: t.faults, hits: t.hits}
		r.opt.Duration /= time.Duration(len(opt.Layouts))
		r.opt.Kills = max(0, opt.Kills-t.kills)
		err = r.perform(ctx)
		t.jobs, t.kills = t.jobs+r.jobs, t.kills+r.kills
		if err != nil || len(rec.violations()) > 0 || opt.Kills > 0 && t.kills >= opt.Kills {
			break
		}
	}
	if e := spawn.Close(); e != nil {
		rec.violated(violation{left, e.Error()})
	}
	if err != nil && !errors.As(err, new(violation)) { // that one has been reported
		rec.say("broke off: %v", err)
	}
	found := rec.violations()
	conclude(rec, opt, t, dir, found, err)
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

// total is what a run came to.
type total struct {
	faults, hits map[string]int
	kills, jobs  int
}

// counts says how often each kind of fault came, and of aimed ones how often the moment was met.
func (t total) counts() string {
	var kinds []string
	for _, k := range Known() {
		switch _, aimed := aims[k]; {
		case t.faults[k] > 0 && aimed:
			kinds = append(kinds, fmt.Sprintf("%d %s (%d met)", t.faults[k], k, t.hits[k]))
		case t.faults[k] > 0:
			kinds = append(kinds, fmt.Sprintf("%d %s", t.faults[k], k))
		}
	}
	return strings.Join(kinds, ", ")
}

func conclude(rec *recorder, opt Options, t total, dir string, found []violation, err error) {
	rec.say("faults: %s", t.counts())
	verdict := "held"
	if len(found) > 0 || err != nil {
		verdict = "FAILED"
	}
	rec.say("verdict: %s after %d jobs and %d rank kills; %s (seed %d)", verdict, t.jobs, t.kills, totals(found), opt.Seed)
	for _, v := range found {
		rec.say("  %v", v)
	}
	if verdict != "held" {
		at := dir
		if opt.ReportDir != "" {
			at = opt.ReportDir
		} else if !opt.Keep {
			at = "gone: give --report DIR"
		}
		rec.say("timeline and logs: %s", at)
		if opt.Again != nil {
			rec.say("again: %s", opt.Again(opt))
		}
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
		err = cluster.CheckSockets(filepath.Join(dir, "0"), nodes[0])
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
	l := r.lay
	r.rec.say("layout %s, seed %d: %s, %d steps a job, trainer %s; files in %s", l.Name, r.opt.Seed, l.size(), l.Steps, r.opt.Trainer, r.dir)
	if err := r.undisturbed(ctx); err != nil {
		return err
	}
	watching, end := context.WithCancel(ctx)
	r.cluster.Follow(cluster.NewJournal())
	var wg sync.WaitGroup
	wg.Go(func() { r.cluster.Watch(watching) })
	wg.Go(func() { r.clock.run(watching) })
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
	l := r.lay
	if r.durable, err = newDurable(r.spawn, filepath.Join(r.dir, "disk"), durableBytes+durableRoom*int64(l.World*l.StateMB)<<20); err != nil {
		return fmt.Errorf("the durable directory: %w", err)
	}
	var ports []netfault.Node
	plan := cluster.Plan{Dir: r.dir, Program: r.opt.Program, Nodes: nodes, Voters: voters, Silence: r.silence, Change: func(c *config.Config) {
		c.DurableDir = r.durable.dir
		if l.Racks {
			c.Labels["rack"] = "ranks"
			if string(c.Node) == nodes[len(nodes)-1] {
				c.Labels["rack"] = "spare"
			}
		}
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
		asked = usual()
	}
	for _, k := range asked {
		why := r.durable.lacks(k)
		if why == "" {
			why = l.lacks(k)
		}
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
	r.want, err = cluster.Undisturbed(ctx, r.spawn, j, r.cluster.Log("undisturbed"), 2*time.Minute+time.Duration(r.lay.Steps)*time.Second, r.lay.World, r.trainer())
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

// calm is the job without faults, but for the death of one rank: how long the recovery from it takes is this machine's measure.
func (r *runner) calm(ctx context.Context) error {
	began := time.Now()
	r.bounds = bounds{calm: 30 * time.Second, rest: uint64(r.lay.Steps)}
	r.open()
	// Ranks must be able to start at once: how long that takes is measured.
	if err := r.await(ctx, 2*time.Minute, "daemons that agree about a leader", r.led); err != nil {
		return err
	}
	up := time.Now()
	if err := r.launchAll(ctx, 5*time.Minute, nil); err != nil {
		return err
	}
	start := time.Since(up)
	third := uint64(r.lay.Steps / 3)
	if err := r.await(ctx, time.Duration(third)*time.Second+5*time.Minute, fmt.Sprintf("a commit of step %d", third), func() bool {
		committed, _ := r.journal.CommittedLocked()
		return committed >= third
	}); err != nil {
		return err
	}
	gap, lag := r.judge.pace()
	_, pid := r.rankOf(0)
	died := time.Now()
	r.kill(pid, "the calm job's death")
	_, step, _ := r.now()
	if err := r.whole(ctx, step); err != nil {
		return err
	}
	r.judge.takeKills()
	calm := time.Since(died)
	served := r.clock.calmed()
	r.bounds.calm, r.bounds.commits = calm, max(ordinary, gapFactor*gap)
	if err := r.finish(ctx, time.Duration(r.lay.Steps)*time.Second+5*time.Minute); err != nil {
		return err
	}
	r.journal.View(func() {
		committed, _ := r.journal.CommittedLocked()
		r.bounds.rest = uint64(r.lay.Steps) - min(committed, uint64(r.lay.Steps))
	})
	r.rec.say("a job with one rank's death under replicad took %.1f s: first step after %.1f s, whole %.2f s after the death, at most %.2f s and %d steps without a commit, a core at hand %.0f %% of the time. Bounds: recovery %.0f to %.0f s, commits %.0f s",
		time.Since(began).Seconds(), start.Seconds(), calm.Seconds(), gap.Seconds(), lag, 100*served, r.bounds.recovery().Seconds(), r.bounds.recovery(nodeLoss).Seconds(), r.bounds.commits.Seconds())
	return nil
}

// disturbed is a job with faults, to its end.
func (r *runner) disturbed(ctx context.Context, over func() bool) error {
	r.open()
	if err := r.await(ctx, r.bounds.recovery(nodeLoss), "daemons that agree about a leader", r.led); err != nil {
		return err
	}
	if err := r.launchAll(ctx, r.bounds.recovery(nodeLoss), r.atOpening); err != nil {
		return err
	}
	watching, end := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { r.watchCommits(watching) })
	defer wg.Wait()
	defer end()
	for !over() && !r.nearEnd() {
		if err := r.broken(); err != nil {
			return err
		}
		f, ok := Schedule(r.opt.Seed, r.lay, r.kinds, r.next)
		if !ok {
			break
		}
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
	return r.finish(ctx, r.bounds.recovery(nodeLoss)+time.Duration(r.lay.Steps)*max(4*r.lay.Pace, time.Second/2))
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
	r.job = cluster.Job{Name: name, World: r.lay.World, Groups: r.lay.groupList(), Flags: append([]string{"--durable-every", fmt.Sprint(durableEvery)}, r.opt.Flags...),
		Command: append(append(command, "--"), r.trainer("--pace", r.lay.Pace.String())...)}
	if r.lay.Slots > 0 {
		r.job.Flags = append(r.job.Flags, "--slots", fmt.Sprint(r.lay.Slots))
	}
	if r.opt.Warm > 0 {
		r.job.Flags = append(r.job.Flags, "--warm", fmt.Sprint(r.opt.Warm))
	}
	r.cluster.Follow(r.journal)
}

// launch starts a node's launcher, for ranks of its own or as a spare.
func (r *runner) launch(i int, spare bool) error {
	var ranks []string
	for rank := i; i < voters && rank < r.lay.World && !spare; rank += voters {
		ranks = append(ranks, fmt.Sprint(rank))
	}
	return r.cluster.Launch(r.cluster.Nodes[i], r.job, strings.Join(ranks, ","))
}

// launchAll starts the job; opening, nil for nothing, is what happens before its first step.
func (r *runner) launchAll(ctx context.Context, patience time.Duration, opening func(context.Context) error) error {
	for i := range r.cluster.Nodes {
		if err := r.launch(i, false); err != nil {
			return err
		}
	}
	if opening != nil {
		if err := opening(ctx); err != nil {
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
		return n == r.lay.World
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
	return n == r.lay.World
}

// nearEnd tells whether the job might be over before the next fault has been survived: a launcher that is started after that
// would begin a new one.
func (r *runner) nearEnd() (near bool) {
	r.journal.View(func() {
		_, step := r.journal.LatestLocked()
		near = step+uint64(max(100, 4*time.Second/r.lay.Pace)) > uint64(r.lay.Steps)
	})
	return near
}

// finish waits for the job's end and looks at what it leaves.
func (r *runner) finish(ctx context.Context, patience time.Duration) error {
	if err := r.await(ctx, patience, fmt.Sprintf("the end of job %s at step %d", r.job.Name, r.lay.Steps), r.allDoneLocked); err != nil {
		return err
	}
	got, err := r.journal.Digests(r.lay.World)
	if err != nil {
		return err
	}
	for _, d := range cluster.Compare(got, r.want, r.lay.Groups) {
		r.rec.violated(violation{wrong, d})
	}
	leaving, left := context.WithCancel(ctx)
	defer left()
	late := r.clock.after(leaving, r.leave())
	for _, n := range r.cluster.Nodes {
		select {
		case <-n.Launcher.Gone:
		case <-late:
			return r.fail(standstill, fmt.Errorf("the launcher of %s has not ended %v after the last rank was done; %s", n.Name, r.leave(), r.waiting()))
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	r.judgeEnd()
	if err := r.forget(ctx); err != nil {
		return err
	}
	if err := r.durable.forget(r.job.Name); err != nil { // a daemon still writes there
		r.rec.say("generations of job %s stay on the disk: %v", r.job.Name, err)
	}
	r.rec.say("job %s is done, its digests compared, its memory given back", r.job.Name)
	return r.broken()
}

// judgeEnd looks at how the launchers ended, and whether the last steps count.
func (r *runner) judgeEnd() {
	for _, n := range r.cluster.Nodes {
		if code := n.Launcher.State().ExitCode(); code != 0 && !n.Launcher.Told() {
			r.rec.violated(violation{exitCode, fmt.Sprintf("the launcher of %s ended with %d after job %s, which finished", n.Name, code, r.job.Name)})
		}
	}
	committed := uint64(0)
	r.journal.View(func() { committed, _ = r.journal.CommittedLocked() })
	if why := r.behind(committed); why != "" {
		r.rec.violated(violation{uncommitted, fmt.Sprintf("job %s ended: %s", r.job.Name, why)})
	}
}

// behind says how far the newest commit is from the last step; empty: no further than after a calm job.
func (r *runner) behind(committed uint64) string {
	if committed+r.bounds.rest < uint64(r.lay.Steps) {
		return fmt.Sprintf("all ranks are done with step %d, and the newest commit is %d", r.lay.Steps, committed)
	}
	return ""
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

// await waits for something that the journal shows. What does not come in time, by the clock of the bounds, and a process that ends by
// itself, fail the run.
func (r *runner) await(ctx context.Context, patience time.Duration, what string, ok func() bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	var watch sync.WaitGroup
	defer watch.Wait()
	defer cancel(nil)
	watch.Go(func() {
		select {
		case <-r.rec.fatal:
			cancel(errFatal)
		case <-r.clock.after(ctx, patience):
			cancel(errLate)
		case <-ctx.Done():
		}
	})
	began := time.Now()
	err := r.journal.Await(ctx, math.MaxInt64, what, ok)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, errFatal):
		return r.broken()
	case errors.Is(err, errLate):
		return r.fail(standstill, fmt.Errorf("waited %v, of which %v count, for %s; seen instead: %s", time.Since(began).Round(time.Second), patience.Round(time.Second), what, r.journal.Summary()))
	case ctx.Err() != nil:
		return err
	}
	return r.fail(ended, err)
}

var (
	errFatal = errors.New("a promise did not hold")
	errLate  = errors.New("it did not come in time")
)

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
