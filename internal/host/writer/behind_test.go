package writer

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/spool"
	"github.com/replicad/replicad/replica"
)

// owes is a node that holds group 0 and the private part of rank 0 of generation 5, which is committed and not in the store.
func owes(t *testing.T) *node {
	n := newNode(t, 2)
	group := n.Seal("rank-0", "slot:0", "5").Root
	n.private = roomtest.Arena(t, shm.Spec{Geometry: fixture.Geometry(t, false)})
	private := roomtest.Seal(t, n.private, shm.Place{Kind: shm.Ring}, gen5, replica.Digest{}).Root
	n.View.Job = fixture.Changed(n.View.Job, func(j *replica.Job) {
		j.Options.DurableEvery, j.Committed, j.Position, j.Writes = 100, gen5, replica.Position(gen5), 4
		here, there := []replica.Holder{n.Self()}, []replica.Holder{{Node: "n2", Incarnation: 22}}
		j.Parts = []replica.PartRoot{{Part: replica.OfGroup(0), Root: group, Holders: there}, {Part: replica.OfRank(0), Root: private, Holders: here}, {Part: replica.OfRank(1), Root: replica.Digest{7}, Holders: there}}
	})
	return n
}

func unknown(Laid) bool { return false }

func spoolIn(t *testing.T, dir string, epoch uint64) *spool.Spool {
	t.Helper()
	sp, err := spool.Open(t.Context(), spool.Config{Dir: dir, Owner: "n1", Epoch: epoch, Most: 1 << 30})
	if err != nil {
		t.Fatal(err)
	}
	return sp
}

// A daemon that ends leaves every part that it has of what is committed, those first that no other node is sure to leave; the next one tells of them,
// with all roots, and writes them.
func TestWhatADaemonLeavesBehind(t *testing.T) {
	n := owes(t)
	b := n.room.Behind(n.Now, n.view(), unknown)
	var parts []string
	for _, w := range b.Writes {
		parts = append(parts, fmt.Sprintf("%v of %v, number %d", w.Parts, w.Generation, w.Number))
	}
	if got, want := strings.Join(parts, "; "), "[private 0] of (3,5), number 5; [group 0] of (3,5), number 5"; got != want || len(b.There) != 0 || len(b.Failed) != 0 {
		t.Fatalf("it is to lay down %s, want %s; there are %v, failed %v", got, want, b.There, b.Failed)
	}
	dir := t.TempDir()
	sp := spoolIn(t, dir, 31)
	known := map[Laid]bool{}
	for _, w := range b.Writes {
		if err := w.Lay(t.Context(), sp); err != nil {
			t.Fatal(err)
		}
		known[w.Is()] = true
	}
	if again := n.room.Behind(n.Now, n.view(), func(l Laid) bool { return known[l] }); len(again.Writes) != 0 {
		t.Errorf("%d are to be laid down again", len(again.Writes))
	}
	for what, free := range map[string]func(){"group": func() { n.arena.Free(shm.Place{}) }, "private": func() { n.private.Free(shm.Place{Kind: shm.Ring}) }} {
		if free(); n.arena.Word(shm.Place{}).State() != replica.SlotFree && what == "group" {
			t.Error("its slot is held")
		}
	}
	next := spoolIn(t, dir, 99)
	left, passed := LeftBehind(t.Context(), next, "n1", fixture.Cluster)
	if len(left) != 2 || len(passed) != 0 {
		t.Fatalf("left are %d, passed over %q", len(left), passed)
	}
	to := &store{goOn: make(chan struct{}, 1000)}
	for range 1000 {
		to.goOn <- struct{}{}
	}
	for _, p := range n.View.Job.Parts[:2] {
		at, ok := PickOf(left, n.View.Job.ID, gen5, p)
		if !ok || !at.Note.Loose || len(at.Note.Roots) != 2 || at.Note.Said.Position != n.View.Job.Position {
			t.Fatalf("%v: %v, %+v", p.Part, ok, at.Note)
		}
		if _, err := Finish(t.Context(), Tier{Store: to, Spool: next}, tier.Attempt{Job: n.View.Job.ID, Generation: gen5, Number: 77}, "x", nil, []Pick{at}); err != nil {
			t.Error(err)
		}
	}
	if _, ok := PickOf(left, n.View.Job.ID, gen5, replica.PartRoot{Part: replica.OfRank(0), Root: replica.Digest{9}}); ok {
		t.Error("a part with another root is found")
	}
	for _, w := range b.Writes {
		w.Drop(t.Context())
	}
	if left, _ := LeftBehind(t.Context(), next, "n1", fixture.Cluster); len(left) != 0 {
		t.Errorf("%d are left of what was dropped", len(left))
	}
}

