package admission

import (
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/room/roomtest"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// Two claims are under way, and the answer to the second, a refusal, comes first: it names how the first one's regions differ all the same.
func TestRefusalThatOvertakesAnAnswer(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	first := fixture.Geometry(t, false)
	second, err := replica.NewGeometry([]replica.Region{{Name: "weight", DType: replica.F32, Shape: []uint64{50, 50}, Bytes: 10000}})
	if err != nil {
		t.Fatal(err)
	}
	waiting := &process{geometry: first, claim: replica.Claim{Job: fixture.JobID, Rank: 0}}
	d.all[1] = waiting
	refused := replica.Claim{Job: fixture.JobID, Rank: 1}
	if text := d.otherThanPeers(lj, refused, second); text != "" {
		t.Errorf("of a process that has not asked for its rank: %q", text)
	}
	waiting.request = 5
	if text := d.otherThanPeers(lj, refused, second); !strings.Contains(text, "beside rank 0: ") {
		t.Errorf("%q, want the difference to rank 0", text)
	}
}

// The library refuses a private window region without InWindow; a daemon that hears of one from another client does so by itself.
func TestUnregistrableRegionIsRefused(t *testing.T) {
	d := newRig(t)
	d.put(opening())
	p := d.hello(nil)
	p.Reads() // the welcome
	d.attach(p, func(r []replica.Region) { r[1].Class = replica.Window })
	if code, text := p.refused(); code != wire.CodeInvalid || !strings.Contains(text, `"rng": private and of class window`) {
		t.Errorf("refused with %d %q", code, text)
	}
	if claims := fixture.Only[control.ClaimRequest](d.taken()); len(claims) != 0 {
		t.Errorf("claimed %+v", claims)
	}
}

// A process that was welcomed and has not sent ATTACH yet waits for no answer. A refusal goes with the answer to ATTACH. It used to be sent
// at once, unheard, and ATTACH was answered with "attach before hello was answered".
func TestLostToAnotherBeforeAttach(t *testing.T) {
	d := newRig(t)
	lj := d.put(opening())
	p := d.hello(nil)
	p.Reads() // the welcome
	lj.job = fixture.Changed(lj.job, func(j *replica.Job) { j.Ranks[0] = fixture.Job().Ranks[1] })
	d.Serve(d.at)
	d.attach(p, nil)
	h, body := p.Reads()
	v, err := wire.ParseRefused(body)
	if err != nil || h.Type != wire.MRefused || h.Request != 2 || v.Code != wire.CodeRefused ||
		!strings.Contains(v.Text, "on node n2: it is not free") {
		t.Errorf("answered %+v %+v (%v), want a refusal of ATTACH that names who holds the rank", h, v, err)
	}
}

// A process waits for its daemon while it has asked for its rank or its arena and has no answer.
func TestProcessesThatWaitForTheirDaemon(t *testing.T) {
	d := newRig(t)
	for _, c := range []struct {
		p    process
		want bool
	}{
		{process{hello: wire.Hello{Job: "job"}}, true},
		{process{hello: wire.Hello{Job: "job"}, welcomed: true}, false}, // it builds its model
		{process{hello: wire.Hello{Job: "job"}, welcomed: true, attach: 7}, true},
		{process{hello: wire.Hello{Job: "job", Rank: 1}}, false},
		{process{hello: wire.Hello{Job: "other"}}, false},
	} {
		c.p.peer = d.session()
		clear(d.all)
		d.all[c.p.peer.ID()] = &c.p
		if got := d.Expects("job", 0); got != c.want {
			t.Errorf("%+v: it waits: %t", c.p, got)
		}
	}
}

// Processes that come and go in a loop have few claims under way. Those that nobody waits for any more are not sent to a new leader, and
// count no more then.
func TestALoopOfProcessesHasFewClaimsUnderWay(t *testing.T) {
	const loops, most = 2000, 20
	d := newRig(t)
	d.cfg.PerUser.Sessions = most
	d.put(opening())
	comes := func() *peer {
		p := d.hello(nil)
		d.attach(p, nil)
		return p
	}
	for range loops {
		d.Gone(comes().Session)
	}
	comes()
	claims := fixture.Only[control.ClaimRequest](d.taken())
	if len(claims) != most || len(d.claims) != most {
		t.Fatalf("%d claims were sent, and %d are under way, want %d", len(claims), len(d.claims), most)
	}
	d.Claimed(control.ClaimReply{ID: claims[0].ID, Incarnation: 9}) // of a process that is gone
	if len(d.did) != 0 {
		t.Errorf("for a process that is gone the owner %v", d.did)
	}
	d.Tick(d.at)
	if again := fixture.Only[control.ClaimRequest](d.taken()); len(again) != 1 {
		t.Errorf("once one is answered the leader is asked %+v, want the claim of the process that is there", again)
	}
	d.Resend()
	if again := fixture.Only[control.ClaimRequest](d.taken()); len(again) != 1 || len(d.claims) != 1 {
		t.Errorf("a new leader is asked %+v, and %d are awaited", again, len(d.claims))
	}
	d.Check()
}

// A process that finds its group in its model names it when it attaches; one that never does is refused.
func TestGroupIsNamedWithTheClaim(t *testing.T) {
	for _, named := range []replica.GroupID{1, replica.NoGroup} {
		d := newRig(t)
		d.put(fixture.Changed(opening(), func(j *replica.Job) { j.Naming = []replica.GroupID{replica.NoGroup, replica.NoGroup} }))
		p := d.hello(func(h *wire.Hello) { h.Group = replica.NoGroup })
		p.Reads() // the welcome
		regions := fixture.Geometry(t, false).Regions
		d.Attach(session.Attach{Peer: p, Header: wire.RankHeader{Request: 2}, Regions: regions, Group: named}, d.at)
		claims := fixture.Only[control.ClaimRequest](d.taken())
		if named == replica.NoGroup {
			_, text := p.refused()
			if len(claims) != 0 || !strings.Contains(text, "does not say its replica group: name it before attaching") {
				t.Errorf("refused with %q, claims %+v", text, claims)
			}
		} else if len(claims) != 1 || claims[0].Claim.Group != named {
			t.Errorf("claims %+v, want one in group %d", claims, named)
		}
	}
}

// A process that registers another state than it would have to load used to be given a fresh arena, into which nothing could ever be
// restored: it waited for ever. It is refused, with what differs by name.
func TestOtherStateIsRefused(t *testing.T) {
	for what, change := range map[string]func([]replica.Region){
		`rank 0 registers another geometry than its own state has: "rng" has shape [200], had [100]`: func(r []replica.Region) {
			r[1].Shape, r[1].Bytes = []uint64{200}, 200
		},
		`rank 0 registers another geometry than the state of group 0 has: "bias" is extra; "weight" is missing`: func(r []replica.Region) {
			r[0].Name = "bias"
		},
	} {
		d := newRig(t)
		lj := d.put(fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
			j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 0, Incarnation: 4}}
		}))
		old := roomtest.Arena(t, shm.Spec{Geometry: fixture.Geometry(t, false)})
		lj.ranks[0] = &Rank{Incarnation: 4, Arena: old}
		lj.job.GroupGeometry = []replica.Digest{shm.GeometryDigest(old.Geometry(), replica.ReplicatedPart)}
		p := d.hello(nil)
		p.Reads() // the welcome
		d.attach(p, change)
		if claims := fixture.Only[control.ClaimRequest](d.taken()); len(claims) != 0 {
			t.Errorf("%s: claimed %+v", what, claims)
		}
		if _, text := p.refused(); !strings.Contains(text, what) {
			t.Errorf("refused with %q, want %q", text, what)
		}
	}
}

