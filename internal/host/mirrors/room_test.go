package mirrors

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// node is n1 of fixture.Job, and a transcript of what its room wants. Rank 1 is on n2, and n1 mirrors its private parts.
type node struct {
	t      *testing.T
	room   *Room
	job    *replica.Job
	from   *holding.Arena // of rank 1, on its own node
	now    time.Time
	fetch  *Fetch
	held   *holding.Arena // the newest
	failed []string
}

func newNode(t *testing.T) *node {
	n := &node{t: t, job: fixture.Job(), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), from: roomtest.Arena(t, shm.Spec{Rank: 1, Geometry: fixture.Geometry(t, false)})}
	n.room = New(n, n, "n1")
	return n
}

func (n *node) Jobs() []room.JobView { return []room.JobView{n.view()} }
func (n *node) Job(replica.JobID) (room.JobView, bool) {
	return n.view(), true
}
func (n *node) view() room.JobView {
	return room.JobView{Job: n.job, Mirrors: n.room.Of(n.job.ID).All()}
}
func (n *node) Spec(job *replica.Job, r replica.Rank) shm.Spec {
	return shm.Spec{Cluster: fixture.Cluster, Era: 1, Job: job.ID, Rank: r, ChunkBytes: 4096, Slots: 2, Margin: 1 << 20}
}
func (n *node) Hold(a *shm.Arena, key string) *holding.Arena {
	n.held = roomtest.Hold(a, key)
	return n.held
}
func (n *node) Failed(what, subject, why string) { n.failed = append(n.failed, what+": "+why) }
func (n *node) Retried(what, subject, why string) {
	n.failed = append(n.failed, what+" "+subject+": "+why)
}

// manifest of a private part of rank 1.
func (n *node) manifest(g replica.Generation) replica.Manifest {
	man := roomtest.Manifest(n.from, shm.Place{Kind: shm.Ring}, g)
	man.Regions = n.from.Geometry().Of(replica.PrivatePart)
	return man
}

// mirrors makes this node one of rank 1's private part, or of group 0.
func (n *node) mirrors(p replica.Part) *holding.Arena {
	spec := shm.Spec{Rank: 1, Geometry: fixture.Geometry(n.t, false), Mirror: true}
	if p.Kind == replica.ReplicatedPart {
		spec.Slots, spec.Ring = 2, -1
	}
	a := roomtest.Arena(n.t, spec)
	n.room.Adopt(n.job.ID, p, a)
	n.wants(0, "reserve")
	return a
}

// wants what the room asks for some time later, in words.
func (n *node) wants(after time.Duration, want ...string) {
	n.t.Helper()
	n.now = n.now.Add(after)
	var got []string
	for _, e := range n.room.Step(n.now) {
		switch e := e.(type) {
		case act.Make:
			got = append(got, fmt.Sprintf("make %v", e.Of.(*Making).key))
		case act.Park:
			got = append(got, "park")
		case act.Reserve:
			got = append(got, "reserve")
		case act.Forget:
			got = append(got, "forget")
		case act.Unmap:
			got = append(got, "drop")
		case *Fetch:
			var from []string
			for _, h := range e.Source.Holders {
				from = append(from, string(h.Node))
			}
			got, n.fetch = append(got, fmt.Sprintf("fetch %v of %v for rank %d from %v", e.Source.Part, e.Plan.Generation, e.Rank, from)), e
		case act.Send:
			said := e.Msg.(control.Unreached)
			got = append(got, fmt.Sprintf("failing %v from %v", said.Part, said.To))
		case act.Wake:
			got = append(got, map[act.Depth]string{act.Commit: "came", act.Reconcile: "lost"}[e.Depth])
		}
	}
	if !slices.Equal(got, want) {
		n.t.Fatalf("at %v: %q, want %q", n.now.Format("05.000"), got, want)
	}
}

// finds asks for rank 1's arena.
func (n *node) finds(man replica.Manifest) (*holding.Arena, *Making, error) {
	return n.room.Find(n.now, n.job, 1, man)
}

