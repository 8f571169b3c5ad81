package push

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/manners"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// Transcripts play n1 of fixture.Job with the arena of rank 0, which n2 mirrors.
func TestTranscripts(t *testing.T) {
	roomtest.Transcripts(t, func(n *roomtest.Node, args []string) (act.Room, roomtest.Own) {
		p := &play{Node: n, over: map[*Send]bool{}}
		n.Again = true
		n.Errors = map[string]error{"canceled": context.Canceled, "superseded": mover.ErrSuperseded,
			"fenced": transfer.ErrFenced, "not-yet": transfer.ErrNotYet}
		n.View.Job.GroupMirrors = [][]replica.NodeName{{"n2"}}
		arena := n.Hold("rank-0", shm.Spec{Geometry: fixture.Geometry(t, len(args) > 0)}) // node [frozen]
		n.View.Ranks = []room.Rank{{Rank: 0, Incarnation: 4, Arena: arena}}
		p.room = New(p, p, fixture.Cluster, "n1")
		return p.room, p
	})
}

type play struct {
	*roomtest.Node
	room   *Room
	moving []mover.Moving
	over   map[*Send]bool // it has ended
}

func (p *play) Moving(id replica.JobID, g replica.Generation) []mover.Moving {
	if id != p.View.Job.ID || g != p.View.Candidate.Generation {
		p.T.Errorf("asked of %v of job %v", g, id)
	}
	return p.moving
}

func (p *play) Pushed(replica.Part, replica.Generation, replica.NodeName, time.Duration, error) {}

func (p *play) PushFailed(part replica.Part, g replica.Generation, to replica.NodeName, err error) {
	p.Say("log: %v of %v to %s: %v", part, g, to, err)
}

func (p *play) Do(verb string, args []string) (bool, error) {
	switch verb {
	case "names": // N STEP: the leader does
		p.View.Candidate = fixture.Candidate(roomtest.Number(args[0]), roomtest.Gen(args[1]).Step)
		p.View.CandidateAt, p.View.WaitsAt = p.Now, p.Now
		p.Learn(Named{p.View.Job.ID})
	case "sealed": // PLACE STEP [BINDS]: and the rank reports it
		info := p.Seal("rank-0", args[0], args[1:]...)
		p.Learn(Sealed{p.View.Job.ID, 0, roomtest.Place(args[0]), info})
	case "orders": // EPOCH STEP: to mirror what the job is to resume at
		p.Learn(Asked{control.MirrorOrder{Job: fixture.JobID, Epoch: replica.Epoch(roomtest.Number(args[0])), Generation: roomtest.Gen(args[1])}})
	case "ends":
		s := p.Under(args[0]).(*Send)
		p.over[s] = true
		p.Learn(Ended{mover.Pushed{Line: s.Line, Key: s.Key, Err: p.Err(args[1:])}})
	case "drops": // FOR NUMBER: as the mover takes FOR, or does not take it
		p.Learn(Handed{p.Under(args[0]).(*Send), []transfer.Key{p.Under(args[1]).(*Send).Key}})
	case "moving": // PART BYTES WHY
		why := strings.Repeat(args[2], 100)
		p.moving = append(p.moving, mover.Moving{Line: mover.Line{Node: "n2"}, Part: roomtest.Part(args[0]), Bytes: roomtest.Number(args[1]), Why: why})
	case "rests": // no push is under way
		p.moving = nil
	case "remembers":
		for _, j := range p.room.jobs {
			p.Say("%d ranks, %d pushes that fail", len(j.ranks), len(j.strains))
		}
	default:
		return false, nil
	}
	return true, nil
}

func (p *play) Text(v any) string {
	switch v := v.(type) {
	case *Send:
		text := fmt.Sprintf("push %v of %v to %s", v.Key.Part, v.Key.Generation, v.Line.Node)
		if v.Key.Incarnation != 4 {
			text += fmt.Sprintf(" as incarnation %d", v.Key.Incarnation)
		}
		if !v.Awaited(v.Key) {
			text += ", which nothing waits for"
		}
		if v.Class == manners.Recovery {
			text += ", for a recovery"
		}
		return p.Runs(v, text)
	case Prune:
		text := ""
		for i, e := range p.Begun() {
			if s := e.(*Send); !p.over[s] && !v.Wanted(s.Line, s.Key) {
				text, p.over[s] = text+fmt.Sprintf(" %d", i+1), true
			}
		}
		if text != "" {
			return "end pushes that are not wanted:" + text
		}
		return ""
	case control.PushReport:
		text := fmt.Sprintf("%v waits for:", v.Generation)
		for _, m := range v.Pushes {
			text += fmt.Sprintf(" %v to %s, %d bytes, %s", m.Part, m.To, m.Bytes, m.Why[:min(len(m.Why), 9)])
			if len(m.Why) > maxWhy {
				p.T.Errorf("a reason of %d bytes", len(m.Why))
			}
		}
		return text
	}
	return fmt.Sprintf("%T", v)
}
