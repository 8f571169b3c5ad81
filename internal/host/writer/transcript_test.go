package writer

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// Transcripts play n1 of fixture.Job, without anything but an arena of its rank.
func TestTranscripts(t *testing.T) {
	roomtest.Transcripts(t, func(n *roomtest.Node, args []string) (act.Room, roomtest.Own) { // node [SLOTS]
		w := newOn(n, int(roomtest.Number(cmp.Or(strings.Join(args, ""), "2"))))
		return w.room, w
	})
}

// node is that node. Tests in Go play it too.
type node struct {
	*roomtest.Node
	room      *Room
	arena     *holding.Arena
	private   *holding.Arena // mirrors a rank's private part: its steps are known by that
	undurable error
	hangs     error  // a call to the store that was given up
	marked    Mark   // the newest
	write     *Write // the newest
	writes    uint64 // that were named
	more      []room.Mirror
	released  chan struct{}
}

func newNode(t *testing.T, slots int) *node {
	n := newOn(roomtest.NewNode(t), slots)
	n.Is(n.room, n)
	return n
}

func newOn(of *roomtest.Node, slots int) *node {
	n := &node{Node: of}
	twice := errors.Join(errors.New("part 3: HTTP 403"), errors.New("abort the upload: HTTP 403"))
	n.Errors = map[string]error{"twice": twice, "fenced": fmt.Errorf("claim: %w", tier.ErrFenced), "dropped": holding.ErrDropped}
	n.room = New(n)
	n.arena = n.Hold("rank-0", shm.Spec{Geometry: fixture.Geometry(n.T, false), Slots: slots})
	return n
}

func (n *node) Self() replica.Holder       { return replica.Holder{Node: "n1", Incarnation: 11} }
func (n *node) Cluster() replica.ClusterID { return fixture.Cluster }
func (n *node) Undurable() error           { return n.undurable }
func (n *node) Hangs() error               { return n.hangs }
func (n *node) Store() string              { return "the file system of durable_dir" }

func (n *node) Lacking(replica.JobID, replica.Generation) []replica.Lacking {
	return []replica.Lacking{{Rank: 1, Text: "buffer"}}
}

func (n *node) view() room.JobView {
	v := n.View
	v.Retired = []*holding.Arena{n.arena}
	if n.private != nil {
		v.Mirrors = append([]room.Mirror{{Part: replica.OfRank(0), Arena: n.private}}, n.more...)
	}
	return v
}

func (n *node) Jobs() []room.JobView                   { return []room.JobView{n.view()} }
func (n *node) Job(replica.JobID) (room.JobView, bool) { return n.view(), !n.Gone }

func (n *node) Open(job *replica.Job, c holding.Copy) (*holding.Reader, error) {
	return c.Open(job, func(a *holding.Arena, p shm.Place) {
		a.Release(p)
		if n.released != nil {
			n.released <- struct{}{}
		}
	})
}

func (n *node) Do(verb string, args []string) (bool, error) {
	switch verb {
	case "named": // [STEP PLACE|lost [turns]]: a durable write of this node's shard of group 0, or none
		n.named(args)
	case "awaits": // STEP [still]: its commit waits, or goes on waiting
		g := roomtest.Gen(args[0])
		n.View.Candidate = replica.Candidate{Job: fixture.JobID, Term: 9, N: uint64(g.Step), Position: replica.Position(g), Generation: g}
		if len(args) == 1 {
			n.View.WaitsAt = n.Now
		}
	case "lapses":
		n.View.Candidate = replica.Candidate{}
	case "makes": // STEP: a rank has come to it
		if n.private == nil {
			n.private = n.Hold("private", shm.Spec{Geometry: fixture.Geometry(n.T, false)})
		}
		if n.private.Word(shm.Place{Kind: shm.Ring}).State() == replica.SlotSealed {
			n.private.Free(shm.Place{Kind: shm.Ring})
		}
		n.Seal("private", "ring:0", args[0])
	case "moves": // BYTES, into the spool or out of it
		n.write.moved.Add(int64(roomtest.Number(args[0])))
	case "reads": // the slot, as the newest write does
		read := n.write.counting(n.write.pieces[0].slot.ReadChunk, n.write.pieces[0])
		for i := range n.write.pieces[0].slot.Manifest().Chunks {
			if _, err := read(i, nil); err != nil {
				n.Say("%v", err)
				break
			}
		}
	case "slot":
		n.Say("slot 0 is held: %v", n.held())
	case "ends": // NUMBER [WHY]
		if w, is := n.Under(args[0]).(*Write); is {
			w.close()
			w.Info = replica.Stored{Key: "group-0"}
		}
		return false, nil
	case "ails": // WRITE WHAT
		at := tier.Attempt{Job: fixture.JobID, Generation: gen5, Number: roomtest.Number(args[0])}
		n.Learn(Ailing{Attempt: at, What: strings.Join(args[1:], " ")})
	case "orders": // WRITE: a marker
		shards := []control.ShardReport{{Part: replica.OfGroup(0)}, {Part: replica.OfRank(1)}}
		n.Learn(Ordered{control.MarkerOrder{Job: fixture.JobID, Generation: gen5, Number: roomtest.Number(args[0]), Shards: shards}})
	case "marked": // WRITE [WHY NOT]
		at := tier.Attempt{Job: fixture.JobID, Generation: gen5, Number: roomtest.Number(args[0])}
		n.Learn(Marked{Mark: Mark{Attempt: at}, Failed: strings.Join(args[1:], " "), Fenced: len(args) > 1})
	case "turn": // WRITE
		n.Learn(Turned{control.WriteTurn{Job: fixture.JobID, Number: roomtest.Number(args[0])}})
	case "undurable": // [WHY]
		n.undurable = n.Err(args)
	case "hangs": // [WHAT]
		n.hangs = n.Err(args)
	case "remembers":
		for _, j := range n.room.jobs {
			n.Say("%d writes, %d discards", len(j.writes), len(j.discards))
		}
	default:
		return false, nil
	}
	return true, nil
}

