package writer

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/spool"
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
	private   *holding.Arena // mirrors a rank's private part: its steps are known by that
	undurable error
	hangs     error // a call to the store that was given up
	marked    Mark  // the newest
	now       time.Time
	write     *Write // the newest
	writes    uint64 // that were named
	more      []room.Mirror
	released  chan struct{}
}

func newNode(t *testing.T, slots int) *node {
	n := &node{t: t, job: fixture.Job(), now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	n.room = New(n)
	n.arena = roomtest.Arena(t, shm.Spec{Geometry: fixture.Geometry(t, false), Slots: slots})
	return n
}

func (n *node) Self() replica.Holder                   { return replica.Holder{Node: "n1", Incarnation: 11} }
func (n *node) Cluster() replica.ClusterID             { return fixture.Cluster }
func (n *node) Jobs() []room.JobView                   { return []room.JobView{n.view()} }
func (n *node) Job(replica.JobID) (room.JobView, bool) { return n.view(), n.job != nil }
func (n *node) Undurable() error                       { return n.undurable }
func (n *node) Hangs() error                           { return n.hangs }
func (n *node) Store() string                          { return "the file system of durable_dir" }
func (n *node) Lacking(replica.JobID, replica.Generation) []replica.Lacking {
	return []replica.Lacking{{Rank: 1, Text: "buffer"}}
}
func (n *node) view() room.JobView {
	v := room.JobView{Job: n.job, Candidate: n.candidate, WaitsAt: n.waitsAt, Retired: []*holding.Arena{n.arena}}
	if n.private != nil {
		v.Mirrors = append([]room.Mirror{{Part: replica.OfRank(0), Arena: n.private}}, n.more...)
	}
	return v
}
func (n *node) Open(job *replica.Job, c holding.Copy) (*holding.Reader, error) {
	return c.Open(job, func(a *holding.Arena, p shm.Place) {
		a.Release(p)
		if n.released != nil {
			n.released <- struct{}{}
		}
	})
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
			n.writes++
			j.Writer = &replica.DurableWrite{Generation: g, Number: n.writes, Shards: []replica.Shard{{Part: replica.OfGroup(0), Node: "n1", Root: root}, {Part: replica.OfRank(1), Node: "n2"}}}
		}
	})
	n.room.Learn(n.now, act.Changed{Job: n.job.ID})
}

// awaits has a commit wait from now on.
func (n *node) awaits(step replica.Step) {
	g := fixture.Gen(3, step)
	n.candidate = replica.Candidate{Job: n.job.ID, Term: 9, N: uint64(step), Position: replica.Position(g), Generation: g}
	n.waitsAt = n.now
}

// makes has a rank come to a step.
func (n *node) makes(step replica.Step) {
	n.t.Helper()
	if n.private == nil {
		n.private = roomtest.Arena(n.t, shm.Spec{Geometry: fixture.Geometry(n.t, false)})
	}
	at := shm.Place{Kind: shm.Ring}
	if n.private.Word(at).State() == replica.SlotSealed {
		n.private.Free(at)
	}
	roomtest.Seal(n.t, n.private, at, fixture.Gen(3, step), replica.Digest{})
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
		case act.Send:
			switch m := e.Msg.(type) {
			case control.ShardReport:
				text := fmt.Sprintf("report %v of %v: ", m.Part, m.Generation)
				switch {
				case m.Failed != "":
					text += "failed: " + m.Failed
					if m.Crowded != strings.Contains(m.Failed, "lacked its slot") {
						n.t.Errorf("it lacked a slot: %v: %s", m.Crowded, m.Failed)
					}
				case m.Ails != "":
					text += "ails: " + m.Ails
				case m.Written > 0:
					text += fmt.Sprintf("%d bytes, late %d ms", m.Written, m.LateMS)
				default:
					text += "written, " + m.Info.Key
				}
				got = append(got, text)
			case control.MarkedReport:
				got = append(got, strings.TrimSuffix(fmt.Sprintf("answer %v, write %d: %s", m.Generation, m.Number, m.Failed), ": "))
			}
		case *Write:
			n.write = e
			got = append(got, fmt.Sprintf("write %v of %v", e.Parts[0], e.Generation))
		case act.Wake:
			got = append(got, map[act.Depth]string{act.Retain: "freed"}[e.Depth])
		case Mark:
			n.marked = e
			got = append(got, fmt.Sprintf("mark %v, write %d, of %d parts with %d objects", e.Generation, e.Number, len(e.Roots), len(e.Objects)))
		case Discard:
			got = append(got, fmt.Sprintf("discard %v of write %d", e.Objects, e.Number))
		}
	}
	return got
}

