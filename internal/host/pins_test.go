package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"github.com/replicad/replicad/internal/host/job"
	"github.com/replicad/replicad/internal/host/rank"
	"reflect"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/mover"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
	"github.com/replicad/replicad/transfer"
)

// pins lists what of an arena is pinned, as the arena's own header has it.
func pins(t *testing.T, a *holding.Arena) map[shm.Place][2]uint64 {
	t.Helper()
	out := map[shm.Place][2]uint64{}
	for _, p := range a.Places() {
		if a.Word(p).State() != replica.SlotSealed {
			continue
		}
		info, err := a.Sealed(p)
		if err != nil {
			t.Fatal(err)
		}
		if info.PinN != 0 {
			out[p] = [2]uint64{info.PinTerm, info.PinN}
		}
	}
	return out
}

// partsOf lists what was pinned, in a fixed order.
func partsOf(answers []replica.Pinned) (out []replica.Held) {
	for _, a := range answers {
		out = append(out, a.Parts...)
	}
	slices.SortFunc(out, func(a, b replica.Held) int {
		return cmp.Or(cmp.Compare(a.Part.Kind, b.Part.Kind), cmp.Compare(a.Part.Index, b.Part.Index), a.Generation.Compare(b.Generation), cmp.Compare(a.Rank, b.Rank))
	})
	return out
}

func TestCandidatePinsItsGenerationAlone(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	for i, s := range []replica.Step{5, 6, 7} {
		d.both(lr.Arena, i, fixture.Gen(3, s))
	}
	d.seal(lr.Arena, slot(3), fixture.Gen(1, 6), 60) // of another epoch: the same step of another history
	other := d.mirrorOf(lj, replica.OfRank(1), 1, false)
	d.seal(other, ring(4), fixture.Gen(3, 6), 61)
	d.seal(other, ring(5), fixture.Gen(3, 7), 71)
	d.live(lr, 3, 8, replica.Idle)

	d.leaderSays(fixture.Candidate(1, 6))
	if lr.Arena.Candidate() != replica.PackWord(3, 6, 0) {
		t.Errorf("the rank is told candidate %v", lr.Arena.Candidate())
	}
	answers := fixture.Only[replica.Pinned](d.says())
	if len(answers) != 1 || answers[0].Job != fixture.JobID || answers[0].Term != 9 || answers[0].N != 1 || answers[0].Generation != fixture.Gen(3, 6) || answers[0].Holder != (replica.Holder{Node: "n1", Incarnation: 11}) || answers[0].Session != 3 {
		t.Fatalf("answered %+v", answers)
	}
	root := func(a *holding.Arena, p shm.Place) replica.Digest { i, _ := a.Sealed(p); return i.Root }
	want := []replica.Held{
		{Part: replica.OfGroup(0), Generation: fixture.Gen(3, 6), Root: root(lr.Arena, slot(1)), Rank: 0, Producer: 4},
		{Part: replica.OfRank(0), Generation: fixture.Gen(3, 6), Root: root(lr.Arena, ring(1)), Rank: 0, Producer: 4},
		{Part: replica.OfRank(1), Generation: fixture.Gen(3, 6), Root: root(other, ring(4)), Mirror: true, Rank: 1, Producer: 4},
	}
	if got := partsOf(answers); !reflect.DeepEqual(got, want) {
		t.Errorf("pinned %+v, want %+v", got, want)
	}
	p := [2]uint64{9, 1}
	if got := pins(t, lr.Arena); !reflect.DeepEqual(got, map[shm.Place][2]uint64{slot(1): p, ring(1): p}) {
		t.Errorf("pins in the rank's arena: %v", got)
	}
	if got := pins(t, other); !reflect.DeepEqual(got, map[shm.Place][2]uint64{ring(4): p}) {
		t.Errorf("pins in the mirror: %v", got)
	}

	d.answerCandidate(lj)
	d.leaderSays(fixture.Candidate(1, 6)) // heard again
	if again := d.says(); len(again) != 0 {
		t.Errorf("answered again: %+v", again)
	}

	d.leaderSays(fixture.Candidate(2, 7))
	p = [2]uint64{9, 2}
	if got := pins(t, lr.Arena); !reflect.DeepEqual(got, map[shm.Place][2]uint64{slot(2): p, ring(2): p}) {
		t.Errorf("after the next candidate the pins are %v", got)
	}
	if got := pins(t, other); !reflect.DeepEqual(got, map[shm.Place][2]uint64{ring(5): p}) {
		t.Errorf("after the next candidate the mirror's pins are %v", got)
	}
	if got := partsOf(fixture.Only[replica.Pinned](d.says())); len(got) != 3 || got[0].Generation != fixture.Gen(3, 7) {
		t.Errorf("pinned %+v", got)
	}
	d.leaderSays(fixture.Candidate(1, 6)) // an older one changes nothing
	if got := pins(t, lr.Arena); len(got) != 2 || lj.Candidate.N != 2 || len(d.says()) != 0 {
		t.Errorf("an older candidate is obeyed: %v", got)
	}
}

