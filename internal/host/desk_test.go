package host

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/account"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/desk"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// These are tests of how host and desk are joined; what the desk does is tested in its own package.

// visitor is a rank's process at the rendezvous.
type visitor struct {
	d    *rig
	peer session.Peer
	end  *rankEnd
	last uint32 // its newest request
}

// visitor admits a session as a process of the rank.
func (d *rig) visitor(rank replica.Rank) *visitor {
	d.t.Helper()
	p, end := d.session(rank)
	d.desk.Admit(p, desk.Caller{Job: fixture.JobID, Rank: rank, Nonce: 70})
	return &visitor{d: d, peer: p, end: end}
}

// asks says something of an epoch to the desk, as the session does.
func (v *visitor) asks(epoch replica.Epoch, op uint16, kv wire.KV) {
	v.last++
	v.d.handleSession(session.KV{Peer: v.peer, Header: wire.RankHeader{Type: op, Request: v.last, Epoch: epoch}, Op: op, KV: kv})
}

// hears returns the type of the next message to the process, which must answer its newest request, and the message's code.
func (v *visitor) hears() (uint16, int32) {
	v.d.t.Helper()
	h, body := v.end.reads()
	if h.Request != v.last || len(body) < 4 {
		v.d.t.Fatalf("message %d of %d bytes answers request %d, the newest is %d", h.Type, len(body), h.Request, v.last)
	}
	return h.Type, int32(binary.LittleEndian.Uint32(body))
}

// asked takes the one request that the host has sent to the leader.
func (d *rig) asked() control.KVRequest {
	d.t.Helper()
	asked := fixture.Only[control.KVRequest](d.says())
	if len(asked) != 1 {
		d.t.Fatalf("the leader is asked %+v, want one request", asked)
	}
	return asked[0]
}

// sets has a process contribute a key, and the leader take it.
func (v *visitor) sets(epoch replica.Epoch, key string) {
	v.d.t.Helper()
	v.asks(epoch, wire.MKVSet, wire.KV{Key: key, Value: []byte("v"), Once: v.last + 1})
	v.d.leaderSays(control.KVReply{ID: v.d.asked().ID, Seq: 7<<32 | uint64(v.last)})
}

// A process may speak from its welcome on until its session is over.
func TestOnlyWelcomedProcessesMeet(t *testing.T) {
	d := newRig(t)
	d.put(fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 0, Incarnation: 4}}
	}))
	scope := func(p session.Peer, r *rankEnd) (wire.RankHeader, []byte) {
		t.Helper()
		d.handleSession(session.Scope{Peer: p, Header: wire.RankHeader{Type: wire.MScope, Request: 9}})
		return r.reads()
	}
	refused := func(when string, h wire.RankHeader, body []byte) {
		t.Helper()
		if v, err := wire.ParseRefused(body); h.Type != wire.MRefused || err != nil || v.Code != wire.CodeState {
			t.Errorf("%s: message %d, %+v, %v; want to be refused", when, h.Type, v, err)
		}
	}
	stranger, end := d.session(1)
	h, body := scope(stranger, end)
	refused("before a welcome", h, body)

	p, r := d.hello(nil)
	r.reads() // the welcome
	h, body = scope(p, r)
	if v, err := wire.ParseScoped(body); h.Type != wire.MScoped || err != nil || v.Epoch != 4 {
		t.Errorf("a process that was welcomed reads message %d, epoch %d, %v; want epoch 4, which is to come", h.Type, v.Epoch, err)
	}
	d.handleSession(session.Gone{Peer: p})
	h, body = scope(p, r)
	refused("after its session", h, body)
}

