package host

import (
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// origin answers a process with what its job began with, as JSON; an empty text: with the program's own state.
func (h *Host) origin(ev session.From) {
	lj, lr := h.rankOf(ev.Peer)
	if name, is := h.admission.JobOf(ev.Peer.ID()); lj == nil && is {
		lj = h.jobNamed(name)
	}
	if lj == nil {
		ev.Peer.Refuse(ev.Header.Request, wire.CodeAgain, "the job is not known here yet")
		return
	}
	text, known := originFor(lj.job, lr)
	if !known {
		ev.Peer.Refuse(ev.Header.Request, wire.CodeAgain, "not all ranks have named their groups yet")
		return
	}
	head := wire.RankHeader{Type: wire.MFromIs, Request: ev.Header.Request, Epoch: lj.job.Epoch}
	ev.Peer.Send(head, text) //nolint:errcheck // a dead peer is Gone
}

// originFor is the text for a process; it is not known yet who of a rank's group loads while ranks are still naming their groups. lr is
// nil for a process that has not attached.
func originFor(job *replica.Job, lr *localRank) (text []byte, known bool) {
	switch {
	case job.From == nil:
		return nil, true
	case lr == nil:
		return job.From.JSON(nil), true
	case int(lr.rank) >= len(job.Layout.Groups):
		return nil, false
	}
	leads := job.Layout.Leads(lr.rank)
	return job.From.JSON(&leads), true
}

// resumed answers a rank with the durable generation that its job goes on from, as launchers print it.
func (h *Host) resumed(ev session.Resumed) {
	text := ""
	if lj, _ := h.rankOf(ev.Peer); lj != nil && lj.job.Plan != nil {
		text = lj.job.Plan.Resumed
	}
	head := wire.RankHeader{Type: wire.MResumedIs, Request: ev.Header.Request}
	ev.Peer.Send(head, []byte(replica.Cut(text, wire.MaxRefusedText))) //nolint:errcheck // a dead peer is Gone
}