// reads as many chunks as a write would, and tells whether it may.
func (n *node) reads(chunks int) (err error) {
	read := n.write.counting(n.write.pieces[0].slot.ReadChunk, n.write.pieces[0])
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
	n.write.Info = replica.Stored{Key: "group-0"}
	n.room.Learn(n.now, act.Ended{Of: n.write, Err: err})
}

// A shard is written once; how it ended is said once, and again to another leader.
func TestAShardIsWritten(t *testing.T) {
	n := begun(t, 2)
	n.room.Learn(n.now, act.Changed{Job: n.job.ID})
	n.wants(silent - lookEvery)
	n.returns(nil)
	const written = "report group 0 of (3,5): written, group-0"
	n.wants(time.Minute, written)
	n.room.Learn(n.now, act.Linked{})
	n.wants(0, written)
	n.job = fixture.Changed(n.job, func(j *replica.Job) { j.Durable = gen5 })
	n.named(replica.Generation{}, replica.Digest{})
	n.room.Learn(n.now, act.Linked{})
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
	n.room.Learn(n.now, act.Linked{})
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
	n.room.Learn(n.now, Ordered{control.MarkerOrder{Job: n.job.ID, Generation: gen9, Number: n.writes}})
	n.wants(0, "answer (3,9), write 2: no disk")
}

// A marker is written for the durable write under way alone.
func TestAMarkerIsOrdered(t *testing.T) {
	n := begun(t, 2)
	order := func(number uint64) {
		n.room.Learn(n.now, Ordered{control.MarkerOrder{Job: n.job.ID, Generation: gen5, Number: number, Shards: []control.ShardReport{{Part: replica.OfGroup(0)}, {Part: replica.OfRank(1)}}}})
	}
	order(n.writes + 1)
	n.wants(0)
	order(n.writes)
	n.wants(0, "mark (3,5), write 1, of 2 parts with 2 objects")
}

// The leader hears of a generation as soon as it exists, or why it does not.
func TestWhatFollowsAMarker(t *testing.T) {
	n := begun(t, 2)
	mark := func(number uint64) Mark {
		return Mark{Attempt: tier.Attempt{Job: n.job.ID, Generation: gen5, Number: number}}
	}
	n.room.Learn(n.now, Marked{Mark: mark(1)})
	n.wants(0, "answer (3,5), write 1")
	n.room.Learn(n.now, Marked{Mark: mark(4), Failed: "no disk", Fenced: true})
	n.wants(0, "answer (3,5), write 4: no disk")
}

// What ranks and launchers have said is in the commit.
func TestACommitHasWhatWasSaid(t *testing.T) {
	n := begun(t, 2)
	n.room.Learn(n.now, Ordered{control.MarkerOrder{Job: n.job.ID, Generation: gen5, Number: n.writes, Keep: "epoch 3", Said: []replica.Remark{{Kind: replica.Note, Name: "lr", Text: "0.1"}, {Kind: replica.Version, Name: "torch", Text: "2.11"},
		{Kind: replica.Metric, Name: "loss", Value: 0.5, Step: 4}, {Kind: replica.LoaderEpoch, Name: "train", Value: 3, Step: 2}, {Kind: replica.LoaderEpoch, Name: "val", Value: 1, Step: 2}}}})
	n.wants(0, "mark (3,5), write 1, of 2 parts with 0 objects")
	s := n.marked.Said
	if n.marked.Keep != "epoch 3" || s.Notes["lr"] != "0.1" || s.Provenance["torch"] != "2.11" || s.Metrics["loss"] != 0.5 || s.Loader == nil || *s.Loader != 3 {
		t.Errorf("%+v", s)
	}
}

