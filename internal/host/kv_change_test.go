package host

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// A meeting is a host with ranks at the rendezvous, and whoever leads now. Nothing moves but in serve.
type meeting struct {
	*rig
	lj    *localJob
	chair *composed
	link  *control.Link // the leader's end
	term  uint64
	asked uint32
	once  uint32
}

// newMeeting has both ranks of the job on this node.
func newMeeting(t *testing.T) *meeting {
	d := newRig(t)
	job := fixture.Job()
	job.Ranks[1].Node, job.Ranks[1].NodeIncarnation = "n1", 11
	m := &meeting{rig: d, lj: d.put(job), term: 6}
	m.elect()
	return m
}

// elect changes the leader: the new one knows the log, and nothing of what the old one was told.
func (m *meeting) elect() {
	m.term++
	m.chair = compose(m.t, m.term)
	m.link = m.chair.node("n1", 11)
	m.chair.knows(m.lj.job)
	m.connect()
	m.handle(LinkUp{Link: m.rig.link, Leader: "n1", Welcome: control.Welcome{OK: true, Term: m.term}})
}

// serve carries everything that both sides have said, and waits for the keeper where an answer does.
func (m *meeting) serve() {
	m.t.Helper()
	m.carry()
	m.until("the keeper", func() bool {
		for _, l := range m.kept {
			if l.file != nil && !l.file.parked {
				return false
			}
		}
		return true
	})
}

// carry carries everything that both sides have said.
func (m *meeting) carry() {
	m.t.Helper()
	for said := m.says(); len(said) > 0; said = m.says() {
		for _, msg := range said {
			m.chair.Message(m.t.Context(), "n1", msg)
		}
		for _, msg := range heardBy(m.t, m.link) {
			if r, ok := msg.(control.KVReply); ok {
				m.leaderSays(r)
			}
		}
	}
}

// guest is a rank's process at the rendezvous.
type guest struct {
	m    *meeting
	peer session.Peer
	end  *rankEnd
	rank replica.Rank
	last uint32 // its newest request
}

func (m *meeting) guest(rank replica.Rank) *guest {
	m.t.Helper()
	p, r := m.session(rank)
	m.callers[p.ID()] = caller{fixture.JobID, rank, 70 + uint64(rank)}
	return &guest{m: m, peer: p, end: r, rank: rank}
}

// ask sends a request in epoch 3; a write gets the next number.
func (g *guest) ask(op uint16, kv wire.KV) {
	switch op {
	case wire.MKVSet, wire.MKVAdd, wire.MKVCompareSet, wire.MKVDelete:
		if kv.Once == 0 {
			g.m.once++
			kv.Once = g.m.once
		}
	}
	g.m.asked++
	g.last = g.m.asked
	g.m.handleSession(session.KV{Peer: g.peer, Header: wire.RankHeader{Type: op, Request: g.m.asked, Epoch: 3}, Op: op, KV: kv})
}

// hears describes the next message to the rank, which must answer its newest request.
func (g *guest) hears() string {
	g.m.t.Helper()
	h, body := g.end.reads()
	if h.Type != wire.MFence && h.Request != g.last {
		g.m.t.Fatalf("message %d answers request %d, the newest is %d", h.Type, h.Request, g.last)
	}
	return describe(g.m.t, h, body)
}

func describe(t *testing.T, h wire.RankHeader, body []byte) string {
	t.Helper()
	switch h.Type {
	case wire.MKVOK:
		code, err := wire.ParseKVOK(body)
		return fmt.Sprint("ok ", code, errText(err))
	case wire.MKVValue:
		v, err := wire.ParseKVValue(body)
		return fmt.Sprintf("value %d %s%s", v.Code, v.Value, errText(err))
	case wire.MKVTotal:
		v, err := wire.ParseKVTotal(body)
		return fmt.Sprint("total ", v.Code, " ", v.Total, errText(err))
	case wire.MScoped:
		v, err := wire.ParseScoped(body)
		return fmt.Sprint("scope ", v.Epoch, errText(err))
	case wire.MRefused:
		v, err := wire.ParseRefused(body)
		return fmt.Sprint("refused ", v.Code, " ", v.Text, errText(err))
	}
	return fmt.Sprint("message ", h.Type)
}

