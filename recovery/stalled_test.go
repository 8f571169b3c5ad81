package recovery_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/replica"
)

// kennel is a job as a watchdog sees it, at ten looks a second.
type kennel struct {
	t       *testing.T
	dog     recovery.Watchdog
	now     time.Duration
	job     replica.Job
	c       recovery.Commits
	others  []replica.NodeName // that could mirror
	away    map[replica.NodeName]bool
	said    []string
	moves   []recovery.Stalled
	over    time.Duration
	stalled bool
}

func newKennel(t *testing.T, cadence replica.Step) *kennel {
	k := &kennel{t: t, job: replica.Job{Phase: replica.Open, Epoch: 3, Position: replica.Position{Epoch: 3, Step: 10}}, away: map[replica.NodeName]bool{}, others: []replica.NodeName{"d"}}
	k.c = recovery.Commits{Clocks: new(recovery.Clocks), Cadence: cadence, Live: 10, Candidate: 10 + cadence,
		Linked: func(n replica.NodeName) bool { return !k.away[n] },
		Elsewhere: func(_ replica.Part, from replica.NodeName) (replica.NodeName, bool) {
			i := slices.IndexFunc(k.others, func(n replica.NodeName) bool { return n != from })
			if i < 0 {
				return "", false
			}
			return k.others[i], true
		}}
	k.look()
	return k
}

func (k *kennel) look() {
	job := k.job
	k.c.Job = &job
	news := k.dog.Look(k.now, k.c)
	if news.Say {
		k.said = append(k.said, news.Stall.String())
	}
	k.moves, k.stalled = append(k.moves, news.Moves...), news.Stall != nil
	if news.Over > 0 {
		k.over = news.Over
	}
}

// run lets time pass; each step takes so long, 0: none is made. each is called after each tenth of a second.
func (k *kennel) run(long, step time.Duration, each func()) {
	const tick = 100 * time.Millisecond
	for end, next := k.now+long, k.now+step; k.now < end; {
		k.now += tick
		if step > 0 && k.now >= next {
			k.c.Live++
			next += step
		}
		if each != nil {
			each()
		}
		k.look()
	}
}

// commits has a step committed, and the next one named.
func (k *kennel) commits() {
	k.job.Position.Step = k.c.Candidate
	k.c.Candidate += k.c.Cadence
	k.c.Missing = nil
}

var group1 = replica.OfGroup(1)

// lacks is the group's part on a, which its mirror does not take.
func lacks(mirror replica.NodeName) []replica.Missing {
	return []replica.Missing{{Part: group1, Node: mirror, Mirror: true, Holders: []replica.NodeName{"a"}}}
}

// TestWatchdogMovesAMirror: a mirror that never takes a part is said with what a fault would cost, and moved, once.
func TestWatchdogMovesAMirror(t *testing.T) {
	k := newKennel(t, 1)
	k.c.Missing = lacks("c")
	k.run(9900*time.Millisecond, 100*time.Millisecond, nil)
	if len(k.said) > 0 {
		t.Fatalf("after %v: %q", k.now, k.said)
	}
	k.run(200*time.Millisecond, 100*time.Millisecond, nil)
	want := "nothing has been committed for 10s: one more fault would cost the 100 steps since step 10; group 1 lies on a, and its mirror, node c, does not take it: node d mirrors it from now on"
	if len(k.said) != 1 || k.said[0] != want || !slices.Equal(k.moves, []recovery.Stalled{{Epoch: 3, Part: group1, Node: "c"}}) {
		t.Fatalf("%q, %v", k.said, k.moves)
	}
	k.c.Missing = lacks("d")
	k.run(4*time.Second, 100*time.Millisecond, nil)
	if len(k.said) != 1 || !k.stalled {
		t.Fatalf("while the other one gets it: %q, stalled %v", k.said, k.stalled)
	}
	k.commits()
	k.run(time.Second, 100*time.Millisecond, nil)
	if k.over == 0 || k.stalled {
		t.Errorf("commits go on, and nobody says so: %v, %v", k.over, k.stalled)
	}
	// The same part again, in the same epoch: it is said, and stays.
	k.others = append(k.others, "e")
	k.c.Missing = lacks("d")
	k.run(11*time.Second, 100*time.Millisecond, nil)
	if len(k.said) != 2 || !strings.Contains(k.said[1], "moved in this epoch already") || len(k.moves) != 1 {
		t.Errorf("%q, %v", k.said, k.moves)
	}
	k.run(60*time.Second, 100*time.Millisecond, nil)
	if len(k.said) != 3 { // again at twice the steps
		t.Errorf("said %d times in a minute: %q", len(k.said), k.said)
	}
	// In the next epoch it may move again.
	k.job.Epoch, k.job.Position.Epoch = 4, 4
	k.run(11*time.Second, 100*time.Millisecond, nil)
	if len(k.moves) != 2 || k.moves[1].Epoch != 4 {
		t.Errorf("in the next epoch: %v", k.moves)
	}
}

