package admission

import (
	"time"

	"github.com/replicad/replicad/internal/desk"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/want"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Answer gives a rank its arena.
func (g *Gate) Answer(job Job, r replica.Rank, request uint32, now time.Time) {
	record := job.Record()
	held, _ := job.Held(r)
	head := wire.RankHeader{Type: wire.MAttached, Request: request, Epoch: record.Epoch, Incarnation: held.Incarnation}
	body := attached(held.Arena, held.Incarnation, job.View().Fenced)
	if err := held.Peer.SendFile(head, body, held.Arena.File()); err != nil {
		g.log.Failed("attach", held.Arena.Key(), err.Error())
		if kind := want.Of(err); kind != want.Nothing {
			g.owner.Short(record.ID, r, kind, err.Error(), now)
			held.Peer.Refuse(request, wire.CodeAgain, err.Error())
		}
	}
}

// Back answers a process that came back to its arena: it has the descriptor already.
func (g *Gate) Back(ev session.Hello, ref *holding.Arena, inc replica.Incarnation, epoch replica.Epoch) {
	g.desk.Admit(ev.Peer, desk.Caller{Job: ref.Spec().Job, Rank: ev.Hello.Rank, Nonce: ev.Hello.Nonce})
	g.launchers.Attached(ev.Hello.Job, ev.Hello.Rank)
	head := wire.RankHeader{Type: wire.MAttached, Request: ev.Header.Request, Epoch: epoch, Incarnation: inc}
	ev.Peer.Send(head, attached(ref, inc, ref.Fence())) //nolint:errcheck // a dead peer is Gone
}

func attached(ref *holding.Arena, inc replica.Incarnation, fence replica.Epoch) []byte {
	hd := ref.Header()
	return wire.Attached{ArenaBytes: hd.ArenaBytes, Incarnation: inc, Slots: hd.Slots, Ring: hd.Ring, Fence: fence,
		Job: ref.Spec().Job}.Append(nil)
}