// What is on its way to a node that is not to mirror it any more is given up, and gives its slot back: with two slots nothing newer could be
// captured while the node says "not yet".
func TestPushesEndWithTheMirror(t *testing.T) {
	d := newRig(t)
	job := fixture.Job()
	job.GroupMirrors = [][]replica.NodeName{{"n2"}}
	lj := d.put(job)
	lr := d.attach(lj, 0)
	d.both(lr.Arena, 1, fixture.Gen(3, 6))
	d.leaderSays(fixture.Candidate(1, 6))
	if lr.Arena.Readers(slot(1)) != 1 {
		t.Fatalf("%d readers: want the group's part on its way", lr.Arena.Readers(slot(1)))
	}
	d.viewed(control.View{Era: d.era, Nodes: d.nodes, Jobs: []*replica.Job{fixture.Changed(job, func(j *replica.Job) { j.GroupMirrors = nil; j.LastIndex++ })}})
	d.until("the slot is given back", func() bool { return lr.Arena.Readers(slot(1)) == 0 })
}

// How far ranks are is known from the private parts that are mirrored here, too: where a mirror runs no rank, nobody else could tell the
// leader so late in a commit.
func TestMirrorsTellHowFarRanksAre(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.live(lr, 3, 8, replica.Idle)
	of := d.mirrorOf(lj, replica.OfRank(1), 1, false)
	d.seal(of, ring(0), fixture.Gen(3, 11), 1)
	d.seal(of, ring(1), fixture.Gen(3, 10), 2)
	d.seal(of, ring(2), fixture.Gen(2, 40), 3)
	d.seal(d.mirrorOf(lj, replica.OfGroup(1), 1, false), slot(0), fixture.Gen(3, 30), 4)
	if at := lj.View().Furthest(3); at != 11 {
		t.Errorf("furthest step %d, want 11", at)
	}
	d.live(lr, 3, 12, replica.Idle)
	if at := lj.View().Furthest(3); at != 12 {
		t.Errorf("furthest step %d, want 12", at)
	}
}

// Parts are answered as they are sealed, each once.
func TestCandidateAnsweredPartByPart(t *testing.T) {
	d := newRig(t)
	job := fixture.Job()
	job.Ranks[1].Node, job.Ranks[1].NodeIncarnation = "n1", 11
	lj := d.put(job)
	a, b := d.attach(lj, 0), d.attach(lj, 1)
	d.leaderSays(fixture.Candidate(1, 6))
	if said := fixture.Only[replica.Pinned](d.says()); len(said) != 0 {
		t.Errorf("pinned %+v with nothing sealed", said)
	}
	for i, c := range []struct {
		lr   *rank.Rank
		p    shm.Place
		want replica.Part
	}{{a, ring(0), replica.OfRank(0)}, {b, ring(0), replica.OfRank(1)}, {b, slot(0), replica.OfGroup(0)}, {a, slot(1), replica.OfGroup(0)}} {
		d.seal(c.lr.Arena, c.p, fixture.Gen(3, 6), 6)
		d.sealed(lj, c.lr, c.p)
		got := partsOf(fixture.Only[replica.Pinned](d.says()))
		if len(got) != 1 || got[0].Part != c.want || got[0].Rank != c.lr.Rank || got[0].Mirror {
			t.Errorf("seal %d of %v by rank %d is answered by %+v: each rank's copy is a vote", i, c.want, c.lr.Rank, got)
		}
	}
}

func TestNothingPinnedOutsideAnOpenEpoch(t *testing.T) {
	for what, c := range map[string]struct {
		change func(*replica.Job)
		cand   replica.Candidate
		linked bool
	}{
		"closed":               {func(j *replica.Job) { j.Phase, j.ClosedEpoch = replica.Closed, 3 }, fixture.Candidate(1, 6), true},
		"planned":              {func(j *replica.Job) { j.Phase = replica.Planned }, fixture.Candidate(1, 6), true},
		"of another epoch":     {func(j *replica.Job) { j.Position.Epoch = 4 }, fixture.Candidate(1, 6), true},
		"not beyond the C":     {func(j *replica.Job) { j.Position.Step = 6 }, fixture.Candidate(1, 6), true},
		"no leader":            {func(j *replica.Job) {}, fixture.Candidate(1, 6), false},
		"no candidate":         {func(j *replica.Job) {}, replica.Candidate{Job: fixture.JobID}, true},
		"control: it would do": {func(j *replica.Job) {}, fixture.Candidate(1, 6), true},
	} {
		t.Run(what, func(t *testing.T) {
			d := newRig(t)
			job := fixture.Job()
			lj := d.put(job)
			lr := d.attach(lj, 0)
			d.both(lr.Arena, 0, fixture.Gen(3, 6))
			d.live(lr, 3, 9, replica.Idle)
			c.change(job)
			l := d.link
			if !c.linked {
				d.link = nil
			}
			lj.Candidate = c.cand
			d.answerCandidate(lj)
			d.link = l
			control := c.linked && job.Position.Step == 5 && job.Position.Epoch == 3 && job.Phase == replica.Open && c.cand.N != 0
			if got := pins(t, lr.Arena); (len(got) != 0) != control || (len(d.says()) != 0) != control {
				t.Errorf("pins %v, want any: %v", got, control)
			}
		})
	}
}

