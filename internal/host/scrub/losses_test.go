package scrub

import (
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
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// node is n1 of fixture.Job, without anything but its arenas: what the room asks, and a transcript of what it wants.
type node struct {
	t      *testing.T
	room   *Room
	job    *replica.Job
	arenas []*holding.Arena
	coming bool
	now    time.Time
	failed []string
	fetch  *Fetch
}

func newNode(t *testing.T) *node {
	n := &node{t: t, job: fixture.Job(), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	n.room = New(n, n, 0)
	return n
}

func (n *node) Self() replica.Holder { return replica.Holder{Node: "n1", Incarnation: 11} }
func (n *node) Holder(name replica.NodeName) replica.Holder {
	return of3(name)[0]
}
func (n *node) Jobs() []room.JobView                   { return []room.JobView{n.view()} }
func (n *node) Job(replica.JobID) (room.JobView, bool) { return n.view(), n.job != nil }
func (n *node) view() room.JobView                     { return room.JobView{Job: n.job, Retired: n.arenas} }
func (n *node) Coming(*holding.Arena, replica.Part, replica.Generation, replica.Digest) bool {
	return n.coming
}
func (n *node) Failed(what, subject, why string) {
	n.failed = append(n.failed, what+" "+subject+": "+why)
}

// holds makes an arena here.
func (n *node) holds(spec shm.Spec) *holding.Arena {
	n.t.Helper()
	n.arenas = append(n.arenas, roomtest.Arena(n.t, spec))
	return n.arenas[len(n.arenas)-1]
}

// commits records a generation of group 0, held by some nodes.
func (n *node) commits(g replica.Generation, root replica.Digest, holders ...replica.NodeName) {
	n.job = fixture.Changed(n.job, func(j *replica.Job) {
		j.Committed, j.Position = g, replica.Position(g)
		j.Parts = []replica.PartRoot{{Part: replica.OfGroup(0), Root: root, Holders: of3(holders...)}}
	})
}

func of3(names ...replica.NodeName) (out []replica.Holder) {
	for _, name := range names {
		out = append(out, replica.Holder{Node: name, Incarnation: map[replica.NodeName]replica.NodeIncarnation{"n1": 11, "n2": 22, "n3": 33}[name]})
	}
	return out
}

// gives a copy up, as whoever finds it bad.
func (n *node) gives(a *holding.Arena, p shm.Place) {
	n.t.Helper()
	for _, c := range n.view().Copies() {
		if c.Arena == a && c.Place == p {
			a.Free(p)
			n.room.Learn(n.now, GivenUp{n.job.ID, c})
			return
		}
	}
	n.t.Fatalf("nothing lies sealed in %v", p)
}

// wants what the room asks for some time later, in words.
func (n *node) wants(after time.Duration, want ...string) {
	n.t.Helper()
	n.now = n.now.Add(after)
	var got []string
	for _, e := range n.room.Step(n.now) {
		switch e := e.(type) {
		case act.Send:
			m := e.Msg.(control.CopyReport)
			got = append(got, fmt.Sprintf("report %v of %v lost %v", m.Part, m.Generation, m.Lost))
		case *Fetch:
			var from []string
			for _, h := range e.Source.Holders {
				from = append(from, string(h.Node))
			}
			text := fmt.Sprintf("fetch %v of %v from %s", e.Source.Part, e.Generation, strings.Join(from, " "))
			if !e.Frozen.IsZero() {
				text += ", what is frozen"
			}
			got, n.fetch = append(got, text), e
		case act.Cancel:
			if e.Of != act.Effect(n.fetch) {
				n.t.Error("another fetch is cancelled")
			}
			got = append(got, "cancel")
		default:
			got = append(got, fmt.Sprintf("%T", e))
		}
	}
	if !slices.Equal(got, want) {
		n.t.Fatalf("at %v: %q, want %q", n.now.Format("05.000"), got, want)
	}
}

var gen5 = fixture.Gen(3, 5)

const (
	lost    = "report group 0 of (3,5) lost true"
	back    = "report group 0 of (3,5) lost false"
	fetched = "fetch group 0 of (3,5) from n2"
)

// lossAt is a node whose rank's own copy of the committed part was given up.
func lossAt(t *testing.T) (*node, *holding.Arena, shm.Info) {
	n := newNode(t)
	a := n.holds(shm.Spec{Geometry: fixture.Geometry(t, false), Slots: 2})
	info := roomtest.Seal(t, a, shm.Place{}, gen5, replica.Digest{})
	n.commits(gen5, info.Root, "n1", "n2")
	n.gives(a, shm.Place{})
	return n, a, info
}

// The record follows the memory: out at once, in when the part is here again; each report is repeated until the record has it, and at once to a new leader.
func TestALossIsReportedAndFetched(t *testing.T) {
	n, a, info := lossAt(t)
	n.wants(0, lost, fetched)
	n.wants(sayAgain / 2)
	n.wants(sayAgain/2, lost)
	n.room.Learn(n.now, act.Linked{})
	n.wants(0, lost)
	n.commits(gen5, info.Root, "n2")
	n.wants(time.Minute)
	for _, wait := range []time.Duration{retry, 2 * retry, 4 * retry} { // the holder does not answer
		n.room.Learn(n.now, act.Ended{Of: n.fetch, Err: errors.New("no answer")})
		n.wants(wait - 1)
		n.wants(retry, fetched)
	}
	roomtest.Seal(t, a, shm.Place{Index: 1}, gen5, replica.Digest{})
	n.room.Learn(n.now, act.Ended{Of: n.fetch})
	n.wants(0, back)
	n.wants(sayAgain, back)
	n.commits(gen5, info.Root, "n1", "n2")
	n.wants(sayAgain)
	if len(n.room.losses) != 0 || len(n.failed) != 0 {
		t.Errorf("left: %v, logged %q", n.room.losses, n.failed)
	}
}

// A commit or a recovery ends what nobody needs any more.
func TestALossIsPast(t *testing.T) {
	for what, past := range map[string]func(n *node){
		"a commit":   func(n *node) { n.commits(fixture.Gen(3, 6), replica.Digest{6}, "n1", "n2") },
		"a recovery": func(n *node) { n.job = fixture.Changed(n.job, func(j *replica.Job) { j.Phase = replica.Closed }) },
		"the end":    func(n *node) { n.job = nil },
		"the arena":  func(n *node) { n.arenas[0].Drop() },
	} {
		n, _, _ := lossAt(t)
		n.wants(0, lost, fetched)
		past(n)
		n.wants(retry, "cancel")
		if _, due := n.room.Next(); due || len(n.room.losses) != 0 {
			t.Errorf("%s: left: %v", what, n.room.losses)
		}
		n.room.Learn(n.now, act.Ended{Of: n.fetch, Err: errors.New("canceled")})
		n.wants(time.Minute)
	}
}

// What is on its way already is not fetched twice; nobody to fetch from is said once.
func TestALossWaits(t *testing.T) {
	n, _, info := lossAt(t)
	n.coming = true
	n.wants(0, lost)
	n.coming = false
	n.commits(gen5, info.Root, "n1")
	n.wants(retry)
	n.wants(sayAgain, lost)
	if len(n.failed) != 1 || !strings.Contains(n.failed[0], "no other node") {
		t.Errorf("logged %q", n.failed)
	}
	n.commits(gen5, info.Root, "n3")
	n.wants(retry, "fetch group 0 of (3,5) from n3")
}

// A node hears of most commits without their roots and holders: the record that it knows may be of a former one. The leader is told all the same, and
// asked are also the rank's twins and the part's mirrors.
func TestALossUnderAFormerRecord(t *testing.T) {
	n, _, info := lossAt(t)
	n.job = fixture.Changed(n.job, func(j *replica.Job) {
		j.Parts[0].Root, j.Parts[0].Holders, j.GroupMirrors = replica.Digest{4}, of3("n1"), [][]replica.NodeName{{"n3"}}
	})
	n.wants(0, lost, "fetch group 0 of (3,5) from n2 n3")
	n.wants(sayAgain, lost)
	n.commits(gen5, info.Root, "n2") // the entry's change brings the record
	n.wants(sayAgain)
}

// The candidate may rot between its pin and its commit: the record of the commit is corrected.
func TestALossBeforeItsCommit(t *testing.T) {
	n := newNode(t)
	a := n.holds(shm.Spec{Geometry: fixture.Geometry(t, false), Slots: 2})
	info := roomtest.Seal(t, a, shm.Place{}, fixture.Gen(3, 6), replica.Digest{})
	n.commits(gen5, replica.Digest{5}, "n1", "n2")
	n.gives(a, shm.Place{})
	n.wants(0)
	n.wants(time.Minute)
	n.commits(fixture.Gen(3, 6), info.Root, "n1", "n2")
	n.wants(retry, "report group 0 of (3,6) lost true", "fetch group 0 of (3,6) from n2")
}

// A node that holds the part in another arena stays in the record, and gives it to itself.
func TestALossBesideAnotherCopy(t *testing.T) {
	n := newNode(t)
	for rank := range replica.Rank(2) {
		roomtest.Seal(t, n.holds(shm.Spec{Rank: rank, Geometry: fixture.Geometry(t, false), Slots: 2}), shm.Place{}, gen5, replica.Digest{})
	}
	// Both ranks' parts have one root, as shm.Root leaves the rank out.
	info, _ := n.arenas[1].Sealed(shm.Place{})
	n.commits(gen5, info.Root, "n1", "n2")
	n.gives(n.arenas[0], shm.Place{})
	n.wants(0, "fetch group 0 of (3,5) from n1 n2")
	roomtest.Seal(t, n.arenas[0], shm.Place{}, gen5, replica.Digest{})
	n.room.Learn(n.now, act.Ended{Of: n.fetch})
	n.wants(0)
	if len(n.room.losses) != 0 {
		t.Errorf("left: %v", n.room.losses)
	}
}

// A frozen part is fetched again whatever is committed meanwhile. In a rank's arena the group's part needs it no less, but a rank has it live;
// a mirror is none without it.
func TestAFrozenLoss(t *testing.T) {
	frozen := shm.Place{Kind: shm.Frozen}
	for _, mirror := range []bool{false, true} {
		n := newNode(t)
		a := n.holds(shm.Spec{Geometry: fixture.Geometry(t, true), Slots: 2, Mirror: mirror})
		base := roomtest.Seal(t, a, frozen, fixture.Gen(1, 0), replica.Digest{})
		info := roomtest.Seal(t, a, shm.Place{}, gen5, base.Root)
		n.commits(gen5, info.Root, "n1", "n2")
		n.gives(a, frozen)
		want := []string{fetched + ", what is frozen"}
		if mirror {
			want = append([]string{lost}, want...)
		}
		n.wants(0, want...)
		roomtest.Seal(t, a, frozen, fixture.Gen(1, 0), replica.Digest{})
		n.room.Learn(n.now, act.Ended{Of: n.fetch})
		n.wants(0)
		if len(n.room.losses) != 0 {
			t.Errorf("mirror %v: left: %v", mirror, n.room.losses)
		}
	}
}
