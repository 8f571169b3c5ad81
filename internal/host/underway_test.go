package host

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/replicad/replicad/internal/account"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/wire"
	"github.com/replicad/replicad/replica"
)

// A mute peer is a session whose process reads nothing but refusals.
type mute struct {
	id      uint64
	uid     int
	refused string // the newest refusal
	code    int32
	closed  bool
}

func (p *mute) ID() uint64                                       { return p.id }
func (p *mute) PID() int                                         { return 1 << 22 }
func (p *mute) StartTime() uint64                                { return p.id }
func (p *mute) UID() int                                         { return p.uid }
func (p *mute) Send(wire.RankHeader, []byte) error               { return nil }
func (p *mute) SendFile(wire.RankHeader, []byte, *os.File) error { return nil }
func (p *mute) Refuse(_ uint32, code int32, text string)         { p.code, p.refused = code, text }
func (p *mute) Close()                                           { p.closed = true }

// crowd makes processes that come and go.
type crowd struct {
	d  *rig
	id uint64
}

func (c *crowd) launcher(uid int, job string) session.Peer {
	c.id++
	p := &mute{id: 1000 + c.id, uid: uid}
	c.d.handleSession(session.RunHello{Peer: p, Header: wire.RankHeader{Request: 1}, RunHello: wire.RunHello{Job: job, World: 2, Capacity: 1}})
	return p
}

// rank is a process on its way to the arena of rank 0.
func (c *crowd) rank(uid int) session.Peer {
	c.id++
	p := &mute{id: 1000 + c.id, uid: uid}
	c.d.handleSession(session.Hello{Peer: p, Header: wire.RankHeader{Request: 1}, Hello: wire.Hello{ABI: wire.RankABI, World: 2, Nonce: c.id, Job: "job"}})
	c.d.attachFor(p)
	return p
}

func (c *crowd) goes(p session.Peer) { c.d.handleSession(session.Gone{Peer: p}) }

const alice, bob = 1002, 1003

// A launcher that comes and goes in a loop left a create on its way each time: the link was closed, and each new one after it.
func TestALoopOfLaunchersHasFewCreatesUnderWay(t *testing.T) {
	const loops, most = 2000, 20
	d := newRig(t)
	d.cfg.PerUser.Sessions, d.asking = most, account.NewPace(1<<16)
	c := &crowd{d: d}
	d.says()
	for i := range loops {
		c.goes(c.launcher(alice, fmt.Sprint("job-", i)))
	}
	stays := c.launcher(alice, "stays")
	c.launcher(bob, "bobs")
	select {
	case <-d.link.Down:
		t.Fatal("the node's link is closed")
	default:
	}
	asked := fixture.Only[control.CreateRequest](d.says())
	if n := len(asked); n != most+1 || asked[n-1].Owner != bob {
		t.Fatalf("%d creates are under way, want %d, and the other user's", n, most)
	}
	creates := func() (names []string) {
		for _, m := range fixture.Only[control.CreateRequest](d.says()) {
			names = append(names, m.Name)
		}
		return names
	}
	d.tick()
	if got := creates(); len(got) != 0 {
		t.Errorf("while those are under way the leader is asked for %v", got)
	}
	d.leaderSays(control.CreateReply{ID: asked[0].ID, Retry: true})
	d.tick()
	if got := creates(); len(got) != 1 || got[0] != "stays" {
		t.Errorf("once one is answered the leader is asked for %v, want what a launcher that is there waits for", got)
	}
	d.handle(LinkUp{Link: d.link, Leader: "n2", Welcome: control.Welcome{OK: true, Term: 10}})
	if got := creates(); len(got) != 2 || d.launchers.UnderWay() != 2 {
		t.Errorf("a new leader is asked for %v, and %d are awaited: want those of the launchers that are there", got, d.launchers.UnderWay())
	}
	c.goes(stays)
	c.launcher(alice, "next")
	if got := creates(); len(got) != 1 || got[0] != "next" {
		t.Errorf("over the new link the leader is asked for %v", got)
	}
}

// So it is with claims. Another user's job, and other jobs of this one, are served beside them.
func TestALoopOfProcessesHasFewClaimsUnderWay(t *testing.T) {
	const loops, most = 2000, 20
	d := newRig(t)
	d.cfg.PerUser.Sessions, d.asking = most, account.NewPace(1<<16)
	lj := d.put(fixture.Changed(opening(), func(j *replica.Job) { j.Owner = alice }))
	c := &crowd{d: d}
	d.says()
	for range loops {
		c.goes(c.rank(alice))
	}
	c.rank(alice)
	claims := fixture.Only[control.ClaimRequest](d.says())
	if len(claims) != most {
		t.Fatalf("%d claims are under way, want %d", len(claims), most)
	}
	select {
	case <-d.link.Down:
		t.Fatal("the node's link is closed")
	default:
	}
	d.leaderSays(control.ClaimReply{ID: claims[0].ID, Incarnation: 9}) // of a process that is gone
	if lj.Ranks[0] != nil {
		t.Error("a process that is gone has an arena")
	}
	d.tick()
	again := fixture.Only[control.ClaimRequest](d.says())
	if len(again) != 1 || again[0].Claim.Nonce != loops+1 {
		t.Errorf("once one is answered the leader is asked %+v, want the claim of the process that is there", again)
	}
	d.handle(LinkUp{Link: d.link, Leader: "n2", Welcome: control.Welcome{OK: true, Term: 10}})
	if again := fixture.Only[control.ClaimRequest](d.says()); len(again) != 1 || again[0].Claim.Nonce != loops+1 {
		t.Errorf("a new leader is asked %+v", again)
	}
}

