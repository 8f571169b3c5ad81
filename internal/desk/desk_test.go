package desk

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Keys set, counters and barriers of an open epoch used to be lost with the leader, and later waits hung.
func TestContributionsOutliveTheLeader(t *testing.T) {
	m := newMeeting(t)
	a, b := m.guest(0), m.guest(1)
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "addr", Value: []byte("here")})
	a.tells("total 0 2", wire.MKVAdd, wire.KV{Key: "n", Value: addend(2)})
	b.tells("total 0 5", wire.MKVAdd, wire.KV{Key: "n", Value: addend(3)})
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "mine", Value: []byte("a")})
	b.tells("value 0 b", wire.MKVCompareSet, wire.KV{Key: "mine", Value: []byte("ab"), Members: 1})
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "gone", Value: []byte("a")})
	b.tells("total 0 1", wire.MKVDelete, wire.KV{Key: "gone"})
	a.ask(wire.MBarrier, wire.KV{Key: "up", Members: 2})
	m.serve()
	a.quiet()
	b.tells("ok 0", wire.MBarrier, wire.KV{Key: "up", Members: 2})
	if got := a.hears(); got != "ok 0" {
		t.Errorf("a is told %s at the barrier that both came to", got)
	}
	for range 3 {
		m.elect()
		b.tells("value 0 here", wire.MKVGet, wire.KV{Key: "addr"})
		b.tells("value 0 b", wire.MKVGet, wire.KV{Key: "mine"})
		a.tells(fmt.Sprint("ok ", wire.CodeAgain), wire.MKVCheck, wire.KV{Key: "gone"})
		a.tells("ok 0", wire.MKVCheck, wire.KV{Key: "n"})
		a.tells("ok 0", wire.MBarrier, wire.KV{Key: "up", Members: 2})
	}
	b.tells("total 0 6", wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})
	m.elect()
	a.tells("total 0 7", wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})
	m.linkAnew() // to the same leader: it has everything
	a.tells("total 0 8", wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})
}

// An addition counts once, wherever it or its answer is lost.
func TestAnAdditionCountsOnce(t *testing.T) {
	m := newMeeting(t)
	a := m.guest(0)
	a.tells("total 0 1", wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})

	a.ask(wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})
	m.says() // lost on its way
	m.elect()
	m.serve()
	if got := a.hears(); got != "total 0 2" {
		t.Errorf("an addition that the old leader never saw: %s", got)
	}

	a.ask(wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})
	for _, msg := range m.says() {
		m.chair.Message(t.Context(), "n1", msg)
	}
	m.loses() // taken, the answer is lost
	m.linkAnew()
	m.serve()
	if got := a.hears(); got != "total 0 3" {
		t.Errorf("an addition whose answer was lost: %s", got)
	}

	again := wire.KV{Key: "n", Value: addend(1), Once: m.once} // the rank did not see the answer either
	a.tells("total 0 3", wire.MKVAdd, again)
	m.elect()
	a.tells("total 0 3", wire.MKVAdd, again)
	a.tells("total 0 4", wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})
	if n := m.ledgers.account(epoch3, 0).n; n != 4 {
		t.Errorf("%d entries are kept of 4 additions", n)
	}
}

// A rank that waits in slices asks again and again: one question is pending, and its newest request is answered.
func TestAskedAgain(t *testing.T) {
	m := newMeeting(t)
	a, b := m.guest(0), m.guest(1)
	m.serve()
	for range 3 {
		a.ask(wire.MKVGet, wire.KV{Key: "late"})
	}
	said := m.says()
	if n := len(fixture.Only[control.KVRequest](said)); n != 1 || len(m.pending.all) != 1 {
		t.Errorf("%d requests are sent and %d pending of one question", n, len(m.pending.all))
	}
	for _, msg := range said {
		m.chair.Message(t.Context(), "n1", msg)
	}
	b.tells("ok 0", wire.MKVSet, wire.KV{Key: "late", Value: []byte("v")})
	if got := a.hears(); got != "value 0 v" {
		t.Errorf("a late key: %s", got)
	}
	for range 3 { // two threads of a rank that wait in turns
		a.ask(wire.MKVGet, wire.KV{Key: "later"})
		a.ask(wire.MBarrier, wire.KV{Key: "up", Members: 2})
		m.serve()
	}
	if n := m.ledgers.account(epoch3, 0).n; n != 1 || len(m.pending.all) != 1 {
		t.Errorf("%d contributions are kept and %d requests pending of one barrier", n, len(m.pending.all))
	}
	a.tells("ok 0", wire.MKVCheck, wire.KV{Key: "late"}) // the barrier is given up, for now
	m.elect()                                            // before b came
	m.Leave(a)                                           // a comes back on another session, and asks there
	again := m.guest(0)
	again.ask(wire.MBarrier, wire.KV{Key: "up", Members: 2})
	b.ask(wire.MBarrier, wire.KV{Key: "up", Members: 2})
	m.serve()
	if got := b.hears(); got != "ok 0" {
		t.Errorf("b is told %s at the barrier that a came to under the old leader", got)
	}
	if got := again.hears(); got != "ok 0" || len(m.pending.all) != 0 || len(m.pending.newest) != 0 {
		t.Errorf("a is told %s; %d requests are pending, %d processes wait", got, len(m.pending.all), len(m.pending.newest))
	}
	a.quiet() // it hung up before
}