func errText(err error) string {
	if err == nil {
		return ""
	}
	return " " + err.Error()
}

// tells asks, has it served, and compares the answer.
func (g *guest) tells(want string, op uint16, kv wire.KV) {
	g.m.t.Helper()
	g.ask(op, kv)
	g.m.serve()
	if got := g.hears(); got != want {
		g.m.t.Fatalf("message %d of key %q is answered %q, want %q", op, kv.Key, got, want)
	}
}

func addend(n int64) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(n)) }

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
	b.tells("ok 0", wire.MBarrier, wire.KV{Key: "up", Members: 2})
	a.end.reads()
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
	m.connect() // to the same leader: it has everything
	m.handle(LinkUp{Link: m.rig.link, Leader: "n1"})
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
	heardBy(t, m.link) // taken, the answer is lost
	m.connect()
	m.handle(LinkUp{Link: m.rig.link, Leader: "n1"})
	m.serve()
	if got := a.hears(); got != "total 0 3" {
		t.Errorf("an addition whose answer was lost: %s", got)
	}

	again := wire.KV{Key: "n", Value: addend(1), Once: m.once} // the rank did not see the answer either
	a.tells("total 0 3", wire.MKVAdd, again)
	m.elect()
	a.tells("total 0 3", wire.MKVAdd, again)
	a.tells("total 0 4", wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})
	if n := m.kept[kvScopeKey{fixture.JobID, 3}].accounts[0].n; n != 4 {
		t.Errorf("%d entries are kept of 4 additions", n)
	}
}

// A rank that waits in slices asks again and again: one question is pending, and its newest request is answered.
func TestAskedAgain(t *testing.T) {
	m := newMeeting(t)
	a, b := m.guest(0), m.guest(1)
	for range 3 {
		a.ask(wire.MKVGet, wire.KV{Key: "late"})
	}
	said := m.says()
	if n := len(fixture.Only[control.KVRequest](said)); n != 1 || len(m.kvs) != 1 {
		t.Errorf("%d requests are sent and %d pending of one question", n, len(m.kvs))
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
	if n := m.kept[kvScopeKey{fixture.JobID, 3}].accounts[0].n; n != 1 || len(m.kvs) != 1 {
		t.Errorf("%d contributions are kept and %d requests pending of one barrier", n, len(m.kvs))
	}
	a.tells("ok 0", wire.MKVCheck, wire.KV{Key: "late"}) // the barrier is given up, for now
	m.elect()                                            // before b came
	again, againEnd := m.session(0)
	m.handleSession(session.Gone{Peer: a.peer}) // a comes back on another session, and asks there
	m.callers[again.ID()] = caller{fixture.JobID, 0, 70}
	comesBack := &guest{m: m, peer: again, end: againEnd}
	comesBack.ask(wire.MBarrier, wire.KV{Key: "up", Members: 2})
	b.ask(wire.MBarrier, wire.KV{Key: "up", Members: 2})
	m.serve()
	if got := b.hears(); got != "ok 0" {
		t.Errorf("b is told %s at the barrier that a came to under the old leader", got)
	}
	if got := comesBack.hears(); got != "ok 0" || len(m.kvs) != 0 || len(m.asking) != 0 {
		t.Errorf("a is told %s; %d requests are pending, %d processes wait", got, len(m.kvs), len(m.asking))
	}
	a.end.quiet(a.peer) // it hung up before
}

// A new leader answers nothing before every node has brought what it keeps: half of a counter is a wrong number.
func TestANewLeaderGathersFirst(t *testing.T) {
	m := newMeeting(t)
	m.lj.job.Ranks = fixture.Job().Ranks
	m.elect()
	a := m.guest(0)
	m.chair.node("n2", 22)
	m.chair.Message(t.Context(), "n2", control.KVKept{Done: true})
	a.tells("total 0 1", wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})
	m.elect()
	m.chair.node("n2", 22) // it has rank 1
	m.chair.node("n3", 33) // a spare one
	late := func() { m.chair.Pass(t.Context(), 3*time.Second) }
	a.ask(wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})
	waits := func(when string) {
		t.Helper()
		m.kvAgain()
		m.serve()
		if len(m.kvs) != 1 {
			t.Fatalf("%s: answered: %s", when, a.hears())
		}
	}
	waits("n2 and n3 have not linked")
	late()
	waits("n2 has not linked, for long")
	m.chair.Message(t.Context(), "n2", control.KVKept{Job: fixture.JobID, Epoch: 3, Entries: []control.KVEntry{{Op: control.KVAdd, Key: "n", Delta: 5, Rank: 1, Nonce: 9, Once: 1, Seq: 7<<32 | 40, Total: 6},
		{Op: control.KVGet, Key: "k", Rank: 1, Seq: 7<<32 | 41}, {Op: control.KVSet, Key: "k", Rank: 2, Seq: 7<<32 | 42}}}) // the last two are no contribution, and no rank
	waits("n2 has not brought all")
	m.chair.Message(t.Context(), "n2", control.KVKept{Done: true})
	m.kvAgain()
	m.serve()
	if got := a.hears(); got != "total 0 7" {
		t.Errorf("the addition is answered %s", got)
	}
	a.tells(fmt.Sprint("ok ", wire.CodeAgain), wire.MKVCheck, wire.KV{Key: "k"})
	m.chair.Unlink(t.Context(), "n2", errors.New("a test")) // a link that breaks later brought everything already
	a.tells("total 0 8", wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)})

	m.elect()
	m.chair.node("n2", 22)
	m.lj.job = fixture.Changed(fixture.Closed(m.lj.job), func(j *replica.Job) {
		j.ClosedEpoch = 2 // what is asked is of epoch 3 still
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.NodeDead, Node: "n2", NodeIncarnation: 22}}
	})
	m.chair.knows(m.lj.job)
	a.tells("total 0 4", wire.MKVAdd, wire.KV{Key: "n", Value: addend(1)}) // without what a dead node kept

	// The fault ends with the next Resume; the witnesses go on.
	m.elect()
	m.chair.node("n2", 22)
	m.chair.node("n3", 33)
	m.chair.Message(t.Context(), "n2", control.KVKept{Done: true})
	a.ask(wire.MKVAdd, wire.KV{Key: "m", Value: addend(1)})
	waits("n3 has not linked")
	m.chair.Message(t.Context(), "n2", control.Suspect{Target: replica.Holder{Node: "n3", Incarnation: 33}, SilentMS: 2000})
	m.kvAgain()
	m.serve()
	if got := a.hears(); got != "total 0 1" {
		t.Errorf("with the spare node silent the addition is answered %s", got)
	}

}

