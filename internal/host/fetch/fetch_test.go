package fetch

import (
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/journal/journaltest"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// node has rank 0 of a job that goes on at (3,5), and one arena. What a fetch wants of it is taken down.
type node struct {
	t     *testing.T
	job   *replica.Job
	arena *holding.Arena
	gone  bool // the job is not known any more
	words []string

	before func() // a fetch stages a part
	ends   error  // of a fetch
	wanted []mover.Wanted
	man    map[replica.Part]replica.Manifest // what holders have
}

func newNode(t *testing.T) (*node, *Parts) {
	n := &node{t: t, job: fixture.Job(), arena: roomtest.Arena(t, shm.Spec{Slots: 2, Ring: 4, Geometry: fixture.Geometry(t, false)}), man: map[replica.Part]replica.Manifest{}}
	at := fixture.Gen(3, 5)
	sources := []replica.Source{}
	for _, p := range []shm.Place{{Kind: shm.Slot}, {Kind: shm.Ring}} {
		man := roomtest.Manifest(n.arena, p, at)
		man.Root = shm.Root(&man)
		n.man[man.Part] = man
		sources = append(sources, replica.Source{Part: man.Part, Root: man.Root, Tier: replica.PeerRAM, Holders: []replica.Holder{{Node: "n2", Incarnation: 22}}})
	}
	n.job = fixture.Changed(fixture.Closed(n.job), func(j *replica.Job) {
		j.Phase, j.Epoch = replica.Planned, 4
		j.Plan = &replica.Plan{Epoch: 4, Generation: at, Layout: j.Layout, Ranks: j.Ranks, Sources: sources}
	})
	f := &Fetcher{Self: "n1", Cluster: fixture.Cluster, Log: journaltest.New(t, &fixture.Lines{}), Mover: n, Reuse: (*shm.Staging).Reuse,
		Ask: func(_ context.Context, r Request) error { r.Serve(n); return nil }}
	return n, &Parts{Fetcher: f, Job: n.job, Plan: n.job.Plan, Rank: 0, Incarnation: 4, Tier: replica.OwnRAM}
}

func (n *node) Job(replica.JobID) (room.JobView, bool) {
	if n.gone {
		return room.JobView{}, false
	}
	return room.JobView{Job: n.job, Fenced: 3, Ranks: []room.Rank{{Arena: n.arena}}}, true
}
func (n *node) Nodes() map[replica.NodeName]replica.Node {
	return map[replica.NodeName]replica.Node{"n2": {Name: "n2", Incarnation: 22}}
}
func (n *node) Relays(replica.JobID, replica.Part, replica.Epoch) []replica.Holder {
	return []replica.Holder{{Node: "n1"}, {Node: "n3", Incarnation: 33}}
}
func (n *node) Reading(replica.JobID, *holding.Arena, shm.Place) Reading { return nil }
func (n *node) Take(_ replica.JobID, a *holding.Arena, m replica.Manifest) (shm.Place, *shm.Staging, error) {
	return a.TakeFor(m, func() []shm.Place { return nil })
}
func (n *node) Spoiled(_ replica.JobID, lost replica.Held, disk bool) {
	n.words = append(n.words, map[bool]string{false: "spoiled ", true: "spoiled on disk "}[disk]+lost.Part.String())
}
func (n *node) GivenUp(_ replica.JobID, c holding.Copy) {
	n.words = append(n.words, "given up "+c.Held.Part.String())
}
func (n *node) Corrupt(c control.CorruptCopy, nodes []replica.NodeName) {
	for _, of := range nodes {
		n.words = append(n.words, "corrupt "+c.Part.String()+" from "+string(of))
	}
}

// Fetch has zeros, as a mover would bring them.
func (n *node) Fetch(_ context.Context, w mover.Wanted, begin func(replica.Manifest) (mover.Staging, error)) (mover.Fetched, error) {
	n.wanted = append(n.wanted, w)
	if n.before != nil {
		n.before()
	}
	man := n.man[w.Key.Part]
	s, err := begin(man)
	if err != nil {
		return mover.Fetched{Unreached: []replica.NodeName{"n2"}}, err
	}
	for i := 0; n.ends == nil && i < len(man.Chunks); i++ {
		_, size := replica.ChunkSpan(i, man.Bytes, man.ChunkBytes)
		if err := s.Put(i, make([]byte, size)); err != nil {
			n.t.Fatal(err)
		}
	}
	got := mover.Fetched{Manifest: man, Report: transfer.Report{Corrupt: []replica.NodeName{"n2"}}, BadDisk: n.ends != nil}
	if n.ends != nil {
		s.Abort()
		return got, n.ends
	}
	return got, s.Seal()
}

func (n *node) took(want ...string) {
	n.t.Helper()
	if !slices.Equal(n.words, want) {
		n.t.Errorf("the node took down %q, want %q", n.words, want)
	}
	n.words = nil
}

// What lies there is read and not fetched, what does not comes from the holders, and whoever fetches it for others.
func TestEnsure(t *testing.T) {
	n, f := newNode(t)
	group := replica.OfGroup(0)
	place, err := f.Ensure(t.Context(), n.arena, shm.Slot, group)
	if err != nil || n.arena.Word(place).State() != replica.SlotSealed || f.Tier != replica.PeerRAM {
		t.Fatalf("%v in state %v, from tier %v: %v", place, n.arena.Word(place).State(), f.Tier, err)
	}
	n.took("corrupt group 0 from n2")
	if want := []replica.Holder{{Node: "n2", Incarnation: 22}, {Node: "n3", Incarnation: 33}}; !slices.Equal(n.wanted[0].Holders, want) {
		t.Errorf("fetched from %v, want %v", n.wanted[0].Holders, want)
	}
	again, err := f.Ensure(t.Context(), n.arena, shm.Slot, group)
	if err != nil || again != place || len(n.wanted) != 1 || n.arena.Readers(place) != 0 {
		t.Errorf("the second time: %v, %v, %d fetches, %d readers", again, err, len(n.wanted), n.arena.Readers(place))
	}
	n.took()
}

// A fetch that fails gives its place back and reports which copies were bad.
func TestAFetchThatFails(t *testing.T) {
	n, f := newNode(t)
	n.ends = errors.New("all lanes stalled")
	if _, err := f.Ensure(t.Context(), n.arena, shm.Ring, replica.OfRank(0)); !errors.Is(err, n.ends) {
		t.Error(err)
	}
	n.took("corrupt private 0 from n2", "spoiled on disk private 0")
	for _, p := range n.arena.Places() {
		if s := n.arena.Word(p).State(); s != replica.SlotFree {
			t.Errorf("%v is left %v", p, s)
		}
	}
}

// Nothing is staged once the epoch is closed, or the job is forgotten, also where that happens while a manifest is on its way.
func TestAClosedEpochStagesNothing(t *testing.T) {
	for what, closes := range map[string]func(*node){
		"closed":    func(n *node) { n.job = fixture.Changed(n.job, func(j *replica.Job) { j.ClosedEpoch = 4 }) },
		"ended":     func(n *node) { n.job = fixture.Changed(n.job, func(j *replica.Job) { j.Phase = replica.Ended }) },
		"forgotten": func(n *node) { n.gone = true },
	} {
		n, f := newNode(t)
		n.before = func() { closes(n) }
		if _, err := f.Ensure(t.Context(), n.arena, shm.Slot, replica.OfGroup(0)); !errors.Is(err, transfer.ErrFenced) {
			t.Errorf("%s: %v", what, err)
		}
		if f.Missed.Part != replica.OfGroup(0) || !slices.Equal(f.Missed.Nodes, []replica.NodeName{"n2"}) {
			t.Errorf("%s: missed %+v", what, f.Missed)
		}
	}
}

// A copy with a flipped bit is given up, and reported as the part of the plan that is lost with it.
func TestVerifyGivesABadCopyUp(t *testing.T) {
	n, f := newNode(t)
	place, err := f.Ensure(t.Context(), n.arena, shm.Ring, replica.OfRank(0))
	if err != nil {
		t.Fatal(err)
	}
	n.took("corrupt private 0 from n2")
	h := n.arena.Header()
	if _, err := n.arena.File().WriteAt([]byte{1}, int64(h.RingOffset)+int64(place.Index)*int64(h.RingStride)+7); err != nil {
		t.Fatal(err)
	}
	n.arena.Hold(place) // by a push: it finds out by the place's count
	defer n.arena.Release(place)
	lost := room.Lost(n.job, replica.OfRank(0), n.job.Plan.Generation, replica.Digest{1}, 0)
	good := f.Verify(t.Context(), n.job.ID, n.arena, place, lost)
	if good || n.arena.Word(place).State() != replica.SlotFree || n.arena.Readers(place) != 1 {
		t.Errorf("it is %v, with %d readers", n.arena.Word(place).State(), n.arena.Readers(place))
	}
	n.took("spoiled private 0", "given up private 0")
	if f.Verify(t.Context(), n.job.ID, n.arena, place, lost) {
		t.Error("a free place is good")
	}
}