// Pins of a node whose link was lost are void at the leader until it answers again: a new link must bring them again, also
// where the leader, its term and the candidate are the same as before.
func TestNewLinkAnswersTheCandidateAgain(t *testing.T) {
	d := newRig(t)
	job := fixture.Job()
	job.Ranks[1].Node, job.Ranks[1].NodeIncarnation = "n1", 11
	lj := d.put(job)
	holds, passed := d.attach(lj, 0), d.attach(lj, 1)
	d.both(holds.Arena, 0, fixture.Gen(3, 6))
	d.live(passed, 3, 9, replica.Idle)
	d.leaderSays(fixture.Candidate(1, 6))
	first := d.says()
	if len(fixture.Only[replica.Pinned](first)) != 1 || len(fixture.Only[replica.Passed](first)) != 1 {
		t.Fatalf("answered %+v", first)
	}
	d.handle(LinkDown{Link: d.link})
	d.connect()
	up := d.link
	d.link = nil
	d.handle(LinkUp{Link: up, Leader: "n2", Welcome: control.Welcome{OK: true, Term: 9}})
	d.handle(FromLeader{up, fixture.Candidate(1, 6)})
	again := d.says()
	if !reflect.DeepEqual(partsOf(fixture.Only[replica.Pinned](again)), partsOf(fixture.Only[replica.Pinned](first))) {
		t.Errorf("over the new link it pins %+v, want what it had pinned: %+v", fixture.Only[replica.Pinned](again), fixture.Only[replica.Pinned](first))
	}
	if !reflect.DeepEqual(fixture.Only[replica.Passed](again), fixture.Only[replica.Passed](first)) {
		t.Errorf("over the new link it says passed %+v, want %+v", fixture.Only[replica.Passed](again), fixture.Only[replica.Passed](first))
	}
	if len(fixture.Only[replica.NodeReport](again)) != 1 {
		t.Error("no report goes over the new link")
	}
}

// passedBy over every state of the places: the rank is beyond a generation when its live step is and one of the two parts is
// not there and will not come.
func TestPassedBy(t *testing.T) {
	g := fixture.Gen(3, 6)
	type held struct {
		state replica.SlotState
		g     replica.Generation
	}
	beyond := replica.PackWord(3, 7, replica.Idle)
	for _, c := range []struct {
		what  string
		live  replica.Word
		slots []held
		rings []held
		want  bool
	}{
		{"nothing captured", beyond, nil, nil, true},
		{"live at it", replica.PackWord(3, 6, replica.Idle), nil, nil, false},
		{"live inside it", replica.PackWord(3, 6, replica.Updating), nil, nil, false},
		{"live before it", replica.PackWord(3, 5, replica.Updated), nil, nil, false},
		{"live inside the next step", replica.PackWord(3, 7, replica.Updating), nil, nil, true},
		{"live in another epoch", replica.PackWord(4, 7, replica.Idle), nil, nil, false},
		{"both parts sealed", beyond, []held{{replica.SlotSealed, fixture.Gen(3, 5)}, {replica.SlotSealed, g}}, []held{{replica.SlotSealed, fixture.Gen(3, 5)}, {replica.SlotSealed, g}}, false},
		{"only the replicated part", beyond, []held{{replica.SlotSealed, g}}, nil, true},
		{"the private part of another step", beyond, []held{{replica.SlotSealed, g}}, []held{{replica.SlotSealed, fixture.Gen(3, 5)}, {replica.SlotSealed, fixture.Gen(1, 6)}}, true},
		{"the private part torn", beyond, []held{{replica.SlotSealed, g}}, []held{{replica.SlotTorn, g}}, true},
		{"another sealed", beyond, []held{{replica.SlotSealed, fixture.Gen(3, 5)}, {replica.SlotSealed, fixture.Gen(3, 7)}}, nil, true},
		{"its step of another epoch sealed", beyond, []held{{replica.SlotSealed, fixture.Gen(1, 6)}}, nil, true},
		{"copying", beyond, []held{{replica.SlotCopying, g}}, nil, false},
		{"copying something, which is not known", beyond, []held{{replica.SlotSealed, fixture.Gen(3, 5)}, {replica.SlotCopying, fixture.Gen(3, 7)}}, nil, false},
		{"copied", beyond, []held{{replica.SlotCopied, g}}, nil, false},
		{"torn", beyond, []held{{replica.SlotTorn, g}}, nil, true},
		{"only the private part", beyond, nil, []held{{replica.SlotSealed, g}}, true},
		{"both parts, and the next copying", beyond, []held{{replica.SlotSealed, g}, {replica.SlotCopying, fixture.Gen(3, 7)}}, []held{{replica.SlotSealed, g}}, false},
		{"a private part on its way", beyond, nil, []held{{replica.SlotCopying, g}}, true},
	} {
		d := newRig(t)
		lj := d.put(fixture.Job())
		lr := d.attach(lj, 0)
		put := func(p shm.Place, h held) {
			if h.state == replica.SlotCopying {
				d.stage(lr.Arena, p, h.g, 1)
				return
			}
			d.seal(lr.Arena, p, h.g, 1)
			if h.state != replica.SlotSealed {
				d.setState(lr.Arena, p, h.state)
			}
		}
		for i, h := range c.slots {
			put(slot(i), h)
		}
		for i, h := range c.rings {
			put(ring(i), h)
		}
		d.write(lr.Arena, atStep, uint64(c.live))
		if got := job.PassedBy(lr.Arena, g); got != c.want {
			t.Errorf("%s: passed %v, want %v", c.what, got, c.want)
		}
	}
}

