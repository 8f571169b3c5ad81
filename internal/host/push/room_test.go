package push

import (
	"context"
	"errors"
	"fmt"
	"slices"
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

// node is n1 of fixture.Job with the arena of rank 0, and a transcript of what its room wants.
type node struct {
	t      *testing.T
	room   *Room
	view   room.JobView
	gone   bool // the job is not known any more
	now    time.Time
	moving []mover.Moving
	last   map[string]*Send
	old    Prune // the last one
	logged []string
}

func newNode(t *testing.T) *node {
	n := &node{t: t, now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC), last: map[string]*Send{}}
	job := fixture.Job()
	job.GroupMirrors = [][]replica.NodeName{{"n2"}}
	n.view = room.JobView{Job: job, Ranks: []room.Rank{{Rank: 0, Incarnation: 4, Arena: roomtest.Arena(t, shm.Spec{Rank: 0, Geometry: fixture.Geometry(t, false)})}}}
	n.room = New(n, n, fixture.Cluster, "n1")
	return n
}

func (n *node) Jobs() []room.JobView {
	if n.gone {
		return nil
	}
	return []room.JobView{n.view}
}
func (n *node) Job(replica.JobID) (room.JobView, bool) { return n.view, !n.gone }
func (n *node) Moving(id replica.JobID, g replica.Generation) []mover.Moving {
	if id != n.view.Job.ID || g != n.view.Candidate.Generation {
		n.t.Errorf("asked of %v of job %v", g, id)
	}
	return n.moving
}
func (n *node) Pushed(replica.Part, replica.Generation, replica.NodeName, time.Duration, error) {}
func (n *node) PushFailed(part replica.Part, g replica.Generation, to replica.NodeName, err error) {
	n.logged = append(n.logged, fmt.Sprintf("%v to %s: %v", part, to, err))
}

// seals a part in place i of a kind, and has the room hear of it.
func (n *node) seals(k shm.PlaceKind, i int, g replica.Generation) {
	n.t.Helper()
	p := shm.Place{Kind: k, Index: i}
	info := roomtest.Seal(n.t, n.view.Ranks[0].Arena, p, g, replica.Digest{})
	n.room.Learn(n.now, Sealed{n.view.Job.ID, 0, p, info})
}

// names a candidate.
func (n *node) names(c uint64, s replica.Step) {
	n.view.Candidate, n.view.CandidateAt, n.view.WaitsAt = fixture.Candidate(c, s), n.now, n.now
	n.room.Learn(n.now, Named{n.view.Job.ID})
}

// changes the job.
func (n *node) changes(change func(*replica.Job)) {
	was := n.view.Job
	n.view.Job = fixture.Changed(was, change)
	n.room.Learn(n.now, act.Changed{Job: was.ID, Was: was})
}

// ends the push that was sent last under a name.
func (n *node) ends(name string, err error) {
	n.t.Helper()
	s := n.last[name]
	if s == nil {
		n.t.Fatalf("%s was not sent", name)
	}
	n.room.Learn(n.now, Ended{mover.Pushed{Line: s.Line, Key: s.Key, Err: err}})
}

// wants what the room asks for some time later, in words and in any order.
func (n *node) wants(after time.Duration, want ...string) {
	n.t.Helper()
	n.now = n.now.Add(after)
	var got []string
	for _, e := range n.room.Step(n.now) {
		switch e := e.(type) {
		case *Send:
			name := fmt.Sprintf("%v of %v to %s", e.Key.Part, e.Key.Generation, e.Line.Node)
			got, n.last[name] = append(got, name), e
			n.room.Learn(n.now, Handed{Send: e})
		case Prune:
			if n.old = e; !e.Wanted(mover.Line{Node: "nowhere"}, transfer.Key{Part: replica.OfRank(0)}) {
				got = append(got, "prune") // by the mirrors' nodes, not by what is old
			}
		case act.Send:
			switch m := e.Msg.(type) {
			case control.Unreached:
				got = append(got, fmt.Sprintf("failing %v to %s", m.Part, m.To))
			case control.PushReport:
				got = append(got, fmt.Sprintf("moving %v of %v: %d bytes", m.Pushes[0].Part, m.Generation, m.Pushes[0].Bytes))
			}
		}
	}
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		n.t.Fatalf("at %v: %q, want %q", n.now.Format("05.000"), got, want)
	}
}

