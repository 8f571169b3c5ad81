package writer

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// node is n1 of fixture.Job, without anything but an arena of its rank: what the room asks, and a transcript of what it wants.
type node struct {
	t         *testing.T
	room      *Room
	job       *replica.Job
	candidate replica.Candidate
	waitsAt   time.Time
	arena     *holding.Arena
	undurable error
	now       time.Time
	write     *Write // the newest
}

func newNode(t *testing.T, slots int) *node {
	n := &node{t: t, job: fixture.Job(), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	n.room = New(n)
	n.arena = roomtest.Arena(t, shm.Spec{Geometry: fixture.Geometry(t, false), Slots: slots})
	return n
}

func (n *node) Self() replica.Holder                   { return replica.Holder{Node: "n1", Incarnation: 11} }
func (n *node) Jobs() []room.JobView                   { return []room.JobView{n.view()} }
func (n *node) Job(replica.JobID) (room.JobView, bool) { return n.view(), n.job != nil }
func (n *node) Undurable() error                       { return n.undurable }
func (n *node) view() room.JobView {
	return room.JobView{Job: n.job, Candidate: n.candidate, WaitsAt: n.waitsAt, Retired: []*holding.Arena{n.arena}}
}
func (n *node) Open(job *replica.Job, c holding.Copy) (*holding.Reader, error) {
	return c.Open(job, func(a *holding.Arena, p shm.Place) { a.Release(p) })
}

// seals fills a slot.
func (n *node) seals(i int, g replica.Generation) shm.Info {
	n.t.Helper()
	return roomtest.Seal(n.t, n.arena, shm.Place{Kind: shm.Slot, Index: i}, g, replica.Digest{})
}

// named has a leader name a durable write of this node's shard of group 0, or none.
func (n *node) named(g replica.Generation, root replica.Digest) {
	n.job = fixture.Changed(n.job, func(j *replica.Job) {
		j.Writer = nil
		if !g.IsZero() {
			j.Writer = &replica.DurableWrite{Generation: g, Shards: []replica.Shard{{Part: replica.OfGroup(0), Node: "n1", Root: root}, {Part: replica.OfRank(1), Node: "n2"}}}
		}
	})
	n.room.Learn(n.now, Changed{n.job.ID})
}

// awaits has a commit wait from now on.
func (n *node) awaits(step replica.Step) {
	g := fixture.Gen(3, step)
	n.candidate = replica.Candidate{Job: n.job.ID, Term: 9, N: uint64(step), Position: replica.Position(g), Generation: g}
	n.waitsAt = n.now
}

// held tells whether something holds slot 0.
func (n *node) held() bool { return n.arena.Readers(shm.Place{Kind: shm.Slot}) > 0 }

// wants what the room asks for some time later, in words; the room is asked as often as it wants to be.
func (n *node) wants(after time.Duration, want ...string) {
	n.t.Helper()
	var got []string
	for end := n.now.Add(after); ; {
		got = append(got, n.step()...)
		next, due := n.room.Next()
		if !due || !n.now.Before(end) {
			break
		}
		n.now = next
		if n.now.After(end) {
			n.now = end
		}
	}
	if !slices.Equal(got, want) {
		n.t.Fatalf("until %v: %q, want %q", n.now.Format("05.000"), got, want)
	}
}

func (n *node) step() (got []string) {
	for _, e := range n.room.Step(n.now) {
		switch e := e.(type) {
		case Report:
			text := fmt.Sprintf("report %v of %v: ", e.Part, e.Generation)
			switch {
			case e.Failed != "":
				text += "failed: " + e.Failed
			case e.Written > 0:
				text += fmt.Sprintf("%d bytes, late %d ms", e.Written, e.LateMS)
			default:
				text += "written, root " + e.Info.Root.String()[:4]
			}
			got = append(got, text)
		case *Write:
			n.write = e
			got = append(got, fmt.Sprintf("write %v of %v", e.Part, e.Generation))
		case Freed:
			got = append(got, "freed")
		case Mark:
			got = append(got, fmt.Sprintf("mark %v with %d shards", e.Marker.Generation, len(e.Marker.Shards)))
		case Unmarked:
			got = append(got, "unmarked: "+e.Failed)
		}
	}
	return got
}

// reads as many chunks as a write would, and tells whether it may.
func (n *node) reads(chunks int) (err error) {
	read := n.write.counting(func(uint64) {})(n.write.readers[0].ReadChunk, true)
	for i := range chunks {
		if _, err = read(i, nil); err != nil {
			break
		}
	}
	return err
}

var (
	gen5 = fixture.Gen(3, 5)
	gen9 = fixture.Gen(3, 9)
)

const (
	write5 = "write group 0 of (3,5)"
	idle5  = "report group 0 of (3,5): failed: no byte was written for 2s while the commit of step 6 waited: the slot that it held is free for that. See what ails the file system of durable_dir"
)

// begun is a node that writes its shard of generation 5, out of slot 0.
func begun(t *testing.T, slots int) *node {
	n := newNode(t, slots)
	n.named(gen5, n.seals(0, gen5).Root)
	n.wants(0, write5)
	return n
}

// returns ends the newest write.
func (n *node) returns(err error) {
	n.write.close()
	n.room.Learn(n.now, Returned{Write: n.write, Info: replica.ShardInfo{Part: n.write.Part, Root: n.write.readers[0].Manifest().Root}, Err: err})
}

// A shard is written once; how it ended is said once, and again to another leader.
func TestAShardIsWritten(t *testing.T) {
	n := begun(t, 2)
	n.room.Learn(n.now, Changed{n.job.ID})
	n.wants(time.Minute)
	n.returns(nil)
	written := "report group 0 of (3,5): written, root " + n.write.readers[0].Manifest().Root.String()[:4]
	n.wants(time.Minute, written)
	n.room.Learn(n.now, Linked{})
	n.wants(0, written)
	n.named(replica.Generation{}, replica.Digest{})
	n.room.Learn(n.now, Linked{})
	n.wants(time.Minute)
}

// A node that misses the view between two durable writes used to take its shard of the second for begun.
func TestNextDurableWriteIsAnother(t *testing.T) {
	n := begun(t, 4)
	n.named(gen9, n.seals(1, gen9).Root)
	n.wants(0, "write group 0 of (3,9)")
	if n.held() {
		t.Error("the slot of the former write is held")
	}
	n.room.Learn(n.now, Linked{})
	n.wants(0)
}

// What can't be written is said at once.
func TestAShardThatCanNotBeWritten(t *testing.T) {
	n := newNode(t, 2)
	n.named(gen5, replica.Digest{7})
	n.wants(0, "report group 0 of (3,5): failed: group 0 of generation (3,5) is not held here any more")
	n.undurable = errors.New("no disk")
	n.named(gen9, replica.Digest{7})
	n.wants(0, "report group 0 of (3,9): failed: no disk")
	n.room.Learn(n.now, Ordered{control.MarkerOrder{Job: n.job.ID, Generation: gen9}})
	n.wants(0, "unmarked: no disk")
}

// A marker is written for the durable write under way alone.
func TestAMarkerIsOrdered(t *testing.T) {
	n := begun(t, 2)
	order := func(g replica.Generation) {
		n.room.Learn(n.now, Ordered{control.MarkerOrder{Job: n.job.ID, Generation: g, Shards: []control.ShardReport{{Part: replica.OfGroup(0)}, {Part: replica.OfRank(1)}}}})
	}
	order(gen9)
	n.wants(0)
	order(gen5)
	n.wants(0, "mark (3,5) with 2 shards")
}

// The leader hears how far a shard is while bytes of it are written, and nothing of one that stands still.
func TestAShardThatGrowsIsReported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var said []uint64
		counted := new(Write).counting(func(bytes uint64) { said = append(said, bytes) })
		read := func(takes time.Duration) func(int, []byte) ([]byte, error) {
			return counted(func(int, []byte) ([]byte, error) { time.Sleep(takes); return make([]byte, 1000), nil }, true)
		}
		slow, fast := read(growsEvery/4), read(time.Millisecond)
		for i := range 9 {
			slow(i, nil) //nolint:errcheck // it has none
		}
		for i := range 100 {
			fast(i, nil) //nolint:errcheck // it has none
		}
		if want := []uint64{4000, 8000}; !slices.Equal(said, want) {
			t.Errorf("said %v, want %v", said, want)
		}
	})
	n := begun(t, 2)
	n.room.Learn(n.now, Grew{n.write, 4000})
	n.wants(0, "report group 0 of (3,5): 4000 bytes, late 0 ms")
	n.named(replica.Generation{}, replica.Digest{})
	n.room.Learn(n.now, Grew{n.write, 8000})
	n.wants(0)
}

