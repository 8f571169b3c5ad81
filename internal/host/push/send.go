package push

import (
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// ResumesAt is the generation that the leader has had mirrored since the job's epoch was closed.
func (r *Room) ResumesAt(job *replica.Job) (g replica.Generation, ok bool) {
	j := r.jobs[job.ID]
	if j == nil {
		return g, false
	}
	o := j.scarce.order
	return o.Generation, job.Phase == replica.Closed && o.Epoch == job.ClosedEpoch
}

// Class is that of a push of a generation's part, at both its ends.
func (r *Room) Class(job *replica.Job, g replica.Generation) manners.Class {
	if at, scarce := r.ResumesAt(job); scarce && g == at {
		return manners.Recovery
	}
	return manners.Mirroring
}

// sendAgain sends the parts that a commit waits for to their mirrors once more, acknowledged or not: a push may have met a daemon that was
// away, this daemon may have been when they were sealed, or the mirror has freed what it had.
func (r *Room) sendAgain(now time.Time, v room.JobView) {
	if now.Sub(v.CandidateAt) < pushAgain || v.Candidate.Generation.Epoch != v.Job.Position.Epoch {
		return
	}
	r.sendAll(now, v, v.Candidate.Generation, true)
}

// sendScarce sends what is sealed here of the generation that the closed job is to resume at to its mirrors, until they have it: the push of
// what was sealed last may have met the fence, and what is for freshness alone was never sent. Where the leader has just asked for it, what was
// acknowledged is sent too: the mirror has lost or freed it since.
func (r *Room) sendScarce(now time.Time, v room.JobView, asked bool) {
	g, ok := r.ResumesAt(v.Job)
	if j := r.jobs[v.Job.ID]; !ok {
		if j != nil {
			j.scarce.at = time.Time{} // nothing is sent again
		}
		return
	}
	s := &r.job(v.Job.ID).scarce
	switch {
	case !asked && now.Before(s.at):
		return
	case asked:
		s.wait = scarceAgain
	default:
		s.wait = min(max(2*s.wait, scarceAgain), scarceMost)
	}
	s.at = now.Add(s.wait)
	r.sendAll(now, v, g, asked)
}

// refill sends what is committed to mirrors that never got it from here: a mirror that was moved off a lost node has nothing until the next
// commit, which may be minutes away. What is sealed of the candidate makes up for that, and is sent anyway. After a resume that did not wait
// for the mirrors they fetch it themselves.
func (r *Room) refill(now time.Time, v room.JobView) {
	if room.Spreads(v.Job) || v.Job.Committed.IsZero() {
		return
	}
	for _, is := range v.Ranks {
		for _, k := range []shm.PlaceKind{shm.Slot, shm.Ring} {
			p, info, committed := is.Arena.At(k, v.Job.Committed)
			if _, _, next := is.Arena.At(k, v.Candidate.Generation); committed && !next {
				r.send(now, v, is, p, info, false)
			}
		}
	}
}

// sendAll sends what lies sealed here of a generation; again: what was acknowledged too.
func (r *Room) sendAll(now time.Time, v room.JobView, g replica.Generation, again bool) {
	for _, is := range v.Ranks {
		for _, p := range is.Arena.Places() {
			if info, err := is.Arena.Info(p); err == nil && info.Generation == g {
				r.send(now, v, is, p, info, again)
			}
		}
	}
}

// send sends a sealed part to the nodes that mirror it: private parts every step, before the update they belong to ends; replicated parts of a
// group that has too few nodes of its own, with the frozen part that they bind.
func (r *Room) send(now time.Time, v room.JobView, is room.Rank, p shm.Place, info shm.Info, again bool) {
	at, scarce := r.ResumesAt(v.Job)
	if g := info.Generation; p.Kind == shm.Slot && v.Candidate.N != 0 && g != v.Candidate.Generation && g != v.Job.Committed && (!scarce || g != at) {
		return // for freshness: only a candidate is worth the bytes, and the slot that a slow mirror would hold
	}
	for _, node := range room.MirrorsOf(v.Job, p.Kind, is.Rank) {
		if node == r.self {
			continue
		}
		r.sendTo(now, node, v, is, p, info, again)
		if frozen := (shm.Place{Kind: shm.Frozen}); p.Kind == shm.Slot && !info.FrozenRoot.IsZero() {
			if fi, err := is.Arena.Info(frozen); err == nil {
				r.sendTo(now, node, v, is, frozen, fi, again)
			}
		}
	}
}

func (r *Room) sendTo(now time.Time, node replica.NodeName, v room.JobView, is room.Rank, p shm.Place, info shm.Info, again bool) {
	job := v.Job
	k := key{node, room.Part(job, p.Kind, is.Rank), info.Generation}
	rk := r.job(job.ID).rank(is)
	was, sent := rk.sent[k]
	if was.done && !again || now.Sub(was.sent) < pushAgain {
		return
	}
	rk.sent[k] = state{sent: now}
	r.effects = append(r.effects, &Send{
		Line: mover.Line{Node: node, Job: job.ID, Rank: is.Rank},
		Key: transfer.Key{Cluster: r.cluster, Era: job.Era, Job: job.ID, Epoch: job.Epoch, Part: k.part, Generation: info.Generation, Root: info.Root,
			Rank: is.Rank, Incarnation: is.Incarnation},
		Copy:  holding.Copy{Arena: is.Arena, Place: p, Info: info, Held: replica.Held{Part: k.part, Rank: is.Rank}},
		Class: r.Class(job, info.Generation), Awaited: r.awaits(v), was: was, sent: sent,
	})
}

// awaits tells of a part whether the commit of the candidate, or a recovery, waits for it.
func (r *Room) awaits(v room.JobView) func(transfer.Key) bool {
	at, scarce := r.ResumesAt(v.Job)
	return func(k transfer.Key) bool {
		return k.Part.Kind == replica.FrozenPart || k.Generation == v.Candidate.Generation || scarce && k.Generation == at
	}
}