// A process that may not have the rank may not speak for it either.
func TestRefusedProcessesDontMeet(t *testing.T) {
	d := newRig(t)
	d.put(fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 0, Incarnation: 4}}
	}))
	p, r := d.hello(nil)
	r.reads() // the welcome
	get := session.KV{Peer: p, Header: wire.RankHeader{Request: 50, Epoch: 4}, Op: wire.MKVGet, KV: wire.KV{Key: "k"}}
	d.handleSession(get)
	if !d.desk.Waits(fixture.JobID, 0) {
		t.Error("a process that was welcomed does not wait for its key")
	}
	regions := fixture.Geometry(t, false).Regions
	regions[1].Class = replica.Window // of a private one
	d.handleSession(session.Attach{Peer: p, Header: wire.RankHeader{Request: 1}, Regions: regions})
	r.reads() // why
	d.handleSession(get)
	h, body := r.reads()
	if v, err := wire.ParseRefused(body); h.Type != wire.MRefused || err != nil || v.Code != wire.CodeState || d.desk.Waits(fixture.JobID, 0) {
		t.Errorf("a process that was refused reads message %d, %+v, %v, and waits: %v", h.Type, v, err, d.desk.Waits(fixture.JobID, 0))
	}
}

// What a process asked ends with its session, and with that of no other one.
func TestRequestsEndWithTheirSession(t *testing.T) {
	d := newRig(t)
	d.put(fixture.Job())
	gone, stays := d.visitor(0), d.visitor(1)
	gone.asks(3, wire.MKVGet, wire.KV{Key: "late"})
	stays.asks(3, wire.MKVGet, wire.KV{Key: "late"})
	d.peerGone(gone.peer)
	if d.desk.Waits(fixture.JobID, 0) || !d.desk.Waits(fixture.JobID, 1) {
		t.Error("want the request of the session that stays alone")
	}
}

// The host's tick asks again what a leader could not answer yet.
func TestTickAsksTheLeaderAgain(t *testing.T) {
	d := newRig(t)
	d.put(fixture.Job())
	v := d.visitor(0)
	v.asks(3, wire.MKVGet, wire.KV{Key: "k"})
	first := d.asked()
	d.leaderSays(control.KVReply{ID: first.ID, Again: true})
	d.tick()
	if again := d.asked(); again.ID != first.ID || again.Key != "k" {
		t.Errorf("asked again %+v, before %+v", again, first)
	}
	d.leaderSays(control.KVReply{ID: first.ID, Value: []byte("v")})
	if typ, code := v.hears(); typ != wire.MKVValue || code != wire.CodeOK {
		t.Errorf("the process reads message %d of code %d", typ, code)
	}
}

// A rank that heard its answer may go on: so nothing is answered before the keeper has the record, which may take seconds; the host takes none.
func TestAnswersWaitForTheKeeper(t *testing.T) {
	d := newRig(t)
	slow := &slowVault{d.keeper, make(chan string, 8), make(chan struct{}, 8)}
	d.keptBy(slow)
	d.put(fixture.Job())
	v := d.visitor(0)
	v.sets(3, "k")
	if key := came(t, "the keeper's call", slow.called); !desk.Records(key) || !strings.Contains(key, fixture.JobID.String()) {
		t.Errorf("%s is parked, want the records of the job", key)
	}
	if !d.desk.Waits(fixture.JobID, 0) {
		t.Error("answered before the keeper has the record")
	}
	slow.let <- struct{}{}
	d.until("the keeper", func() bool { return !d.desk.Waits(fixture.JobID, 0) })
	if typ, code := v.hears(); typ != wire.MKVOK || code != wire.CodeOK {
		t.Errorf("the process reads message %d of code %d", typ, code)
	}
	v.sets(3, "l") // at once
	if typ, code := v.hears(); typ != wire.MKVOK || code != wire.CodeOK {
		t.Errorf("the process reads message %d of code %d", typ, code)
	}
}