// TestWatchdogSaysWhatItCannotMove: with no other node, or where a rank or a daemon is what is waited for, it says so.
func TestWatchdogSaysWhatItCannotMove(t *testing.T) {
	for _, tc := range []struct {
		what string
		set  func(k *kennel)
		says string
	}{
		{"no other node", func(k *kennel) { k.others, k.c.Missing = nil, lacks("c") }, "node c, does not take it: no other node can mirror it"},
		{"a mirror's daemon is away", func(k *kennel) { k.away["c"], k.c.Missing = true, lacks("c") }, "has no link to the leader"},
		{"a rank that does not seal", func(k *kennel) { k.c.Missing = []replica.Missing{{Part: group1, Node: "b", Rank: 2}} }, "rank 2 on node b has not sealed group 1"},
		{"no part", func(k *kennel) { k.c.Waiting = []string{"the outcome of a proposal"} }, "the commit waits for the outcome of a proposal"},
	} {
		k := newKennel(t, 1)
		tc.set(k)
		k.run(12*time.Second, 100*time.Millisecond, nil)
		if len(k.said) != 1 || !strings.Contains(k.said[0], tc.says) || !strings.Contains(k.said[0], "one more fault would cost the 1") || len(k.moves) > 0 {
			t.Errorf("%s: %q, %v", tc.what, k.said, k.moves)
		}
	}
}

// TestWatchdogKeepsStill: for no job that makes no steps, no part that moves, no long cadence, and no commits that are slow by nature.
func TestWatchdogKeepsStill(t *testing.T) {
	quiet := func(what string, k *kennel) {
		t.Helper()
		if len(k.said) > 0 || len(k.moves) > 0 || k.stalled {
			t.Errorf("%s: %q, %v", what, k.said, k.moves)
		}
	}
	paused := newKennel(t, 1)
	paused.c.Missing = lacks("c")
	paused.run(9*time.Second, 100*time.Millisecond, nil)
	paused.run(time.Hour, 0, nil)
	quiet("an evaluation after nine seconds", paused)

	compiles := newKennel(t, 1)
	compiles.run(10*time.Minute, 0, nil)
	quiet("a job that has made no step", compiles)
	compiles.run(time.Second, 100*time.Millisecond, nil)
	compiles.c.Missing = lacks("c")
	compiles.run(4*time.Second, 100*time.Millisecond, nil)
	quiet("a job that makes its first steps, with a part on its way for four seconds", compiles)

	slow := newKennel(t, 1)
	slow.c.Missing = lacks("c")
	bytes := uint64(0)
	slow.run(2*time.Minute, 100*time.Millisecond, func() {
		if slow.now%(4*time.Second) == 0 {
			bytes += 1 << 20
			slow.dog.Moving(slow.now, recovery.Moving{From: "a", To: "c", Part: group1, Generation: replica.Generation{Epoch: 3, Step: 11}, Bytes: bytes})
		}
	})
	quiet("a part that moves a mebibyte each four seconds", slow)
	slow.run(6*time.Second, 100*time.Millisecond, func() {
		slow.dog.Moving(slow.now, recovery.Moving{From: "a", To: "c", Part: group1, Generation: replica.Generation{Epoch: 3, Step: 11}, Bytes: bytes - 1, Why: "no place"})
		slow.dog.Moving(slow.now, recovery.Moving{From: "b", To: "c", Part: group1, Generation: replica.Generation{Epoch: 3, Step: 11}, Bytes: 1 << 40})
	})
	if len(slow.said) != 1 || !strings.Contains(slow.said[0], "(no place)") {
		t.Errorf("tries that come no further than an earlier one, and the word of a node that has no such part: %q", slow.said)
	}

	long := newKennel(t, 200)
	for range 3 {
		long.run(200*time.Second, time.Second, nil)
		long.commits()
	}
	long.c.Missing = lacks("c")
	long.run(590*time.Second, time.Second, nil)
	quiet("a cadence of 200 steps", long)
	long.run(20*time.Second, time.Second, nil)
	if len(long.said) != 1 {
		t.Errorf("three cadences of 200 steps without a commit: %q", long.said)
	}

	large := newKennel(t, 1)
	for range 5 {
		large.run(30*time.Second, time.Second, nil)
		large.commits()
	}
	large.c.Missing = lacks("c") // hashed for longer than no byte moves
	large.run(80*time.Second, time.Second, nil)
	quiet("commits that come each 30 s", large)

	rare := newKennel(t, 1)
	rare.c.Missing = []replica.Missing{{Part: group1, Node: "b", Rank: 2}}
	rare.c.Candidate = 1 << 20
	rare.run(time.Minute, 100*time.Millisecond, nil)
	quiet("a candidate that no rank has come to", rare)
}

