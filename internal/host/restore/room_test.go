package restore

import (
	"context"
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
)

// node is n1 of fixture.Job with rank 0, and a transcript of what its room wants.
type node struct {
	t       *testing.T
	room    *Room
	view    room.JobView
	gone    bool
	now     time.Time
	restore *Restore
	reading *Reading
	logged  int
}

func newNode(t *testing.T) *node {
	n := &node{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	a := roomtest.Arena(t, shm.Spec{Rank: 0, Geometry: fixture.Geometry(t, false)})
	n.view = room.JobView{Job: fixture.Job(), Fenced: 2, Ranks: []room.Rank{{Rank: 0, Incarnation: 4, Arena: a, Alive: true}}}
	n.room = New(n, n)
	return n
}

func (n *node) Jobs() []room.JobView {
	if n.gone {
		return nil
	}
	return []room.JobView{n.view}
}
func (n *node) Job(replica.JobID) (room.JobView, bool) { return n.view, !n.gone }
func (n *node) Retried(string, string, string)         { n.logged++ }

// both seals the rank's two parts of a generation in place i of each.
func (n *node) both(i int, g replica.Generation) {
	for _, k := range []shm.PlaceKind{shm.Slot, shm.Ring} {
		roomtest.Seal(n.t, n.view.Ranks[0].Arena, shm.Place{Kind: k, Index: i}, g, replica.Digest{})
	}
}

// closes the epoch, and fences the ranks here.
func (n *node) closes() {
	n.view.Job = fixture.Closed(n.view.Job)
	n.view.Fenced = n.view.Job.ClosedEpoch
	n.changes()
}

// plans the next epoch.
func (n *node) plans() {
	n.view.Job = fixture.Changed(n.view.Job, func(j *replica.Job) {
		j.Epoch, j.Phase = j.ClosedEpoch+1, replica.Planned
		j.Plan = &replica.Plan{Epoch: j.Epoch, Generation: fixture.Gen(3, 5), Layout: j.Layout, Ranks: j.Ranks}
	})
	n.changes()
}

func (n *node) changes() { n.room.Learn(n.now, act.Changed{Job: n.view.Job.ID}) }

// done is what the room says of the rank's parts of the job's epoch.
func (n *node) done() (Done, bool) { return n.room.Done(n.view.Job.ID, n.view.Job.Epoch, 0) }

func (n *node) failing() string { return n.room.Failing(n.view.Job.ID, n.view.Job.Epoch, 0) }

// wants what the room asks for some time later, in words.
func (n *node) wants(after time.Duration, want ...string) {
	n.t.Helper()
	n.now = n.now.Add(after)
	var got []string
	for _, e := range n.room.Step(n.now) {
		switch e := e.(type) {
		case *Restore:
			e.Begin(n.t.Context())
			got, n.restore = append(got, fmt.Sprintf("restore rank %d in epoch %d", e.Rank.Rank, e.Plan.Epoch)), e
		case act.Cancel:
			of := e.Of.(*Restore)
			of.Stop()
			got = append(got, fmt.Sprintf("cancel epoch %d", of.Plan.Epoch))
		case *Reading:
			got, n.reading = append(got, fmt.Sprintf("read %v of %v", e.Copy.Held.Part, e.Copy.Info.Generation)), e
		case act.Wake:
			got = append(got, map[act.Depth]string{act.Reconcile: "ready"}[e.Depth])
		case Failed:
			got = append(got, "failed")
		case act.Send:
			said := e.Msg.(control.Unreached)
			got = append(got, fmt.Sprintf("failing %v from %v", said.Part, said.To))
		}
	}
	if !slices.Equal(got, want) {
		n.t.Fatalf("at %v: %q, want %q", n.now.Format("05.000"), got, want)
	}
}

// A rank that waits is restored once, and told where its parts lie.
func TestARankIsRestoredOnce(t *testing.T) {
	n := newNode(t)
	n.closes()
	n.plans()
	n.wants(0) // it runs, or has been superseded
	n.view.Ranks[0].Waits = true
	n.changes()
	n.wants(0, "restore rank 0 in epoch 4")
	n.changes()
	n.wants(lookEvery)
	if _, ok := n.done(); ok {
		t.Error("done before its end")
	}
	is := Done{shm.Place{Kind: shm.Slot, Index: 2}, shm.Place{Kind: shm.Ring, Index: 3}, replica.PeerRAM, lookEvery}
	n.room.Learn(n.now, Ended{Of: n.restore, Slot: is.Slot, Ring: is.Ring, Tier: is.Tier})
	n.wants(0, "ready")
	from, took := n.room.Brought(n.view.Job.ID, 4)
	none, _ := n.room.Brought(n.view.Job.ID, 5)
	if got, ok := n.done(); !ok || got != is || from != replica.PeerRAM || took != is.Took || none != 0 {
		t.Errorf("done %v, %+v", ok, got)
	}
	n.changes()
	n.wants(lookEvery)
	n.gone = true
	n.wants(lookEvery)
	if len(n.room.jobs) != 0 {
		t.Error("a job that is gone leaves something behind")
	}
}

// What fails is tried again. The third failure names the holders that could not be dialled, and the report says why.
func TestRestoreThatFailsIsSaid(t *testing.T) {
	n := newNode(t)
	n.closes()
	n.view.Ranks[0].Waits = true
	n.plans()
	missed := room.Missed{Part: replica.FrozenOf(0), Nodes: []replica.NodeName{"n2"}}
	for try := 1; try <= room.TriesSaid; try++ {
		n.wants(0, "restore rank 0 in epoch 4")
		n.room.Learn(n.now, Ended{Of: n.restore, Missed: missed, Err: errors.New("dial: connection refused")})
		if try < room.TriesSaid {
			n.wants(0, "failed")
			if n.failing() != "" {
				t.Errorf("said after %d tries", try)
			}
		} else {
			n.wants(0, "failed", "failing group 0 from [n2]") // it lies beside the parts that bind it
		}
		n.wants(retry - 1)
		n.now = n.now.Add(lookEvery)
	}
	if n.failing() != "dial: connection refused" {
		t.Errorf("failing %q", n.failing())
	}
	n.wants(0, "restore rank 0 in epoch 4")
	n.room.Learn(n.now, Ended{Of: n.restore, Err: errors.New("no place can be freed")}) // no matter of the network
	n.wants(0, "failed")
	n.wants(lookEvery, "restore rank 0 in epoch 4")
	for _, err := range []error{context.Canceled, holding.ErrBrought} {
		n.room.Learn(n.now, Ended{Of: n.restore, Err: err})
		n.wants(0)
		n.wants(lookEvery, "restore rank 0 in epoch 4")
	}
	if n.logged != room.TriesSaid+1 {
		t.Errorf("logged %d times", n.logged)
	}
}

// A fence, the end of the process, and another process of the rank end a restore; its own end changes nothing then.
func TestWhatEndsARestore(t *testing.T) {
	for what, ends := range map[string]func(*node){
		"a fence":         func(n *node) { n.view.Fenced = 4 },
		"its end":         func(n *node) { n.view.Ranks[0].Alive, n.view.Ranks[0].Waits = false, false },
		"another process": func(n *node) { n.view.Ranks[0].Incarnation, n.view.Ranks[0].Waits = 7, false },
		"no such rank":    func(n *node) { n.view.Ranks = nil },
	} {
		t.Run(what, func(t *testing.T) {
			n := newNode(t)
			n.closes()
			n.view.Ranks[0].Waits = true
			n.plans()
			n.wants(0, "restore rank 0 in epoch 4")
			was := n.restore
			n.view.Fenced = 3 // of an epoch before
			n.changes()
			n.wants(0)
			ends(n)
			n.view.Job = fixture.Closed(n.view.Job)
			n.changes()
			n.wants(0, "cancel epoch 4")
			n.room.Learn(n.now, Ended{Of: was})
			n.wants(0)
		})
	}
}

// A recovery of gigabytes hashed what every survivor held only once the plan was there, which had waited for a program to start.
func TestWhatAPlanMayWantIsReadBeforeIt(t *testing.T) {
	n := newNode(t)
	n.both(0, fixture.Gen(3, 4))
	n.both(1, fixture.Gen(3, 5))
	n.view.Job = fixture.Closed(n.view.Job)
	n.changes()
	n.wants(0) // the fence is not up
	n.view.Fenced = 3
	n.changes()
	n.wants(0, "read group 0 of (3,5)")
	n.changes()
	n.wants(lookEvery) // one place at a time
	n.reading.End(true)
	n.room.Learn(n.now, act.Ended{Of: n.reading})
	n.wants(0, "read private 0 of (3,5)")
	n.reading.End(true)
	n.room.Learn(n.now, act.Ended{Of: n.reading})
	n.wants(0)
	a, id := n.view.Ranks[0].Arena, n.view.Job.ID
	place := func(k shm.PlaceKind, i int) *Reading { return n.room.Reading(id, a, shm.Place{Kind: k, Index: i}) }
	if place(shm.Slot, 0) != nil || place(shm.Slot, 1) == nil || !place(shm.Slot, 1).Good() || place(shm.Ring, 1) == nil {
		t.Error("want readings of the newest generation alone")
	}
	a.Free(shm.Place{Kind: shm.Ring, Index: 1})
	if place(shm.Ring, 1) != nil {
		t.Error("a reading of what lies there no more")
	}
	n.view.Fenced = 4
	n.changes()
	if place(shm.Slot, 1) != nil {
		t.Error("a place counts as read that was read before the newest fence")
	}
}

// What is older than the committed generation no plan names.
func TestWhatIsOldIsNotRead(t *testing.T) {
	n := newNode(t)
	n.both(0, fixture.Gen(3, 4))
	n.closes()
	n.wants(0)
}
