package demo

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
)

// driver runs the job and its faults. One goroutine, that of Run, owns it; what others see goes through the journal.
type driver struct {
	opt     Options
	cluster *cluster.Cluster
	journal *cluster.Journal
	view    *view
	rng     *rand.Rand
	job     string   // its name
	from    string   // what it begins with, as --from has it; empty: its program's own state
	env     []string // of launchers and ranks, besides
	resume  bool     // launchers ask for it: the fleet is not the job's first
}

// run starts the cluster and the job, injects the faults and waits for the end of training.
func (d *driver) run(ctx context.Context) (faults []Fault, trained time.Duration, err error) {
	d.view.phase("starting the cluster")
	for _, n := range d.cluster.Nodes {
		if err := d.cluster.Start(n); err != nil {
			return nil, 0, err
		}
	}
	if err := d.awaitDaemons(ctx); err != nil {
		return nil, 0, err
	}
	d.say("four daemons are up: %s; %s leads", d.addresses(), d.leader())
	for i := range d.cluster.Nodes {
		if err := d.launch(i, false); err != nil {
			return nil, 0, err
		}
	}
	if err := d.awaitFirstSteps(ctx); err != nil {
		return nil, 0, err
	}
	began := time.Now()
	d.view.phase("training")
	for i, kind := range d.opt.Faults {
		if err := d.awaitMoment(ctx, i, kind); err != nil {
			return faults, 0, err
		}
		d.view.fault(kind)
		f, err := d.inject(ctx, kind)
		d.view.fault("")
		if err != nil {
			return faults, 0, fmt.Errorf("fault %d, %s: %w", i+1, kind, err)
		}
		faults = append(faults, f)
		d.say("%s: %s", kind, f.line())
	}
	if err := d.awaitEnd(ctx); err != nil {
		return faults, 0, err
	}
	return faults, time.Since(began), nil
}

func (d *driver) awaitFirstSteps(ctx context.Context) error {
	return d.await(ctx, patienceStart, "the first step of every rank", func() bool {
		n := 0
		for _, r := range d.journal.Ranks {
			if r.Step > 0 {
				n++
			}
		}
		return n == d.opt.World
	})
}

// awaitPreload waits until restarts of every rank fork, where that is asked for.
func (d *driver) awaitPreload(ctx context.Context) error {
	if d.opt.Preload != preloadReady {
		return nil
	}
	return d.await(ctx, patienceStart, "a process to fork from on every node with ranks", func() bool {
		for i, n := range d.cluster.Nodes {
			log, err := os.ReadFile(d.cluster.Log(n.Name + "-ranks"))
			if homeRanks(i, d.opt.World) != "" && (err != nil || !bytes.Contains(log, []byte("restarts fork from process"))) {
				return false
			}
		}
		return true
	})
}

// awaitMoment waits until the cluster is whole and fault i's seeded moment has come: the run is divided evenly, and within
// its part each comes at random.
func (d *driver) awaitMoment(ctx context.Context, i int, kind string) error {
	if err := d.awaitHealth(ctx, kind); err != nil {
		return err
	}
	if err := d.awaitPreload(ctx); err != nil {
		return err
	}
	part := float64(d.opt.Steps) * 0.9 / float64(len(d.opt.Faults))
	goal := uint64(part * (float64(i) + 0.1 + 0.5*d.rng.Float64()))
	_, step := d.latest()
	goal = max(goal, step+3+uint64(d.rng.IntN(min(20, 1+int(part)/4))))
	if kind == GroupLoss || kind == FleetLoss {
		goal = max(goal, d.durableStep()+durableEvery/4)
	}
	if goal+uint64(min(10, d.opt.Steps/4)) > uint64(d.opt.Steps) {
		return fmt.Errorf("fault %s can't be injected: the cluster was whole again at step %d of %d: give more --steps", kind, step, d.opt.Steps)
	}
	return d.await(ctx, patienceHealth+time.Duration(goal-step)*d.opt.step(), fmt.Sprintf("step %d, at which fault %s is due", goal, kind), func() bool {
		_, s := d.journal.LatestLocked()
		return s >= goal
	})
}