// TestWatchdogSeesThroughLapses: candidates that are passed one after another, sooner than a part is missed for one of them.
func TestWatchdogSeesThroughLapses(t *testing.T) {
	k := newKennel(t, 1)
	k.run(12*time.Second, 100*time.Millisecond, func() {
		k.c.Missing = []replica.Missing{{Part: group1, Node: "b", Rank: 2}}
		if k.now%time.Second == 0 {
			k.c.Candidate = k.c.Live + 1
		}
	})
	if len(k.said) != 1 || !strings.Contains(k.said[0], "rank 2 on node b has not sealed group 1") {
		t.Errorf("%q", k.said)
	}
}

// TestStalledMirrorMoves: by the watchdog's word a mirror is moved, of that part alone, and not moved back; where no other node is it stays.
func TestStalledMirrorMoves(t *testing.T) {
	w := opened(t, []replica.GroupID{0, 1}, map[replica.NodeName]int{"a": 1, "b": 1, "c": 0, "d": 0})
	was := w.state()
	from := was.GroupMirrors[1][0]
	to, ok := w.leader.Elsewhere(group1, from)
	if !ok || to == from {
		t.Fatalf("group 1, of %v, on %s: it could move to %q, %v", was.Ranks, from, to, ok)
	}
	w.queue = append(w.queue, recovery.Stalled{Epoch: was.Epoch - 1, Part: group1, Node: from})
	await(t, w, time.Second)
	if j := w.state(); j != was {
		t.Fatalf("a word of another epoch: mirrors %v", j.GroupMirrors)
	}
	w.queue = append(w.queue, recovery.Stalled{Epoch: was.Epoch, Part: group1, Node: from})
	await(t, w, time.Minute)
	j := w.state()
	if !slices.Equal(j.GroupMirrors[1], []replica.NodeName{to}) || !slices.Equal(j.GroupMirrors[0], was.GroupMirrors[0]) || j.Epoch != was.Epoch || j.Copies != 2 {
		t.Fatalf("mirrors %v, were %v: want %s for %s in group 1", j.GroupMirrors, was.GroupMirrors, to, from)
	}
	if err := w.step(true); err != nil {
		t.Error(err)
	}

	two := opened(t, []replica.GroupID{0}, map[replica.NodeName]int{"a": 1, "b": 0})
	if to, ok := two.leader.Elsewhere(replica.OfGroup(0), "b"); ok {
		t.Errorf("there is no other node than a and b, and %s is named", to)
	}
	two.queue = append(two.queue, recovery.Stalled{Epoch: two.state().Epoch, Part: replica.OfGroup(0), Node: "b"})
	await(t, two, time.Minute)
	if j := two.state(); !slices.Equal(j.GroupMirrors[0], []replica.NodeName{"b"}) || j.Copies != 2 {
		t.Errorf("mirrors %v, copies %d", j.GroupMirrors, j.Copies)
	}
}

// TestWatchdogLetsADurableWriteFinish: a mirror whose place is held by a durable write that moves is not moved, and nothing is said of a stall.
// Once the node says no more of it, it is as with any other.
func TestWatchdogLetsADurableWriteFinish(t *testing.T) {
	k := newKennel(t, 1)
	k.c.Missing = lacks("c")
	k.run(30*time.Second, 100*time.Millisecond, func() {
		if k.now%time.Second == 0 {
			k.dog.Writing(k.now, recovery.Writing{Node: "c", Part: group1, Bytes: uint64(k.now), Late: k.now})
		}
	})
	if len(k.said) > 0 || len(k.moves) > 0 || k.stalled {
		t.Fatalf("%q, %v, stalled %v", k.said, k.moves, k.stalled)
	}
	k.run(6*time.Second, 100*time.Millisecond, nil)
	if len(k.said) != 1 || len(k.moves) != 1 {
		t.Errorf("%q, %v", k.said, k.moves)
	}
}

// TestWatchdogWaitsForTheCandidateBehindADurableWrite: while a durable write held the slot candidates lapsed, and the last one is far ahead. That
// ranks are on their way there is no stall; that they have passed it again is.
func TestWatchdogWaitsForTheCandidateBehindADurableWrite(t *testing.T) {
	k := newKennel(t, 1)
	k.c.Missing = []replica.Missing{{Part: group1, Node: "a", Rank: 2}}
	k.run(20*time.Second, 100*time.Millisecond, func() {
		if k.now%time.Second == 0 {
			k.dog.Writing(k.now, recovery.Writing{Node: "a", Part: group1})
		}
	})
	k.c.Candidate = k.c.Live + 100
	k.run(14*time.Second, 100*time.Millisecond, nil)
	if len(k.said) > 0 || k.stalled {
		t.Fatalf("on the way to the candidate: %q", k.said)
	}
	k.c.Candidate = k.c.Live + 100
	k.run(3*time.Second, 100*time.Millisecond, nil)
	if len(k.said) != 1 {
		t.Errorf("it has lapsed as well: %q", k.said)
	}
}