// What a process asked used to be kept, and sent again to each new leader, after its session was over.
func TestRequestsEndWithTheirSession(t *testing.T) {
	m := newMeeting(t)
	gone, stays := m.guest(0), m.guest(1)
	for _, g := range []*guest{gone, stays} {
		g.ask(wire.MKVGet, wire.KV{Key: "late"})
	}
	if !m.Waits(fixture.JobID, 0) || !m.Waits(fixture.JobID, 1) || m.Waits(fixture.JobID, 2) || m.Waits(replica.JobID{}, 0) {
		t.Error("both ranks wait, and nobody else")
	}
	m.Leave(gone)
	if m.Waits(fixture.JobID, 0) || !m.Waits(fixture.JobID, 1) || len(m.callers) != 1 || len(m.pending.all) != 1 {
		t.Errorf("of %v, %d requests are pending: want those of the session that stays alone", m.callers, len(m.pending.all))
	}
	m.linkAnew()
	if asked := fixture.Only[control.KVRequest](m.says()); len(asked) != 1 || asked[0].Rank != 1 {
		t.Errorf("a new leader is asked %+v", asked)
	}
	m.Leave(m.peer(5)) // of whom nothing is known
	gone.ask(wire.MKVGet, wire.KV{Key: "late"})
	if got := gone.hears(); !strings.HasPrefix(got, fmt.Sprint("refused ", wire.CodeState)) {
		t.Errorf("who left, and asks, is told %s", got)
	}
}

// A new leader answers nothing before every node has brought what it keeps: half of a counter is a wrong number.
func TestANewLeaderGathersFirst(t *testing.T) {
	m := newMeeting(t)
	m.job = fixture.Changed(m.job, func(j *replica.Job) { j.Ranks = fixture.Job().Ranks })
	m.elect()
	a := m.guest(0)
	m.chair.Node("n2", 22)
	m.chair.Message(t.Context(), "n2", control.KVKept{Done: true})
	a.tells("total 0 1", wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})
	m.elect()
	m.chair.Node("n2", 22) // it has rank 1
	m.chair.Node("n3", 33) // a spare one
	a.ask(wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})
	waits := func(when string) {
		t.Helper()
		m.Tick()
		m.serve()
		if len(m.pending.all) != 1 {
			t.Fatalf("%s: answered: %s", when, a.hears())
		}
	}
	waits("n2 and n3 have not linked")
	m.chair.Pass(t.Context(), 3*time.Second)
	waits("n2 has not linked, for long")
	m.chair.Message(t.Context(), "n2", control.KVKept{Job: fixture.JobID, Epoch: 3, Entries: []control.KVEntry{{Op: control.KVAdd, Key: "n", Delta: 5, Rank: 1, Nonce: 9, Once: 1, Seq: 7<<32 | 40, Total: 6},
		{Op: control.KVGet, Key: "k", Rank: 1, Seq: 7<<32 | 41}, {Op: control.KVSet, Key: "k", Rank: 2, Seq: 7<<32 | 42}}}) // the last two are no contribution, and no rank
	waits("n2 has not brought all")
	m.chair.Message(t.Context(), "n2", control.KVKept{Done: true})
	m.Tick()
	m.serve()
	if got := a.hears(); got != "total 0 7" {
		t.Errorf("the addition is answered %s", got)
	}
	a.tells(fmt.Sprint("ok ", wire.CodeAgain), wire.MKVCheck, wire.KV{Key: "k"})
	m.chair.Unlink(t.Context(), "n2", errors.New("a test")) // a link that breaks later brought everything already
	a.tells("total 0 8", wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})

	m.elect()
	m.chair.Node("n2", 22)
	m.job = fixture.Changed(fixture.Closed(m.job), func(j *replica.Job) {
		j.ClosedEpoch = 2 // what is asked is of epoch 3 still
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.NodeDead, Node: "n2", NodeIncarnation: 22}}
	})
	m.chair.Knows(m.job)
	a.tells("total 0 4", wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)}) // without what a dead node kept

	// The fault ends with the next Resume; the witnesses go on, n2 among them again.
	m.job = fixture.Changed(m.job, func(j *replica.Job) { j.Faults = nil })
	m.elect()
	m.chair.Node("n2", 22)
	m.chair.Node("n3", 33)
	m.chair.Message(t.Context(), "n2", control.KVKept{Done: true})
	a.ask(wire.MKVAdd, wire.KV{Key: "m", Value: addend(1)})
	waits("n3 has not linked")
	m.chair.Message(t.Context(), "n2", control.Suspect{Target: replica.Holder{Node: "n3", Incarnation: 33}, SilentMS: 2000})
	m.Tick()
	m.serve()
	if got := a.hears(); got != "total 0 1" {
		t.Errorf("with the spare node silent the addition is answered %s", got)
	}
}

