package recovery_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// opened is a world whose job trains; nodes with a seat get the ranks, the others mirror.
func opened(t *testing.T, groups []replica.GroupID, seats map[replica.NodeName]int) *world {
	t.Helper()
	w := newWorld()
	for _, n := range []replica.NodeName{"a", "b", "c", "d"} {
		if s, ok := seats[n]; ok {
			w.addNode(n, s, n > "b", nil) // c and d are spares
		}
	}
	w.create(groups, replica.Options{})
	await(t, w, 20*time.Second)
	if j := w.state(); j.Phase != replica.Open {
		t.Fatalf("the job is %v:\n%s", j.Phase, strings.Join(w.said, "\n"))
	}
	if err := w.step(true); err != nil {
		t.Fatal(err)
	}
	await(t, w, 0)
	return w
}

func await(t *testing.T, w *world, d time.Duration) {
	t.Helper()
	if err := w.wait(d); err != nil {
		t.Fatalf("%v:\n%s", err, strings.Join(w.said, "\n"))
	}
}

// TestMirrorOfAbsentDaemonMoves: a mirror whose daemon is away keeps its part for daemon_grace, which is a restart; then another takes it
// and commits go on. Where nobody else can, it stays, and so do the copies that a commit needs.
// Mirrors left only nodes with a fault, and a daemon that is down on a live host never has one.
func TestMirrorOfAbsentDaemonMoves(t *testing.T) {
	w := opened(t, []replica.GroupID{0}, map[replica.NodeName]int{"a": 1, "b": 0, "c": 0})
	was := w.state().Mirrors[0][0]
	w.stopDaemon(was)
	await(t, w, recovery.DefaultTiming().DaemonGrace-time.Millisecond)
	if now := w.state().Mirrors[0]; !slices.Equal(now, []replica.NodeName{was}) {
		t.Fatalf("mirrors %v before daemon_grace, of %s away", now, was)
	}
	if err := w.step(true); err == nil {
		t.Fatal("a commit without its second copy")
	}
	await(t, w, 2*time.Millisecond)
	if j := w.state(); slices.Contains(j.Mirrors[0], was) || slices.Contains(j.GroupMirrors[0], was) || j.Copies != 2 {
		t.Fatalf("mirrors %v and %v, copies %d, with %s away for daemon_grace", j.Mirrors, j.GroupMirrors, j.Copies, was)
	}
	if err := w.step(true); err != nil {
		t.Fatal(err)
	}
	now := w.state().Mirrors[0][0]
	w.startDaemon(was)
	await(t, w, time.Minute)
	if w.state().Mirrors[0][0] != now {
		t.Errorf("mirrors %v: the daemon's return moved them once more", w.state().Mirrors)
	}

	two := opened(t, []replica.GroupID{0}, map[replica.NodeName]int{"a": 1, "b": 0})
	two.stopDaemon("b")
	await(t, two, time.Minute)
	if j := two.state(); !slices.Equal(j.Mirrors[0], []replica.NodeName{"b"}) || j.Copies != 2 {
		t.Errorf("mirrors %v, copies %d: silence lowers no copies", j.Mirrors, j.Copies)
	}
}

// TestMirrorMovesOffCutPair: a mirror that the leader hears and the producer does not gives way to one that both do.
func TestMirrorMovesOffCutPair(t *testing.T) {
	w := opened(t, []replica.GroupID{0}, map[replica.NodeName]int{"a": 1, "b": 0, "c": 0, "d": 0})
	was := w.state().Mirrors[0][0]
	w.cut("a", was, true)
	fails := func(steps int) {
		t.Helper()
		for range steps {
			if err := w.step(true); err == nil {
				t.Fatal("a commit without its second copy")
			}
			await(t, w, time.Second)
		}
	}
	fails(3)
	if now := w.state().Mirrors[0]; !slices.Equal(now, []replica.NodeName{was}) {
		t.Fatalf("mirrors %v: two seconds may be a daemon that was just killed", now)
	}
	fails(1)
	if j := w.state(); slices.Contains(j.Mirrors[0], was) || len(j.Mirrors[0]) != 1 || j.Copies != 2 || j.Phase != replica.Open {
		t.Fatalf("mirrors %v, copies %d, %v: %s gets nothing from a", j.Mirrors, j.Copies, j.Phase, was)
	}
	if err := w.step(true); err != nil {
		t.Fatal(err)
	}
}

