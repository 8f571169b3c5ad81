package host

import (
	"context"
	"fmt"
	"os"
	"time"

	"github.com/replicad/replicad/internal/desk"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/admission"
	"github.com/replicad/replicad/internal/host/launchers"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/replica"
)

// The host as those see it whom it owns: each has a type of its own here, with the methods of that one's port.

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
		a, err := h.hands.Create(spec)
		h.Post(made(a, launchers.FewerSlots(spec, err)))
	})
}

func (h admissionOwner) Unmap(a *shm.Arena) { h.hands.Unmap(a) }

func (h admissionOwner) Keep(a *shm.Arena, key string) *holding.Arena {
	ref := h.Hold(a, key)
	h.hands.Custody.Put(ref.Key(), ref.File())
	return ref
}

func (h admissionOwner) Save() { h.saveArenas() }

func (h admissionOwner) Park(done admission.Event) {
	h.saveArenas()
	h.hands.Custody.After(func() { h.Post(done) })
}

func (h admissionOwner) Forget(ref *holding.Arena) { h.forget(ref) }

func (h admissionOwner) HasStore() bool { return h.hands.Store != nil }

func (h admissionOwner) Regions(job *replica.Job, rank replica.Rank, read func(replica.Geometry) admission.Event) {
	h.spawn(func(ctx context.Context) Event {
		var is replica.Geometry
		r, err := h.hands.Store.Open(ctx, job.Name, job.ID, job.Durable, replica.OfRank(rank))
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

// launcherOwner is the host as its launchers see it.
type launcherOwner struct{ *Host }

func (h launcherOwner) Informed() bool { return h.informed }

func (h launcherOwner) Era() replica.Era { return h.era }

func (h launcherOwner) Known(id replica.JobID) launchers.Job {
	if j := h.jobs.of(id); j != nil {
		return j
	}
	return nil // a nil *job.Job in an interface would not be nil
}

func (h launcherOwner) Named(name string) launchers.Job {
	if j := h.jobs.named(name); j != nil {
		return j
	}
	return nil
}

func (h launcherOwner) All() (jobs []launchers.Job) {
	for _, j := range h.jobs.all {
		jobs = append(jobs, j)
	}
	return jobs
}

func (h launcherOwner) Send(msg any) { h.send(msg) }

func (h launcherOwner) MayCreate(user uint32) bool { return h.admission.May(user, replica.JobID{}) }

func (h launcherOwner) NextRequest() uint64 { return h.nextRequest() }

func (h launcherOwner) Report(id replica.JobID) { h.jobs.of(id).Report() }

func (h launcherOwner) Remark(id replica.JobID, notes []replica.Remark) {
	h.jobs.of(id).Remark(notes)
}

func (h launcherOwner) Expects(job *replica.Job, r replica.Rank) bool {
	return h.desk.Waits(job.ID, r) || h.admission.Expects(job.Name, r)
}

func (h launcherOwner) Died(id replica.JobID, r replica.Rank) {
	h.jobs.of(id).ProcessDied(r)
}

func (h launcherOwner) Brought(id replica.JobID, e replica.Epoch) (replica.Tier, time.Duration) {
	return h.restores.Brought(id, e)
}

func (h launcherOwner) HasStore() bool { return h.hands.Store != nil }

func (h launcherOwner) Halted(pid int, start uint64) bool { return h.processes.Halted(pid, start) }

func (h launcherOwner) HaltedChild(pid, parent int) bool { return h.processes.HaltedChild(pid, parent) }

// deskOwner is the host as its rendezvous desk sees it.
type deskOwner struct{ *Host }

func (h deskOwner) Send(msg any) { h.send(msg) }

func (h deskOwner) May(id replica.JobID) bool {
	j := h.jobs.of(id)
	return j != nil && h.asking.May(j.Job.Owner, id)
}

func (h deskOwner) NextRequest() uint64 { return h.nextRequest() }

func (h deskOwner) Job(id replica.JobID) (desk.Job, bool) {
	j := h.jobs.of(id)
	if j == nil {
		return desk.Job{}, false
	}
	return desk.Job{Closed: max(j.Fenced, j.Job.ClosedEpoch), Ended: j.Job.Phase == replica.Ended, EndReason: j.Job.EndReason}, true
}

func (h deskOwner) Park(key string, f *os.File, done desk.Event) {
	h.hands.Custody.Put(key, f)
	h.hands.Custody.After(func() { h.Post(done) })
}

func (h deskOwner) Unpark(key string) { h.hands.Custody.Drop(key) }

func (h deskOwner) Beside(work func() desk.Event) {
	h.spawn(func(context.Context) Event { return work() })
}