// A store that takes a few bytes now and then is slow, and not silent: the leader hears how far the shard is. Nothing is said of one that stands still.
func TestAShardThatGrowsIsReported(t *testing.T) {
	n := begun(t, 2)
	for i := range 20 {
		n.write.moved.Add(1000)
		n.wants(silent-lookEvery, fmt.Sprintf("report group 0 of (3,5): %d bytes, late 0 ms", 1000*(i+1)))
	}
	n.wants(lookEvery)
	n.wants(lookEvery, "report group 0 of (3,5): failed: no byte of it was taken for 30s: see what ails the file system of durable_dir", "freed")
	n.write.moved.Add(1000)
	n.wants(growsEvery)
}

// What ails the store is told while a write goes on, now and then, also of the commit of a generation all of whose parts are written.
func TestWhatAilsTheStoreIsTold(t *testing.T) {
	n := begun(t, 2)
	n.returns(nil)
	n.wants(0, "report group 0 of (3,5): written, group-0")
	ails := func(number uint64) {
		n.room.Learn(n.now, Ailing{Attempt: tier.Attempt{Job: n.job.ID, Generation: gen5, Number: number}, What: "part 3: HTTP 503 SlowDown"})
	}
	ails(n.writes)
	n.wants(0, "report group 0 of (3,5): ails: part 3: HTTP 503 SlowDown")
	ails(n.writes)
	n.wants(growsEvery)
	ails(n.writes + 1)
	n.wants(0)
	ails(n.writes)
	n.wants(0, "report group 0 of (3,5): ails: part 3: HTTP 503 SlowDown")
}

// A durable write holds the slot that it reads until that is read whole. What is synced then holds none up.
func TestAShardThatIsReadWholeHoldsNoSlot(t *testing.T) {
	for _, waits := range []bool{false, true} {
		n := crowded(t)
		if waits {
			n.awaits(6)
		}
		if err := n.reads(len(n.write.pieces[0].slot.Manifest().Chunks)); err != nil {
			t.Fatal(err)
		}
		n.wants(silent, grown5)
		if n.held() || n.write.over {
			t.Errorf("a commit waits %v: the slot is held: %v; the write is over: %v", waits, n.held(), n.write.over)
		}
	}
}

// crowded is a node whose write holds the slot that the next commit lacks: the other has what is committed.
func crowded(t *testing.T) *node { return crowdedBy(t, 2) }

// crowdedBy is the same with more slots: the others have older generations that something else reads.
func crowdedBy(t *testing.T, slots int) *node {
	n := newNode(t, slots)
	root := n.seals(0, gen5).Root
	for i := 1; i < slots; i++ {
		n.seals(i, fixture.Gen(3, replica.Step(9-i)))
	}
	n.named(gen5, root)
	n.wants(0, write5)
	return n
}

func skipped5(step replica.Step, late string, steps int, ails string) string {
	return fmt.Sprintf("report group 0 of (3,5): failed: the commit of step %d lacked its slot for %s, in which ranks here made %d steps: the slot is free for that, and this write is skipped. %s", step, late, steps, ails)
}

const (
	more   = "Give the daemon a spool_dir on a local disk with room for the part, or the job more slots (--slots)"
	hangs  = "No byte of it was taken for 2s: see what ails the file system of durable_dir. " + more
	grown5 = "report group 0 of (3,5): 10048 bytes, late 0 ms" // the part
	slow   = "0 of 0 MiB were read for it: the file system of durable_dir is slow for that. " + more
)