// Passed is said once for a candidate, by live ranks, with the generations that are whole.
func TestPassedIsSaidOnce(t *testing.T) {
	d := newRig(t)
	job := fixture.Job()
	job.Ranks[1].Node, job.Ranks[1].NodeIncarnation = "n1", 11
	lj := d.put(job)
	lr, ended := d.attach(lj, 0), d.attach(lj, 1)
	ended.Life = rank.Dead
	d.live(ended, 3, 9, replica.Idle)
	d.live(lr, 3, 9, replica.Updating)
	d.both(lr.Arena, 0, fixture.Gen(3, 8))
	d.both(lr.Arena, 1, fixture.Gen(3, 5))
	d.seal(lr.Arena, slot(2), fixture.Gen(3, 9), 9) // its private part is not there
	d.leaderSays(fixture.Candidate(1, 6))
	d.answerCandidate(lj)
	said := fixture.Only[replica.Passed](d.says())
	if len(said) != 1 || said[0].Rank != 0 || said[0].N != 1 || said[0].Term != 9 || said[0].Live != fixture.Gen(3, 9) || !slices.Equal(said[0].Holds, []replica.Generation{fixture.Gen(3, 5), fixture.Gen(3, 8)}) {
		t.Fatalf("said %+v", said)
	}
	d.leaderSays(fixture.Candidate(2, 7))
	if said := fixture.Only[replica.Passed](d.says()); len(said) != 1 || said[0].N != 2 {
		t.Errorf("of the next candidate it says %+v", said)
	}
}

// A program may wait for commits, and announce nothing: a rank that has made no step for much longer than its steps take answers what it
// holds, as one that stands on purpose does. Its commit waited for a step that waited for the commit, and all ranks were killed as hanging.
func TestRestsBelowTheCandidate(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	lr.Life, lr.Loaded = rank.Training, 3
	d.live(lr, 3, 7, replica.Idle)
	d.both(lr.Arena, 0, fixture.Gen(3, 5)) // C
	d.both(lr.Arena, 1, fixture.Gen(3, 7))
	d.pulses(lj)
	d.leaderSays(fixture.Candidate(1, 9))
	later := func(by time.Duration, want int) {
		t.Helper()
		d.began = d.began.Add(-by)
		d.pulses(lj)
		d.answerCandidate(lj)
		if said := fixture.Only[replica.Passed](d.says()); len(said) != want {
			t.Errorf("%v later it reports %+v, want %d", by, said, want)
		}
	}
	later(time.Second, 0)
	later(2*time.Second, 1)
	later(time.Minute, 0) // the leader knows
	d.leaderSays(fixture.Candidate(2, 10))
	if said := fixture.Only[replica.Passed](d.says()); len(said) != 1 || said[0].Live != fixture.Gen(3, 7) {
		t.Errorf("of another candidate: %+v", said)
	}
	d.live(lr, 3, 8, replica.Idle)
	d.leaderSays(fixture.Candidate(3, 11)) // before anybody has looked at the new word
	later(time.Second, 0)
}

// A rank that waits for commits again and again rests as soon each time: what it waited before is no step of its program.
func TestRestsAsSoonTheNextTime(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	lr.Life, lr.Loaded = rank.Training, 3
	step := replica.Step(7)
	goesOn := func() {
		for range 4 { // steps of a tenth of a second
			step++
			d.began = d.began.Add(-100 * time.Millisecond)
			d.live(lr, 3, step, replica.Idle)
			d.pulses(lj)
		}
	}
	for wait := range 5 {
		goesOn()
		took := time.Duration(0)
		for ; !lr.Rests(time.Since(d.began)) && took < time.Minute; took += 100 * time.Millisecond {
			d.began = d.began.Add(-100 * time.Millisecond)
			d.pulses(lj)
		}
		if took > 3*time.Second {
			t.Errorf("wait %d: it rests after %v, and its steps take 100 ms", wait, took)
		}
	}
}

