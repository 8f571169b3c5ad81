package restore

import (
	"context"
	"fmt"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Transcripts play n1 of fixture.Job with rank 0.
func TestTranscripts(t *testing.T) {
	roomtest.Transcripts(t, func(n *roomtest.Node, _ []string) (act.Room, roomtest.Own) {
		p := &play{Node: n}
		n.Errors = map[string]error{"canceled": context.Canceled, "brought": holding.ErrBrought}
		arena := n.Hold("rank-0", shm.Spec{Geometry: fixture.Geometry(t, false)})
		n.View.Ranks = []room.Rank{{Rank: 0, Incarnation: 4, Arena: arena, Alive: true}}
		p.room = New(p, p)
		return p.room, p
	})
}

type play struct {
	*roomtest.Node
	room   *Room
	missed room.Missed // by what ends next
}

func (p *play) Do(verb string, args []string) (bool, error) {
	id, epoch := p.View.Job.ID, p.View.Job.Epoch
	switch verb {
	case "misses": // NODES PART
		p.missed = room.Missed{Nodes: roomtest.Nodes(args[0]), Part: roomtest.Part(args[1])}
	case "ends": // NUMBER [WHY]
		err := p.Err(args[1:])
		switch of := p.Under(args[0]).(type) {
		case *Restore:
			slot, ring := shm.Place{Kind: shm.Slot, Index: 2}, shm.Place{Kind: shm.Ring, Index: 3}
			p.Learn(Ended{Of: of, Slot: slot, Ring: ring, Tier: replica.PeerRAM, Missed: p.missed, Err: err})
			p.missed = room.Missed{}
		case *Reading:
			of.End(err == nil)
			p.Learn(act.Ended{Of: of, Err: err})
		}
	case "asks": // how far rank 0 is
		if is, done := p.room.Done(id, epoch, 0); done {
			p.Say("its parts lie in %v and %v, from %v", is.Slot, is.Ring, is.Tier)
		} else {
			p.Say("its parts have not come: %q", p.room.Failing(id, epoch, 0))
		}
		if from, took := p.room.Brought(id, epoch); from != 0 {
			p.Say("ranks here had theirs after %v, from %v", took, from)
		}
	case "read": // lists what counts as read
		for _, at := range p.View.Ranks[0].Arena.Places() {
			if rd := p.room.Reading(id, p.View.Ranks[0].Arena, at); rd != nil {
				p.Say("%v was read: good %v", at, rd.over() && rd.Good())
			}
		}
	case "remembers":
		p.Say("%d jobs", len(p.room.jobs))
	default:
		return false, nil
	}
	return true, nil
}

func (p *play) Text(v any) string {
	switch v := v.(type) {
	case *Restore:
		v.Begin(p.T.Context())
		return p.Runs(v, fmt.Sprintf("restore rank %d, incarnation %d, in epoch %d", v.Rank.Rank, v.Rank.Incarnation, v.Plan.Epoch))
	case *Reading:
		return p.Runs(v, fmt.Sprintf("read %v of %v", v.Copy.Held.Part, v.Copy.Info.Generation))
	case Failed:
		return fmt.Sprintf("failed: rank %d: %v", v.Rank, v.Err)
	}
	return fmt.Sprintf("%T", v)
}