// What is frozen is laid down too, where no generation in the store has it, and written with the part that binds it.
func TestAFrozenPartIsLeftBehind(t *testing.T) {
	for _, written := range []bool{false, true} {
		n := newNode(t, 2)
		n.arena = roomtest.Arena(t, shm.Spec{Geometry: fixture.Geometry(t, true), Slots: 2})
		frozen := roomtest.Seal(t, n.arena, shm.Place{Kind: shm.Frozen}, fixture.Gen(1, 0), replica.Digest{})
		info := roomtest.Seal(t, n.arena, shm.Place{Kind: shm.Slot}, gen5, frozen.Root)
		n.View.Job = fixture.Changed(n.View.Job, func(j *replica.Job) {
			j.Options.DurableEvery, j.Committed, j.Position = 100, gen5, replica.Position(gen5)
			if written {
				j.Durable = fixture.Gen(3, 4)
			}
		})
		b := n.room.Behind(n.Now, n.view(), unknown)
		if want := map[bool]int{false: 2, true: 1}[written]; len(b.Writes) != want || len(b.Failed) != 0 {
			t.Fatalf("something was written: %v; to be laid down are %d, failed %v", written, len(b.Writes), b.Failed)
		}
		dir := t.TempDir()
		sp := spoolIn(t, dir, 31)
		for _, w := range b.Writes {
			if err := w.Lay(t.Context(), sp); err != nil {
				t.Fatal(err)
			}
		}
		next := spoolIn(t, dir, 99)
		left, passed := LeftBehind(t.Context(), next, "n1", fixture.Cluster)
		group, ok := PickOf(left, n.View.Job.ID, gen5, replica.PartRoot{Part: replica.OfGroup(0), Root: info.Root})
		ice, has := PickOf(left, n.View.Job.ID, gen5, replica.PartRoot{Part: replica.Part{Kind: replica.FrozenPart}, Root: frozen.Root})
		if !ok || has == written || len(passed) != 0 || len(group.Note.Frozen) != 1 {
			t.Fatalf("something was written: %v; found are %v, %v, passed over %q", written, ok, has, passed)
		}
		if written {
			continue
		}
		to := &store{goOn: make(chan struct{}, 1000)}
		for range 1000 {
			to.goOn <- struct{}{}
		}
		if _, err := Finish(t.Context(), Tier{Store: to, Spool: next}, tier.Attempt{Job: n.View.Job.ID, Generation: gen5, Number: 77}, "group-0", &ice, []Pick{group}); err != nil || uint64(len(to.got)) != frozen.Bytes+info.Bytes {
			t.Errorf("it is written with %v, %d bytes", err, len(to.got))
		}
	}
}

// Of a candidate that is whole here it lays down what it has, since it may be committed; by itself that binds nothing.
func TestACandidateIsLeftBehindToo(t *testing.T) {
	n := owes(t)
	root := n.Seal("rank-0", "slot:1", "9").Root
	n.Play("awaits 9")
	b := n.room.Behind(n.Now, n.view(), unknown)
	i := slices.IndexFunc(b.Writes, func(w *Write) bool { return w.Generation == gen9 })
	if len(b.Writes) != 3 || i < 0 || !b.Writes[i].note.Candidate || len(b.Writes[i].note.Roots) != 1 || b.Writes[i].note.Roots[0].Root != root || b.Writes[i].note.Said.Position.Step != 9 {
		t.Errorf("%d are to be laid down, the candidate is of them: %d", len(b.Writes), i)
	}
	for _, w := range b.Writes {
		w.end(n.Now)
	}
}

// The word of a commit has no roots: what the node knows may be those of a former one. A durable write that is named has them all.
func TestRootsThatANodeKnows(t *testing.T) {
	for _, named := range []bool{false, true} {
		n := owes(t)
		if named {
			n.Play("named 5 slot:0")
		}
		b := n.room.Behind(n.Now, n.view(), unknown)
		for _, w := range b.Writes {
			if w.note.Loose == named || w.note.Candidate || len(w.note.Roots) != 2 {
				t.Errorf("a write is named: %v; %v: loose %v, candidate %v, roots %v", named, w.Parts, w.note.Loose, w.note.Candidate, w.note.Roots)
			}
			w.end(n.Now)
		}
		if want := map[bool]int{false: 2, true: 1}[named]; len(b.Writes) != want { // of the write named, the group alone
			t.Errorf("a write is named: %v; to be laid down are %d", named, len(b.Writes))
		}
	}
}

