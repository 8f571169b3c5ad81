package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// driver runs the job and its faults. One goroutine, that of Run, owns it; what others see goes through the journal.
type driver struct {
	opt     Options
	cluster *cluster
	journal *journal
	view    *view
	rng     *rand.Rand
}

// run starts the cluster and the job, injects the faults and waits for the end of training.
func (d *driver) run(ctx context.Context) (faults []Fault, trained time.Duration, err error) {
	d.view.phase("starting the cluster")
	for _, n := range d.cluster.nodes {
		if err := d.cluster.startControl(n); err != nil {
			return nil, 0, err
		}
	}
	if err := d.awaitDaemons(ctx); err != nil {
		return nil, 0, err
	}
	d.say("four daemons are up: %s; %s leads", d.addresses(), d.leader())
	for _, n := range d.cluster.nodes {
		if err := d.cluster.startRanks(n, false); err != nil {
			return nil, 0, err
		}
	}
	err = d.await(ctx, patienceStart, "the first step of every rank", func() bool {
		n := 0
		for _, r := range d.journal.ranks {
			if r.step > 0 {
				n++
			}
		}
		return n == d.opt.World
	})
	if err != nil {
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

// awaitMoment waits until the cluster is whole and fault i's seeded moment has come: the run is divided evenly, and within
// its part each comes at random.
func (d *driver) awaitMoment(ctx context.Context, i int, kind string) error {
	if err := d.awaitHealth(ctx, kind); err != nil {
		return err
	}
	part := float64(d.opt.Steps) * 0.9 / float64(len(d.opt.Faults))
	goal := uint64(part * (float64(i) + 0.1 + 0.5*d.rng.Float64()))
	_, step := d.latest()
	goal = max(goal, step+3+uint64(d.rng.IntN(20)))
	if kind == GroupLoss {
		goal = max(goal, d.durableStep()+durableEvery/4)
	}
	if goal+10 > uint64(d.opt.Steps) {
		return fmt.Errorf("fault %s can't be injected: the cluster was whole again at step %d of %d: give more --steps", kind, step, d.opt.Steps)
	}
	return d.await(ctx, patienceHealth+time.Duration(goal-step)*max(4*d.opt.Pace, patienceStep), fmt.Sprintf("step %d, at which fault %s is due", goal, kind), func() bool {
		_, s := d.journal.latestLocked()
		return s >= goal
	})
}

// awaitHealth waits until every node is alive, parts have their copies, and commits come.
func (d *driver) awaitHealth(ctx context.Context, kind string) error {
	var why string
	var start uint64
	d.journal.view(func() { start, _ = d.journal.committedLocked() })
	err := d.await(ctx, patienceHealth, "a whole cluster before fault "+kind, func() bool {
		why = healthy(d.journal.status, d.cluster.names(), d.opt.World)
		done, _ := d.journal.committedLocked()
		if why == "" && done < start+3 {
			why = fmt.Sprintf("no three commits came after step %d", start)
		}
		if j := d.anyJobLocked(); why == "" && kind == GroupLoss && (j == nil || j.Durable.Epoch == 0) {
			why = "nothing is on disk yet"
		}
		return why == ""
	})
	if err != nil && why != "" && ctx.Err() == nil {
		return fmt.Errorf("%s: %w", why, err)
	}
	return err
}

func (d *driver) awaitDaemons(ctx context.Context) error {
	return d.await(ctx, patienceStart, "four daemons that agree about a leader", func() bool {
		leader := ""
		for _, n := range d.cluster.names() {
			s := d.journal.status[n]
			if s == nil || s.Leader == "" || leader != "" && s.Leader != leader {
				return false
			}
			leader = s.Leader
		}
		s := d.journal.status[leader]
		return s != nil && len(s.Nodes) == len(d.cluster.nodes)
	})
}

// awaitEnd waits for the final digest of every rank.
func (d *driver) awaitEnd(ctx context.Context) error {
	d.view.phase("training to the end")
	_, step := d.latest()
	left := time.Duration(uint64(d.opt.Steps)-min(step, uint64(d.opt.Steps))) * max(4*d.opt.Pace, patienceStep)
	return d.await(ctx, patienceRecover+left, fmt.Sprintf("the end of training at step %d on all ranks", d.opt.Steps), func() bool {
		n := 0
		for _, r := range d.journal.ranks {
			if r.done {
				n++
			}
		}
		return n == d.opt.World
	})
}

func (d *driver) await(ctx context.Context, patience time.Duration, what string, ok func() bool) error {
	return d.journal.await(ctx, patience, what, ok)
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
	d.journal.view(func() { epoch, step = d.journal.latestLocked() })
	return epoch, step
}

// now is what a fault is compared with afterwards.
func (d *driver) now() before {
	b := before{pids: map[int]int{}}
	d.journal.view(func() {
		b.epoch, _ = d.journal.latestLocked()
		b.committed, _ = d.journal.committedLocked()
		for r, s := range d.journal.ranks {
			b.pids[r] = s.pid
			b.joins += s.joins
		}
	})
	return b
}

func (d *driver) events() (list []logEvent) {
	d.journal.view(func() { list = slices.Clone(d.journal.log) })
	return list
}

// leader is who leads Raft, as the nodes see it; n1 if nobody knows.
func (d *driver) leader() (name string) {
	name = d.cluster.nodes[0].name
	d.journal.view(func() {
		term := uint64(0)
		for _, s := range d.journal.status {
			if s != nil && s.Leader != "" && s.Term >= term && d.cluster.node(s.Leader) != nil {
				name, term = s.Leader, s.Term
			}
		}
	})
	return name
}

// anyJobLocked is the job as the node with the newest term sees it.
func (d *driver) anyJobLocked() (job *jobStatus) {
	for _, n := range slices.Sorted(maps.Keys(d.journal.status)) {
		if j := d.journal.status[n].job(); j != nil && (job == nil || j.Committed.Step > job.Committed.Step) {
			job = j
		}
	}
	return job
}

func (d *driver) durableStep() (step uint64) {
	d.journal.view(func() {
		if j := d.anyJobLocked(); j != nil {
			step = j.Durable.Step
		}
	})
	return step
}

func (d *driver) addresses() string {
	first, last := d.cluster.nodes[0].ip, d.cluster.nodes[len(d.cluster.nodes)-1].ip
	return fmt.Sprintf("%v to %v", first, last)
}

// digests are the final ones, by rank.
func (d *driver) digests() (list [][3]string, err error) {
	list = make([][3]string, d.opt.World)
	d.journal.view(func() {
		for r := range list {
			if s := d.journal.ranks[r]; s != nil {
				list[r] = s.digest
			}
		}
	})
	for r := range list {
		if list[r][0] == "" {
			err = errors.Join(err, fmt.Errorf("rank %d gave no final digest", r))
		}
	}
	return list, err
}