// A durable write holds the slot that it reads: until that is read whole, or until it stands still while a commit waits. What reads on then is
// refused, and the leader hears that the shard has failed, so that no marker names its file.
func TestADurableWriteGivesItsSlotUp(t *testing.T) {
	for what, c := range map[string]struct {
		read    int // chunks
		passed  time.Duration
		waits   bool // a commit does
		holds   bool
		failing bool
	}{
		"it stands still while a commit waits": {1, idle + lookEvery, true, false, true},
		"it has just moved":                    {1, idle - time.Millisecond, true, true, false},
		"no commit waits":                      {1, time.Hour, false, true, false},
		"all is read, and syncing takes long":  {-1, time.Hour, true, false, false},
		"all is read, and no commit waits":     {-1, time.Hour, false, false, false},
	} {
		n := begun(t, 2)
		if c.waits {
			n.awaits(6)
		}
		if c.read < 0 {
			c.read = len(n.write.readers[0].Manifest().Chunks)
		}
		if err := n.reads(c.read); err != nil {
			t.Fatal(err)
		}
		var want []string
		if c.failing {
			want = []string{idle5, "freed"}
		}
		n.wants(c.passed, want...)
		if n.held() != c.holds {
			t.Errorf("%s: the slot is held: %v", what, n.held())
		}
		if err := n.reads(1); (err == nil) != c.holds {
			t.Errorf("%s: a further read: %v", what, err)
		}
		if hung := len(n.room.hung) == 1; hung != c.failing {
			t.Errorf("%s: %d writes count as hung", what, len(n.room.hung))
		}
		n.write.close()
		if n.held() {
			t.Errorf("%s: held at the end", what)
		}
	}
}

