package host

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/audit"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/journal"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/internal/unixsock"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// opening is a job whose ranks may be claimed; nobody has one.
func opening() *replica.Job {
	return fixture.Changed(fixture.Job(), func(j *replica.Job) {
		j.Phase, j.Plan, j.Position, j.Committed, j.Lineage = replica.Opening, nil, replica.Position{}, replica.Generation{}, nil
		j.Ranks = make([]replica.Claimed, 2)
	})
}

// hello brings a process to the daemon as rank 0.
func (d *rig) hello(change func(*wire.Hello)) (session.Peer, *rankEnd) {
	d.t.Helper()
	p, r := d.session(0)
	h := wire.Hello{ABI: wire.RankABI, Rank: 0, World: 2, Group: 0, Nonce: 77, Job: "job"}
	if change != nil {
		change(&h)
	}
	d.handleSession(session.Hello{Peer: p, Header: wire.RankHeader{Request: 1}, Hello: h})
	return p, r
}

func (d *rig) attachFor(p session.Peer) {
	d.handleSession(session.Attach{Peer: p, Header: wire.RankHeader{Request: 2}, Regions: fixture.Geometry(d.t, false).Regions})
}

// grants has the leader grant the one claim that it was sent.
func (d *rig) grants(inc replica.Incarnation) {
	d.t.Helper()
	claims := fixture.Only[control.ClaimRequest](d.says())
	if len(claims) != 1 {
		d.t.Fatalf("%d claims", len(claims))
	}
	d.leaderSays(control.ClaimReply{ID: claims[0].ID, Incarnation: inc})
}

// refused reads a refusal and its reason.
func (r *rankEnd) refused() (int32, string) {
	r.t.Helper()
	h, body := r.reads()
	v, err := wire.ParseRefused(body)
	if h.Type != wire.MRefused || err != nil {
		r.t.Fatalf("the rank reads message %d (%v), want a refusal", h.Type, err)
	}
	return v.Code, v.Text
}

// Who can never have the rank is told so, and why.
func TestAttachRefusals(t *testing.T) {
	for what, c := range map[string]struct {
		hello func(*wire.Hello)
		job   func(*replica.Job)
		rank  bool // a live process of this node holds rank 0
		code  int32
		text  string
	}{
		"another version":       {func(h *wire.Hello) { h.ABI++ }, nil, false, wire.CodeVersion, "use the library of this daemon's release"},
		"no such job":           {func(h *wire.Hello) { h.Job = "nope" }, nil, false, wire.CodeRefused, `no job "nope"`},
		"a job that ended":      {nil, func(j *replica.Job) { j.Phase = replica.Ended }, false, wire.CodeRefused, `no job "job"`},
		"another world":         {func(h *wire.Hello) { h.World = 3 }, nil, false, wire.CodeRefused, "has 2 ranks"},
		"another group":         {func(h *wire.Hello) { h.Group = 1 }, nil, false, wire.CodeRefused, "group is 0"},
		"a group of its own":    {func(h *wire.Hello) { h.Group = 1 }, func(j *replica.Job) { j.Naming = []replica.GroupID{replica.NoGroup, 0} }, false, 0, ""},
		"no group yet":          {func(h *wire.Hello) { h.Group = replica.NoGroup }, nil, false, 0, ""},
		"a rank beyond":         {func(h *wire.Hello) { h.Rank, h.World = 2, 2 }, nil, false, wire.CodeRefused, "that rank's group is none"},
		"held on another node":  {nil, func(j *replica.Job) { j.Ranks[0] = fixture.Job().Ranks[1] }, false, wire.CodeRefused, "on node n2"},
		"held by a live one":    {nil, nil, true, wire.CodeRefused, "is held by live process"},
		"control: it can be in": {nil, nil, false, 0, ""},
	} {
		d := newRig(t)
		job := opening()
		if c.job != nil {
			c.job(job)
		}
		lj := d.put(job)
		if c.rank {
			lj.Job.Ranks[0].Incarnation, lj.Job.Ranks[0].Node = 4, "n1"
			d.attach(lj, 0)
		}
		p, r := d.hello(c.hello)
		if c.code == 0 {
			if h, _ := r.reads(); h.Type != wire.MWelcome || h.Request != 1 {
				t.Errorf("%s: reads %+v, want a welcome", what, h)
			}
			continue
		}
		if code, text := r.refused(); code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%s: refused with %d %q, want %d and %q", what, code, text, c.code, c.text)
		}
		if _, is := d.admission.JobOf(p.ID()); is {
			t.Errorf("%s: remembered", what)
		}
	}
}

