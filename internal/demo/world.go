package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"

	"github.com/replicad/replicad/chaos/cluster"
)

const (
	againName = "demo-2"
	// apart is how far the mean loss of the last act may be from the undisturbed run's. Its ranks draw other dropout, which moved it by 0.2 %; a program that began anew has twice the loss.
	apart = 0.02
)

// again is what came of the last act: a job of another world, which began with a generation of the first one.
type again struct {
	Job    string     `json:"job"`
	From   string     `json:"from"`
	World  [2]int     `json:"world"`  // of the undisturbed run, and of this one
	Step   uint64     `json:"step"`   // that it began with
	Last   uint64     `json:"last"`   // that it made
	Losses [2]float64 `json:"losses"` // means over the steps in between

	differs []string // what it should have begun with, and has not
}

// told are the digests that ranks report of a step, by step and rank.
type told map[uint64]map[int]cluster.Digests

// hear takes them from a journal's events of this name.
func (t told) hear(j *cluster.Journal, name string) {
	j.OnRank = func(e cluster.RankEvent) {
		if e.Event != name {
			return
		}
		if t[e.Step] == nil {
			t[e.Step] = map[int]cluster.Digests{}
		}
		t[e.Step][e.Rank] = cluster.Digests{e.Digest, e.State, e.Private}
	}
}

// goOn is the last act: all nodes are killed once more, and on a third fleet, with a pki of its own, a job of another world begins with a generation of
// the first one, and makes the steps from there on. calm is the undisturbed run, want what it said of its state on the way. nil: there is no last act.
func (d *driver) goOn(ctx context.Context, store *cluster.Store, calm *cluster.Journal, want told) (*again, error) {
	if !d.opt.ofTextlm() {
		d.say("the last act, another world, is textlm's; with another trainer it is left out")
		return nil, nil
	}
	step, err := earlier(ctx, d.opt, store, d.job, want)
	if err != nil {
		return nil, err
	}
	if step == 0 {
		d.say("the last act, another world, is left out: there is no generation before the last one")
		return nil, nil
	}
	last := *d
	last.journal, last.job, last.resume, last.env = cluster.NewJournal(), againName, false, store.Env
	last.from = fmt.Sprintf("%s/%s@%d", store.URL, d.job, step)
	last.opt = d.opt.another()
	begun := told{}
	begun.hear(last.journal, "begun")
	d.view.phase("another world")
	d.view.watchOther(last.journal, last.opt.Steps)
	d.cluster.Follow(last.journal)
	d.say("kill all nodes once more; on a third fleet, with a pki of its own, job %s of %d ranks has --from %s", last.job, last.opt.World, last.from)
	if err := last.train(ctx); err != nil {
		return nil, err
	}
	a := &again{Job: last.job, From: last.from, World: [2]int{d.opt.World, last.opt.World}, Step: step, Last: uint64(d.opt.Steps)}
	last.journal.View(func() {
		a.compare(begun[step], want[step], d.opt.Groups)
		a.judge(calm.Loss, last.journal.Loss)
	})
	d.say("job %s: %d ranks began with step %d and made the steps up to %d", a.Job, a.World[1], a.Step, a.Last)
	return a, nil
}

// train runs the last act's job on a fleet of its own to its end.
func (d *driver) train(ctx context.Context) error {
	if err := d.freshFleet("pki-third"); err != nil {
		return err
	}
	if err := d.awaitFirstSteps(ctx); err != nil {
		return err
	}
	if err := d.awaitEnd(ctx); err != nil {
		return err
	}
	return d.awaitOnDisk(ctx)
}

// earlier is the newest step before the last that is in the store, and of which the undisturbed run has told its state; 0: there is none.
func earlier(ctx context.Context, opt Options, s *cluster.Store, job string, want told) (step uint64, err error) {
	ls := exec.CommandContext(ctx, opt.Program, "ckpt", "ls", "--json", s.URL+"/"+job)
	ls.Env, ls.Stderr = append(os.Environ(), s.Env...), os.Stderr
	out, err := ls.Output()
	var rows []struct{ Step uint64 }
	if err == nil {
		err = json.Unmarshal(out, &rows)
	}
	if err != nil {
		return 0, fmt.Errorf("replicad ckpt ls --json %s/%s: %w", s.URL, job, err)
	}
	for _, r := range rows {
		if r.Step < uint64(opt.Steps) && want[r.Step] != nil {
			step = max(step, r.Step)
		}
	}
	return step, nil
}

// another is the last act: one replica of the shards, where there were several, else two; the batch of all replicas is as large as it was.
func (o Options) another() Options {
	groups := slices.Max(o.Groups) + 1
	replicas := o.World / groups
	o.batch = 32 * replicas
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

// compare holds what each rank began with against the undisturbed run: shard by shard, and what is a rank's own against that rank's.
func (a *again) compare(begun, want map[int]cluster.Digests, groups []int) {
	for r := range a.World[1] {
		is, ok := begun[r]
		shard := slices.Index(groups, r%(slices.Max(groups)+1))
		switch {
		case !ok:
			a.differs = append(a.differs, fmt.Sprintf("job %s: rank %d has not said that it began with step %d", a.Job, r, a.Step))
		case is[0] != want[shard][0] || is[1] != want[shard][1] || r < len(groups) && is[2] != want[r][2]:
			a.differs = append(a.differs, fmt.Sprintf("job %s: what rank %d began with at step %d is not what rank %d of the undisturbed run had there", a.Job, r, a.Step, shard))
		}
	}
}

// judge compares the losses with the undisturbed run's.
func (a *again) judge(calm, is map[uint64]float64) {
	a.Losses = [2]float64{mean(calm, a.Step+1, a.Last), mean(is, a.Step+1, a.Last)}
	if math.Abs(a.Losses[1]-a.Losses[0]) > apart*a.Losses[0] || a.Losses[0] == 0 {
		a.differs = append(a.differs, fmt.Sprintf("job %s: the mean loss of steps %d to %d is %.3f, the undisturbed run's %.3f (0: of some step there is none)", a.Job, a.Step+1, a.Last, a.Losses[1], a.Losses[0]))
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

// judge adds what came of the last act to the verdict.
func (r *result) judge(a *again) {
	if r.Again = a; a == nil || a.Good() {
		return
	}
	r.differs, r.Verdict = append(r.differs, a.differs...), different
}

// Good tells whether all of it is as it should be.
func (a *again) Good() bool { return a != nil && len(a.differs) == 0 }

// Rows are the losses for people: of which run, of how many ranks.
func (a *again) Rows() (rows [2][3]string) {
	for i, name := range []string{"undisturbed run", "job " + a.Job} {
		rows[i] = [3]string{name, fmt.Sprint(a.World[i]), fmt.Sprintf("%.4f", a.Losses[i])}
	}
	return rows
}

// text tells people what came of the last act.
func (a *again) text() string {
	if !a.Good() {
		return ""
	}
	s := fmt.Sprintf(`
another world: on another fleet job %s of %d ranks began with %s, of a job of %d ranks. Weights, optimizer,
statistics and the place in the text were, bit for bit, those of the undisturbed run at step %d. Then dropout is drawn by other ranks:
  steps %-12s  ranks  mean loss
`, a.Job, a.World[1], a.From, a.World[0], a.Step, fmt.Sprintf("%d to %d", a.Step+1, a.Last))
	for _, r := range a.Rows() {
		s += fmt.Sprintf("  %-18s  %-5s  %s\n", r[0], r[1], r[2])
	}
	return s
}