// What a rank contributes is bounded, and refused beyond with a remedy; what a later write made void makes room.
func TestKeptIsBounded(t *testing.T) {
	m := newMeeting(t)
	a, b := m.guest(0), m.guest(1)
	refused := func(g *guest) string {
		t.Helper()
		g.ask(wire.MKVSet, wire.KV{Key: "one more", Value: make([]byte, wire.MaxValueBytes)})
		m.serve()
		return g.hears()
	}
	big := make([]byte, wire.MaxValueBytes)
	for i := 0; m.account(&kvPending{by: caller{job: fixture.JobID}, head: wire.RankHeader{Epoch: 3}}).room() > wire.MaxValueBytes+100; i++ {
		a.tells("ok 0", wire.MKVSet, wire.KV{Key: fmt.Sprint(i), Value: big})
	}
	if n := m.kept[kvScopeKey{fixture.JobID, 3}].accounts[0].n; n != 127 {
		t.Errorf("%d values of 32 KiB are kept", n)
	}
	if got := refused(a); !strings.HasPrefix(got, fmt.Sprint("refused ", wire.CodeRefused)) || !strings.Contains(got, "4096 KiB") || !strings.Contains(got, "delete keys") {
		t.Errorf("too much is answered %s", got)
	}
	for i := range 3 { // in place of what was there, or of nothing
		a.tells("ok 0", wire.MKVSet, wire.KV{Key: "0", Value: big[:i]})
	}
	a.tells("total 0 1", wire.MKVDelete, wire.KV{Key: "1"})
	a.tells("total 0 0", wire.MKVDelete, wire.KV{Key: "nothing"})
	a.tells("value 0 ", wire.MKVCompareSet, wire.KV{Key: "other", Value: []byte("xy"), Members: 1}) // it changes nothing
	if got := refused(a); got != "ok 0" {
		t.Errorf("after room was made: %s", got)
	}
	acc := m.kept[kvScopeKey{fixture.JobID, 3}].accounts[0]
	n, size := 0, 0
	for _, list := range acc.entries {
		for _, k := range list {
			n, size = n+1, size+k.size()
		}
	}
	if n != acc.n || size != acc.bytes || n != 128 {
		t.Errorf("%d entries of %d bytes are kept, %d of %d accounted for, want 128", n, size, acc.n, acc.bytes)
	}

	m.kept[kvScopeKey{fixture.JobID, 3}].accounts[1] = &account{n: maxKept - 1, entries: map[accountKey][]*kvPending{}}
	b.tells("ok 0", wire.MKVSet, wire.KV{Key: "the last"})
	b.ask(wire.MBarrier, wire.KV{Key: "up", Members: 2})
	if got := b.hears(); !strings.Contains(got, "16384 entries") {
		t.Errorf("too many are answered %s", got)
	}
}