// From hello to arena: the claim is asked for once, and the list on disk knows the process before it has the arena.
func TestAttach(t *testing.T) {
	d := newRig(t)
	d.informed = false
	job := opening()
	lj := d.put(job)
	p, r := d.hello(nil)
	r.quiet(p) // no leader was heard: nothing can be judged
	d.views(control.View{Index: 10, Era: 1, Nodes: d.nodes, Jobs: []*replica.Job{job}})
	h, body := r.reads()
	w, err := wire.ParseWelcome(body)
	if h.Type != wire.MWelcome || err != nil || w.Cluster != fixture.Cluster || w.Job != fixture.JobID || w.ChunkBytes != 4096 || w.Era != 1 {
		t.Errorf("welcomed by %+v, %+v: %v", h, w, err)
	}
	d.says()
	d.attachFor(p)
	d.admission.Serve(time.Now())
	claims := fixture.Only[control.ClaimRequest](d.says())
	g := shm.GeometryDigest(fixture.Geometry(t, false), replica.ReplicatedPart)
	if len(claims) != 1 || claims[0].Claim != (replica.Claim{Job: fixture.JobID, Rank: 0, Holder: replica.Holder{Node: "n1", Incarnation: 11}, Geometry: g, Nonce: 77}) {
		t.Fatalf("claims %+v", claims)
	}
	d.leaderSays(control.ClaimReply{ID: claims[0].ID, Refused: "leadership lost", Retry: true})
	d.tick() // no other view may be coming
	again := fixture.Only[control.ClaimRequest](d.says())
	if len(again) != 1 || again[0].Claim != claims[0].Claim {
		t.Fatalf("after an unknown outcome it claims %+v", again)
	}
	d.leaderSays(control.ClaimReply{ID: claims[0].ID, Incarnation: 9}) // of the request that was answered
	if lj.Ranks[0] != nil || len(d.in) != 0 {
		t.Error("a late answer is taken")
	}
	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) {
		j.Ranks = []replica.Claimed{{Incarnation: 4, Node: "n1", NodeIncarnation: 11, Nonce: 77}, {}}
	})
	d.leaderSays(control.ClaimReply{ID: again[0].ID, Incarnation: 4})
	d.until("the arena", func() bool { return lj.Ranks[0] != nil })
	lr := lj.Ranks[0]
	if h, body = r.reads(); h.Type != wire.MAttached || h.Request != 2 || h.Incarnation != 4 || h.Epoch != 3 {
		t.Fatalf("reads %+v, want its arena", h)
	}
	a, err := wire.ParseAttached(body)
	if err != nil || a.Incarnation != 4 || a.Slots != 4 || a.Job != fixture.JobID || a.ArenaBytes != lr.Arena.Header().ArenaBytes {
		t.Errorf("attached %+v: %v", a, err)
	}
	if inc, pid, start := lr.Arena.Owner(); inc != 4 || int(pid) != p.PID() || start != p.StartTime() {
		t.Errorf("the arena is of incarnation %d, process %d", inc, pid)
	}
	if account, word := d.fencedAt(lr); account != 2 || word != 2 {
		t.Errorf("its fence is at %d, its word at %d, though epoch 2 is closed", account, word)
	}
	list, err := d.loadArenas()
	if err != nil || len(list.Arenas) != 1 || list.Arenas[0].Key != lr.Arena.Key() || list.Arenas[0].PID != p.PID() || list.Arenas[0].Start != p.StartTime() {
		t.Errorf("the list on disk: %+v, %v", list, err)
	}
	if _, on := d.admission.JobOf(p.ID()); on || !lr.Alive() || lr.Peer != p {
		t.Errorf("on its way %v, alive %v", on, lr.Alive())
	}
}

// A process that goes while its arena is made gets none, and the memory is given back.
func TestGoneBeforeItsArena(t *testing.T) {
	d := newRig(t)
	var made *shm.Arena
	d.hands.Create = func(s shm.Spec) (a *shm.Arena, err error) { made, err = shm.Create(s); return made, err }
	lj := d.put(opening())
	p, _ := d.hello(nil)
	d.attachFor(p)
	d.grants(4)
	ready := <-d.in
	d.handleSession(session.Gone{Peer: p})
	d.handle(ready)
	_, on := d.admission.JobOf(p.ID())
	if made == nil || lj.Ranks[0] != nil || on {
		t.Fatalf("rank %v, on its way %v, made %v", lj.Ranks[0], on, made)
	}
	d.until("the end of the arena that nobody got", func() bool { _, err := made.File().Stat(); return err != nil })
}

// A process that registers another state than it would have to load used to be given a fresh arena, into which nothing could
// ever be restored: it waited for ever. It is refused, and told by name what differs.
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
		old := d.attach(lj, 0)
		lj.Job.GroupGeometry = []replica.Digest{shm.GeometryDigest(old.Arena.Geometry(), replica.ReplicatedPart)}
		d.both(old.Arena, 0, fixture.Gen(3, 5))
		d.rankDied(lj, old)
		p, r := d.hello(nil)
		r.reads() // the welcome
		d.says()
		regions := fixture.Geometry(t, false).Regions
		change(regions)
		d.handleSession(session.Attach{Peer: p, Header: wire.RankHeader{Request: 2}, Regions: regions})
		if claims := fixture.Only[control.ClaimRequest](d.says()); len(claims) != 0 {
			t.Errorf("%s: claimed %+v", what, claims)
		}
		h, body := r.reads()
		if h.Type != wire.MRefused || !strings.Contains(string(body), what) {
			t.Errorf("answered %d %q, want a refusal with %q", h.Type, body, what)
		}
	}
}