// A rank that stands still on purpose below the candidate says what it holds, once it holds something newer than C, and again when
// that changes.
func TestStandsBelowTheCandidate(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.live(lr, 3, 7, replica.Idle)
	d.both(lr.Arena, 0, fixture.Gen(3, 5)) // C
	d.leaderSays(fixture.Candidate(1, 9))
	said := func(want ...replica.Step) {
		t.Helper()
		var got []replica.Step
		for _, p := range fixture.Only[replica.Passed](d.says()) {
			if p.Live != fixture.Gen(3, 7) || p.N != lj.Candidate.N {
				t.Errorf("said %+v", p)
			}
			got = append(got, p.Holds[len(p.Holds)-1].Step)
		}
		if !slices.Equal(got, want) {
			t.Errorf("it said that it holds %v, want %v", got, want)
		}
	}
	d.both(lr.Arena, 1, fixture.Gen(3, 6))
	d.answerCandidate(lj)
	said() // it moves
	d.paused(lj, lr, time.Hour)
	d.answerCandidate(lj)
	said(6)
	d.seal(lr.Arena, slot(2), fixture.Gen(3, 7), 7)
	d.sealed(lj, lr, slot(2))
	said()
	d.seal(lr.Arena, ring(2), fixture.Gen(3, 7), 7)
	d.sealed(lj, lr, ring(2))
	said(7)
	d.setState(lr.Arena, slot(2), replica.SlotFree)
	d.setState(lr.Arena, slot(1), replica.SlotFree)
	d.answerCandidate(lj)
	said() // with two slots it comes and goes
	d.seal(lr.Arena, slot(2), fixture.Gen(3, 7), 7)
	d.sealed(lj, lr, slot(2))
	said()
	d.leaderSays(fixture.Candidate(2, 7)) // where it stands
	said()
	d.paused(lj, lr, 0)
	d.leaderSays(fixture.Candidate(3, 8))
	said()
	d.paused(lj, lr, time.Hour)
	said(7)
	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) { j.Position.Step = 7 })
	d.leaderSays(fixture.Candidate(4, 10))
	said() // all that it holds is committed
	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) { j.Position.Step = 5 })
	d.live(lr, 3, 7, replica.Updating)
	d.leaderSays(fixture.Candidate(5, 12))
	said()
}

// A job may be over before anybody looks for hangs in its epoch: that look takes no pause back that was declared in it.
func TestStandsBeforeTheFirstLook(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	lr.Loaded, lr.Gone = lj.Job.Epoch, lj.Job.Epoch
	d.live(lr, 3, 7, replica.Idle)
	d.paused(lj, lr, time.Nanosecond)
	d.pulses(lj)
	if !lr.Stands() {
		t.Error("a rank that has said that it stands still is taken for one that goes on")
	}
	d.live(lr, 4, 7, replica.Idle)
	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) { j.Epoch = 4 })
	lr.Loaded, lr.Gone = 4, 4
	d.pulses(lj)
	if lr.Stands() {
		t.Error("a rank stands still by what it said in an epoch before")
	}
}

// retain never frees the committed generation, the candidate, or what somebody reads, and frees the rest in time.
func TestRetain(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	a := lr.Arena
	d.both(a, 0, fixture.Gen(3, 5)) // C
	d.both(a, 1, fixture.Gen(3, 6)) // the candidate
	d.both(a, 2, fixture.Gen(3, 3)) // old, read by a transfer
	d.both(a, 3, fixture.Gen(3, 2)) // old
	d.live(lr, 3, 20, replica.Idle)
	lj.Candidate = fixture.Candidate(1, 6)
	a.Hold(slot(2))
	free := func() (out []int) {
		for i := range 4 {
			if a.Word(slot(i)).State() == replica.SlotFree {
				out = append(out, i)
			}
		}
		return out
	}
	d.retain(lj)
	if got := free(); !slices.Equal(got, []int{3}) {
		t.Errorf("slots %v are freed, want the old one that nobody reads", got)
	}
	if got := a.Word(ring(0)).State(); got != replica.SlotSealed {
		t.Errorf("the committed private part is %v", got)
	}
	a.Release(slot(2))
	d.retain(lj)
	if got := free(); !slices.Equal(got, []int{2, 3}) {
		t.Errorf("slots %v are freed once the reader is gone", got)
	}

	// The commit moves on: what was C may go, what was the candidate is C.
	lj.Candidate = fixture.Candidate(2, 7)
	d.leaderSays(control.Progress{Job: fixture.JobID, Index: 11, Position: replica.Position{Epoch: 3, Step: 6}, Generation: fixture.Gen(3, 6)})
	if lj.Job.Committed != fixture.Gen(3, 6) || lj.Job.LastIndex != 11 || a.Committed() != replica.PackWord(3, 6, 0) {
		t.Errorf("committed %v, index %d, the rank is told %v", lj.Job.Committed, lj.Job.LastIndex, a.Committed())
	}
	if got := free(); !slices.Equal(got, []int{0, 2, 3}) {
		t.Errorf("slots %v are free, want the committed one to stay alone", got)
	}
	d.leaderSays(control.Progress{Job: fixture.JobID, Index: 9, Position: replica.Position{Epoch: 3, Step: 5}, Generation: fixture.Gen(3, 5)})
	if lj.Job.Committed != fixture.Gen(3, 6) {
		t.Error("older news of a commit are believed")
	}
}