func group(s replica.Step, to string) string { return fmt.Sprintf("group 0 of (3,%d) to %s", s, to) }
func own(s replica.Step, to string) string   { return fmt.Sprintf("private 0 of (3,%d) to %s", s, to) }

// A group's part that was sealed before its generation became the candidate was not sent to its mirror then, and waited for
// the tick that sends things again: commits came every 200 ms, however short the steps.
func TestCandidateSealedBeforeIsMirrored(t *testing.T) {
	n := newNode(t)
	n.names(1, 5)
	n.seals(shm.Slot, 1, fixture.Gen(3, 6))
	n.seals(shm.Ring, 1, fixture.Gen(3, 6))
	n.wants(0, own(6, "n2"))
	n.names(2, 6)
	n.wants(0, group(6, "n2")) // and what has just gone out is not sent twice
	n.wants(pushAgain)
	n.wants(lookEvery-pushAgain, group(6, "n2"), own(6, "n2")) // a commit waits for them, whatever became of the first try
}

// A mirror that is placed anew gets what is committed, unless the candidate is about to make up for it.
func TestNewMirrorGetsWhatIsCommitted(t *testing.T) {
	n := newNode(t)
	n.names(1, 6)
	n.seals(shm.Slot, 0, fixture.Gen(3, 5))
	n.seals(shm.Ring, 0, fixture.Gen(3, 5))
	n.wants(0, group(5, "n2"), own(5, "n2"))
	n.ends(group(5, "n2"), nil)
	n.ends(own(5, "n2"), nil)
	n.wants(lookEvery) // it has them
	roomtest.Seal(t, n.view.Ranks[0].Arena, shm.Place{Kind: shm.Ring, Index: 1}, fixture.Gen(3, 6), replica.Digest{})
	n.view.Job = fixture.Changed(n.view.Job, func(j *replica.Job) {
		j.Mirrors, j.GroupMirrors = [][]replica.NodeName{{"n3"}, {"n1"}}, [][]replica.NodeName{{"n3"}}
	})
	n.wants(lookEvery, group(5, "n3"), own(6, "n3")) // of the private part a newer step is the candidate's
	n.changes(func(j *replica.Job) {
		j.GroupMirrors = [][]replica.NodeName{{"n4"}}
		j.Previous = &replica.Earlier{Generation: fixture.Gen(3, 4)}
	})
	n.wants(lookEvery, "prune", own(6, "n3")) // the new mirror fetches it itself
}

// What is on its way to a node that is not to mirror it any more is given up. Should it be a mirror again, it is sent again.
func TestPushesEndWithTheMirror(t *testing.T) {
	n := newNode(t)
	n.names(1, 6)
	n.seals(shm.Slot, 0, fixture.Gen(3, 6))
	n.wants(0, group(6, "n2"))
	n.ends(group(6, "n2"), nil)
	n.changes(func(j *replica.Job) { j.Copies++ })
	n.wants(0)
	n.changes(func(j *replica.Job) { j.GroupMirrors = nil })
	n.wants(0, "prune")
	n.changes(func(j *replica.Job) { j.GroupMirrors = [][]replica.NodeName{{"n2"}} })
	n.names(2, 6)
	n.wants(0, "prune", group(6, "n2"))
}

