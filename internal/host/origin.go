package host

import (
	"github.com/replicad/replicad/internal/host/job"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// jobOf is the job of a process here, which may be on its way to its rank still. r is nil then.
func (h *Host) jobOf(p session.Peer) (j *job.Job, r *replica.Rank) {
	if j, of := h.jobs.byPeer(p); j != nil {
		return j, &of
	}
	if name, is := h.admission.JobOf(p.ID()); is {
		j = h.jobs.named(name)
	}
	return j, nil
}

// origin answers a process with what its job began with, as JSON; an empty text: with the program's own state.
func (h *Host) origin(ev session.From) {
	j, r := h.jobOf(ev.Peer)
	if j == nil {
		ev.Peer.Refuse(ev.Header.Request, wire.CodeAgain, "the job is not known here yet")
		return
	}
	text, known := j.Origin(r)
	if !known {
		ev.Peer.Refuse(ev.Header.Request, wire.CodeAgain, "not all ranks have named their groups yet")
		return
	}
	head := wire.RankHeader{Type: wire.MFromIs, Request: ev.Header.Request, Epoch: j.Job.Epoch}
	ev.Peer.Send(head, text) //nolint:errcheck // a dead peer is Gone
}

// recipe answers a process with how it gets the regions that its job has, a piece at a time. While a growth is under way nobody knows that.
func (h *Host) recipe(ev session.Recipe) {
	j, _ := h.jobOf(ev.Peer)
	if j == nil || j.Job.Growth != nil {
		ev.Peer.Refuse(ev.Header.Request, wire.CodeAgain, "the job is not known here yet, or grows at this moment")
		return
	}
	all := j.Job.Recipe
	from := min(int(ev.Offset), len(all))
	piece := wire.Piece{Offset: uint32(from), Total: uint32(len(all)), Bytes: all[from:min(from+wire.MaxPiece, len(all))]}
	head := wire.RankHeader{Type: wire.MRecipeIs, Request: ev.Header.Request, Epoch: j.Job.Epoch}
	ev.Peer.Send(head, piece.Append(nil)) //nolint:errcheck // a dead peer is Gone
}

// resumed answers a rank with the durable generation that its job goes on from, as launchers print it.
func (h *Host) resumed(ev session.Resumed) {
	text := ""
	if j, _ := h.jobs.byPeer(ev.Peer); j != nil && j.Job.Plan != nil {
		text = j.Job.Plan.Resumed
	}
	head := wire.RankHeader{Type: wire.MResumedIs, Request: ev.Header.Request}
	ev.Peer.Send(head, []byte(replica.Cut(text, wire.MaxRefusedText))) //nolint:errcheck // a dead peer is Gone
}