// lacking is a job of two ranks of one group on a and b, where a has to have the group's part from b to go on, and can't.
func lacking(t *testing.T, seats map[replica.NodeName]int, cuts ...replica.NodeName) *world {
	t.Helper()
	w := opened(t, []replica.GroupID{0, 0}, seats)
	d := w.nodes["a"]
	if w.nodes["a"].procs[0] == nil && w.nodes["b"].procs[0] == nil {
		t.Fatalf("ranks %v", w.state().Ranks)
	}
	if d.procs[0] == nil {
		d = w.nodes["b"]
	}
	other := map[replica.NodeName]replica.NodeName{"a": "b", "b": "a"}[d.holder.Node]
	for _, n := range append([]replica.NodeName{other}, cuts...) {
		w.cut(d.holder.Node, n, true)
	}
	d.parts = slices.DeleteFunc(d.parts, func(h replica.Held) bool { return h.Part == replica.OfGroup(0) })
	for _, n := range w.nodes {
		n.parts = slices.DeleteFunc(n.parts, func(h replica.Held) bool { return h.Part == replica.OfGroup(0) && h.Mirror })
		n.noSlot = true
	}
	w.queue = append(w.queue, recovery.Evidence{Fault: replica.Fault{Kind: replica.Exception, Rank: 1, Incarnation: w.state().Ranks[1].Incarnation, Epoch: w.state().Epoch}})
	return w
}

// TestThirdNodeRelays: what a rank's node can't have from the only holder, a node that reaches both fetches for it.
func TestThirdNodeRelays(t *testing.T) {
	w := lacking(t, map[replica.NodeName]int{"a": 1, "b": 1, "c": 0, "d": 0})
	await(t, w, 5*time.Second)
	await(t, w, time.Second)
	said := strings.Join(w.said, "\n")
	if j := w.state(); j.Phase != replica.Open || j.Epoch != 2 || !strings.Contains(said, "relay group 0 for rank 0 by") {
		t.Fatalf("%v in epoch %d:\n%s", j.Phase, j.Epoch, said)
	}
}

// TestRankMovesWhereNobodyRelays: a rank's node that reaches no holder, nor anybody who does, gives its rank to one that does.
func TestRankMovesWhereNobodyRelays(t *testing.T) {
	w := lacking(t, map[replica.NodeName]int{"a": 1, "b": 1, "c": 1}, "c")
	for n, d := range w.nodes { // where the rank's own private part lies besides
		d.hold(replica.OfRank(0), w.state().Committed, 0, n != w.state().Ranks[0].Node)
	}
	await(t, w, 30*time.Second)
	if j := w.state(); j.Phase != replica.Open || j.Ranks[0].Node != "c" {
		t.Fatalf("%v, rank 0 on %s:\n%s", j.Phase, j.Ranks[0].Node, strings.Join(w.said, "\n"))
	}
}

// TestUnreachedIsSaid: where neither is possible the job says whom it waits for, and goes on when the network is whole again.
func TestUnreachedIsSaid(t *testing.T) {
	w := lacking(t, map[replica.NodeName]int{"a": 1, "b": 1})
	await(t, w, time.Minute)
	said := strings.Join(w.said, "\n")
	if j := w.state(); j.Phase != replica.Planned || !strings.Contains(said, "can't get group 0 from") {
		t.Fatalf("%v in epoch %d:\n%s", j.Phase, j.Epoch, said)
	}
	w.cut("a", "b", false)
	await(t, w, time.Second)
	if j := w.state(); j.Phase != replica.Open {
		t.Fatalf("%v:\n%s", j.Phase, strings.Join(w.said, "\n"))
	}
}

// TestMirrorMovesOffPairThatFailsSlowly: a push to a mirror that takes connections and no bytes is given up after 6 s and more (mover.pushLimit, two
// tries), and said then. The mirror gives way all the same.
func TestMirrorMovesOffPairThatFailsSlowly(t *testing.T) {
	for _, every := range []time.Duration{4 * time.Second, 7 * time.Second, 20 * time.Second} {
		w := opened(t, []replica.GroupID{0}, map[replica.NodeName]int{"a": 1, "b": 0, "c": 0, "d": 0})
		was := w.state().Mirrors[0][0]
		w.cut("a", was, true)
		w.pushing = every - 200*time.Millisecond
		n := 0
		for ; n < 60 && slices.Contains(w.state().Mirrors[0], was); n++ {
			if err := w.step(true); err == nil {
				t.Fatal("a commit without its second copy")
			}
			await(t, w, every)
		}
		if slices.Contains(w.state().Mirrors[0], was) {
			t.Errorf("a failure each %v: after %v nothing has been committed, and the mirror stays", every, time.Duration(n)*every)
		} else {
			t.Logf("a failure each %v: moved after %d", every, n)
		}
	}
}
