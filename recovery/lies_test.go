package recovery_test

import (
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// lied is a job of two groups of one rank each, committed and on disk at step 2, of which rank 0 was lost with its node: its parts are on m alone,
// which sends wrong bytes of them.
func lied(t *testing.T, spares ...replica.NodeName) *world {
	t.Helper()
	w := newWorld()
	w.addNode("a", 1, false, nil)
	w.addNode("b", 1, false, nil)
	w.create([]replica.GroupID{0, 1}, replica.Options{DurableEvery: 1})
	w.must(t, w.start(0, "a"))
	w.must(t, w.start(1, "b"))
	w.must(t, w.wait(5*time.Second))
	for range 2 {
		w.must(t, w.step(true))
	}
	w.addDurable(w.state().Committed)
	for _, n := range spares {
		w.addNode(n, 1, true, nil)
	}
	w.must(t, w.wait(time.Second))
	w.liars = map[replica.NodeName]bool{"b": true}
	w.dieNode("a")
	w.queue = append(w.queue, recovery.Evidence{Fault: replica.Fault{Kind: replica.NodeDead, Node: "a", NodeIncarnation: w.nodes["a"].holder.Incarnation}})
	w.must(t, w.wait(2*time.Second))
	if j := w.state(); j.Phase != replica.Planned {
		t.Fatalf("the job is %v:\n%s", j.Phase, strings.Join(w.said, "\n"))
	}
	return w
}

// When every holder lies, a second node finds it too, and the durable tier is next, with the reason; the committed step is not lost.
func TestWhenAllHoldersLieTheDurableTierIsNext(t *testing.T) {
	w := lied(t, "s", "u")
	if got := strings.Join(w.leader.Awaited(w.now), "\n"); !strings.Contains(got, "what every holder sends of group 0 of (1,2) fails its digest") {
		t.Errorf("awaited: %s", got)
	}
	for range 300 {
		w.must(t, w.wait(time.Second))
	}
	said := strings.Join(w.said, "\n")
	j := w.state()
	if j.Phase != replica.Open || j.Committed.Step != 2 {
		t.Fatalf("the job is %v at %v:\n%s", j.Phase, j.Committed, said)
	}
	if !strings.Contains(said, "(the copies on b were sent wrong to two nodes)") || !strings.Contains(said, "group 0: durable") {
		t.Errorf("the durable tier is to be taken, with the reason:\n%s", said)
	}
}

// What one node alone finds is the fault of the rank there: it moves, and the copies count.
func TestALiarThatOneReceiverSees(t *testing.T) {
	w := lied(t, "s", "u")
	on := w.state().Ranks[0].Node
	w.nodes["s"].full, w.nodes["u"].full = true, true // no mirror fetches
	for range 8 {
		w.must(t, w.wait(time.Second))
		if w.state().Ranks[0].Node != on {
			delete(w.liars, "b") // the node that it moved to is sent good ones
		}
	}
	w.must(t, w.wait(20*time.Second))
	said := strings.Join(w.said, "\n")
	if j := w.state(); j.Phase != replica.Open || j.Ranks[0].Node == on || strings.Contains(said, "disk") {
		t.Errorf("the job is %v, rank 0 on %s, and was on %s:\n%s", j.Phase, j.Ranks[0].Node, on, said)
	}
}

// A process that attached and never seals its first state is a hang, from when all have attached on; while others are missing it is none.
func TestAFirstStateThatIsNeverSealed(t *testing.T) {
	for _, halted := range []bool{false, true} {
		w := newWorld()
		w.addNode("a", 1, false, nil)
		w.addNode("b", 1, false, nil)
		w.hold["a"], w.hold["b"] = true, true
		w.create([]replica.GroupID{0, 0}, replica.Options{})
		w.must(t, w.wait(time.Second))
		w.must(t, w.start(0, "a"))
		w.process("0").unsealing, w.process("0").halted = true, halted
		w.must(t, w.wait(2*w.timing.Start))
		if s := w.accused(replica.Hang); s != "" {
			t.Fatalf("rank 1 has not attached, and: %s", s)
		}
		if got := strings.Join(w.leader.Awaited(w.now), "\n"); !strings.Contains(got, "rank 0: process 1 on node a") {
			t.Errorf("awaited: %s", got)
		}
		w.must(t, w.start(1, "b"))
		w.process("1").unsealing = true
		w.must(t, w.wait(w.timing.Start-time.Second))
		if s := w.accused(replica.Hang); s != "" {
			t.Fatalf("too early: %s", s)
		}
		w.must(t, w.wait(2*time.Second))
		said := strings.Join(w.said, "\n")
		if !strings.Contains(said, "hang of rank 0") || strings.Contains(said, "hang of rank 1") == halted {
			t.Errorf("halted %v:\n%s", halted, said)
		}
	}
}

// A process that attached and does not come back to the next daemon of its node is one too, whether it has sealed or not; who waits for it is none.
func TestAFirstStateOfARankThatIsCutOff(t *testing.T) {
	for _, sealed := range []bool{false, true} {
		for _, halted := range []bool{false, true} {
			w := newWorld()
			w.addNode("a", 1, false, nil)
			w.addNode("b", 1, false, nil)
			w.create([]replica.GroupID{0, 0}, replica.Options{})
			w.must(t, w.start(0, "a"))
			w.process("0").unsealing = !sealed
			w.must(t, w.start(1, "b"))
			w.process("1").unsealing = true
			w.must(t, w.wait(w.timing.Start/2))
			w.process("0").detached, w.process("0").halted = true, halted
			w.must(t, w.wait(w.timing.Start-time.Second))
			named := "rank 0: process 1 on node a has attached and has been on its way to rp_join"
			if halted {
				named = "rank 0: process 1 on node a is stopped by a signal (kill -CONT 1)"
			}
			if got := strings.Join(w.leader.Awaited(w.now), "\n"); !strings.Contains(got, named) || !strings.Contains(got, "it is not connected to its daemon") {
				t.Errorf("sealed %v, halted %v: awaited: %s", sealed, halted, got)
			}
			if s := w.accused(replica.Hang); s != "" {
				t.Fatalf("sealed %v, halted %v: too early: %s", sealed, halted, s)
			}
			w.must(t, w.wait(2*time.Second))
			if said := strings.Join(w.said, "\n"); !strings.Contains(said, "hang of rank 0") || strings.Contains(said, "hang of rank 1") {
				t.Errorf("sealed %v, halted %v:\n%s", sealed, halted, said)
			}
		}
	}
}

// A rank that the rendezvous puts off because its node is in another life than its claim is started anew.
func TestARankThatIsPutOffForEver(t *testing.T) {
	w := training(t)
	n := w.on(1)
	w.nonce++
	n.holder.Incarnation = replica.NodeIncarnation(w.nonce) // its keeper began anew beside the living process
	n.session = 0
	w.startDaemon(n.holder.Node)
	w.must(t, w.wait(time.Second))
	if w.state().Ranks[1].NodeIncarnation == n.holder.Incarnation {
		t.Skip("the claim has followed its node")
	}
	for range 12 {
		w.queue = append(w.queue, recovery.PutOff{Rank: 1})
		w.must(t, w.wait(time.Second))
	}
	if w.accused(replica.Hang) == "" {
		t.Errorf("it is put off for ever; awaited: %v\n%s", w.leader.Awaited(w.now), strings.Join(w.said, "\n"))
	}
}

// What ranks waited for at the rendezvous of an epoch is over with the epoch: the time that they waited then is held against nobody in the next
// ones. A job ended so, after 17 recoveries within a second: its node had come back, and had nothing to bring.
func TestARendezvousWaitsAnewInEachEpoch(t *testing.T) {
	for what, ends := range map[string]func(*world){
		"a rank dies": func(w *world) { w.attach(t, w.lose(t, 1), 1) },
		"the link to the node is new": func(w *world) {
			name := w.state().Ranks[1].Node
			w.stopDaemon(name)
			w.must(t, w.wait(time.Second))
			w.startDaemon(name)
		},
	} {
		w := training(t)
		other := w.state().Ranks[1].Node
		for range int(w.timing.Ack/time.Second) - 1 {
			w.queue = append(w.queue, recovery.PutOff{Rank: 0, Missing: other})
			w.must(t, w.wait(time.Second))
		}
		ends(w)
		w.queue = append(w.queue, recovery.PutOff{Rank: 0, Missing: other})
		w.must(t, w.wait(3*time.Second))
		if s := w.accused(replica.Silent); s != "" {
			t.Errorf("%s: %s\n%s", what, s, strings.Join(w.said, "\n"))
		}
	}
}