// An arena is made once, however often it is asked for, and counts once it is parked. One of another geometry takes its place after that.
func TestAnArenaIsMadeOnce(t *testing.T) {
	n := newNode(t)
	man := n.manifest(fixture.Gen(3, 6))
	_, mk, err := n.finds(man)
	if err != nil || mk == nil {
		t.Fatal(mk, err)
	}
	n.wants(0, "make private 1")
	if _, same, err := n.finds(man); same != mk || err != nil {
		t.Errorf("asked again: %v, %v", same, err)
	}
	n.wants(0)
	made := roomtest.Memory(t, shm.Spec{Rank: 1, Geometry: fixture.Geometry(t, false), Mirror: true})
	n.room.Learn(n.now, act.Made{Of: mk, Arena: made})
	n.wants(0, "park")
	held := n.room.Of(n.job.ID)
	if len(held.All()) != 0 || len(held.Coming()) != 1 {
		t.Errorf("%d mirrors and %d to come before it is parked", len(held.All()), len(held.Coming()))
	}
	n.room.Learn(n.now, Parked{mk})
	n.wants(0, "reserve")
	select {
	case <-mk.Done():
	default:
		t.Error("who waits is not told")
	}
	if a, mk, err := n.finds(man); a != n.held || mk != nil || err != nil || len(held.Coming()) != 0 {
		t.Errorf("found %v, %v, %v", a, mk, err)
	}
	other := man
	other.Regions = slices.Clone(man.Regions)
	other.Regions[0].Name = "another"
	g := replica.Geometry{Regions: other.Regions}
	other.Geometry = shm.GeometryDigest(g, replica.PrivatePart)
	_, mk, err = n.finds(other)
	if err != nil || mk == nil {
		t.Fatalf("another geometry: %v", err)
	}
	n.wants(0, "make private 1")
	n.room.Learn(n.now, act.Made{Of: mk, Arena: roomtest.Memory(t, shm.Spec{Rank: 1, Geometry: fixture.Geometry(t, false), Mirror: true})})
	n.room.Learn(n.now, Parked{mk})
	n.wants(0, "park", "reserve", "forget")
}

// Who asks for another geometry than that on its way comes again, until that is late: then its node has another one mirror the part.
func TestAnArenaThatIsLate(t *testing.T) {
	n := newNode(t)
	man := n.manifest(fixture.Gen(3, 6))
	_, mk, _ := n.finds(man)
	n.wants(0, "make private 1")
	other := man
	other.Geometry[0]++
	if _, _, err := n.finds(other); !errors.Is(err, transfer.ErrNotYet) {
		t.Errorf("another geometry meanwhile: %v", err)
	}
	long := makingLong(2 * man.Bytes)
	if err := mk.Late(n.now.Add(long)); err != nil {
		t.Error(err)
	}
	n.wants(long + 1)
	if mk.Late(n.now) == nil {
		t.Error("it is not late")
	}
	if _, _, err := n.finds(other); err == nil || errors.Is(err, transfer.ErrNotYet) {
		t.Errorf("another geometry, when it is late: %v", err)
	}
	if long := makingLong(160 << 30); long < 5*time.Minute {
		t.Errorf("an arena of 160 GiB may take %v to be reserved", long)
	}
	n.room.Learn(n.now, act.Made{Of: mk, Err: errors.New("no memory")})
	n.wants(0)
	if mk.Err() == nil || len(n.room.Of(n.job.ID).making) != 0 {
		t.Error("its failure is not told")
	}
}