// While a write that was given up has not returned no other is begun on the node: it would keep a slot from a commit as the first one did.
func TestNoWriteIsBegunBesideOneThatHangs(t *testing.T) {
	n := begun(t, 4)
	n.awaits(6)
	n.wants(idle, idle5, "freed")
	hung := n.write
	n.waitsAt = n.now.Add(time.Hour)
	n.now = n.now.Add(12 * time.Second)
	root := n.seals(1, gen9).Root
	n.named(gen9, root)
	n.wants(0, "report group 0 of (3,9): failed: the write of generation (3,5) was given up 12s ago and has not returned: see what ails the file system of durable_dir")
	n.room.Learn(n.now, Returned{Write: hung, Err: errors.New("too late")})
	n.wants(0)
	n.named(replica.Generation{}, replica.Digest{})
	n.named(gen9, root)
	n.wants(0, "write group 0 of (3,9)")
}

// Of a write that moves and holds the slot which the candidate lacks the leader hears, once a second; of one that holds nobody up it does not.
func TestAWriteThatHoldsACommitUpIsReported(t *testing.T) {
	for what, c := range map[string]struct {
		slots int
		holds replica.Step // of the other slot; 0: it is free
		late  bool
	}{
		"no place is left":      {2, 4, true},
		"a place is free":       {3, 4, false},
		"the candidate is here": {2, 6, false},
	} {
		n := newNode(t, c.slots)
		root := n.seals(0, gen5).Root
		n.seals(1, fixture.Gen(3, c.holds))
		n.named(gen5, root)
		n.wants(0, write5)
		n.awaits(6)
		n.waitsAt = n.now.Add(-3 * time.Second)
		for i := range 3 {
			var want []string
			n.write.moved.Add(1 << 20)
			if c.late && i != 1 {
				want = []string{fmt.Sprintf("report group 0 of (3,5): %d bytes, late %d ms", (i+1)<<20, 3000+500*(i+1))}
			}
			n.now = n.now.Add(500 * time.Millisecond)
			n.wants(0, want...)
		}
		if len(n.room.hung) != 0 {
			t.Errorf("%s: it is given up", what)
		}
	}
}

// Of a job that the node does not know any more nothing is held.
func TestAJobIsForgotten(t *testing.T) {
	n := begun(t, 2)
	n.job = nil
	n.now = n.now.Add(lookEvery)
	n.wants(0)
	if _, due := n.room.Next(); due || n.held() {
		t.Error("its slot is held")
	}
}
