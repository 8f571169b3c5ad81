package host

import (
	"context"
	"fmt"
	"time"

	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/admission"
	"github.com/replicad/replicad/internal/host/launchers"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/replica"
)

// admissionOwner is the host as the processes on their way to their arena see it.
type admissionOwner struct{ rooms }

func (h admissionOwner) Known(id replica.JobID) admission.Job {
	if j := h.jobs.of(id); j != nil {
		return j
	}
	return nil // a nil *job.Job in an interface would not be nil
}

func (h admissionOwner) Named(name string) admission.Job {
	if j := h.jobs.named(name); j != nil {
		return j
	}
	return nil
}

func (h admissionOwner) RankOf(p session.Peer) (admission.Job, replica.Rank) {
	if j, r := h.jobs.byPeer(p); j != nil {
		return j, r
	}
	return nil, 0
}

func (h admissionOwner) Send(msg any) { h.send(msg) }

func (h admissionOwner) May(user uint32, id replica.JobID) bool { return h.asking.May(user, id) }

func (h admissionOwner) NextRequest() uint64 { return h.nextRequest() }

func (h admissionOwner) Report() {
	for _, j := range h.jobs.all {
		j.Report()
	}
}

func (h admissionOwner) HandOut(j admission.Job, c admission.Claimed) {
	h.jobs.of(j.Record().ID).HandOut(c)
}

func (h admissionOwner) HandOutAgain(j admission.Job, r replica.Rank, p session.Peer, request uint32) {
	h.jobs.of(j.Record().ID).HandOutAgain(r, p, request)
}

func (h admissionOwner) Short(id replica.JobID, r replica.Rank, kind want.Kind, why string, now time.Time) {
	h.launchers.Of(h.jobs.of(id)).Short(r, kind, why, now)
}

func (h admissionOwner) MayTry(id replica.JobID, now time.Time) bool {
	return h.launchers.Of(h.jobs.of(id)).MayTry(now)
}

func (h admissionOwner) Make(id replica.JobID, spec shm.Spec, made func(*shm.Arena, error) admission.Event) {
	h.launchers.Of(h.jobs.of(id)).Memory(spec)
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