// While a closed job waits for a process, what it is to resume at goes to its mirrors, candidate or not, until they have it.
func TestWhatAClosedJobResumesAtIsMirrored(t *testing.T) {
	n := newNode(t)
	n.names(1, 5)
	for i, s := range []replica.Step{6, 7} {
		for _, k := range []shm.PlaceKind{shm.Slot, shm.Ring} {
			roomtest.Seal(t, n.view.Ranks[0].Arena, shm.Place{Kind: k, Index: i}, fixture.Gen(3, s), replica.Digest{})
		}
	}
	order := func(e replica.Epoch) Asked {
		return Asked{control.MirrorOrder{Job: fixture.JobID, Epoch: e, Generation: fixture.Gen(3, 6)}}
	}
	n.room.Learn(n.now, order(3))
	n.wants(0) // the epoch is open
	n.view.Job = fixture.Closed(n.view.Job)
	n.room.Learn(n.now, order(2)) // of an epoch before
	n.wants(0)
	if c := n.room.Class(n.view.Job, fixture.Gen(3, 6)); c != manners.Mirroring {
		t.Errorf("class %v", c)
	}
	n.room.Learn(n.now, order(3))
	if c := n.room.Class(n.view.Job, fixture.Gen(3, 6)); c != manners.Recovery {
		t.Errorf("class %v of what a recovery waits for", c)
	}
	n.wants(0, group(6, "n2"), own(6, "n2"))
	n.ends(own(6, "n2"), nil)
	n.wants(scarceAgain - 1) // a mirror that is dead for hours is not tried five times a second
	n.wants(1, group(6, "n2"))
	for wait := scarceAgain; wait < scarceMost; {
		wait = min(2*wait, scarceMost)
		n.wants(wait - 1)
		n.wants(1, group(6, "n2"))
	}
	n.ends(group(6, "n2"), mover.ErrSuperseded) // it gave way to another part: the job waits for it
	n.wants(pushAgain - 1)
	n.wants(1, group(6, "n2"))
	n.room.Learn(n.now.Add(pushAgain), order(3)) // the mirror came back without its memory
	n.wants(pushAgain, group(6, "n2"), own(6, "n2"))
	n.view.Job = fixture.Changed(n.view.Job, func(j *replica.Job) { j.Phase = replica.Opening })
	n.wants(scarceMost)
}

// What the mover drops as it is on its way already keeps the time of its first try; another part that it drops may be sent again at once.
func TestWhatTheMoverDrops(t *testing.T) {
	n := newNode(t)
	n.names(1, 6)
	n.seals(shm.Ring, 0, fixture.Gen(3, 6))
	n.wants(0, own(6, "n2"))
	n.now = n.now.Add(lookEvery)
	effects := n.room.Step(n.now)
	if len(effects) != 1 {
		t.Fatalf("wants %v", effects)
	}
	again := effects[0].(*Send)
	n.room.Learn(n.now, Handed{again, []transfer.Key{again.Key}})
	if st := n.room.jobs[fixture.JobID].ranks[0].sent[key{"n2", replica.OfRank(0), fixture.Gen(3, 6)}]; !st.sent.Equal(n.now.Add(-lookEvery)) {
		t.Errorf("it is on its way since %v", st.sent)
	}
	n.seals(shm.Ring, 1, fixture.Gen(3, 7))
	newer := n.room.Step(n.now)[0].(*Send)
	n.room.Learn(n.now, Handed{newer, []transfer.Key{again.Key}})
	n.names(2, 6)
	n.wants(0, own(6, "n2"))
}

// Another process of a rank has sent nothing.
func TestAnotherProcessHasSentNothing(t *testing.T) {
	n := newNode(t)
	n.names(1, 6)
	n.seals(shm.Ring, 0, fixture.Gen(3, 6))
	n.wants(0, own(6, "n2"))
	n.view.Ranks[0].Incarnation = 7
	n.names(2, 6)
	n.wants(0, own(6, "n2"))
	if s := n.last[own(6, "n2")]; s.Key.Incarnation != 7 {
		t.Errorf("sent as incarnation %d", s.Key.Incarnation)
	}
	n.gone = true
	n.wants(lookEvery)
	if len(n.room.jobs) != 0 {
		t.Error("a job that is gone leaves something behind")
	}
}