// While an epoch is closed or planned, nothing that may be eligible is freed, whoever holds it.
func TestRetainInRecovery(t *testing.T) {
	for _, phase := range []replica.JobPhase{replica.Closed, replica.Planned} {
		d := newRig(t)
		lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Phase, j.ClosedEpoch = phase, 3 }))
		lr := d.attach(lj, 0)
		mirror := d.mirrorOf(lj, replica.OfRank(1), 1, false)
		d.live(lr, 3, 20, replica.Idle)
		for i, s := range []replica.Step{2, 3, 5, 6} {
			d.both(lr.Arena, i, fixture.Gen(3, s))
			d.seal(mirror, ring(i), fixture.Gen(3, s), 9)
		}
		lr.Life = rank.Dead
		d.retain(lj)
		for _, a := range []*holding.Arena{lr.Arena, mirror} {
			for _, p := range a.Places() {
				if i, err := a.Sealed(p); p.Index < 4 && err != nil {
					t.Errorf("%v: %v of %v was freed: %v", phase, p, a, err)
				} else if err == nil && i.Count != 0 {
					t.Errorf("%v: %v of %v was used again", phase, p, a)
				}
			}
		}
	}
}

// TORN places are freed when the copies into them can't go on: of the dead, or of who waits in join.
func TestRetainTorn(t *testing.T) {
	for what, c := range map[string]struct {
		is   rank.Life
		want replica.SlotState
	}{"alive": {rank.Training, replica.SlotTorn}, "stopped": {rank.Stopped, replica.SlotFree}, "dead": {rank.Dead, replica.SlotFree}} {
		d := newRig(t)
		lj := d.put(fixture.Job())
		lr := d.attach(lj, 0)
		lr.Life = c.is
		d.setState(lr.Arena, slot(1), replica.SlotTorn)
		d.retain(lj)
		if got := lr.Arena.Word(slot(1)).State(); got != c.want {
			t.Errorf("%s: a torn slot is %v, want %v", what, got, c.want)
		}
	}
}

// A generation that is being written stays where the writer reads it, and nowhere else: the candidate needs the slots. What the parts of these
// tests hold is random, between regions too, so that no shard of them is ever whole.
func TestRetainKeepsWhatIsBeingWritten(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Writer = &replica.DurableWrite{Generation: fixture.Gen(3, 3)} }))
	lr := d.attach(lj, 0)
	d.both(lr.Arena, 0, fixture.Gen(3, 3))
	d.both(lr.Arena, 1, fixture.Gen(3, 4))
	d.live(lr, 3, 20, replica.Idle)
	root := d.rootAt(lr.Arena, slot(0))
	d.durableTier()
	d.writesShard(lj, fixture.Gen(3, 3), root)
	d.retain(lj)
	if w, o := lr.Arena.Word(slot(0)).State(), lr.Arena.Word(slot(1)).State(); w != replica.SlotSealed || o != replica.SlotFree {
		t.Errorf("what is being read is %v, another old one %v", w, o)
	}
	var got []control.ShardReport
	d.until("the write's end", func() bool {
		got = append(got, fixture.Only[control.ShardReport](d.says())...)
		return lr.Arena.Readers(slot(0)) == 0 && len(got) > 0
	})
	d.retain(lj)
	if w := lr.Arena.Word(slot(0)).State(); w != replica.SlotFree {
		t.Errorf("after the write its slot is %v", w)
	}
	if len(got) != 1 || got[0].Generation != fixture.Gen(3, 3) || !strings.Contains(got[0].Failed, "lies between regions") {
		t.Errorf("reported %+v", got)
	}
}

// durableTier gives the node one.
func (d *rig) durableTier() {
	s, err := tier.OpenDirectory(d.ctx, d.t.TempDir(), tier.Settings{})
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { s.Close() })
	d.hands.Store = s
}

// writesShard has the node write group 0's part of a generation.
func (d *rig) writesShard(lj *job.Job, g replica.Generation, root replica.Digest) {
	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) {
		j.Writer = &replica.DurableWrite{Generation: g, Shards: []replica.Shard{{Part: replica.OfGroup(0), Node: "n1", Root: root}}}
	})
	d.notify(d.writer, act.Changed{Job: lj.Job.ID})
}

