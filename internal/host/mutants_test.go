package host

import (
	"github.com/replicad/replicad/internal/host/rank"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/holding"
	"github.com/replicad/replicad/internal/host/act"
	"github.com/replicad/replicad/internal/host/adoption"
	"github.com/replicad/replicad/internal/session"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// A process whose rank was taken over gets nothing of the plan: no bytes for its arena, and no order to load or to go on.
func TestSupersededRankIsGivenNothing(t *testing.T) {
	for _, superseded := range []bool{false, true} {
		d := newRig(t)
		lj := d.put(fixture.Job())
		lr := d.attach(lj, 0)
		var end *rankEnd
		lr.Peer, end = d.session(0)
		d.planned(lj, lr)
		lr.Life, lj.Fenced = rank.Stopped, 3
		if superseded {
			lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) {
				j.Ranks = []replica.Claimed{{Incarnation: 6, Node: "n1", NodeIncarnation: 11}, j.Ranks[1]}
			})
		}
		if waits := lj.View().Ranks[0].Waits; waits == superseded {
			t.Fatalf("superseded %v: it waits for a restore: %v", superseded, waits)
		}
		if !superseded {
			d.notify(d.restores, act.Changed{Job: lj.Job.ID})
			d.until("the restore", func() bool { return d.restored(lj, lr) })
			end.ordered()
			lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) {
				j.Ranks = []replica.Claimed{{Incarnation: 6, Node: "n1", NodeIncarnation: 11}, j.Ranks[1]}
			})
			lr.Ordered = rank.OrderKey{}
		}
		d.order(lj)
		end.quiet(lr.Peer)
		lr.Loaded = 4
		lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) { j.Phase, j.Position = replica.Open, replica.Position{Epoch: 4, Step: 5} })
		d.order(lj)
		end.quiet(lr.Peer)
	}
}

// A retired arena passes to a new process of its rank only once its owner is gone: two processes would write it.
func TestArenaOfALivingProcessIsNotPassedOn(t *testing.T) {
	for _, lives := range []bool{false, true} {
		d := newRig(t)
		lj := d.put(fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
			j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 0, Incarnation: 4}}
		}))
		old := d.attach(lj, 0).Arena
		first := d.process()
		old.SetOwner(4, uint64(first.pid), first.start)
		old.Process = holding.Process{PID: first.pid, Start: first.start, Proven: true}
		if !lives {
			first.in.Close()
			first.cmd.Wait() //nolint:errcheck // it ended with its input
		}
		delete(lj.Ranks, 0)
		lj.Retired = append(lj.Retired, old)
		p, r := d.hello(nil)
		r.reads() // the welcome
		d.says()
		d.attachFor(p)
		claims := fixture.Only[control.ClaimRequest](d.says())
		if len(claims) != 1 {
			t.Fatalf("%d claims", len(claims))
		}
		lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) {
			j.Ranks = []replica.Claimed{{Incarnation: 6, Node: "n1", NodeIncarnation: 11, Nonce: 77}, j.Ranks[1]}
		})
		d.leaderSays(control.ClaimReply{ID: claims[0].ID, Incarnation: 6})
		d.until("the arena", func() bool { return lj.Ranks[0] != nil })
		if now := lj.Ranks[0].Arena; (now == old) == lives {
			t.Errorf("its owner lives: %v; the new process has the same arena: %v", lives, now == old)
		}
		if inc, _, _ := old.Owner(); lives && inc != 4 {
			t.Errorf("the arena of a living process is said to be of incarnation %d", inc)
		}
	}
}

// An arena that comes back when its job's epoch is closed already, and was fenced here, is fenced as it comes: its rank could
// enter a step otherwise, after this daemon has acknowledged that none can.
func TestArenaThatComesBackLateIsFenced(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Closed(fixture.Job()))
	d.fence(lj)
	ref := d.arena(shm.Spec{Rank: 0, Geometry: fixture.Geometry(t, false)})
	p := d.process()
	ref.SetOwner(4, uint64(p.pid), p.start)
	ref.Process = holding.Process{PID: p.pid, Start: p.start, Proven: true}
	if ref.Fence() >= 3 {
		t.Fatal("it is fenced before it is adopted")
	}
	d.notify(d.adoption, adoption.Offered{Arena: ref})
	if lr := lj.Ranks[0]; lr == nil || lr.Arena != ref || !lr.Alive() {
		t.Fatalf("rank 0 is %+v", lr)
	}
	if account, word := d.fencedAt(lj.Ranks[0]); account != 3 || word != 3 {
		t.Errorf("the fence is at %d, the word of the arena that came back at %d, want 3", account, word)
	}
	p.in.Close()
	d.until("the exit", func() bool { return !lj.Ranks[0].Alive() })
}

// A process that says it is on its way out is reported at once with for how long, also after its session has gone. The next process of its rank
// has said nothing of the kind.
func TestOnlyItsOwnProcessIsOnItsWayOut(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
		j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 0, Incarnation: 4}}
	}))
	old := d.attach(lj, 0)
	old.Peer, _ = d.session(0)
	if r := d.reported(lj); r.Ranks[0].EndingMS != 0 {
		t.Fatalf("before it says so: %+v", r.Ranks[0])
	}
	d.handleSession(session.Ending{Peer: old.Peer, Most: 3 * time.Minute})
	const most = 3 * 60 * 1000
	if r := fixture.Only[replica.NodeReport](d.says()); len(r) != 1 || r[0].Ranks[0].EndingMS != most {
		t.Errorf("reported %+v, want one with %d ms", r, most)
	}
	d.handleSession(session.Gone{Peer: old.Peer})
	if r := d.reported(lj); r.Ranks[0].EndingMS != most || r.Ranks[0].Attached {
		t.Errorf("without a session: %+v", r.Ranks[0])
	}
	d.rankDied(lj, old)
	p, end := d.hello(nil)
	end.reads() // the welcome
	d.says()
	d.attachFor(p)
	claims := fixture.Only[control.ClaimRequest](d.says())
	if len(claims) != 1 {
		t.Fatalf("%d claims", len(claims))
	}
	lj.Job = fixture.Changed(lj.Job, func(j *replica.Job) {
		j.Ranks = []replica.Claimed{{Incarnation: 6, Node: "n1", NodeIncarnation: 11, Nonce: 77}, j.Ranks[1]}
	})
	d.leaderSays(control.ClaimReply{ID: claims[0].ID, Incarnation: 6})
	d.until("the arena", func() bool { return lj.Ranks[0] != nil && lj.Ranks[0] != old })
	if r := d.reported(lj); len(r.Ranks) != 1 || r.Ranks[0].Incarnation != 6 || r.Ranks[0].EndingMS != 0 {
		t.Errorf("the next process is reported as %+v", r.Ranks)
	}
}

// A process that said that it ends and then waits in rp_join again has come back: what it said means nothing any more.
func TestAProcessThatComesBackIsOnNoWayOut(t *testing.T) {
	d := newRig(t)
	lj := d.put(fixture.Closed(fixture.Job()))
	lr := d.attach(lj, 0)
	lr.Peer, _ = d.session(0)
	d.handleSession(session.Ending{Peer: lr.Peer, Most: time.Minute})
	if r := d.reported(lj); r.Ranks[0].EndingMS != 60*1000 {
		t.Fatalf("it says that it ends: %+v", r.Ranks[0])
	}
	d.handleSession(session.Stopped{Peer: lr.Peer})
	if r := d.reported(lj); r.Ranks[0].EndingMS != 0 {
		t.Errorf("it came back: %+v", r.Ranks[0])
	}
}
