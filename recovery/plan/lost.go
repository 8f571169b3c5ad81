package plan

import "github.com/replicad/replicad/replica"

// Made is the newest step of an epoch that ranks of a job have made, by one node's account. A process that holds its rank no more says nothing.
func Made(job *replica.Job, e replica.Epoch, ranks []replica.RankReport) (newest replica.Step) {
	for _, r := range ranks {
		if int(r.Rank) < len(job.Ranks) && job.Ranks[r.Rank].Incarnation == r.Incarnation && r.Live.Epoch() == e {
			newest = max(newest, r.Live.Made())
		}
	}
	return newest
}

// Furthest is the newest step that any rank was seen to have made in the epoch that was opened last. It is kept until the next one is opened:
// processes are replaced meanwhile, plans may fail, and what was made is lost no less.
type Furthest struct {
	epoch replica.Epoch
	step  replica.Step
}

func (f *Furthest) Learn(job *replica.Job, ranks []replica.RankReport) {
	e := job.Lineage.Last().Epoch
	if f.epoch != e {
		*f = Furthest{epoch: e}
	}
	f.step = max(f.step, Made(job, e, ranks))
}

// lost is what going on from a generation costs: the steps beyond it that were made or committed, and those of them that were committed. It is
// counted here and nowhere else. A rank that was lost with its node counts as far as that node said last.
func (in *Input) lost(g replica.Generation) (steps, committed replica.Step) {
	newest := max(in.Job.Position.Step, in.Job.Former)
	committed = newest - min(newest, g.Step)
	if in.Made.epoch == in.Job.Lineage.Last().Epoch {
		newest = max(newest, in.Made.step)
	}
	return newest - min(newest, g.Step), committed
}