// rootAt is the root of what lies sealed in a place.
func (d *rig) rootAt(a *holding.Arena, p shm.Place) replica.Digest {
	info, err := a.Info(p)
	if err != nil {
		d.t.Fatal(err)
	}
	return info.Root
}

// The lag of a commit is measured once, from the seal here.
func TestCommitLag(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.both(lr.Arena, 0, fixture.Gen(3, 6))
	d.sealed(lj, lr, slot(0))
	if len(lr.SealedAt) != 1 {
		t.Fatalf("%d seals are remembered", len(lr.SealedAt))
	}
	lr.SealedAt[fixture.Gen(3, 7)] = time.Now()
	for range 2 {
		d.leaderSays(control.Progress{Job: fixture.JobID, Index: 11, Position: replica.Position{Epoch: 3, Step: 6}, Generation: fixture.Gen(3, 6)})
	}
	if n := d.log.Count(`"event":"commit_seen"`); n != 1 || len(lr.SealedAt) != 1 {
		t.Errorf("the commit was seen %d times; %d seals are remembered", n, len(lr.SealedAt))
	}
	if p50, p99 := d.Host.log.Lag(); p50 <= 0 || p99 < p50 {
		t.Errorf("lag %v, %v", p50, p99)
	}
}

// A commit that comes with another change of the job, the begin of a durable write say, comes in a view: the rank hears of it all the same, or
// who waits for it would wait until the next one.
func TestCommitInAView(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.both(lr.Arena, 0, fixture.Gen(3, 6))
	d.sealed(lj, lr, slot(0))
	job := fixture.Changed(lj.Job, func(j *replica.Job) {
		j.LastIndex, j.Position, j.Committed, j.Writer = 12, replica.Position{Epoch: 3, Step: 6}, fixture.Gen(3, 6), &replica.DurableWrite{Generation: fixture.Gen(3, 6)}
	})
	d.views(control.View{Jobs: []*replica.Job{job}, Index: 12})
	d.leaderSays(control.Progress{Job: fixture.JobID, Index: 11, Position: replica.Position{Epoch: 3, Step: 6}, Generation: fixture.Gen(3, 6)})
	if got := lr.Arena.Committed(); got != replica.PackWord(3, 6, 0) {
		t.Errorf("the rank is told that %v is committed", got)
	}
	if n := d.log.Count(`"event":"commit_seen"`); n != 1 || len(lr.SealedAt) != 0 {
		t.Errorf("the commit was seen %d times; %d seals are remembered", n, len(lr.SealedAt))
	}

	// A process that stays while the job goes back hears that, too: what it is to commit again is not committed.
	job = fixture.Changed(job, func(j *replica.Job) {
		j.LastIndex, j.Epoch, j.ClosedEpoch, j.Position, j.Committed = 20, 4, 3, replica.Position{Epoch: 4, Step: 5}, fixture.Gen(3, 5)
	})
	d.views(control.View{Jobs: []*replica.Job{job}, Index: 20})
	if got := lr.Arena.Committed(); got != replica.PackWord(4, 5, 0) {
		t.Errorf("the rank is told that %v is committed", got)
	}
}

// Both parts of (epoch, init) sealed, or a private one of a rank whose group has another that seals the rest: said once, and only while the job opens.
func TestInitialSeal(t *testing.T) {
	for _, c := range []struct {
		phase      replica.JobPhase
		slot, ring replica.Epoch
		elsewhere  bool
		want       replica.Epoch
	}{
		{replica.Opening, 3, 3, false, 3}, {replica.Opening, 3, 0, false, 0}, {replica.Opening, 0, 3, false, 0}, {replica.Opening, 3, 1, false, 0}, {replica.Opening, 1, 1, false, 0},
		{replica.Closed, 3, 3, false, 0}, {replica.Opening, 0, 3, true, 3}, {replica.Opening, 0, 1, true, 0}, {replica.Opening, 3, 1, true, 0}, {replica.Closed, 0, 3, true, 0},
	} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			d := newRig(t)
			lj := d.put(fixture.Changed(fixture.Job(), func(j *replica.Job) { j.Phase, j.Plan = c.phase, nil }))
			lr := d.attach(lj, 0)
			if c.slot != 0 {
				d.seal(lr.Arena, slot(0), fixture.Gen(c.slot, 0), 1)
			}
			if c.ring != 0 {
				var flags replica.PartFlags
				if c.elsewhere {
					flags = replica.SharedElsewhere
				}
				if err := d.stage(lr.Arena, ring(0), fixture.Gen(c.ring, 0), 1, flags).Seal(); err != nil {
					t.Fatal(err)
				}
			}
			d.checkInitial(lj, lr)
			if lr.Initial != c.want {
				t.Errorf("initial %d, want %d", lr.Initial, c.want)
			}
			if said := fixture.Only[replica.NodeReport](d.says()); (len(said) == 1 && said[0].Ranks[0].Initial == c.want) != (c.want != 0) {
				t.Errorf("reported %+v", said)
			}
		})
	}
}

