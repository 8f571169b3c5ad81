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
	lj := h.jobs[id]
	return lj != nil && h.asking.May(lj.job.Owner, id)
}

func (h deskOwner) NextRequest() uint64 { return h.nextRequest() }

func (h deskOwner) Job(id replica.JobID) (desk.Job, bool) {
	lj := h.jobs[id]
	if lj == nil {
		return desk.Job{}, false
	}
	return desk.Job{Closed: max(lj.fenced, lj.job.ClosedEpoch), Ended: lj.job.Phase == replica.Ended, EndReason: lj.job.EndReason}, true
}

func (h deskOwner) Park(key string, f *os.File, done desk.Event) {
	h.custody.Put(key, f)
	h.custody.After(func() { h.Post(done) })
}

func (h deskOwner) Unpark(key string) { h.custody.Drop(key) }

func (h deskOwner) Beside(work func() desk.Event) {
	h.spawn(func(context.Context) Event { return work() })
}