// A write gives its slot up when a commit has lacked it for 2 s, whether or not it moves. What reads on then is refused.
func TestAWriteGivesItsSlotUpInTime(t *testing.T) {
	for i := range 6 {
		slots, moves := 2+i/2, i%2 == 1
		n := crowdedBy(t, slots)
		n.awaits(9)
		n.write.moved.Add(10)
		n.wants(time.Second)
		n.wants(lookEvery, "report group 0 of (3,5): 10 bytes, late 1000 ms")
		want := hangs
		if moves {
			want = slow
			n.write.moved.Add(1 << 20)
		}
		n.wants(time.Second, skipped5(9, "2s", 0, want), "freed")
		if err := n.reads(1); n.held() || !errors.Is(err, holding.ErrDropped) {
			t.Errorf("%d slots, it moves %v: its slot is held: %v; a further read: %v", slots, moves, n.held(), err)
		}
		n.returns(nil) // too late
		n.wants(time.Minute)
	}
}

// A store that takes nothing is named, also where nobody waits for the slot, and whether or not the write still holds it. It is said once.
func TestAStoreThatTakesNothingIsNamed(t *testing.T) {
	for _, read := range []int{0, 1000} {
		n := crowded(t)
		silence := "report group 0 of (3,5): failed: no byte of it was taken for 30s: see what ails the file system of durable_dir"
		want := []string{silence, "freed"}
		if read > 0 {
			want = []string{grown5, silence}
			if err := n.reads(len(n.write.pieces[0].slot.Manifest().Chunks)); err != nil {
				t.Fatal(err)
			}
			n.wants(lookEvery)
		}
		n.wants(silent, want...)
		n.wants(time.Minute)
		if n.held() || len(n.room.running) != 1 {
			t.Errorf("it holds its slot: %v; %d writes have not returned", n.held(), len(n.room.running))
		}
	}
}

// Or when 10 steps were made, if that is sooner; a look may be longer than 10 steps.
func TestAWriteGivesItsSlotUpBySteps(t *testing.T) {
	n := crowded(t)
	n.awaits(9)
	n.makes(9)
	n.wants(lookEvery)
	for step := range replica.Step(9) {
		n.makes(10 + step)
		n.wants(50 * time.Millisecond)
	}
	n.makes(19)
	n.wants(lookEvery, skipped5(9, "600ms", 10, slow), "freed")
}

// A commit that does not lack the slot costs no write its own.
func TestAWriteThatHoldsNobodyUpGoesOn(t *testing.T) {
	for what, c := range map[string]func(*node){
		"no commit waits":                    func(*node) {},
		"a place is free":                    func(n *node) { n.arena.Free(shm.Place{Index: 1}); n.awaits(9) },
		"the candidate is here":              func(n *node) { n.awaits(8) },
		"no rank has come to the candidate":  func(n *node) { n.awaits(9); n.makes(8) },
		"the candidate is of another epoch":  func(n *node) { n.awaits(9); n.candidate.Generation.Epoch = 2 },
		"the candidate is committed already": func(n *node) { n.awaits(4) },
	} {
		n := crowded(t)
		c(n)
		n.wants(silent - lookEvery)
		if !n.held() {
			t.Errorf("%s: it was given up", what)
		}
	}
}

// A candidate that lapses leaves what was waited for counted: the leader names the next one further ahead. A commit begins a new count.
func TestWaitsForASlotAddUp(t *testing.T) {
	n := crowded(t)
	wait := n.now
	n.awaits(9)
	n.makes(9)
	n.wants(1500 * time.Millisecond)
	n.awaits(30)
	n.waitsAt = wait
	n.wants(800*time.Millisecond, skipped5(30, "2s", 0, hangs), "freed")

	n = crowded(t)
	n.awaits(9)
	n.makes(9)
	n.wants(1500 * time.Millisecond)
	n.job = fixture.Changed(n.job, func(j *replica.Job) { j.Position.Step, j.Committed.Step = 9, 9 })
	n.wants(lookEvery)
	n.awaits(10)
	n.makes(10)
	n.wants(1500 * time.Millisecond)
	n.wants(700*time.Millisecond, skipped5(10, "2s", 0, "No byte of it was taken for 4s: see what ails the file system of durable_dir. "+more), "freed")
}

