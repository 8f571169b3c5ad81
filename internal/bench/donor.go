package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/replicad/replicad/chaos/cluster"
)

// stepClock takes the times between steps of one process.
type stepClock struct {
	pid   int
	times []time.Time // of its steps, in order; guarded by the journal's lock
}

func (s *stepClock) hear(e cluster.RankEvent) {
	if s.pid == 0 && e.Event == "start" {
		s.pid = e.PID
	}
	if e.PID == s.pid && e.Event == "step" {
		s.times = append(s.times, e.Time())
	}
}

// within are the ms of the steps that began and ended between two moments.
func (s *stepClock) within(from, to time.Time) (ms []float64) {
	for i := 1; i < len(s.times); i++ {
		if began, ended := s.times[i-1], s.times[i]; !began.Before(from) && !ended.After(to) {
			ms = append(ms, float64(ended.Sub(began).Microseconds())/1000)
		}
	}
	return ms
}

// donorJob is what a training job feels while the daemon of its node gives another job's state to a replacement. The first job has one
// rank on n1, which trains as fast as a core lets it. The second one has a rank on n1 and one on a node that is killed; it stands still
// beside its heal, so that only the transfer is in the way.
//
// Everything is on one machine, the receiver too, which takes more of it than the donor. So the steps are taken twice: where the rank has a
// core for itself and all else has the others, as on a node with cores to spare, and where all share all cores.
func donorJob(quick bool) job {
	return job{"donor/", func(ctx context.Context, r *runner) error {
		alone, rest, err := spareCore()
		if err != nil {
			return err
		}
		if err := r.donor(ctx, "step", quick, alone, rest, atMost(1.1), "the rank has a core for itself; donor, receiver and all else share the others"); err != nil {
			return err
		}
		return r.donor(ctx, "crowded", quick, nil, nil, bound{}, "donor, receiver, trainer and all else share the cores of this one machine")
	}}
}

// donor takes the steps of a rank on some cores beside heals on others.
func (r *runner) donor(ctx context.Context, name string, quick bool, trains, others cores, want bound, note string) (err error) {
	name = "donor/" + name
	if !strings.HasPrefix(name, r.opt.Only) && !strings.HasPrefix(r.opt.Only, name) {
		return nil
	}
	b, err := r.newBedOn(ctx, others, "donor", "n1", "n2", "n3", "n4")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, b.stop()) }()
	state, rounds := 256, r.rounds
	if quick {
		state, rounds = 64, 2
	}
	clock := &stepClock{}
	b.journal.OnRank = clock.hear
	if err := b.keep(trains); err != nil {
		return err
	}
	if err := b.train(b.Nodes[0], cluster.Job{Name: "felt", World: 1, Flags: []string{"--min-copies", "1", "--cadence", "50"}}, "0"); err != nil {
		return err
	}
	if err := b.keep(others); err != nil {
		return err
	}
	if err := b.await(ctx, "steps of the job that is measured", func() bool { return len(clock.times) > 100 }); err != nil {
		return err
	}
	healed := cluster.Job{Name: "healed", World: 2, Flags: []string{"--slots", "2"}}
	launch := func(n *cluster.Node, ranks string) error {
		return b.train(n, healed, ranks, "--pace", "4s", "--state-mb", fmt.Sprint(state))
	}
	for i, ranks := range []string{"0", "1", "", ""} {
		if i == 2 {
			continue // n3 is a voter, and a witness of deaths
		}
		if err := launch(b.Nodes[i], ranks); err != nil {
			return err
		}
	}
	r.say("%s: %d nodes of a job with %d MiB a rank are killed beside a job that trains ...", name, rounds, state)
	var p50, p99, calm50, calm99, took []float64
	for range rounds {
		h, err := b.heal(ctx, clock, launch)
		if err != nil {
			return err
		}
		p50, p99 = append(p50, quantile(h.steps, 0.5)), append(p99, quantile(h.steps, 0.99))
		calm50, calm99 = append(calm50, quantile(h.calm, 0.5)), append(calm99, quantile(h.calm, 0.99))
		took = append(took, h.took.Seconds())
	}
	for _, f := range []Figure{
		newFigure(name+"-p50", "ms", p50, "the same without a heal", calm50, bound{}),
		newFigure(name+"-p99", "ms", p99, "the same without a heal", calm99, want),
		newFigure(name+"-heal", "s", took, "", nil, bound{}),
	} {
		f.Note = note
		r.add(f)
	}
	return nil
}