// The job may end while an arena is made: what was made is given back.
func TestTheJobEndsMeanwhile(t *testing.T) {
	for _, parked := range []bool{false, true} {
		n := newNode(t)
		_, mk, _ := n.finds(n.manifest(fixture.Gen(3, 6)))
		n.wants(0, "make private 1")
		ends := func() { n.job = fixture.Changed(n.job, func(j *replica.Job) { j.Phase = replica.Ended }) }
		made := act.Made{Of: mk, Arena: roomtest.Memory(t, shm.Spec{Rank: 1, Geometry: fixture.Geometry(t, false), Mirror: true})}
		if parked {
			n.room.Learn(n.now, made)
			n.wants(0, "park")
			ends()
			n.room.Learn(n.now, Parked{mk})
			n.wants(0, "forget")
		} else {
			ends()
			n.room.Learn(n.now, made)
			n.wants(0, "drop")
		}
		if !errors.Is(mk.Err(), transfer.ErrFenced) {
			t.Errorf("parked %v: %v", parked, mk.Err())
		}
		if _, _, err := n.finds(n.manifest(fixture.Gen(3, 6))); !errors.Is(err, transfer.ErrFenced) {
			t.Errorf("asked after the end: %v", err)
		}
	}
}

// planned is the job with a plan whose parts n2 holds.
func (n *node) planned() {
	n.job = fixture.Changed(fixture.Closed(n.job), func(j *replica.Job) {
		j.Epoch, j.Phase = 4, replica.Planned
		held := []replica.Holder{{Node: "n2", Incarnation: 22}}
		j.Plan = &replica.Plan{Epoch: 4, Generation: fixture.Gen(3, 5), Layout: j.Layout, Ranks: j.Ranks, Mirrors: j.Mirrors, Sources: []replica.Source{
			{Part: replica.OfGroup(0), Root: replica.Digest{7}, Tier: replica.PeerRAM, Holders: held},
			{Part: replica.OfRank(1), Root: roomtest.Manifest(n.from, shm.Place{Kind: shm.Ring}, fixture.Gen(3, 5)).Root, Tier: replica.PeerRAM, Holders: held}}}
	})
	n.room.Learn(n.now, act.Changed{Job: n.job.ID})
}

const private = "fetch private 1 of (3,5) for rank 1 from [n2]"

// A part of the plan is fetched until it is here, once at a time. The third failure names the holders that could not be dialled.
func TestAPartOfThePlanIsFetched(t *testing.T) {
	n := newNode(t)
	a := n.mirrors(replica.OfRank(1))
	n.planned()
	n.wants(0, private)
	n.wants(lookEvery) // under way
	broken := errors.New("dial: connection refused")
	for try := 1; try <= room.TriesSaid; try++ {
		n.fetch.Missed = room.Missed{Part: replica.OfRank(1), Nodes: []replica.NodeName{"n2"}}
		n.room.Learn(n.now, act.Ended{Of: n.fetch, Err: broken})
		if try == room.TriesSaid {
			n.wants(0, "failing private 1 from [n2]", "came")
		} else {
			n.wants(0, "came")
		}
		n.wants(retry - 1)
		n.wants(lookEvery, private)
	}
	if len(n.failed) != room.TriesSaid {
		t.Errorf("logged %q", n.failed)
	}
	n.room.Learn(n.now, act.Ended{Of: n.fetch, Err: holding.ErrBrought}) // its maker brings it: no failure
	n.wants(0, "came")
	roomtest.Seal(t, a, shm.Place{Kind: shm.Ring}, fixture.Gen(3, 5), replica.Digest{})
	n.wants(time.Second) // it is here
}

// What its maker brings is not fetched.
func TestWhatIsBroughtIsNotFetched(t *testing.T) {
	n := newNode(t)
	a := n.mirrors(replica.OfRank(1))
	s, err := a.Take(shm.Place{Kind: shm.Ring}, roomtest.Manifest(n.from, shm.Place{Kind: shm.Ring}, fixture.Gen(3, 5)))
	if err != nil {
		t.Fatal(err)
	}
	n.planned()
	n.wants(0)
	s.Abort() // the push broke off
	a.Unstage(shm.Place{Kind: shm.Ring}, s)
	n.wants(lookEvery, private)
}

