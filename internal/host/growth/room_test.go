package growth

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// node is n1 of fixture.Job with rank 0, which stands at the committed step, and a transcript of what its room wants.
type node struct {
	t      *testing.T
	room   *Room
	view   room.JobView
	gone   bool
	lacks  error
	making []*Making
	out    []*shm.Arena // that were handed out
	asks   uint64
	peer   session.Peer
}

// nobody is a session of which only the identity matters.
type nobody struct{ session.Peer }

func newNode(t *testing.T) *node {
	n := &node{t: t, peer: &nobody{}}
	a := roomtest.Arena(t, shm.Spec{Rank: 0, Geometry: fixture.Geometry(t, false)})
	n.view = room.JobView{Job: fixture.Job(), Ranks: []room.Rank{{Rank: 0, Incarnation: 4, Arena: a, Alive: true}}}
	a.SetOwner(4, 0, 0)
	n.write(1216, 4) // the words are that process's
	n.stands(3, 5)
	n.room = New(n)
	return n
}

func (n *node) Job(replica.JobID) (room.JobView, bool) { return n.view, !n.gone }
func (n *node) Lacks(shm.Spec) error                   { return n.lacks }
func (n *node) Spec(*replica.Job, replica.Rank) shm.Spec {
	return shm.Spec{Cluster: fixture.Cluster, Era: 1, Job: fixture.JobID, Rank: 0, ChunkBytes: 4096, Slots: 4, Margin: 1 << 20}
}

// stands writes the rank's step word.
func (n *node) stands(e replica.Epoch, s replica.Step) {
	n.t.Helper()
	n.write(512, uint64(replica.PackWord(e, s, replica.Idle)))
}

// write writes a word of the control page, as a rank does (layout.h).
func (n *node) write(at int64, word uint64) {
	n.t.Helper()
	if _, err := n.view.Ranks[0].Arena.File().WriteAt(binary.LittleEndian.AppendUint64(nil, word), at); err != nil {
		n.t.Fatal(err)
	}
}

// grown is the geometry with a region more, of so many bytes.
func (n *node) grown(bytes uint64) replica.Geometry {
	n.t.Helper()
	g, err := replica.NewGeometry(append(slices.Clone(fixture.Geometry(n.t, false).Regions), replica.Region{Name: "late", DType: replica.U8, Shape: []uint64{bytes}, Bytes: bytes}))
	if err != nil {
		n.t.Fatal(err)
	}
	return g
}

func (n *node) ask(bytes uint64, recipe string) {
	n.asks++
	n.room.Learn(time.Time{}, Asked{Job: fixture.JobID, Rank: 0, Incarnation: 4, Peer: n.peer, Request: uint32(n.asks), Ask: n.asks, Epoch: 3, Step: 5, Geometry: n.grown(bytes), Recipe: []byte(recipe)})
}

func (n *node) changes(change func(*replica.Job)) {
	n.view.Job = fixture.Changed(n.view.Job, change)
	n.room.Learn(time.Time{}, act.Changed{Job: fixture.JobID})
}

// decides has the job grow to what the rank asks for.
func (n *node) decides(bytes uint64) {
	n.changes(func(j *replica.Job) {
		j.Growth = &replica.Growth{Step: 5, Geometries: j.GroupGeometry}
		j.GroupGeometry = []replica.Digest{shm.GeometryDigest(n.grown(bytes), replica.ReplicatedPart)}
		j.Phase, j.ClosedEpoch, j.Epoch, j.Plan = replica.Opening, 3, 4, nil
	})
}

// makes ends the oldest Make.
func (n *node) makes(err error) {
	n.t.Helper()
	mk := n.making[0]
	n.making = n.making[1:]
	ev := act.Made{Of: mk, Err: err}
	if err == nil {
		ev.Arena = roomtest.Arena(n.t, shm.Spec{Rank: 0, Geometry: mk.of.Geometry}).Arena
	}
	n.room.Learn(time.Time{}, ev)
}