// The arena of the dead predecessor passes on where the geometry is the same; else it is kept as a holder beside a fresh one.
// The view of the claim may come before the answer to it.
func TestArenaPassesOn(t *testing.T) {
	for i := range 4 {
		same, viewFirst := i&1 == 0, i&2 == 0
		d := newRig(t)
		lj := d.put(fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
			j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 0, Incarnation: 4}}
		}))
		old := d.attach(lj, 0)
		d.both(old.Arena, 0, fixture.Gen(3, 5))
		d.rankDied(lj, old)
		p, r := d.hello(nil)
		r.reads() // the welcome
		d.says()
		regions := fixture.Geometry(t, false).Regions
		if !same {
			regions[1].Shape, regions[1].Bytes = []uint64{200}, 200
		}
		if !same {
			lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) { j.Lineage = nil }) // nothing was resumed yet: there is no state that it would have to fit
		}
		d.handleSession(session.Attach{Peer: p, Header: wire.RankHeader{Request: 2}, Regions: regions})
		claims := fixture.Only[control.ClaimRequest](d.says())
		if len(claims) != 1 || claims[0].Claim.Expect != 4 {
			t.Fatalf("claims %+v, want the rank from incarnation 4", claims)
		}
		lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) {
			j.Ranks = []replica.Claimed{{Incarnation: 6, Node: "n1", NodeIncarnation: 11, Nonce: 77}, j.Ranks[1]}
		})
		if viewFirst {
			d.reconcile(lj)
		}
		d.leaderSays(control.ClaimReply{ID: claims[0].ID, Incarnation: 6})
		d.until("the arena", func() bool { return lj.Ranks[0] != nil && lj.Ranks[0] != old })
		now := lj.Ranks[0]
		if now.Incarnation != 6 || !now.Alive() || (now.Arena == old.Arena) != same || (len(lj.Retired) == 0) != same {
			t.Errorf("same geometry %v: incarnation %d, same arena %v, %d retired", same, now.Incarnation, now.Arena == old.Arena, len(lj.Retired))
		}
		if parts := lj.View().Copies(); len(parts) != 2 {
			t.Errorf("same geometry %v: %d parts of the predecessor are left, want 2", same, len(parts))
		}
		if inc, pid, _ := now.Arena.Owner(); inc != 6 || int(pid) != p.PID() {
			t.Errorf("the arena is of incarnation %d, process %d", inc, pid)
		}
	}
}

// A rank whose daemon was away is taken back by its process, with what it is owed; one that was taken over is not.
func TestReattach(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Job())
	lr := d.attach(lj, 0)
	p, r := d.session(0)
	offer := func() session.Hello {
		f, err := unixsock.Duplicate(lr.Arena.File())
		if err != nil {
			t.Fatal(err)
		}
		return session.Hello{Peer: p, Header: wire.RankHeader{Request: 8}, Hello: wire.Hello{Rank: 0, Job: "job"}, File: f}
	}
	ev := offer()
	d.handleSession(ev)
	if code, text := r.refused(); code != wire.CodeStopped || !strings.Contains(text, "was taken over or the job has ended") {
		t.Errorf("another process is answered %d %q", code, text)
	}
	if _, err := ev.File.Stat(); err == nil {
		t.Error("the offered descriptor is leaked")
	}
	lr.PID, lr.Start = p.PID(), p.StartTime()
	lr.Arena.RaiseFence(2)
	d.handleSession(offer())
	h, body := r.reads()
	a, err := wire.ParseAttached(body)
	if h.Type != wire.MAttached || h.Request != 8 || h.Incarnation != 4 || err != nil || a.Fence != 2 {
		t.Errorf("answered %+v, %+v: %v", h, a, err)
	}
	if lr.Peer != p || len(lj.Ranks) != 1 {
		t.Error("the rank has no session")
	}
	d.handleSession(session.Gone{Peer: p})
	if lr.Peer != nil || !lr.Alive() {
		t.Error("a lost session is a death, or is not noticed")
	}
	lr.PID = -1 // the cleanup of the test must not meet this process
}

// What a socket refuses stands in the log and in the audit log, with who it was: each user has lines of their own.
func TestTurnedAwayIsWrittenDown(t *testing.T) {
	r := newRig(t)
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	lines, err := audit.Open(path, func(err error) { t.Error(err) })
	if err != nil {
		t.Fatal(err)
	}
	r.audit = &journal.Auditor{Log: lines}
	for _, user := range []int{1000, 1001} {
		r.handleSession(session.TurnedAway{UID: user, PID: 7, Code: wire.CodeRefused, Why: "the token is not the job's", Others: 3})
	}
	lines.Close()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"1000", "1001"} {
		if !bytes.Contains(b, []byte(`"what":"socket, user `+user+`"`)) {
			t.Errorf("no line of user %s in\n%s", user, b)
		}
		if r.log.Count(`"event":"turned_away","user":`+user+`,"pid":7,"others":3,"why":"the token is not the job's"`) != 1 {
			t.Errorf("the log has no line of user %s", user)
		}
	}
}