// With its epoch goes what was contributed to it; what was contributed to the next one stays.
func TestKeptEndsWithItsEpoch(t *testing.T) {
	m := newMeeting(t)
	a, b := m.guest(0), m.guest(1)
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "k", Value: []byte("v")})
	a.ask(wire.MKVGet, wire.KV{Key: "missing"})
	m.knows(fixture.Closed(m.job))
	if got := a.hears(); got != fmt.Sprint("value ", wire.CodeFenced, " ") {
		t.Errorf("who waits in a closed epoch is told %s", got)
	}
	if len(m.ledgers) != 0 {
		t.Errorf("kept of a closed epoch: %v", m.ledgers)
	}
	a.tells(fmt.Sprint("ok ", wire.CodeFenced), wire.MKVSet, wire.KV{Key: "k"})
	a.asks(4, wire.MKVSet, wire.KV{Key: "k", Value: []byte("v"), Once: 99})
	m.serve()
	if got := a.hears(); got != "ok 0" || len(m.ledgers) != 1 {
		t.Errorf("a key of the epoch to come: %s, kept %v", got, m.ledgers)
	}
	m.elect()
	b.asks(4, wire.MKVGet, wire.KV{Key: "k"})
	m.serve()
	if got := b.hears(); got != "value 0 v" {
		t.Errorf("the other reads %s", got)
	}
	b.asks(4, wire.MKVGet, wire.KV{Key: "missing"})
	m.serve()
	m.knows(fixture.Changed(m.job, func(j *replica.Job) { j.Phase = replica.Ended })) // nothing is to come
	if got := b.hears(); got != fmt.Sprint("value ", wire.CodeFenced, " ") || len(m.ledgers) != 0 || len(m.pending.all) != 0 {
		t.Errorf("who waits for the epoch to come of a job that ended is told %s; kept %v, pending %v", got, m.ledgers, m.pending.all)
	}
}

// A fence answers who waits in the epochs that it closes, of its job alone.
func TestFenceAnswersItsEpochsAlone(t *testing.T) {
	m := newMeeting(t)
	other := replica.JobID{0x0c}
	m.jobs[other] = Job{Closed: 2}
	a, b := m.guest(0), m.guest(1)
	c := m.peer(0)
	m.Admit(c, Caller{Job: other})
	for g, epoch := range map[*guest]replica.Epoch{a: 3, b: 4, c: 3} {
		g.asks(epoch, wire.MKVGet, wire.KV{Key: "late"})
	}
	e := m.peer(1)
	m.Admit(e, Caller{Job: other, Rank: 1})
	e.ask(wire.MKVSet, wire.KV{Key: "k"})
	m.Fence(fixture.JobID, 3)
	if got := a.hears(); got != fmt.Sprint("value ", wire.CodeFenced, " ") || len(m.pending.all) != 3 {
		t.Errorf("who waits in epoch 3 is told %s, and %d requests are left", got, len(m.pending.all))
	}
	for _, g := range []*guest{b, c, e} {
		g.quiet()
	}
	if m.ledgers.account(scope{other, 3}, 1) == nil {
		t.Error("what was contributed to another job is dropped")
	}
}