// While a write that was given up has not returned no other is begun on the node: it would keep a slot from a commit as the first one did. Whether
// this node gave it up or the leader, who heard nothing of it for long.
func TestNoWriteIsBegunBesideOneThatHangs(t *testing.T) {
	for _, byLeader := range []bool{false, true} {
		n := crowded(t)
		if byLeader {
			n.wants(silent - lookEvery)
			n.named(replica.Generation{}, replica.Digest{})
		} else {
			n.awaits(9)
			n.wants(2*time.Second+lookEvery, skipped5(9, "2s", 0, hangs), "freed")
		}
		hung := n.write
		n.candidate = replica.Candidate{}
		n.now = n.now.Add(12 * time.Second)
		n.arena.Free(shm.Place{Index: 1})
		root := n.seals(1, gen9).Root
		n.named(gen9, root)
		n.wants(0, "report group 0 of (3,9): failed: the write of generation (3,5) was given up 12s ago and has not returned: see what ails the file system of durable_dir")
		n.room.Learn(n.now, act.Ended{Of: hung, Err: errors.New("too late")})
		n.wants(0, "discard [group-0] of write 1")
		n.named(replica.Generation{}, replica.Digest{})
		n.named(gen9, root)
		n.wants(0, "write group 0 of (3,9)")
	}
}

// Nor beside a call that the store has given up for it: the write has returned, and the call has not.
func TestNoWriteIsBegunBesideACallThatHangs(t *testing.T) {
	n := newNode(t, 2)
	n.hangs = errors.New("syncing x was given up 3s ago and has not returned")
	root := n.seals(0, gen5).Root
	n.named(gen5, root)
	n.wants(0, "report group 0 of (3,5): failed: see what ails the file system of durable_dir: "+n.hangs.Error())
	if n.held() {
		t.Error("its slot is held")
	}
	n.hangs = nil
	n.named(gen5, root)
	n.wants(0, write5)
}

// What a write left that did not become durable goes once it has returned. The same generation is written again beside it.
func TestWhatAWriteLeftGoes(t *testing.T) {
	n := begun(t, 2)
	n.returns(nil)
	n.wants(0, "report group 0 of (3,5): written, group-0")
	root := n.write.pieces[0].slot.Manifest().Root
	n.named(replica.Generation{}, replica.Digest{}) // another node's shard has failed
	n.wants(0, "discard [group-0] of write 1")
	first := Discard{n.write.Attempt, []string{"group-0"}}
	n.named(gen5, root)
	n.wants(0, write5)
	n.room.Learn(n.now, act.Ended{Of: first})
	n.named(replica.Generation{}, replica.Digest{})
	n.wants(0)
	n.returns(holding.ErrDropped)
	n.wants(0, "discard [group-0] of write 2")
	n.room.Learn(n.now, act.Ended{Of: Discard{n.write.Attempt, nil}})
	n.wants(time.Minute)
}

// A write that was named again, of the same generation, is another: what an earlier one did says nothing of it.
func TestTheSameGenerationAgain(t *testing.T) {
	n := begun(t, 2)
	n.returns(nil)
	n.wants(0, "report group 0 of (3,5): written, group-0")
	n.named(gen5, n.write.pieces[0].slot.Manifest().Root)
	n.wants(0, "discard [group-0] of write 1", write5)
}

// What failed, and what failed after it, is one line.
func TestAFailureIsOneLine(t *testing.T) {
	n := begun(t, 2)
	n.returns(errors.Join(errors.New("part 3: HTTP 403"), errors.New("abort the upload: HTTP 403")))
	n.wants(0, "report group 0 of (3,5): failed: part 3: HTTP 403; abort the upload: HTTP 403")
}

// A write that another fleet's claim forbids says so.
func TestAFencedWrite(t *testing.T) {
	n := begun(t, 2)
	n.write.close()
	n.room.Learn(n.now, act.Ended{Of: n.write, Err: fmt.Errorf("claim: %w", tier.ErrFenced)})
	reports := 0
	for _, e := range n.room.Step(n.now) {
		if r, ok := sent(e); ok && r.Fenced && r.Failed != "" && r.Number == 1 {
			reports++
		}
	}
	if reports != 1 {
		t.Errorf("%d reports that it is fenced", reports)
	}
}