// A process whose claim has to wait for the pace of its user is served by the tick, before what others of its job ask at the rendezvous.
func TestAClaimWaitsForItsTurn(t *testing.T) {
	d := newRig(t)
	d.asking = account.NewPace(1)
	d.put(fixture.Changed(opening(), func(j *replica.Job) { j.Owner = alice }))
	c := &crowd{d: d}
	v := d.visitor(1)
	d.says()
	v.asks(3, wire.MKVGet, wire.KV{Key: "absent"})
	v.asks(3, wire.MKVGet, wire.KV{Key: "absent too"})
	d.asked()
	c.rank(alice)
	if claims := fixture.Only[control.ClaimRequest](d.says()); len(claims) != 0 {
		t.Fatalf("claimed %+v, and the user has asked as often as it may", claims)
	}
	d.tick()
	said := d.says()
	if claims, questions := fixture.Only[control.ClaimRequest](said), fixture.Only[control.KVRequest](said); len(claims) != 1 || len(questions) != 0 {
		t.Errorf("in the next spell it claims %+v, and asks %+v", claims, questions)
	}
}

// named is the hello of a launcher that names ranks, from 0 on.
func named(job string, ranks, capacity int) wire.RunHello {
	h := wire.RunHello{Job: job, World: 2, Capacity: uint32(capacity)}
	for r := range ranks {
		h.Ranks = append(h.Ranks, replica.Rank(r))
	}
	return h
}

// Ranks that a launcher names itself are bounded by its user's sessions too: the daemon asked for processes that found none.
func TestALauncherNamesNoMoreRanksThanItsUserHasSessions(t *testing.T) {
	d := newRig(t)
	d.cfg.PerUser.Sessions = 16
	id := uint64(0)
	comes := func(h wire.RunHello) *mute {
		id++
		p := &mute{id: id, uid: alice}
		d.handleSession(session.RunHello{Peer: p, Header: wire.RankHeader{Request: 1}, RunHello: h})
		return p
	}
	p := comes(named("most", 16, 16))
	for _, part := range []string{"names 16 ranks", "user 1002 has sessions for 15 more", "of 16", "per_user.sessions"} {
		if p.code != wire.CodeRefused || !strings.Contains(p.refused, part) || d.launchers.Launching("most") {
			t.Errorf("refused with %d %q, want %q", p.code, p.refused, part)
		}
	}
	large := named("first", 15, 15)
	large.World = 15
	first := comes(large)
	if first.refused != "" {
		t.Fatalf("as many as there are sessions: %q", first.refused)
	}
	for r := range replica.Rank(15) {
		d.runs(first, r, 4711+uint64(r))
	}
	d.put(fixture.Changed(opening(), func(j *replica.Job) { j.Owner = alice }))
	for _, job := range []string{"second", "job"} { // to be made, and there already
		if p := comes(named(job, 1, 1)); p.code != wire.CodeAgain || !strings.Contains(p.refused, "for 0 more") { // it passes once others end
			t.Errorf("once all are taken: refused with %d %q", p.code, p.refused)
		}
	}
	if p := comes(named("third", 0, 50)); p.refused != "" {
		t.Errorf("without ranks of its own, so that the leader is offered what there is: %q", p.refused)
	}
	back := named("job", 50, 50)
	if back.Joined = fixture.JobID; comes(back).refused != "" {
		t.Error("a launcher that comes back, whose processes run, is refused")
	}
	spare := named("job", 50, 50)
	if spare.Spare = true; comes(spare).refused != "" {
		t.Error("a spare launcher, which starts none of the ranks that it names, is refused")
	}
}

// A recovery waits for the launcher of a job that has trained, whatever ranks it names: the leader says which of them it starts. Before a view no
// job is known, and nobody is refused for what its job may not need.
func TestALauncherThatARecoveryWaitsForIsLetIn(t *testing.T) {
	for what, informed := range map[string]bool{"the job is known": true, "nothing is known yet": false} {
		d := newRig(t)
		d.cfg.PerUser.Sessions = 16
		trained := fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) { j.Owner = alice })
		if d.informed = informed; informed {
			d.put(trained)
		}
		p, other := &mute{id: 1, uid: alice}, &mute{id: 2, uid: alice}
		d.handleSession(session.RunHello{Peer: p, Header: wire.RankHeader{Request: 1}, RunHello: named("job", 20, 20)})
		if !informed {
			d.handleSession(session.RunHello{Peer: other, Header: wire.RankHeader{Request: 1}, RunHello: named("other", 20, 20)})
			if other.refused != "" {
				t.Errorf("%s, and a launcher is judged: %s", what, other.refused)
			}
			d.views(control.View{Index: 20, Term: 9, Era: 1, Nodes: d.nodes, Jobs: []*replica.Job{trained}})
			if other.code != wire.CodeRefused || !strings.Contains(other.refused, "names 20 ranks") {
				t.Errorf("the launcher of a job that has not trained is refused with %d %q once that is known", other.code, other.refused)
			}
		}
		if _, accepted := d.launchers.JobOf(p.id); p.refused != "" || !accepted {
			t.Errorf("%s: the launcher of a job that has trained is refused with %d %q", what, p.code, p.refused)
		}
	}
}
