package mirrors

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/replica"
)

// retry is how long after a fetch that failed the next one may begin.
const retry = 200 * time.Millisecond

// fetchAll has the parts of the plan fetched that are to be mirrored here, before Resume and after one that did not wait for them, and those
// that the leader wants this node to have for others.
func (r *Room) fetchAll(now time.Time, v room.JobView) {
	job := v.Job
	if !room.Spreads(job) || job.Plan == nil || job.Plan.Epoch != job.Epoch {
		return
	}
	for rank, nodes := range job.Mirrors {
		if slices.Contains(nodes, r.self) {
			r.fetch(now, v, replica.OfRank(replica.Rank(rank)), replica.Rank(rank))
		}
	}
	for g, nodes := range job.GroupMirrors {
		if slices.Contains(nodes, r.self) {
			r.fetch(now, v, replica.OfGroup(replica.GroupID(g)), room.Speaker(job, replica.GroupID(g)))
		}
	}
	relays := &r.Of(job.ID).relays
	if relays.epoch != job.Epoch {
		return
	}
	for part, orders := range relays.by {
		for _, o := range orders {
			if o.Node.Node == r.self {
				r.fetch(now, v, part, o.Rank)
			}
		}
	}
}

// fetch has one part fetched, unless it is here, on its way, or just failed to come.
func (r *Room) fetch(now time.Time, v room.JobView, part replica.Part, rank replica.Rank) {
	job, plan, held := v.Job, v.Job.Plan, r.Of(v.Job.ID)
	src, ok := plan.Source(part)
	if !ok || int(rank) >= len(plan.Ranks) {
		return
	}
	if at, here := v.Find(nil, part, plan.Generation, src.Root); here && at.Whole() {
		return
	}
	if a := held.Arena(part); a != nil && !planted.Twice && a.Standing(holding.KindFor(part), plan.Generation, src.Root) == holding.Coming {
		return // its maker brings it. Its end, whatever that is, looks here again
	}
	if job.Phase == replica.Open { // whoever has loaded it has it too
		for _, p := range job.Parts {
			if p.Part == part {
				src.Holders, src.Tier = p.Holders, replica.PeerRAM
			}
		}
	}
	st := held.fetching[part]
	if st.running || st.epoch == plan.Epoch && now.Before(st.retryAt) {
		return
	}
	if st.epoch != plan.Epoch {
		st.tries = 0
	}
	held.fetching[part] = fetching{epoch: plan.Epoch, running: true, tries: st.tries}
	r.effects = append(r.effects, &Fetch{Job: job, Plan: plan, Source: src, Rank: rank})
}

// fetched follows the end of a fetch.
func (r *Room) fetched(now time.Time, f *Fetch, err error) {
	v, known := r.owner.Job(f.Job.ID)
	if !known {
		return
	}
	held, part, epoch := r.Of(v.Job.ID), f.Source.Part, f.Plan.Epoch
	st := fetching{epoch: epoch, retryAt: now.Add(retry)}
	if was := held.fetching[part]; was.epoch == epoch {
		st.tries = was.tries
	}
	if err != nil && v.Job.Epoch == epoch && !errors.Is(err, context.Canceled) && !errors.Is(err, holding.ErrBrought) {
		st.tries++
		r.log.Retried("mirror", fmt.Sprintf("%v, epoch %d", part, epoch), err.Error())
		if said, due := f.Missed.Unreached(v.Job.ID, epoch, f.Rank, st.tries, err); due {
			r.effects = append(r.effects, act.Send{Msg: said})
		}
	}
	held.fetching[part] = st
	r.effects = append(r.effects, act.Wake{Job: v.Job.ID, Depth: act.Commit})
}