// A mirror to which pushes of a part have failed for a second is named to the leader. What passes by itself is not.
func TestPushThatFailsIsSaid(t *testing.T) {
	n := newNode(t)
	n.names(1, 5)
	n.seals(shm.Ring, 0, fixture.Gen(3, 6))
	n.wants(0, own(6, "n2"))
	end := func(ago time.Duration, err error) {
		n.room.jobs[fixture.JobID].ranks[0].sent[key{"n2", replica.OfRank(0), fixture.Gen(3, 6)}] = state{sent: n.now.Add(-ago)}
		n.ends(own(6, "n2"), err)
	}
	strains := n.room.job(fixture.JobID).strains
	broken := errors.New("no route to host")
	end(0, broken)
	n.wants(0)
	if end(0, nil); len(strains) != 0 {
		t.Fatal("a push that succeeds ends what was counted")
	}
	for _, err := range []error{transfer.ErrNotYet, transfer.ErrFenced, context.Canceled} {
		end(time.Minute, err)
		n.wants(0)
	}
	end(strainFor, broken)
	n.wants(0, "failing private 0 to [n2]")
	end(0, broken)
	n.wants(0) // not at once again
	k := strainKey{"n2", replica.OfRank(0)}
	since := strains[k].since.Add(-time.Hour)
	strains[k] = strain{since: since, last: n.now.Add(-2 * strainOver)}
	if end(2*strainOver, broken); strains[k].since != since {
		t.Fatal("a try that hung for long began it anew")
	}
	strains[k] = strain{since: since, last: n.now.Add(-2 * strainOver)}
	if end(0, broken); strains[k].since.Equal(since) {
		t.Fatal("what was well for long, as far as is known, did not begin it anew")
	}
	if len(n.logged) == 0 || !strings.Contains(n.logged[0], "private 0 to n2: no route to host") {
		t.Errorf("logged %q", n.logged)
	}
}

// A node that has room for the small part alone never takes the large one: the small one, which arrives in each step, says nothing of that.
func TestAPartThatNeverArrivesIsSaid(t *testing.T) {
	n := newNode(t)
	n.names(1, 6)
	n.seals(shm.Slot, 0, fixture.Gen(3, 6))
	n.seals(shm.Ring, 0, fixture.Gen(3, 6))
	n.wants(0, group(6, "n2"), own(6, "n2"))
	short := errors.New("peer says: need 401 MiB, have 283 MiB")
	n.ends(group(6, "n2"), short)
	n.ends(own(6, "n2"), nil)
	n.wants(strainFor, group(6, "n2"), own(6, "n2"))
	n.ends(own(6, "n2"), nil)
	n.ends(group(6, "n2"), short)
	n.wants(0, "failing group 0 to [n2]")
}

// How far pushes are is said once a commit has waited for two seconds, of its candidate alone.
func TestPushesAreSaidWhileACommitWaits(t *testing.T) {
	n := newNode(t)
	n.moving = []mover.Moving{{Line: mover.Line{Node: "n2"}, Part: replica.OfGroup(0), Generation: fixture.Gen(3, 6), Bytes: 7, Why: strings.Repeat("x", 1000)}}
	n.wants(lookEvery)
	n.names(1, 6)
	n.wants(saidAfter - lookEvery)
	n.wants(lookEvery, "moving group 0 of (3,6): 7 bytes")
	n.wants(saidEvery - lookEvery)
	n.wants(lookEvery, "moving group 0 of (3,6): 7 bytes")
	n.moving = nil
	n.wants(time.Minute)
}

// A replicated part that is neither committed nor the candidate holds a slot for as long as it is pushed: each candidate and each commit ends
// such pushes. Private parts have places enough.
func TestPushesOfWhatIsOldEnd(t *testing.T) {
	n := newNode(t)
	line := mover.Line{Node: "n2", Job: fixture.JobID}
	keeps := func(what string, want map[replica.Step]bool) {
		t.Helper()
		n.old = Prune{}
		n.wants(0)
		for s, keep := range want {
			if n.old.Wanted == nil || n.old.Wanted(line, transfer.Key{Part: replica.OfGroup(0), Generation: fixture.Gen(3, s)}) != keep {
				t.Errorf("%s: the push of step %d is kept: %v", what, s, !keep)
			}
		}
		if n.old.Wanted != nil && !n.old.Wanted(line, transfer.Key{Part: replica.OfRank(0), Generation: fixture.Gen(3, 3)}) {
			t.Errorf("%s: the push of a private part ends", what)
		}
	}
	n.names(1, 6)
	keeps("6 is named", map[replica.Step]bool{5: true, 6: true, 7: false})
	n.names(2, 8)
	keeps("8 is named", map[replica.Step]bool{5: true, 6: false, 8: true})
	n.view.Job = fixture.Changed(n.view.Job, func(j *replica.Job) { j.Committed.Step, j.Position.Step = 8, 8 })
	n.room.Learn(n.now, act.Committed{Job: n.view.Job.ID})
	keeps("8 is committed", map[replica.Step]bool{5: false, 8: true})
}
