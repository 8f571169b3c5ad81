package scrub

import (
	"fmt"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Transcripts play n1 of fixture.Job, without anything but its arenas.
func TestTranscripts(t *testing.T) {
	roomtest.Transcripts(t, func(n *roomtest.Node, args []string) (act.Room, roomtest.Own) { // node [BYTES A SECOND]
		p := &play{Node: n, roots: map[replica.Generation]replica.Digest{}}
		n.Errors = map[string]error{"corrupt": shm.ErrCorrupt}
		var rate uint64
		if len(args) > 0 {
			rate = roomtest.Number(args[0])
		}
		p.room = New(p, p, rate)
		return p.room, p
	})
}

type play struct {
	*roomtest.Node
	room   *Room
	coming bool
	roots  map[replica.Generation]replica.Digest // of the parts of group 0 that were sealed
}

var incarnations = map[replica.NodeName]replica.NodeIncarnation{"n1": 11, "n2": 22, "n3": 33}

func (p *play) Self() replica.Holder { return p.Holder("n1") }

func (p *play) Holder(name replica.NodeName) replica.Holder {
	return replica.Holder{Node: name, Incarnation: incarnations[name]}
}

func (p *play) Coming(*holding.Arena, replica.Part, replica.Generation, replica.Digest) bool {
	return p.coming
}

func (p *play) Do(verb string, args []string) (bool, error) {
	switch verb {
	case "holds": // ARENA [second] [frozen] [mirror]
		has := func(word string) bool { return strings.Contains(" "+strings.Join(args, " ")+" ", " "+word+" ") }
		spec := shm.Spec{Geometry: fixture.Geometry(p.T, has("frozen")), Slots: 2, Mirror: has("mirror")}
		if has("second") {
			spec.Rank = 1
		}
		p.View.Retired = append(p.View.Retired, p.Hold(args[0], spec))
	case "seals":
		info := p.Seal(args[0], args[1], args[2:]...)
		p.roots[info.Generation] = info.Root
	case "record": // STEP NODES [other]: is of group 0, as the commit of a generation has it; of another root than what was sealed
		g := roomtest.Gen(args[0])
		of := replica.PartRoot{Part: replica.OfGroup(0), Root: p.roots[g]}
		if len(args) > 2 {
			of.Root = replica.Digest{9}
		}
		for _, name := range roomtest.Nodes(args[1]) {
			of.Holders = append(of.Holders, p.Holder(name))
		}
		p.View.Job = fixture.Changed(p.View.Job, func(j *replica.Job) {
			j.Committed, j.Position, j.Parts = g, replica.Position(g), []replica.PartRoot{of}
		})
	case "bad": // ARENA PLACE: is a copy, which is given up
		for _, c := range p.View.Copies() {
			if c.Arena == p.Arenas[args[0]] && c.Place == roomtest.Place(args[1]) {
				c.Arena.Free(c.Place)
				p.Learn(GivenUp{fixture.JobID, c})
			}
		}
	case "coming", "stays": // what was lost is on its way already
		p.coming = verb == "coming"
	case "drops": // ARENA
		p.Arenas[args[0]].Drop()
	case "remembers":
		p.Say("%d losses; %+v", len(p.room.losses), p.room.Status())
	default:
		return false, nil
	}
	return true, nil
}

func (p *play) Text(v any) string {
	switch v := v.(type) {
	case control.CopyReport:
		return fmt.Sprintf("%v of %v is %s", v.Part, v.Generation, map[bool]string{true: "lost here", false: "here"}[v.Lost])
	case *Fetch:
		var from []replica.NodeName
		for _, h := range v.Source.Holders {
			from = append(from, h.Node)
		}
		text := fmt.Sprintf("fetch %v of %v for rank %d into %s from %v", v.Source.Part, v.Generation, v.Rank, p.Name(v.Arena), from)
		return p.Runs(v, text+map[bool]string{true: ", what is frozen"}[!v.Frozen.IsZero()])
	case *Read:
		return p.Runs(v, fmt.Sprintf("read %v of %s, chunks %d to %d, rest %v", v.Copy.Place, p.Name(v.Copy.Arena), v.From, v.To, v.Rest))
	case GiveUp:
		return fmt.Sprintf("give up %v of %s: %v", v.Read.Copy.Place, p.Name(v.Read.Copy.Arena), v.Why)
	}
	return fmt.Sprintf("%T", v)
}