// What can't be laid down is said, and what is durable, or of a job that writes nothing, is not laid down.
func TestWhatCannotBeLeftBehind(t *testing.T) {
	for what, x := range map[string]struct {
		change func(*node)
		want   string
	}{
		"no durable tier":       {func(n *node) { n.undurable = errors.New("no disk") }, "no disk, no disk"},
		"durable":               {func(n *node) { n.View.Job.Durable = gen5 }, ""},
		"it writes nothing":     {func(n *node) { n.View.Job.Options.DurableEvery = 0 }, ""},
		"it holds nothing more": {func(n *node) { n.View.Job.Committed = gen9 }, ""},
	} {
		n := owes(t)
		n.View.Job = fixture.Changed(n.View.Job, func(*replica.Job) {})
		x.change(n)
		b := n.room.Behind(n.Now, n.view(), unknown)
		var why []string
		for _, err := range b.Failed {
			why = append(why, err.Error())
		}
		if strings.Join(why, ", ") != x.want || len(b.Writes) != 0 {
			t.Errorf("%s: %q, and %d are to be laid down", what, why, len(b.Writes))
		}
	}
	for what, sp := range map[string]*spool.Spool{"this daemon has no spool": nil, "spool_dir has no room": spoolIn(t, "", 1)} {
		n := owes(t)
		for _, w := range n.room.Behind(n.Now, n.view(), unknown).Writes {
			if err := w.Lay(t.Context(), sp); err == nil || !strings.Contains(err.Error(), strings.Fields(what)[len(strings.Fields(what))-1]) {
				t.Errorf("%s: %v", what, err)
			}
		}
	}
}

// What a durable write under way has in the spool already is not copied again. It stays there when that write fails; not once it is durable.
func TestAWriteUnderWayIsLeftBehind(t *testing.T) {
	for _, durable := range []bool{false, true} {
		n := owes(t)
		n.Play("named 5 slot:0")
		r := runs(t, n, spool.Config{Dir: t.TempDir()})
		soon(t, "the slot", r.freed)
		var b Behind
		for end := time.Now().Add(fixture.Patience); time.Now().Before(end); runtime.Gosched() { // it is whole a moment after the slot is free
			if b = n.room.Behind(n.Now, n.view(), unknown); len(b.There) > 0 {
				break
			}
			for _, w := range b.Writes {
				w.end(n.Now)
			}
		}
		if len(b.There) != 1 || b.There[0].Part != replica.OfGroup(0) {
			t.Fatalf("there is %v", b.There)
		}
		for _, w := range b.Writes {
			w.end(n.Now)
		}
		if durable {
			r.goesOn(len(n.write.pieces[0].slot.Manifest().Chunks))
			if err := soon(t, "the end", r.ended); err != nil {
				t.Fatal(err)
			}
			n.View.Job = fixture.Changed(n.View.Job, func(j *replica.Job) { j.Durable, j.Writer = gen5, nil })
		} else {
			r.store.fail = errors.New("no space left")
			r.goesOn(1)
			if err := soon(t, "the end", r.ended); err == nil {
				t.Fatal("it ended without an error")
			}
			n.View.Job = fixture.Changed(n.View.Job, func(j *replica.Job) { j.Writer = nil })
		}
		n.room.Learn(n.Now, act.Changed{Job: n.View.Job.ID})
		soon(t, "the end of the write", r.gone)
		if left, _ := LeftBehind(t.Context(), spoolIn(t, r.dir, 99), "n1", fixture.Cluster); (len(left) == 0) != durable {
			t.Errorf("durable %v: left are %d", durable, len(left))
		}
	}
}

// TestWhatIsFrozenAnewIsLeftToo: after a growth the frozen part is another one than that of the newest durable generation, and no store has it.
func TestWhatIsFrozenAnewIsLeftToo(t *testing.T) {
	for grown, want := range map[replica.Epoch]bool{0: false, gen5.Epoch: true} {
		n := owes(t)
		n.arena = roomtest.Arena(t, shm.Spec{Geometry: fixture.Geometry(t, true), Slots: 2})
		frozen := roomtest.Seal(t, n.arena, shm.Place{Kind: shm.Frozen}, fixture.Gen(1, 0), replica.Digest{})
		info := roomtest.Seal(t, n.arena, shm.Place{Kind: shm.Slot}, gen5, frozen.Root)
		n.View.Job = fixture.Changed(n.View.Job, func(j *replica.Job) {
			j.Parts[0].Root, j.Grown = info.Root, grown
			j.Durable = fixture.Gen(gen5.Epoch-1, 3)
		})
		laid := false
		for _, w := range n.room.Behind(n.Now, n.view(), unknown).Writes {
			laid = laid || w.Parts[0].Kind == replica.FrozenPart
		}
		if laid != want {
			t.Errorf("grown in epoch %d, durable %v: the frozen part is laid down: %v", grown, n.View.Job.Durable, laid)
		}
	}
}