// A push of what is no candidate any more ends, and its slot is free as soon as it is read no longer: a rank of two slots waits for that, and
// may have left, so that nothing else happens in its job.
func TestASlotIsFreeOnceItsPushHasEnded(t *testing.T) {
	d := newRig(t)
	job := fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Options.Slots, j.Layout.Groups = 2, []replica.GroupID{0, 1}
		j.GroupMirrors, j.GroupGeometry = [][]replica.NodeName{{"n2"}, nil}, make([]replica.Digest, 2)
	})
	lj := d.put(job)
	lr := d.attach(lj, 0)
	lr.Arena = d.arena(shm.Spec{Rank: 0, Geometry: fixture.Geometry(t, false), Slots: 2})
	lr.Arena.SetOwner(lr.Incarnation, 0, 0)
	d.write(lr.Arena, atHolder, uint64(lr.Incarnation))
	d.seal(lr.Arena, slot(0), fixture.Gen(3, 5), 5)
	d.live(lr, 3, 7, replica.Idle)
	begun, why := make(chan struct{}), make(chan error, 1)
	var first sync.Once // what is committed is pushed too, and dials as well
	d.hands.Dial = func(ctx context.Context, _ []string, _ replica.NodeName, _ transfer.Transport) (transfer.Lane, error) {
		is := false
		first.Do(func() { is = true })
		if !is {
			return nil, errors.New("not now")
		}
		close(begun)
		<-ctx.Done()
		why <- context.Cause(ctx)
		return nil, ctx.Err()
	}
	d.leaderSays(fixture.Candidate(1, 6))
	d.seal(lr.Arena, slot(1), fixture.Gen(3, 6), 6)
	d.sealed(lj, lr, slot(1))
	d.serves(func() { <-begun })
	d.leaderSays(fixture.Candidate(2, 8))
	if err := <-why; !errors.Is(err, mover.ErrSuperseded) {
		t.Errorf("the push of what is no candidate any more ends by %v", err)
	}
	d.until("its slot", func() bool { return lr.Arena.Word(slot(1)).State() == replica.SlotFree })
}

// TestACandidateOutlivesItsLeader: the next leader names it again, in another term. No pin is let go meanwhile, and the part is answered anew.
func TestACandidateOutlivesItsLeader(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	d.both(lr.Arena, 0, fixture.Gen(3, 5))
	d.both(lr.Arena, 1, fixture.Gen(3, 6))
	d.live(lr, 3, 8, replica.Idle)
	d.leaderSays(fixture.Candidate(1, 6))
	d.says()
	d.report(lj)
	if r := fixture.Only[replica.NodeReport](d.says()); len(r) != 1 || r[0].Candidate != fixture.Gen(3, 6) {
		t.Fatalf("reported %+v, want the candidate (3,6)", r)
	}
	lj.Linked() // a link to the next leader, which is answered once it has named the candidate again
	d.says()
	again := fixture.Candidate(1, 6)
	again.Term++
	d.leaderSays(again)
	for p, pin := range pins(t, lr.Arena) {
		if pin != [2]uint64{again.Term, 1} {
			t.Errorf("%v is pinned for %v", p, pin)
		}
	}
	if got := partsOf(fixture.Only[replica.Pinned](d.says())); len(got) != 2 || len(pins(t, lr.Arena)) != 2 {
		t.Errorf("answered %+v, pinned %v", got, pins(t, lr.Arena))
	}
}

// TestAPushAheadOfTheNewsComesAgain: a mirror whose link to the leader is slow hears of a candidate after its maker has pushed it. It has no place yet, and
// says "not yet": a refusal would have the leader move the mirror.
func TestAPushAheadOfTheNewsComesAgain(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	a := d.mirrorOf(lj, replica.OfGroup(0), 1, true)
	for i, s := range []replica.Step{5, 6, 7, 8} {
		d.seal(a, slot(i), fixture.Gen(3, s), uint64(s))
	}
	a.Hold(slot(2)) // by transfers
	a.Hold(slot(3))
	d.leaderSays(fixture.Candidate(1, 6))
	for step, ahead := range map[replica.Step]bool{9: true, 4: false} {
		man, _ := manifestFor(a, slot(0), fixture.Gen(3, step), 9)
		if _, _, err := lj.TakePlace(a, man); !errors.Is(err, holding.ErrNoPlace) || errors.Is(err, transfer.ErrNotYet) != ahead {
			t.Errorf("step %d: %v, want \"not yet\": %v", step, err, ahead)
		}
	}
	d.leaderSays(fixture.Candidate(2, 9))
	man, _ := manifestFor(a, slot(0), fixture.Gen(3, 9), 9)
	if _, _, err := lj.TakePlace(a, man); err != nil {
		t.Errorf("once it is the candidate: %v", err)
	}
}