// wants what the room asks for now, in words.
func (n *node) wants(want ...string) {
	n.t.Helper()
	var got []string
	for _, e := range n.room.Step(time.Time{}) {
		switch e := e.(type) {
		case act.Make:
			got, n.making = append(got, fmt.Sprintf("make %d bytes", e.Spec.Geometry.ReplicatedBytes)), append(n.making, e.Of.(*Making))
		case act.Unmap:
			got = append(got, "drop")
		case HandOut:
			got = append(got, fmt.Sprintf("hand out to request %d, arena: %v", e.Request, e.Arena != nil))
			n.out = append(n.out, e.Arena)
		case Refuse:
			got = append(got, fmt.Sprintf("refuse request %d with %d: %s", e.Request, e.Code, e.Text))
		case Waits:
			got = append(got, fmt.Sprintf("waits: %v", e.Is))
		case act.Wake:
			got = append(got, map[act.Depth]string{act.Report: "tell"}[e.Depth])
		case act.Send:
			f := e.Msg.(control.Evidence).Fault
			got = append(got, fmt.Sprintf("blame rank %d of incarnation %d: %s", f.Rank, f.Incarnation, f.Detail))
		}
	}
	same := slices.EqualFunc(got, want, func(g, w string) bool {
		return g == w || strings.HasSuffix(w, "...") && strings.HasPrefix(g, strings.TrimSuffix(w, "..."))
	})
	if !same {
		n.t.Fatalf("%q, want %q", got, want)
	}
}

func (n *node) of() *replica.RankGrowth { return n.room.Of(fixture.JobID, 0) }

// The arena is made beside the present one, and handed out once the job has the growth: not before.
func TestAGrowthIsHandedOutOnceItIsDecided(t *testing.T) {
	n := newNode(t)
	n.ask(500, "recipe")
	n.wants("waits: true", "make 10560 bytes", "tell")
	if g := n.of(); g == nil || g.Prepared || g.Epoch != 3 || g.Step != 5 || string(g.RecipeBytes) != "recipe" || g.What != "1 regions more (0.5 KiB a rank)" || g.Differs != `"late" is extra` {
		t.Fatalf("%+v", g)
	}
	n.makes(nil)
	n.wants("tell")
	if g := n.of(); !g.Prepared || g.Refused != "" {
		t.Fatalf("%+v", g)
	}
	n.changes(func(*replica.Job) {})
	n.wants()
	n.decides(500)
	n.wants("hand out to request 1, arena: true", "waits: false", "tell")
	if n.of() != nil || n.room.Asks(fixture.JobID) {
		t.Error("it still asks")
	}
}

// The same asked again is the same, and keeps its arena; something else is another growth.
func TestAGrowthIsAskedForAgain(t *testing.T) {
	n := newNode(t)
	n.ask(500, "recipe")
	n.wants("waits: true", "make 10560 bytes", "tell")
	n.makes(nil)
	n.wants("tell")
	n.room.Learn(time.Time{}, act.Gone{Peer: n.peer})
	n.peer = &nobody{}
	n.ask(500, "recipe")
	n.wants()
	if g := n.of(); !g.Prepared || g.Ask != 1 {
		t.Fatalf("%+v", g)
	}
	n.ask(600, "recipe")
	n.wants("drop", "waits: false", "tell", "waits: true", "make 10688 bytes", "tell")
	n.ask(600, "other")
	n.wants("waits: false", "tell", "waits: true", "make 10688 bytes", "tell")
	n.makes(nil) // of the one before
	n.wants("drop")
	n.makes(nil)
	n.wants("tell")
	n.decides(600)
	n.wants("hand out to request 4, arena: true", "waits: false", "tell")
}