// awaitHealth waits until every node is alive, parts have their copies, and commits come.
func (d *driver) awaitHealth(ctx context.Context, kind string) error {
	var why string
	var over bool
	var start uint64
	d.journal.View(func() { start, _ = d.journal.CommittedLocked() })
	err := d.await(ctx, patienceHealth, "a whole cluster before fault "+kind, func() bool {
		why = cluster.Healthy(d.journal.Status, d.cluster.Names(), d.job, d.opt.World)
		if _, step := d.journal.LatestLocked(); step >= uint64(d.opt.Steps) {
			over = true
			return true
		}
		done, _ := d.journal.CommittedLocked()
		if why == "" && done < start+3 {
			why = fmt.Sprintf("no three commits came after step %d", start)
		}
		if j := d.anyJobLocked(); why == "" && (kind == GroupLoss || kind == FleetLoss) && (j == nil || j.Durable.Epoch == 0) {
			why = "nothing is on disk yet"
		}
		return why == ""
	})
	switch {
	case over:
		return fmt.Errorf("fault %s can't be injected: the job made its %d steps before the cluster was whole again (%s): give more --steps", kind, d.opt.Steps, why)
	case err != nil && why != "" && ctx.Err() == nil:
		return fmt.Errorf("%s: %w", why, err)
	}
	return err
}

func (d *driver) awaitDaemons(ctx context.Context) error {
	return d.await(ctx, patienceStart, "four daemons that agree about a leader", func() bool {
		leader := ""
		for _, n := range d.cluster.Names() {
			s := d.journal.Status[n]
			if s == nil || s.Leader == "" || leader != "" && s.Leader != leader {
				return false
			}
			leader = s.Leader
		}
		s := d.journal.Status[leader]
		return s != nil && len(s.Nodes) == len(d.cluster.Nodes)
	})
}

// awaitEnd waits for the final digest of every rank.
func (d *driver) awaitEnd(ctx context.Context) error {
	d.view.phase("training to the end")
	_, step := d.latest()
	left := time.Duration(uint64(d.opt.Steps)-min(step, uint64(d.opt.Steps))) * d.opt.step()
	return d.await(ctx, patienceRecover+left, fmt.Sprintf("the end of training at step %d on all ranks", d.opt.Steps), func() bool {
		n := 0
		for _, r := range d.journal.Ranks {
			if r.Done {
				n++
			}
		}
		return n == d.opt.World
	})
}

// awaitOnDisk waits until the job has ended by itself, which writes its last step.
func (d *driver) awaitOnDisk(ctx context.Context) error {
	d.view.phase("the last step goes to the store")
	return d.await(ctx, patienceDurable, "the end of the job, with its last step in the store", func() bool {
		return slices.ContainsFunc(d.journal.Log, func(e cluster.LogEvent) bool { return e.Event == "ended" && e.Job == d.job })
	})
}

// await gives what it waits for the time to move every rank's state once besides: most waits are for that.
func (d *driver) await(ctx context.Context, patience time.Duration, what string, ok func() bool) error {
	return d.journal.Await(ctx, patience+d.opt.carrying(), what, ok)
}

// pause waits a time.
func (d *driver) pause(ctx context.Context, t time.Duration) error {
	timer := time.NewTimer(max(t, 0))
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *driver) say(format string, args ...any) { d.view.say(fmt.Sprintf(format, args...)) }

func (d *driver) latest() (epoch, step uint64) {
	d.journal.View(func() { epoch, step = d.journal.LatestLocked() })
	return epoch, step
}

// now is what a fault is compared with afterwards.
func (d *driver) now() before {
	b := before{pids: map[int]int{}}
	d.journal.View(func() {
		b.epoch, _ = d.journal.LatestLocked()
		b.committed, _ = d.journal.CommittedLocked()
		for r, s := range d.journal.Ranks {
			b.pids[r] = s.PID
			b.joins += s.Joins
		}
	})
	return b
}

func (d *driver) events() (list []cluster.LogEvent) {
	d.journal.View(func() { list = slices.Clone(d.journal.Log) })
	return list
}

// leader is who leads Raft, as the nodes see it; n1 if nobody knows.
func (d *driver) leader() (name string) {
	name = d.cluster.Nodes[0].Name
	d.journal.View(func() {
		term := uint64(0)
		for _, s := range d.journal.Status {
			if s != nil && s.Leader != "" && s.Term >= term && d.cluster.Node(s.Leader) != nil {
				name, term = s.Leader, s.Term
			}
		}
	})
	return name
}

// anyJobLocked is the job as the node with the newest term sees it.
func (d *driver) anyJobLocked() (job *cluster.JobStatus) {
	for _, n := range slices.Sorted(maps.Keys(d.journal.Status)) {
		if j := d.journal.Status[n].Job(d.job); j != nil && (job == nil || j.Committed.Step > job.Committed.Step) {
			job = j
		}
	}
	return job
}

func (d *driver) durableStep() (step uint64) {
	d.journal.View(func() {
		if j := d.anyJobLocked(); j != nil {
			step = j.Durable.Step
		}
	})
	return step
}

func (d *driver) addresses() string {
	first, last := d.cluster.Nodes[0].IP, d.cluster.Nodes[len(d.cluster.Nodes)-1].IP
	return fmt.Sprintf("%v to %v", first, last)
}
