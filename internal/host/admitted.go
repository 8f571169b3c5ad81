package host

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/admission"
	"github.com/replicad/replicad/internal/host/launchers"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// admissionOwner is the host as the processes on their way to their arena see it.
type admissionOwner struct{ rooms }

func (h admissionOwner) Known(id replica.JobID) admission.Job {
	if lj := h.jobs[id]; lj != nil {
		return lj
	}
	return nil // a nil *localJob in an interface would not be nil
}

func (h admissionOwner) Named(name string) admission.Job {
	if lj := h.jobNamed(name); lj != nil {
		return lj
	}
	return nil
}

func (h admissionOwner) RankOf(p session.Peer) (admission.Job, replica.Rank) {
	if lj, lr := h.rankOf(p); lj != nil {
		return lj, lr.rank
	}
	return nil, 0
}

func (h admissionOwner) Send(msg any) { h.send(msg) }

func (h admissionOwner) May(user uint32, id replica.JobID) bool { return h.asking.May(user, id) }

func (h admissionOwner) NextRequest() uint64 { return h.nextRequest() }

func (h admissionOwner) Report() {
	for _, lj := range h.jobs {
		h.report(lj)
	}
}

// HandOut makes a process the rank that it has claimed: its arena is with the keeper.
func (h admissionOwner) HandOut(j admission.Job, c admission.Claimed) {
	lj, ref, pid, start := h.jobs[j.Record().ID], c.Arena, c.Peer.PID(), c.Peer.StartTime()
	lj.retired = slices.DeleteFunc(lj.retired, func(r *holding.Arena) bool { return r == ref })
	if old := lj.ranks[c.Rank]; old != nil && old.arena != ref {
		lj.retired = append(lj.retired, old.arena)
	}
	lr := &localRank{rank: c.Rank, incarnation: c.Incarnation, arena: ref, peer: c.Peer, pid: pid, start: start,
		sealedAt: map[replica.Generation]time.Time{}}
	lj.ranks[c.Rank] = lr
	h.launchers.Attached(lj.job.Name, c.Rank)
	h.launchers.Of(lj).Found()
	ref.RaiseFence(max(lj.fenced, lj.job.ClosedEpoch))
	ref.SetCommitted(lj.job.Position)
	ref.SetCandidate(lj.candidate.Position)
	ref.SetCadence(lock.Cadence(lj.job))
	h.admission.Answer(lj, c.Rank, c.Request, time.Now())
	h.saveArenas() // it is handed out
	h.reserve(ref)
	h.log.Claimed(lj.job, lr.rank, lr.incarnation, h.self.Name, lr.pid)
	if err := h.sessions.Watch(lr.pid, lr.start); err != nil {
		h.log.Failed("watch", ref.Key(), err.Error())
	}
	h.reconcile(lj)
}

// HandOutAgain connects a rank to which the daemon before this one had not handed its arena out.
func (h admissionOwner) HandOutAgain(j admission.Job, r replica.Rank, p session.Peer, request uint32) {
	lj := h.jobs[j.Record().ID]
	lr := lj.ranks[r]
	lr.peer, lr.unproven, lr.ordered = p, false, orderKey{}
	h.launchers.Attached(lj.job.Name, r)
	lr.arena.SetCandidate(lj.candidate.Position)
	lr.arena.SetCadence(lock.Cadence(lj.job))
	h.admission.Answer(lj, r, request, time.Now())
	h.log.Claimed(lj.job, r, lr.incarnation, h.self.Name, lr.pid)
	h.reconcile(lj)
}

func (h admissionOwner) Short(id replica.JobID, r replica.Rank, kind want.Kind, why string, now time.Time) {
	h.launchers.Of(h.jobs[id]).Short(r, kind, why, now)
}

func (h admissionOwner) MayTry(id replica.JobID, now time.Time) bool {
	return h.launchers.Of(h.jobs[id]).MayTry(now)
}

func (h admissionOwner) Make(id replica.JobID, spec shm.Spec, made func(*shm.Arena, error) admission.Event) {
	h.launchers.Of(h.jobs[id]).Memory(spec)
	h.work.Go(func() {
		a, err := h.create(spec)
		h.Post(made(a, launchers.FewerSlots(spec, err)))
	})
}

func (h admissionOwner) Unmap(a *shm.Arena) { h.unmap(a) }

func (h admissionOwner) Keep(a *shm.Arena, key string) *holding.Arena {
	ref := h.Hold(a, key)
	h.custody.Put(ref.Key(), ref.File())
	return ref
}

func (h admissionOwner) Save() { h.saveArenas() }

func (h admissionOwner) Park(done admission.Event) {
	h.saveArenas()
	h.custody.After(func() { h.Post(done) })
}

func (h admissionOwner) Forget(ref *holding.Arena) { h.forget(ref) }

func (h admissionOwner) HasStore() bool { return h.store != nil }

func (h admissionOwner) Regions(job *replica.Job, rank replica.Rank, read func(replica.Geometry) admission.Event) {
	h.spawn(func(ctx context.Context) Event {
		var is replica.Geometry
		r, err := h.store.Open(ctx, job.Name, job.ID, job.Durable, replica.OfRank(rank))
		if err == nil {
			is, err = replica.NewGeometry(r.Regions())
			r.Close()
		}
		if err != nil {
			h.log.Failed("durable", fmt.Sprintf("regions of rank %d in generation %v", rank, job.Durable), err.Error())
		}
		return read(is)
	})
}

// View is the job as rooms see it. This and the methods that follow are for processes on their way.
func (lj *localJob) View() room.JobView { return lj.view() }

func (lj *localJob) Held(r replica.Rank) (is admission.Rank, known bool) {
	lr := lj.ranks[r]
	if lr == nil {
		return is, false
	}
	return admission.Rank{Incarnation: lr.incarnation, Arena: lr.arena, PID: lr.pid, Start: lr.start, Peer: lr.peer, Alive: lr.alive(),
		Initial: lr.initial, Finishing: lr.finishing > 0}, true
}

func (lj *localJob) Retire(r replica.Rank) {
	lj.retired = append(lj.retired, lj.ranks[r].arena)
	delete(lj.ranks, r)
}

func (lj *localJob) Admission() *admission.Book { return lj.admission }