// New processes and survivors meet in the epoch to come, which the desk tells them once it knows the job.
func TestScope(t *testing.T) {
	m := newMeeting(t)
	scope := func(g *guest) string {
		t.Helper()
		g.askScope()
		return g.hears()
	}
	if got := scope(m.peer(1)); !strings.HasPrefix(got, fmt.Sprint("refused ", wire.CodeState)) {
		t.Errorf("before a welcome: %s", got)
	}
	a := m.guest(0)
	if got := scope(a); got != "scope 3" {
		t.Errorf("in epoch 3, before any rank came: %s", got)
	}
	m.knows(fixture.Closed(m.job))
	if got := scope(a); got != "scope 4" {
		t.Errorf("after the fence: %s, want epoch 4, which is to come", got)
	}
	job := m.job
	m.restart() // and no leader was reached
	a = m.guest(0)
	if got := scope(a); got != "nothing" {
		t.Errorf("before the job is known: %s", got)
	}
	m.knows(job)
	if got := a.hears(); got != "scope 4" || len(m.pending.all) != 0 {
		t.Errorf("once the job is known: %s, %d requests are pending", got, len(m.pending.all))
	}
	m.knows(fixture.Changed(job, func(j *replica.Job) { j.Phase, j.EndReason = replica.Ended, "enough" }))
	if got := scope(a); got != fmt.Sprint("refused ", wire.CodeStopped, " the job has ended: enough") {
		t.Errorf("after the end: %s", got)
	}
}

// What is asked before the job is known waits, and is judged by what is known then.
func TestEarlyRequestsWaitForTheirJob(t *testing.T) {
	m := newMeeting(t)
	m.restart()
	a, b, late := m.guest(0), m.guest(1), m.guest(1)
	late.rank, m.callers[late.id] = 1, Caller{fixture.JobID, 1, 99}
	a.ask(wire.MKVSet, wire.KV{Key: "k", Value: []byte("v")})
	b.asks(4, wire.MKVGet, wire.KV{Key: "late"})
	late.asks(2, wire.MKVGet, wire.KV{Key: "k"})
	gone := m.guest(0)
	m.callers[gone.id] = Caller{fixture.JobID, 0, 98}
	gone.ask(wire.MKVSet, wire.KV{Key: "of a process that is gone"})
	m.Leave(gone)
	m.linkAnew()
	if asked := fixture.Only[control.KVRequest](m.says()); len(asked) != 0 {
		t.Errorf("the leader is asked %+v of a job that is not known", asked)
	}
	m.Fence(fixture.JobID, 3) // nobody is answered on the word of a fence alone: the next view tells more
	for _, g := range []*guest{a, b, late} {
		g.quiet()
	}
	m.knows(m.job)
	if asked := fixture.Only[control.KVRequest](m.said); len(asked) != 2 {
		t.Errorf("the leader is asked %+v, want what a and b ask", asked)
	}
	m.elect()
	m.serve()
	if got := a.hears(); got != "ok 0" {
		t.Errorf("the one of epoch 3 is told %s", got)
	}
	if got := late.hears(); got != fmt.Sprint("value ", wire.CodeFenced, " ") {
		t.Errorf("the one of a closed epoch is told %s", got)
	}
	b.quiet()
	if !m.Waits(fixture.JobID, 1) {
		t.Error("the one of epoch 4 does not wait any more")
	}
}

// A process waits for one answer at a time: what it asked before, on this session or another one, is not answered to it.
func TestTheNewestQuestionIsAnsweredAlone(t *testing.T) {
	m := newMeeting(t)
	a, b := m.guest(0), m.guest(1)
	a.ask(wire.MBarrier, wire.KV{Key: "up", Members: 2})
	a.ask(wire.MKVGet, wire.KV{Key: "late"})
	a.ask(wire.MBarrier, wire.KV{Key: "up", Members: 2})
	a.ask(wire.MKVGet, wire.KV{Key: "later"})
	if n := len(m.pending.all); n != 2 {
		t.Errorf("%d requests are pending, want the barrier and the newest", n)
	}
	b.tells("ok 0", wire.MBarrier, wire.KV{Key: "up", Members: 2})
	a.quiet()
	again := m.guest(0)
	again.ask(wire.MKVGet, wire.KV{Key: "later"})
	m.Leave(a) // the old session, of a process that asks on a new one
	again.ask(wire.MKVGet, wire.KV{Key: "latest"})
	if n := len(m.pending.all); n != 1 {
		t.Errorf("%d requests are pending of one process", n)
	}
}