const calmFor = 1500 * time.Millisecond

// healing is what the measured job felt of one heal.
type healing struct {
	calm, steps []float64     // ms of its steps before, and meanwhile
	took        time.Duration // from the plan to the last part that had come
}

// heal takes the steps of a calm while, kills the node of the second rank, and takes the steps while its state is brought back. The
// node comes back as a spare for the next round.
func (b *bed) heal(ctx context.Context, clock *stepClock, launch func(*cluster.Node, string) error) (h healing, err error) {
	var done uint64
	fresh := func() bool { // a commit of a step since
		s := b.job("healed")
		return s != nil && s.Committed.Step > done
	}
	err = b.await(ctx, "the whole job healed", func() bool {
		if s := b.job("healed"); s != nil {
			done = s.Committed.Step
		}
		return cluster.Healthy(b.journal.Status, b.Names(), "healed", 2) == ""
	})
	if err == nil {
		err = b.await(ctx, "a commit, after which that job waits for its next step", fresh)
	}
	if err != nil {
		return h, err
	}
	from := time.Now()
	if err := pause(ctx, calmFor); err != nil {
		return h, err
	}
	var victim *cluster.Node
	b.journal.View(func() {
		h.calm = clock.within(from, time.Now())
		for _, r := range b.job("healed").Ranks {
			if r.Rank == 1 {
				victim = b.Node(r.Node)
			}
		}
	})
	if victim == nil || victim == b.Nodes[0] {
		return h, errors.New("rank 1 of the job to heal is on no node of its own")
	}
	killed := time.Now()
	if err := b.Kill(victim); err != nil {
		return h, err
	}
	var planned, verified time.Time
	err = b.await(ctx, "the heal", func() bool {
		planned, verified = healOf(b.journal.Log, killed)
		return !verified.IsZero()
	})
	if err != nil {
		return h, err
	}
	b.journal.View(func() { h.steps, h.took = clock.within(planned, verified), verified.Sub(planned) })
	if len(h.steps) == 0 {
		return h, fmt.Errorf("no step of the measured job fell into the heal of %v: give it more state", h.took)
	}
	if err := b.Revive(victim); err != nil {
		return h, err
	}
	return h, launch(victim, "")
}

// healOf finds when the epoch of the job "healed" was planned that opened after a kill, and when its last part had arrived. The logs of
// several nodes come in any order.
func healOf(log []cluster.LogEvent, killed time.Time) (planned, verified time.Time) {
	epoch := uint64(0)
	for _, e := range log {
		if e.Job == "healed" && e.Event == "resumed" && !e.Time.Before(killed) {
			epoch = e.Epoch
		}
	}
	for _, e := range log {
		switch {
		case epoch == 0 || e.Job != "healed" || e.Epoch != epoch:
		case e.Event == "planned":
			planned = e.Time
		case e.Event == "verified" && e.Time.After(verified):
			verified = e.Time
		}
	}
	if planned.IsZero() {
		return planned, planned
	}
	return planned, verified
}

// job is what the newest status of any node says of it. It needs the journal's lock.
func (b *bed) job(name string) (found *cluster.JobStatus) {
	for _, s := range b.journal.Status {
		if s == nil {
			continue
		}
		if j := s.Job(name); j != nil && (found == nil || j.Epoch > found.Epoch || j.Epoch == found.Epoch && j.Committed.Step > found.Committed.Step) {
			found = j
		}
	}
	return found
}