// What is being parked is on the list of arenas with the process that is to have it, and passes on to that one where it was a dead one's.
func TestListedWhileItIsParked(t *testing.T) {
	d := newRig(t)
	lj := d.put(opening())
	old := roomtest.Arena(t, shm.Spec{Geometry: fixture.Geometry(t, false)})
	lj.ranks[0] = &Rank{Incarnation: 2, Arena: old}
	p := d.hello(nil)
	d.attach(p, nil)
	if len(d.Listed()) != 0 || len(d.Arenas()) != 0 || !d.Claiming("job", 0) {
		t.Fatalf("before its claim is granted %v is listed", d.Listed())
	}
	d.Claimed(control.ClaimReply{ID: 1, Incarnation: 4})
	list := d.Listed()
	want := holding.Entry{Key: old.Key(), Job: fixture.JobID, PID: p.Process, Start: p.Began, For: "job"}
	if len(list) != 1 || list[0] != want {
		t.Errorf("listed is %+v", list)
	}
	if inc, pid, _ := old.Owner(); inc != 4 || int(pid) != p.Process || !old.Process.Proven {
		t.Errorf("the arena is of incarnation %d, process %d", inc, pid)
	}
	if !slices.Contains(d.Arenas(), old) || !d.Claiming("job", 0) {
		t.Error("it is not on its way")
	}
	if err := d.end(); err != nil {
		t.Fatal(err)
	}
	if len(d.Listed()) != 0 || d.Claiming("job", 0) || lj.ranks[0].Incarnation != 4 || lj.ranks[0].Arena != old {
		t.Errorf("it is rank %+v, and %v is listed", lj.ranks[0], d.Listed())
	}
	d.Check()
}

