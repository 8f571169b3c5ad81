package host

import (
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/invariant"
	"github.com/replicad/replicad/replica"
)

// check holds what a host keeps against what must be true between any two events. In builds that do not check it does nothing.
func check(h *Host) {
	if !invariant.On {
		return
	}
	has := map[*holding.Arena]string{} // what has an arena: two would each free its places
	owns := func(a *holding.Arena, who string) {
		invariant.Holds(a != nil, "%s has no arena", who)
		invariant.Holds(has[a] == "", "arena %s is that of %s, and of %s", a.Key(), has[a], who)
		invariant.Holds(!a.Dropped(), "%s has arena %s, which was given up", who, a.Key())
		has[a] = who
		a.Check()
	}
	for id, lj := range h.jobs {
		invariant.Holds(lj.job.ID == id, "job %v lies under %v", lj.job.ID, id)
		lj.check()
		for r, lr := range lj.ranks {
			owns(lr.arena, "rank "+replica.OfRank(r).String()+" of "+lj.job.Name)
		}
		for _, a := range lj.retired {
			owns(a, "the retired of "+lj.job.Name)
		}
		for _, m := range append(lj.mirrors.All(), lj.mirrors.Coming()...) {
			owns(m.Arena, "the mirror of "+m.Part.String()+" of "+lj.job.Name)
			invariant.Holds(m.Arena.Spec().Mirror, "arena %s of a rank mirrors %v", m.Arena.Key(), m.Part)
			invariant.Holds(m.Arena.Spec().Job == id,
				"arena %s of job %v mirrors %v of job %s", m.Arena.Key(), m.Arena.Spec().Job, m.Part, lj.job.Name)
		}
	}
	h.admission.Check()
	h.launchers.Check()
}

// check holds the job's part of the host against itself and the job's record.
func (lj *localJob) check() {
	job := lj.job
	invariant.Holds(lj.seq >= lj.reported.Seq, "report %d of job %s was sent, %d made", lj.reported.Seq, job.Name, lj.seq)
	invariant.Holds(lj.candidate.N == 0 || lj.candidate.Job == job.ID, "job %s has the candidate of job %v", job.Name, lj.candidate.Job)
	invariant.Holds(lj.fenced <= max(job.Epoch, job.ClosedEpoch), "job %s is fenced up to %d in epoch %d", job.Name, lj.fenced, job.Epoch)
	invariant.Holds(len(lj.bad) <= maxBad && len(lj.badDisk) <= maxBad,
		"job %s: %d bad copies, %d on disk", job.Name, len(lj.bad), len(lj.badDisk))
	peers := map[uint64]replica.Rank{}
	for r, lr := range lj.ranks {
		invariant.Holds(lr.rank == r, "rank %d of job %s lies under %d", lr.rank, job.Name, r)
		invariant.Holds(lr.incarnation != 0, "rank %d of job %s has no incarnation", r, job.Name)
		invariant.Holds(!lr.arena.Spec().Mirror, "rank %d of job %s has a mirror's arena %s", r, job.Name, lr.arena.Key())
		invariant.Holds(lr.arena.Spec().Job == job.ID && lr.arena.Spec().Rank == r,
			"rank %d of job %s has arena %s of rank %d", r, job.Name, lr.arena.Key(), lr.arena.Spec().Rank)
		invariant.Holds(lr.finishing >= 0, "rank %d of job %s hashes %d places", r, job.Name, lr.finishing)
		invariant.Holds(lr.peer == nil || lr.alive(), "rank %d of job %s is %v, and connected", r, job.Name, lr.life)
		invariant.Holds(max(lr.loaded, lr.initial, lr.gone) <= job.Epoch,
			"rank %d of job %s: loaded %d, initial %d, gone %d in epoch %d", r, job.Name, lr.loaded, lr.initial, lr.gone, job.Epoch)
		invariant.Holds(lr.torn <= job.ClosedEpoch,
			"rank %d of job %s is torn in epoch %d, closed is %d", r, job.Name, lr.torn, job.ClosedEpoch)
		if lr.peer != nil {
			other, twice := peers[lr.peer.ID()]
			invariant.Holds(!twice, "process %d is rank %d and rank %d of job %s", lr.pid, r, other, job.Name)
			peers[lr.peer.ID()] = r
		}
	}
}