// Whatever ends it before it is decided leaves the rank as it was.
func TestAGrowthThatIsNotDecided(t *testing.T) {
	for name, c := range map[string]struct {
		happens func(*node)
		want    []string
	}{
		"the leader refuses":             {func(n *node) { n.room.Learn(time.Time{}, Refused{fixture.JobID, 0, 1, "no"}) }, []string{fmt.Sprintf("refuse request 1 with %d: no", wire.CodeRefused), "drop", "waits: false", "tell"}},
		"the leader refuses another ask": {func(n *node) { n.room.Learn(time.Time{}, Refused{fixture.JobID, 0, 9, "no"}) }, nil},
		"a fault": {func(n *node) { n.changes(func(j *replica.Job) { j.Phase, j.ClosedEpoch = replica.Closed, 3 }) },
			[]string{fmt.Sprintf("refuse request 1 with %d: epoch 3 was closed...", wire.CodeFenced), "drop", "waits: false", "tell"}},
		"the job ends":          {func(n *node) { n.changes(func(j *replica.Job) { j.Phase = replica.Ended }) }, []string{fmt.Sprintf("refuse request 1 with %d: ...", wire.CodeFenced), "drop", "waits: false", "tell"}},
		"the rank takes a step": {func(n *node) { n.stands(3, 6); n.changes(func(*replica.Job) {}) }, []string{"drop", "waits: false", "tell"}},
		"the rank joins":        {func(n *node) { n.view.Ranks[0].Waits = true; n.changes(func(*replica.Job) {}) }, []string{"drop", "waits: false", "tell"}},
		"the rank dies":         {func(n *node) { n.view.Ranks[0].Alive = false; n.changes(func(*replica.Job) {}) }, []string{"drop", "waits: false", "tell"}},
		"the job is forgotten":  {func(n *node) { n.gone = true; n.room.Learn(time.Time{}, act.Changed{Job: fixture.JobID}) }, []string{"drop", "waits: false", "tell"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNode(t)
			n.ask(500, "")
			n.wants("waits: true", "make 10560 bytes", "tell")
			n.makes(nil)
			n.wants("tell")
			c.happens(n)
			n.wants(c.want...)
			if (n.of() == nil) != (c.want != nil) {
				t.Errorf("%+v", n.of())
			}
		})
	}
}

// A refusal names the sum; a refused growth that is decided all the same, since the leader had not heard, is taken back.
func TestANodeWithoutMemory(t *testing.T) {
	n := newNode(t)
	n.lacks = &shm.TooLittleMemory{Need: 1 << 30, Have: 3 << 20, Limit: "a file"}
	n.ask(500, "")
	n.wants("waits: true", "tell")
	for _, text := range []string{"growing by 1 regions more (0.5 KiB a rank) takes an arena of ", "4 slots of 10.3 KiB", "beside the present one of ", "3.0 MiB of this node's memory are free"} {
		if g := n.of(); g.Prepared || !strings.Contains(g.Refused, text) {
			t.Errorf("%q lacks %q", g.Refused, text)
		}
	}
	n.decides(500)
	n.wants("blame rank 0 of incarnation 4: growth at step 5: growing by...", fmt.Sprintf("refuse request 1 with %d: growing by...", wire.CodeFenced), "waits: false", "tell")

	n = newNode(t)
	n.ask(500, "")
	n.wants("waits: true", "make 10560 bytes", "tell")
	n.makes(errors.New("taken"))
	n.wants("tell")
	if g := n.of(); !strings.HasSuffix(g.Refused, "taken") {
		t.Errorf("%+v", g)
	}
	n = newNode(t)
	n.view.Job = fixture.Changed(n.view.Job, func(j *replica.Job) { j.Options.PrivateCap = 10 })
	n.ask(500, "")
	n.wants("waits: true", "tell")
	if g := n.of(); !strings.Contains(g.Refused, "the cap is 10") {
		t.Errorf("%+v", g)
	}
}

// The daemon that made the arena has ended, or has handed it out and the rank never got the answer.
func TestADaemonThatFindsAGrowthDecided(t *testing.T) {
	n := newNode(t)
	n.decides(500)
	n.wants()
	n.ask(500, "")
	n.wants("waits: true", "make 10560 bytes", "tell")
	n.room.Learn(time.Time{}, act.Gone{Peer: n.peer})
	n.makes(nil)
	n.wants("tell")
	n.peer = &nobody{}
	n.ask(500, "")
	n.wants("hand out to request 2, arena: true", "waits: false", "tell")

	n.view.Ranks[0].Arena = holding.New(n.out[0], holding.GrownKey(fixture.JobID, 0, 4, 4), func(*shm.Arena) {})
	n.ask(500, "")
	n.wants("waits: true", "hand out to request 3, arena: false", "waits: false", "tell", "tell")
	n.ask(600, "")
	n.wants("waits: true", "blame rank 0 of incarnation 4: growth at step 5: it asks for other regions...", fmt.Sprintf("refuse request 4 with %d: it asks for...", wire.CodeFenced), "waits: false", "tell", "tell")
}

// A rank that has stopped without its arena can't seal its step: the fault takes the growth back.
func TestARankThatDoesNotWait(t *testing.T) {
	n := newNode(t)
	n.decides(500)
	n.view.Ranks[0].Waits = true
	n.changes(func(*replica.Job) {})
	n.wants("blame rank 0 of incarnation 4: the growth at step 5 was decided, and the rank went on...")
}