// A node that the leader names fetches the part for others; each node knows who was asked, for that epoch alone.
func TestRelay(t *testing.T) {
	n := newNode(t)
	n.job.Mirrors = nil
	n.planned()
	n.wants(0)
	order := Relay{control.RelayOrder{Job: fixture.JobID, Epoch: 4, Part: replica.OfGroup(0), Rank: 0, Node: replica.Holder{Node: "n3", Incarnation: 33}}}
	n.room.Learn(n.now, order)
	n.room.Learn(n.now, order)
	n.wants(0)
	held := n.room.Of(n.job.ID)
	if got := held.Relays(replica.FrozenOf(0), 4); len(got) != 1 || !held.Relayed(replica.OfGroup(0), 4, "n3") || held.Relayed(replica.OfRank(0), 4, "n3") || held.Relayed(replica.OfGroup(0), 5, "n3") {
		t.Errorf("relays %v", got)
	}
	order.Node = replica.Holder{Node: "n1", Incarnation: 11}
	n.room.Learn(n.now, order)
	n.wants(0, "fetch group 0 of (3,5) for rank 0 from [n2]")
}

// A node that is not to mirror a part any more keeps the arena while the job may go back to what is there. The end of the job ends all.
func TestArenasThatNobodyNeeds(t *testing.T) {
	n := newNode(t)
	a := n.mirrors(replica.OfRank(1))
	roomtest.Seal(t, a, shm.Place{Kind: shm.Ring}, fixture.Gen(3, 5), replica.Digest{})
	n.room.Learn(n.now, act.Committed{Job: n.job.ID})
	n.wants(0)
	n.job = fixture.Changed(n.job, func(j *replica.Job) { j.Mirrors = [][]replica.NodeName{{"n2"}, {"n3"}} })
	n.room.Learn(n.now, act.Changed{Job: n.job.ID})
	n.wants(0) // it holds what is committed
	n.job = fixture.Changed(n.job, func(j *replica.Job) { j.Committed = fixture.Gen(3, 6) })
	n.room.Learn(n.now, act.Committed{Job: n.job.ID})
	n.wants(0, "forget")
	n.mirrors(replica.OfRank(1))
	n.mirrors(replica.OfGroup(0))
	n.job = fixture.Changed(n.job, func(j *replica.Job) { j.Phase = replica.Ended })
	n.room.Learn(n.now, act.Changed{Job: n.job.ID})
	n.wants(0, "forget", "forget")
}

// Memory that others took ends a mirror, and nothing else.
func TestMemoryThatOthersTook(t *testing.T) {
	n := newNode(t)
	a := n.mirrors(replica.OfRank(1))
	n.room.Learn(n.now, Short{a, errors.New("too little memory")})
	n.wants(0, "forget", "lost")
	n.room.Learn(n.now, Short{a, errors.New("too little memory")})
	n.wants(0)
	if len(n.failed) != 1 {
		t.Errorf("logged %q", n.failed)
	}
}

// Of two arenas of one part that come back, that with the newer part is the mirror, and nothing half done stays in it.
func TestTwoComeBack(t *testing.T) {
	for _, newerFirst := range []bool{true, false} {
		n := newNode(t)
		spec := shm.Spec{Rank: 1, Geometry: fixture.Geometry(t, false), Mirror: true}
		older, newer := roomtest.Arena(t, spec), roomtest.Arena(t, spec)
		roomtest.Seal(t, older, shm.Place{Kind: shm.Ring}, fixture.Gen(3, 4), replica.Digest{})
		roomtest.Seal(t, newer, shm.Place{Kind: shm.Ring}, fixture.Gen(3, 5), replica.Digest{})
		half := shm.Place{Kind: shm.Ring, Index: 1}
		if _, err := newer.Stage(half, roomtest.Manifest(newer, half, fixture.Gen(3, 6))); err != nil {
			t.Fatal(err)
		}
		first, second := older, newer
		if newerFirst {
			first, second = newer, older
		}
		if n.room.Adopt(n.job.ID, replica.OfRank(1), first) != nil {
			t.Error("the first one has another one beside it")
		}
		if n.room.Adopt(n.job.ID, replica.OfRank(1), second) != older || n.room.Of(n.job.ID).Arena(replica.OfRank(1)) != newer {
			t.Errorf("newer first %v: the older one is the mirror", newerFirst)
		}
		if st := newer.Word(half).State(); st != replica.SlotFree {
			t.Errorf("what the dead daemon was writing is %v", st)
		}
	}
}
