package demo

import (
	"context"
	"fmt"
	"slices"

	"github.com/replicad/replicad/chaos/cluster"
)

const (
	againName = "demo-2"
	// risen is how much higher than before the loss may be behind the last act. It is dropout's, whose masks are drawn by rank; a program that began anew
	// has twice the loss.
	risen = 1.1
)

// again is what came of the last act: a job of another world, which began with the end of the first one.
type again struct {
	Job    string     `json:"job"`
	From   string     `json:"from"`
	World  [2]int     `json:"world"`  // then and now
	Step   uint64     `json:"step"`   // that it began with
	Steps  int        `json:"steps"`  // that it made
	Losses [2]float64 `json:"losses"` // means of so many steps before, and of those

	differs []string // what it should have begun with, and has not
}

// goOn is the last act: all nodes are killed once more, and on a third fleet, with a pki of its own, a job of another world begins with the first one's
// end and makes further steps. got is that end. nil: the trainer is another than textlm.
func (d *driver) goOn(ctx context.Context, store *cluster.Store, got []cluster.Digests) (*again, error) {
	if !d.opt.ofTextlm() {
		d.say("the last act, another world, is textlm's; with another trainer it is left out")
		return nil, nil
	}
	last := *d
	last.journal, last.job, last.resume, last.env = cluster.NewJournal(), againName, false, store.Env
	last.from = store.URL + "/" + d.job
	last.opt = d.opt.another()
	a := &again{Job: last.job, From: last.from, World: [2]int{d.opt.World, last.opt.World}, Step: uint64(d.opt.Steps), Steps: last.opt.Steps - d.opt.Steps}
	begun := map[int]cluster.RankEvent{}
	last.journal.OnRank = func(e cluster.RankEvent) {
		if e.Event == "begun" {
			begun[e.Rank] = e
		}
	}
	d.view.phase("another world")
	d.view.watchOther(last.journal, last.opt.Steps)
	d.cluster.Follow(last.journal)
	d.say("kill all nodes once more; a third fleet, with a pki of its own: job %s of %d ranks has --from %s", last.job, last.opt.World, last.from)
	if err := last.freshFleet("pki-third"); err != nil {
		return nil, err
	}
	if err := last.awaitFirstSteps(ctx); err != nil {
		return nil, err
	}
	if err := last.awaitEnd(ctx); err != nil {
		return nil, err
	}
	if err := last.awaitOnDisk(ctx); err != nil {
		return nil, err
	}
	var after map[uint64]float64
	last.journal.View(func() { after = last.journal.Loss; a.compare(begun, got, d.opt.Groups) })
	d.journal.View(func() { a.Losses[0] = mean(d.journal.Loss, a.Step-uint64(a.Steps)+1, a.Step) })
	a.Losses[1] = mean(after, a.Step+1, a.Step+uint64(a.Steps))
	a.judge()
	d.say("job %s: %d ranks began with step %d and made %d steps", a.Job, a.World[1], a.Step, a.Steps)
	return a, nil
}

// another is the last act: one replica of the shards, where there were several, else two; the batch of all replicas is as large as it was.
func (o Options) another() Options {
	groups := slices.Max(o.Groups) + 1
	replicas := o.World / groups
	o.batch = 32 * replicas
	o.Steps += min(max(o.Steps/10, 20), 100)
	o.World, o.Faults = groups, nil
	if replicas == 1 {
		o.World = 2 * groups
	}
	o.Groups = nil
	for r := range o.World {
		o.Groups = append(o.Groups, r%groups)
	}
	return o
}

// compare holds what each rank began with against the end of the first job: shard by shard, and what is a rank's own against that rank's.
func (a *again) compare(begun map[int]cluster.RankEvent, got []cluster.Digests, groups []int) {
	for r := range a.World[1] {
		e, ok := begun[r]
		shard := slices.Index(groups, r%(slices.Max(groups)+1))
		switch {
		case !ok:
			a.differs = append(a.differs, fmt.Sprintf("job %s: rank %d has not said what it began with", a.Job, r))
		case e.Step != a.Step || e.Digest != got[shard][0] || e.State != got[shard][1] || r < len(got) && e.Private != got[r][2]:
			a.differs = append(a.differs, fmt.Sprintf("job %s: rank %d began with step %d, and not with the state in which rank %d ended step %d", a.Job, r, e.Step, shard, a.Step))
		}
	}
}

// mean is that of the losses of some steps; 0 where one is missing.
func mean(loss map[uint64]float64, from, to uint64) float64 {
	sum := 0.0
	for step := from; step <= to; step++ {
		l, ok := loss[step]
		if !ok {
			return 0
		}
		sum += l
	}
	return sum / float64(to-from+1)
}

// judge looks whether the losses went on.
func (a *again) judge() {
	if was, is := a.Losses[0], a.Losses[1]; was == 0 || is == 0 || is > risen*was {
		a.differs = append(a.differs, fmt.Sprintf("job %s: the mean loss was %.3f and is %.3f (0: of some step there is none)", a.Job, was, is))
	}
}

// judge adds what came of the last act to the verdict.
func (r *result) judge(a *again) {
	if r.Again = a; a == nil || a.Good() {
		return
	}
	r.differs, r.Verdict = append(r.differs, a.differs...), different
}

// Good tells whether all of it is as it should be.
func (a *again) Good() bool { return a != nil && len(a.differs) == 0 }

// Rows are the losses for people: of which steps, of how many ranks.
func (a *again) Rows() (rows [2][3]string) {
	for i, last := range []uint64{a.Step, a.Step + uint64(a.Steps)} {
		rows[i] = [3]string{fmt.Sprintf("%d to %d", last-uint64(a.Steps)+1, last), fmt.Sprint(a.World[i]), fmt.Sprintf("%.4f", a.Losses[i])}
	}
	return rows
}

// text tells people what came of the last act.
func (a *again) text() string {
	if !a.Good() {
		return ""
	}
	s := fmt.Sprintf(`
another world: job %s of %d ranks began with step %d of %s, a job of %d ranks, on another fleet.
Weights, optimizer and statistics were, bit for bit, those that the first job ended with, and the text went on at the same place.
  steps          ranks  mean loss
`, a.Job, a.World[1], a.Step, a.From, a.World[0])
	for _, r := range a.Rows() {
		s += fmt.Sprintf("  %-13s  %-5s  %s\n", r[0], r[1], r[2])
	}
	return s
}