// A daemon that starts again brings a new leader what the one before it had recorded, and drops it with its epoch, or with a job
// that ended meanwhile.
func TestContributionsOutliveTheDaemon(t *testing.T) {
	for name, end := range map[string]func(d *rig, job *replica.Job){
		"closed": func(d *rig, job *replica.Job) {
			d.views(control.View{Index: 20, Term: 9, Era: 1, Jobs: []*replica.Job{fixture.Closed(job)}})
		},
		"ended": func(d *rig, job *replica.Job) {
			d.views(control.View{Index: 20, Term: 9, Era: 1, Jobs: []*replica.Job{fixture.Changed(job, func(j *replica.Job) { j.Phase = replica.Ended })}})
		},
		"forgotten": func(d *rig, _ *replica.Job) { d.views(control.View{Index: 20, Term: 9, Era: 1}) },
	} {
		d := newRig(t)
		lj := d.put(fixture.Job())
		v := d.visitor(0)
		v.sets(3, "k")
		d.until("the keeper", func() bool { return !d.desk.Waits(fixture.JobID, 0) })
		nodes := d.nodes
		d.restart()
		d.handle(LinkUp{Link: d.link, Leader: "n2", Welcome: control.Welcome{OK: true, Term: 10}})
		kept := fixture.Only[control.KVKept](d.says())
		if len(kept) != 2 || kept[0].Job != fixture.JobID || kept[0].Epoch != 3 || len(kept[0].Entries) != 1 || kept[0].Entries[0].Key != "k" || !kept[1].Done {
			t.Fatalf("the new leader is brought %+v", kept)
		}
		records := func() (keys []string) {
			for key := range d.parked() {
				if desk.Records(key) {
					keys = append(keys, key)
				}
			}
			return keys
		}
		if len(records()) != 1 {
			t.Fatalf("the keeper has %v", records())
		}
		d.nodes = nodes
		end(d, lj.Job)
		d.handle(LinkUp{Link: d.link, Leader: "n2", Welcome: control.Welcome{OK: true, Term: 11}})
		if kept := fixture.Only[control.KVKept](d.says()); len(kept) != 1 || len(records()) != 0 {
			t.Errorf("%s: a leader is brought %+v, the keeper has %v", name, kept, records())
		}
	}
}

// What is no ledger is dropped from the keeper, though it has a ledger's name.
func TestGarbageAmongTheRecords(t *testing.T) {
	d := newRig(t)
	d.put(fixture.Job())
	v := d.visitor(0)
	v.sets(3, "k")
	d.until("the keeper", func() bool { return !d.desk.Waits(fixture.JobID, 0) })
	var key string
	for key = range d.parked() {
	}
	files, err := d.keeper.All()
	if err != nil {
		t.Fatal(err)
	}
	other := fmt.Sprint(key, "0")
	if err := d.keeper.Put(other, files[key]); err != nil {
		t.Fatal(err)
	}
	files[key].Close()
	d.restart()
	if keys := d.parked(); len(keys) != 1 || !keys[key] || !strings.Contains(d.log.String(), other) {
		t.Errorf("the keeper has %v, want %s alone, and the log naming the other", keys, key)
	}
}

// Processes of many jobs of one user ask in a loop. What they ask is paced as one user's, and another user's process asks beside them.
func TestQuestionsArePacedByUser(t *testing.T) {
	const most, jobs = 300, 10
	d := newRig(t)
	d.asking = account.NewPace(most)
	d.tick()
	var loud []*visitor
	asker := func(n byte, owner uint32) *visitor {
		job := fixture.Changed(fixture.Job(), func(j *replica.Job) { j.ID, j.Name, j.Owner = replica.JobID{n}, fmt.Sprint("job-", n), owner })
		d.put(job)
		p, end := d.session(0)
		d.desk.Admit(p, desk.Caller{Job: job.ID, Rank: 0, Nonce: uint64(n)})
		return &visitor{d: d, peer: p, end: end}
	}
	for n := range byte(jobs) {
		loud = append(loud, asker(n+1, 1002))
	}
	other := asker(100, 1003)
	d.says()
	for i := range 2 * most {
		for _, v := range loud {
			v.asks(3, wire.MKVGet, wire.KV{Key: fmt.Sprint("absent ", i)})
		}
	}
	other.asks(3, wire.MKVGet, wire.KV{Key: "absent"})
	count := map[replica.JobID]int{}
	for _, r := range fixture.Only[control.KVRequest](d.says()) {
		count[r.Job]++
	}
	sum := 0
	for _, v := range count {
		sum += v
	}
	if other := count[replica.JobID{100}]; other != 1 || sum-other != most {
		t.Errorf("%d questions of the other user and %d of ten jobs of one, want 1 and %d: %v", other, sum-other, most, count)
	}
}