// What a process contributed counts after its session is over, and reaches the next leader; but nobody is answered.
func TestContributionsOutliveTheSession(t *testing.T) {
	m := newMeeting(t)
	a, b := m.guest(0), m.guest(1)
	a.ask(wire.MBarrier, wire.KV{Key: "up", Members: 2})
	m.says() // lost on its way
	m.Leave(a)
	m.elect()
	b.tells("ok 0", wire.MBarrier, wire.KV{Key: "up", Members: 2})
	a.quiet()
	if n := len(m.pending.all); n != 0 {
		t.Errorf("%d requests are pending", n)
	}
}

// What the leader could not answer yet it is asked once more, by the next tick or as a new leader.
func TestAgainIsOnceMore(t *testing.T) {
	m := newMeeting(t)
	a := m.guest(0)
	a.ask(wire.MKVGet, wire.KV{Key: "k"})
	m.says()
	asks := func(when string, want int, by func()) {
		t.Helper()
		by()
		if asked := fixture.Only[control.KVRequest](m.says()); len(asked) != want {
			t.Errorf("%s asks %+v, want %d requests", when, asked, want)
		}
	}
	again := control.KVReply{ID: m.requests, Again: true}
	asks("a tick before any answer", 0, func() { m.Tick() })
	m.Reply(again)
	asks("a tick", 1, func() { m.Tick() })
	asks("the tick after it", 0, func() { m.Tick() })
	m.Reply(again)
	asks("a new link", 1, m.Resend)
	asks("the tick after it", 0, func() { m.Tick() })
	m.Reply(control.KVReply{ID: m.requests + 1}) // of no request
	a.quiet()
}

// No epoch of a job that has ended is to come.
func TestNobodyMeetsAfterTheEnd(t *testing.T) {
	m := newMeeting(t)
	m.knows(fixture.Changed(m.job, func(j *replica.Job) { j.Phase = replica.Ended }))
	a := m.guest(0)
	a.asks(99, wire.MKVSet, wire.KV{Key: "k"})
	if got := a.hears(); got != fmt.Sprint("ok ", wire.CodeFenced) || len(m.ledgers) != 0 {
		t.Errorf("told %s, kept %v", got, m.ledgers)
	}
}

// A process in a loop over keys that are not there used to send the leader each of its questions, as fast as it could ask.
func TestALoopOfQuestionsIsNoLoad(t *testing.T) {
	m := newMeeting(t)
	a, b := m.guest(0), m.guest(1)
	m.serve()
	const maxAsked = 1000
	m.left = maxAsked
	for i := range 5 * maxAsked {
		a.ask(wire.MKVGet, wire.KV{Key: fmt.Sprint("absent ", i)})
	}
	b.ask(wire.MKVSet, wire.KV{Key: fmt.Sprint("absent ", 5*maxAsked-1), Value: []byte("v")})
	if n := len(m.said); n != maxAsked {
		t.Fatalf("the leader is asked %d times, want %d", n, maxAsked)
	}
	m.serve()
	m.Tick()
	if n := len(m.said); n != 0 {
		t.Errorf("%d more than may go", n)
	}
	m.left = maxAsked
	m.Tick()
	m.serve()
	if got := a.hears(); got != "value 0 v" {
		t.Errorf("the last question is answered with %s", got)
	}
	if got := b.hears(); got != "ok 0" {
		t.Errorf("the other rank is answered with %s", got)
	}
}

// Of the next epoch a process may hear before its daemon does; of one after that it has no business yet, and nothing of it reaches the leader.
func TestEpochsToComeAreNotMetIn(t *testing.T) {
	m := newMeeting(t)
	a := m.guest(0)
	for epoch, want := range map[replica.Epoch]string{3: "ok 0", 4: "ok 0", 5: "refused", 1 << 40: "refused"} {
		a.asks(epoch, wire.MKVSet, wire.KV{Key: "k", Value: []byte("v")})
		m.serve()
		if got := a.hears(); !strings.HasPrefix(got, want) {
			t.Errorf("epoch %d: %s, want %s", epoch, got, want)
		} else if strings.HasPrefix(got, "refused") && !strings.Contains(got, "epoch 3 comes next") {
			t.Errorf("epoch %d: %s", epoch, got)
		}
	}
}