func (a *account) room() int {
	if a == nil {
		return maxKeptBytes
	}
	return maxKeptBytes - a.bytes
}

// What is brought fits the link's queue: few frames, each of bounded size.
func TestKeptIsBroughtInFewFrames(t *testing.T) {
	m := newMeeting(t)
	a := m.guest(0)
	big := bytes.Repeat([]byte{7}, wire.MaxValueBytes)
	for i := range 100 {
		a.tells("ok 0", wire.MKVSet, wire.KV{Key: fmt.Sprint(i), Value: big})
	}
	account := m.kept[kvScopeKey{fixture.JobID, 3}].accounts[0]
	for i := range keptEntries {
		k := &kvPending{by: caller{fixture.JobID, 0, 70}, op: control.KVSet, key: fmt.Sprint("small ", i), seq: 1<<40 + uint64(i)}
		account.entries[k.accountKey()] = []*kvPending{k}
	}
	m.connect()
	m.bringKept()
	frames, n := fixture.Only[control.KVKept](m.says()), 0
	for i, f := range frames {
		size := 0
		for _, e := range f.Entries {
			size += len(e.Value)
		}
		if n += len(f.Entries); len(f.Entries) > keptEntries || size > keptFrame+wire.MaxValueBytes || f.Done != (i == len(frames)-1) {
			t.Errorf("frame %d of %d has %d entries of %d bytes, done %v", i, len(frames), len(f.Entries), size, f.Done)
		}
	}
	if n != 100+keptEntries || len(frames) > 8 {
		t.Errorf("%d entries in %d frames", n, len(frames))
	}
}

// With its epoch goes what was contributed to it; what was contributed to the next one stays.
func TestKeptEndsWithItsEpoch(t *testing.T) {
	m := newMeeting(t)
	a, b := m.guest(0), m.guest(1)
	a.tells("ok 0", wire.MKVSet, wire.KV{Key: "k", Value: []byte("v")})
	a.ask(wire.MKVGet, wire.KV{Key: "missing"})
	next := func(g *guest, op uint16, kv wire.KV) {
		m.asked++
		g.last = m.asked
		m.handleSession(session.KV{Peer: g.peer, Header: wire.RankHeader{Type: op, Request: m.asked, Epoch: 4}, Op: op, KV: kv})
	}
	m.lj.job = fixture.Closed(m.lj.job)
	m.fence(m.lj)
	if got := a.hears(); got != fmt.Sprint("value ", wire.CodeFenced, " ") {
		t.Errorf("who waits in a closed epoch is told %s", got)
	}
	if len(m.kept) != 0 {
		t.Errorf("kept of a closed epoch: %v", m.kept)
	}
	a.tells(fmt.Sprint("ok ", wire.CodeFenced), wire.MKVSet, wire.KV{Key: "k"})
	m.chair.knows(m.lj.job)
	next(a, wire.MKVSet, wire.KV{Key: "k", Value: []byte("v"), Once: 99})
	m.serve()
	if got := a.hears(); got != "ok 0" || len(m.kept) != 1 {
		t.Errorf("a key of the epoch to come: %s, kept %v", got, m.kept)
	}
	m.elect()
	next(b, wire.MKVGet, wire.KV{Key: "k"})
	m.serve()
	if got := b.hears(); got != "value 0 v" {
		t.Errorf("the other reads %s", got)
	}
	next(b, wire.MKVGet, wire.KV{Key: "missing"})
	m.serve()
	m.lj.job = fixture.Changed(m.lj.job, func(j *replica.Job) { j.Phase = replica.Ended })
	m.fence(m.lj) // nothing is to come
	if got := b.hears(); got != fmt.Sprint("value ", wire.CodeFenced, " ") || len(m.kept) != 0 || len(m.kvs) != 0 {
		t.Errorf("who waits for the epoch to come of a job that ended is told %s; kept %v, pending %v", got, m.kept, m.kvs)
	}
}