// A rank to which no descriptor can be sent asks again: its node is short of them.
func TestAnswerThatFindsNoDescriptor(t *testing.T) {
	for _, c := range []struct {
		err  error
		code int32
		did  string
	}{
		{syscall.EMFILE, wire.CodeAgain, "is short of descriptors: " + syscall.EMFILE.Error()},
		{os.ErrClosed, 0, ""},
	} {
		d := newRig(t)
		lj := d.put(fixture.Job())
		p := d.session()
		p.Short = c.err
		lj.ranks[0] = &Rank{Incarnation: 4, Arena: roomtest.Arena(t, shm.Spec{Geometry: fixture.Geometry(t, false)}), Peer: p, Alive: true}
		d.Attach(session.Attach{Peer: p, Header: wire.RankHeader{Request: 2}}, d.at)
		if d.log.Count(`"event":"failed"`) == 0 {
			t.Errorf("%v is not logged", c.err)
		}
		if got := strings.Join(d.did, "; "); got != c.did {
			t.Errorf("%v: the owner %q, want %q", c.err, got, c.did)
		}
		if c.code == 0 {
			if len(p.Got) != 0 {
				t.Errorf("%v: the process is sent %+v", c.err, p.Got)
			}
		} else if code, text := p.refused(); code != c.code || text != c.err.Error() {
			t.Errorf("%v: refused with %d %q", c.err, code, text)
		}
	}
}

// A process that the daemon before this one named the owner of its arena gets it once it asks anew. One that has sealed something has it
// already.
func TestHandedOutAgain(t *testing.T) {
	for initial, again := range map[replica.Epoch]bool{0: true, 3: false} {
		d := newRig(t)
		lj := d.put(fixture.Job())
		arena := roomtest.Arena(t, shm.Spec{Geometry: fixture.Geometry(t, false)})
		p := d.session()
		lj.ranks[0] = &Rank{Incarnation: 4, Arena: arena, PID: p.Process, Start: p.Began, Alive: true, Initial: initial}
		hello := wire.Hello{ABI: wire.RankABI, World: 2, Nonce: 77, Job: "job"}
		d.Hello(session.Hello{Peer: p, Header: wire.RankHeader{Request: 1}, Hello: hello}, d.at)
		if !again {
			if _, text := p.refused(); !strings.Contains(text, "use one handle") || len(d.all) != 0 {
				t.Errorf("refused with %q, and %d are on their way", text, len(d.all))
			}
			continue
		}
		if h, _ := p.Reads(); h.Type != wire.MWelcome || !d.speaks[p.Session] {
			t.Errorf("the hello is answered by %d", h.Type)
		}
		d.attach(p, nil)
		h, _ := p.Reads()
		if h.Type != wire.MAttached || h.Incarnation != 4 || lj.ranks[0].Peer != p || len(d.all) != 0 || len(d.taken()) != 0 {
			t.Errorf("the attach is answered by %d", h.Type)
		}
	}
}

// Creates of launchers count with claims: a user's sessions bound both.
func TestCreatesCountWithClaims(t *testing.T) {
	d := newRig(t)
	d.put(opening())
	d.cfg.PerUser.Sessions, d.creates = 3, 3
	d.attach(d.hello(nil), nil)
	if sent := d.taken(); len(sent) != 0 {
		t.Errorf("beside three creates the leader is sent %+v", sent)
	}
	d.creates = 2
	d.Tick(d.at)
	if claims := fixture.Only[control.ClaimRequest](d.taken()); len(claims) != 1 || d.Gate.May(0, fixture.JobID) {
		t.Errorf("beside two the leader is sent %+v", claims)
	}
}
