package growth

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Transcripts play n1 of fixture.Job with rank 0, which stands at the committed step.
func TestTranscripts(t *testing.T) {
	roomtest.Transcripts(t, func(n *roomtest.Node, _ []string) (act.Room, roomtest.Own) {
		p := &play{Node: n, peer: &roomtest.Peer{T: t}}
		a := n.Hold("rank-0", shm.Spec{Geometry: fixture.Geometry(t, false)})
		n.View.Ranks = []room.Rank{{Rank: 0, Incarnation: 4, Arena: a, Alive: true}}
		a.SetOwner(4, 0, 0)
		p.write(1216, 4) // the words are that process's
		p.stands(5)
		n.Word = p.word
		p.room = New(p)
		return p.room, p
	})
}

type play struct {
	*roomtest.Node
	room  *Room
	lacks error
	out   *shm.Arena // that was handed out last
	asks  uint64
	peer  *roomtest.Peer
}

func (p *play) Lacks(shm.Spec) error { return p.lacks }

func (p *play) Spec(*replica.Job, replica.Rank) shm.Spec {
	return shm.Spec{Cluster: fixture.Cluster, Era: 1, Job: fixture.JobID, Rank: 0, ChunkBytes: 4096, Slots: 4, Margin: 1 << 20}
}

// stands writes the rank's step word.
func (p *play) stands(s replica.Step) { p.write(512, uint64(replica.PackWord(3, s, replica.Idle))) }

// write writes a word of the control page, as a rank does (layout.h).
func (p *play) write(at int64, word uint64) {
	if _, err := p.Arenas["rank-0"].File().WriteAt(binary.LittleEndian.AppendUint64(nil, word), at); err != nil {
		p.T.Fatal(err)
	}
}

// grown is the geometry with a region more, of so many bytes.
func (p *play) grown(bytes uint64) replica.Geometry {
	late := replica.Region{Name: "late", DType: replica.U8, Shape: []uint64{bytes}, Bytes: bytes}
	g, err := replica.NewGeometry(append(slices.Clone(fixture.Geometry(p.T, false).Regions), late))
	if err != nil {
		p.T.Fatal(err)
	}
	return g
}

// word has the job grow to a region more of so many bytes, or bound private parts.
func (p *play) word(j *replica.Job, key, value string) bool {
	switch key {
	case "grows":
		j.Growth = &replica.Growth{Step: 5, Geometries: j.GroupGeometry}
		j.GroupGeometry = []replica.Digest{shm.GeometryDigest(p.grown(roomtest.Number(value)), replica.ReplicatedPart)}
		j.Phase, j.ClosedEpoch, j.Epoch, j.Plan = replica.Opening, 3, 4, nil
	case "cap":
		j.Options.PrivateCap = roomtest.Number(value)
	default:
		return false
	}
	return true
}

func (p *play) Do(verb string, args []string) (bool, error) {
	switch verb {
	case "asks": // BYTES [RECIPE]: the rank does, for a region more
		p.asks++
		p.Learn(Asked{Job: fixture.JobID, Rank: 0, Incarnation: 4, Peer: p.peer, Request: uint32(p.asks), Ask: p.asks, Epoch: 3, Step: 5,
			Geometry: p.grown(roomtest.Number(args[0])), Recipe: []byte(fmt.Sprint(args[1:]))})
	case "reports":
		g := p.room.Of(fixture.JobID, 0)
		if g == nil {
			p.Say("it does not ask, and does: %v", p.room.Asks(fixture.JobID))
			break
		}
		p.Say("ask %d at step %d of epoch %d: %s, %s; recipe %s; prepared %v; refused %q",
			g.Ask, g.Step, g.Epoch, g.What, g.Differs, g.RecipeBytes, g.Prepared, g.Refused)
	case "gone": // the session, and the rank has another one
		p.Learn(act.Gone{Peer: p.peer})
		p.peer = &roomtest.Peer{T: p.T}
	case "stands": // STEP
		p.stands(replica.Step(roomtest.Number(args[0])))
		p.Learn(act.Changed{Job: fixture.JobID})
	case "has": // the arena that was handed out is the rank's
		p.View.Ranks[0].Arena = holding.New(p.out, holding.GrownKey(fixture.JobID, 0, 4, 4), func(*shm.Arena) {})
	case "refused": // ASK WHY
		p.Learn(Refused{fixture.JobID, 0, roomtest.Number(args[0]), args[1]})
	case "short":
		p.lacks = &shm.TooLittleMemory{Need: 1 << 30, Have: 3 << 20, Limit: "a file"}
	case "ends": // NUMBER [taken]
		mk := p.Under(args[0]).(act.Make)
		made := act.Made{Of: mk.Of}
		if len(args) > 1 {
			made.Err = errors.New(args[1])
		} else {
			made.Arena = roomtest.Memory(p.T, shm.Spec{Rank: 0, Geometry: mk.Spec.Geometry})
		}
		p.Learn(made)
	case "closes": // the daemon does
		p.Say("%d arenas were not handed out", len(p.room.Close()))
	default:
		return false, nil
	}
	return true, nil
}

func (p *play) Text(v any) string {
	switch v := v.(type) {
	case HandOut:
		if v.Arena == nil {
			return fmt.Sprintf("answer request %d: it has its arena", v.Request)
		}
		p.out = v.Arena
		return fmt.Sprintf("hand out an arena of %d bytes to request %d", v.Arena.Header().ReplicatedBytes, v.Request)
	case Refuse:
		return fmt.Sprintf("refuse request %d with %d: %s", v.Request, v.Code, v.Text)
	case Waits:
		return fmt.Sprintf("rank %d stands still on purpose: %v", v.Rank, v.Is)
	}
	return fmt.Sprintf("%T", v)
}