// New processes and survivors meet in the epoch to come: before attach, by what the hello said; after a fence.
func TestScope(t *testing.T) {
	m := newMeeting(t)
	scope := func(p session.Peer, r *rankEnd) string {
		t.Helper()
		m.asked++
		m.handleSession(session.Scope{Peer: p, Header: wire.RankHeader{Type: wire.MScope, Request: m.asked}})
		return heard(r)
	}
	stranger, end := m.session(1)
	if got := scope(stranger, end); !strings.HasPrefix(got, fmt.Sprint("refused ", wire.CodeState)) {
		t.Errorf("before a welcome: %s", got)
	}
	m.lj.job = fixture.Changed(fixture.Closed(m.lj.job), func(j *replica.Job) {
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 0, Incarnation: 4}}
	})
	m.chair.knows(m.lj.job)
	p, r := m.hello(nil)
	r.reads() // the welcome
	if got := scope(p, r); got != "scope 4" {
		t.Errorf("a new process: %s, want epoch 4, which is to come", got)
	}
	m.handleSession(session.KV{Peer: p, Header: wire.RankHeader{Request: 50, Epoch: 4}, Op: wire.MKVSet, KV: wire.KV{Key: "k", Value: []byte("v"), Once: 1}})
	m.serve()
	if got := heard(r); got != "ok 0" {
		t.Errorf("it sets a key: %s", got)
	}
	survivor := m.guest(1)
	if got := scope(survivor.peer, survivor.end); got != "scope 4" {
		t.Errorf("a survivor: %s", got)
	}

	m.handleSession(session.Gone{Peer: p})
	if len(m.callers) != 1 {
		t.Errorf("callers %v, want the survivor", m.callers)
	}
	lj := m.jobs[fixture.JobID]
	delete(m.jobs, fixture.JobID) // the daemon started anew and no leader was reached
	m.asked++
	survivor.last = m.asked
	m.handleSession(session.Scope{Peer: survivor.peer, Header: wire.RankHeader{Request: m.asked}})
	survivor.end.quiet(survivor.peer)
	m.views(control.View{Index: 20, Term: m.term, Era: 1, Nodes: m.nodes, Jobs: []*replica.Job{lj.job}})
	if got := survivor.hears(); got != "scope 4" {
		t.Errorf("once the job is known: %s", got)
	}
	m.jobs[fixture.JobID].job = fixture.Changed(lj.job, func(j *replica.Job) { j.Phase, j.EndReason = replica.Ended, "enough" })
	if got := scope(survivor.peer, survivor.end); got != fmt.Sprint("refused ", wire.CodeStopped, " the job has ended: enough") {
		t.Errorf("after the end: %s", got)
	}
}

func heard(r *rankEnd) string {
	r.t.Helper()
	h, body := r.reads()
	return describe(r.t, h, body)
}

// A process that may not have the rank may not speak for it either.
func TestRefusedProcessesDontMeet(t *testing.T) {
	m := newMeeting(t)
	m.lj.job = fixture.Changed(fixture.Closed(m.lj.job), func(j *replica.Job) {
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 0, Incarnation: 4}}
	})
	p, r := m.hello(nil)
	r.reads() // the welcome
	m.handleSession(session.KV{Peer: p, Header: wire.RankHeader{Request: 50, Epoch: 4}, Op: wire.MKVGet, KV: wire.KV{Key: "k"}})
	m.refuse(m.attaching[p.ID()], 1, wire.CodeRefused, "another was first")
	if len(m.callers) != 0 || len(m.kvs) != 0 {
		t.Errorf("callers %v, pending %v", m.callers, m.kvs)
	}
}