func TestWhatIsDurableStays(t *testing.T) {
	for what, c := range map[string]func(*node){
		"it is durable":       func(n *node) { n.job = fixture.Changed(n.job, func(j *replica.Job) { j.Durable = gen5 }) },
		"there is no disk":    func(n *node) { n.undurable = errors.New("no disk") },
		"it has not returned": func(n *node) { n.room.running[n.write] = true },
	} {
		n := begun(t, 2)
		n.returns(nil)
		n.step()
		c(n)
		n.named(replica.Generation{}, replica.Digest{})
		n.wants(0)
		if t.Failed() {
			t.Fatal(what)
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

// The private parts of a node's ranks are written as one object, and reported at once.
func TestPrivatePartsAreOneObject(t *testing.T) {
	n := newNode(t, 2)
	var roots [2]replica.Digest
	n.private = roomtest.Arena(t, shm.Spec{Geometry: fixture.Geometry(t, false)})
	roots[0] = roomtest.Seal(t, n.private, shm.Place{Kind: shm.Ring}, gen5, replica.Digest{}).Root
	second := roomtest.Arena(t, shm.Spec{Geometry: fixture.Geometry(t, false), Rank: 1})
	roots[1] = roomtest.Seal(t, second, shm.Place{Kind: shm.Ring}, gen5, replica.Digest{}).Root
	n.more = []room.Mirror{{Part: replica.OfRank(1), Arena: second}}
	n.job = fixture.Changed(n.job, func(j *replica.Job) {
		j.Writer = &replica.DurableWrite{Generation: gen5, Number: 1, Shards: []replica.Shard{
			{Part: replica.OfGroup(0), Node: "n1", Root: n.seals(0, gen5).Root}, {Part: replica.OfRank(0), Node: "n1", Root: roots[0]}, {Part: replica.OfRank(1), Node: "n1", Root: roots[1]}, {Part: replica.OfRank(2), Node: "n2"}}}
	})
	n.room.Learn(n.now, act.Changed{Job: n.job.ID})
	n.wants(0, write5, "write private 0 of (3,5)")
	if w := n.write; w.Object != "node-n1" || len(w.pieces) != 2 {
		t.Fatalf("object %q of %d parts", w.Object, len(w.pieces))
	}
	r := runs(t, n, spool.Config{Dir: t.TempDir()})
	for range 2 {
		soon(t, "a slot", r.freed)
	}
	r.goesOn(2 * len(n.write.pieces[0].slot.Manifest().Chunks))
	if err := soon(t, "the end", r.ended); err != nil || second.Readers(shm.Place{Kind: shm.Ring}) != 0 {
		t.Errorf("it ends with %v", err)
	}
	n.write.Info = replica.Stored{Key: "node-n1"}
	n.room.Learn(n.now, act.Ended{Of: n.write})
	reports := 0
	for _, e := range n.room.Step(n.now) {
		if s, ok := sent(e); ok && s.Part == replica.OfRank(0) && slices.Equal(s.Also, []replica.Part{replica.OfRank(1)}) {
			reports++
		}
	}
	if reports != 1 {
		t.Errorf("%d reports of both parts", reports)
	}
	n.write.end(n.now)
	if soon(t, "its removal", r.gone); !r.spool.Empty() {
		t.Error("something is left in the spool")
	}
}

// A node that writes nothing of its jobs is not woken for it.
func TestNothingIsLookedAtWhereNothingIsWritten(t *testing.T) {
	n := begun(t, 2)
	n.returns(nil)
	n.step()
	if _, due := n.room.Next(); !due {
		t.Error("a write under way is not looked at")
	}
	n.named(replica.Generation{}, replica.Digest{})
	n.step()
	if _, due := n.room.Next(); due {
		t.Error("the writes are over, and the room is to be called again")
	}
}

// sent is the report that an effect has for the leader.
func sent(e act.Effect) (r control.ShardReport, is bool) {
	s, is := e.(act.Send)
	if is {
		r, is = s.Msg.(control.ShardReport)
	}
	return r, is
}
