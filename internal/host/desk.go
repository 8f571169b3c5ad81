package host

import (
	"context"
	"os"

	"github.com/replicad/replicad/internal/desk"
	"github.com/replicad/replicad/replica"
)

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
	h.custody.Put(key, f)
	h.custody.After(func() { h.Post(done) })
}

func (h deskOwner) Unpark(key string) { h.custody.Drop(key) }

func (h deskOwner) Beside(work func() desk.Event) {
	h.spawn(func(context.Context) Event { return work() })
}