func (n *node) named(args []string) {
	n.View.Job = fixture.Changed(n.View.Job, func(j *replica.Job) {
		if j.Writer = nil; len(args) == 0 {
			return
		}
		info, _ := n.arena.Info(roomtest.Place(args[1])) // none where it is lost
		n.writes++
		j.Writer = &replica.DurableWrite{Generation: roomtest.Gen(args[0]), Number: n.writes, Turns: len(args) > 2, Shards: []replica.Shard{
			{Part: replica.OfGroup(0), Node: "n1", Root: info.Root}, {Part: replica.OfRank(1), Node: "n2"}}}
	})
	n.Learn(act.Changed{Job: fixture.JobID})
}

// held tells whether something holds slot 0.
func (n *node) held() bool { return n.arena.Readers(shm.Place{Kind: shm.Slot}) > 0 }

func (n *node) Text(v any) string {
	switch v := v.(type) {
	case *Write:
		n.write = v
		return n.Runs(v, fmt.Sprintf("write %v of %v", v.Parts[0], v.Generation))
	case Discard:
		return n.Runs(v, fmt.Sprintf("discard %v of write %d", v.Objects, v.Number))
	case Mark:
		n.marked = v
		return fmt.Sprintf("mark %v, write %d, of %d parts with %d objects", v.Generation, v.Number, len(v.Roots), len(v.Objects))
	case control.MarkedReport:
		if v.Failed != "" {
			return fmt.Sprintf("marker of %v, write %d, failed, fenced %v: %s", v.Generation, v.Number, v.Fenced, v.Failed)
		}
		return fmt.Sprintf("marker of %v, write %d, is written", v.Generation, v.Number)
	case control.ShardReport:
		text := fmt.Sprintf("%v of %v, write %d, ", v.Part, v.Generation, v.Number)
		switch {
		case v.Failed != "":
			how := map[bool]string{true: " for a slot"}[v.Crowded] + map[bool]string{true: ", fenced"}[v.Fenced]
			return text + "failed" + how + ": " + v.Failed
		case v.Ails != "":
			return text + "ails: " + v.Ails
		case v.Written > 0:
			return text + fmt.Sprintf("has %d bytes, late %d ms", v.Written, v.LateMS)
		}
		return text + "is written as " + v.Info.Key
	}
	return fmt.Sprintf("%T", v)
}

var (
	gen5 = fixture.Gen(3, 5)
	gen9 = fixture.Gen(3, 9)
)

// begun is a node that writes its shard of generation 5, out of slot 0.
func begun(t *testing.T, slots int) *node {
	n := newNode(t, slots)
	n.Play("seals rank-0 slot:0 5")
	n.Play("named 5 slot:0")
	return n
}

// crowded is a node whose write holds the slot that the next commit lacks: the other one has step 8.
func crowded(t *testing.T) *node {
	n := begun(t, 2)
	n.Play("seals rank-0 slot:1 8")
	return n
}
