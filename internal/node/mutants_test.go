package node

import (
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/internal/shm"
	"github.com/replicad/replicad/replica"
)

// pinner gives a chair two linked nodes and a job with a candidate that both have to pin.
func pinner(t *testing.T) (c *chair, led *ledJob, n1, n2 *nodeLink) {
	t.Helper()
	c = newChair(t)
	n1, n2 = c.node("n1", 11), c.node("n2", 22)
	led = c.knows(fixture.Job())
	c.commitEffects(t.Context(), fixture.JobID, led, led.committer.Job(led.job, c.view.Nodes))
	if led.candidate.N == 0 {
		t.Fatal("no candidate is named")
	}
	return c, led, n1, n2
}

// pinned is all that the node of a rank pins of the candidate.
func pinned(led *ledJob, of *nodeLink) replica.Pinned {
	rank := map[replica.NodeName]replica.Rank{"n1": 0, "n2": 1}[of.node.Name]
	g := led.candidate.Generation
	held := func(p replica.Part, r replica.Rank, mirror bool) replica.Held {
		return replica.Held{Part: p, Generation: g, Root: replica.Digest{1, byte(p.Kind), byte(p.Index)}, Rank: r, Mirror: mirror}
	}
	return replica.Pinned{Job: fixture.JobID, Term: led.candidate.Term, N: led.candidate.N, Generation: g, Holder: of.node.Holder(), Session: of.node.Session,
		Parts: []replica.Held{held(replica.OfGroup(0), rank, false), held(replica.OfRank(rank), rank, false), held(replica.OfRank(1-rank), 1-rank, true)}}
}

func (c *chair) commits(led *ledJob) bool {
	c.t.Helper()
	// A commit that waits for its outcome is named by the committer: the outcome itself is of no interest here.
	for _, cmd := range c.proposed() {
		if _, ok := cmd.(replica.Commit); ok {
			return true
		}
	}
	return false
}

// Only pins of the linked node's own life and session count: not those of another node, whatever a link says in its name, nor of
// what a life of the node held that is over.
func TestPinsOfAnotherLifeDoNotCount(t *testing.T) {
	for _, tc := range []struct {
		name   string
		change func(p *replica.Pinned, from **nodeLink, other *nodeLink)
		want   bool
	}{
		{"its own", func(*replica.Pinned, **nodeLink, *nodeLink) {}, true},
		{"over another node's link", func(_ *replica.Pinned, from **nodeLink, other *nodeLink) { *from = other }, false},
		{"of a former life", func(p *replica.Pinned, _ **nodeLink, _ *nodeLink) { p.Holder.Incarnation-- }, false},
		{"of a former session", func(p *replica.Pinned, _ **nodeLink, _ *nodeLink) { p.Session-- }, false},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, led, n1, n2 := pinner(t)
			c.handle(t.Context(), nodeMessage{n1, pinned(led, n1)})
			if c.commits(led) {
				t.Fatal("committed with the pins of one node")
			}
			p, from := pinned(led, n2), n2
			tc.change(&p, &from, n1)
			c.handle(t.Context(), nodeMessage{from, p})
			if got := c.commits(led); got != tc.want {
				t.Errorf("committed: %v, want %v", got, tc.want)
			}
		})
	}
}

// What a node said over a link that is lost may not be so any more when it comes back: it counts once the node says it again.
func TestPinsAreLostWithTheLink(t *testing.T) {
	c, led, n1, n2 := pinner(t)
	c.handle(t.Context(), nodeMessage{n2, pinned(led, n2)})
	c.handle(t.Context(), leaderLinkDown{nodeLink: n2})
	c.handle(t.Context(), nodeMessage{n1, pinned(led, n1)})
	if c.commits(led) {
		t.Fatal("committed with the pins of a lost link")
	}
	again := c.node("n2", 22)
	c.handle(t.Context(), nodeMessage{again, pinned(led, again)})
	if !c.commits(led) {
		t.Error("not committed though the node has pinned again")
	}
}

// A process whose rank was taken over gets nothing of the plan: no bytes for its arena, and no order to load or to go on.
func TestSupersededRankIsGivenNothing(t *testing.T) {
	for _, superseded := range []bool{false, true} {
		d := newDesk(t)
		lj := d.put(fixture.Job())
		lr := d.attach(lj, 0)
		var rank *rankEnd
		lr.peer, rank = d.session(0)
		d.planned(lj, lr)
		lr.stopped, lj.fenced = true, 3
		if superseded {
			lj.job = fixture.Changed(lj.job, func(j *replica.Job) {
				j.Ranks = []replica.Claimed{{Incarnation: 6, Node: "n1", NodeIncarnation: 11}, j.Ranks[1]}
			})
		}
		d.restoreAll(lj)
		if (lr.restore != nil) == superseded {
			t.Fatalf("superseded %v: a restore is begun: %v", superseded, lr.restore != nil)
		}
		if !superseded {
			d.until("the restore", func() bool { return lr.restore.done })
			rank.ordered()
			continue
		}
		lr.restore = &restore{epoch: 4, done: true, slot: slot(2), ring: ring(3)} // from before it was superseded
		d.order(lj)
		rank.quiet(lr.peer)
		lr.loaded = 4
		lj.job = fixture.Changed(lj.job, func(j *replica.Job) { j.Phase, j.Position = replica.Open, replica.Position{Epoch: 4, Step: 5} })
		d.order(lj)
		rank.quiet(lr.peer)
	}
}

// A retired arena passes to a new process of its rank only once its owner is gone: two processes would write it.
func TestArenaOfALivingProcessIsNotPassedOn(t *testing.T) {
	for _, lives := range []bool{false, true} {
		d := newDesk(t)
		lj := d.put(fixture.Changed(fixture.Closed(fixture.Job()), func(j *replica.Job) {
			j.Faults = []replica.Fault{{Epoch: 3, Kind: replica.ProcessDead, Rank: 0, Incarnation: 4}}
		}))
		old := d.attach(lj, 0).arena
		first := d.process()
		old.SetOwner(4, uint64(first.pid), first.start)
		old.owner = owner{first.pid, first.start, true}
		if !lives {
			first.in.Close()
			first.cmd.Wait() //nolint:errcheck // it ended with its input
		}
		delete(lj.ranks, 0)
		lj.retired = append(lj.retired, old)
		p, r := d.hello(nil)
		r.reads() // the welcome
		d.says()
		d.attachFor(p)
		claims := only[control.ClaimRequest](d.says())
		if len(claims) != 1 {
			t.Fatalf("%d claims", len(claims))
		}
		lj.job = fixture.Changed(lj.job, func(j *replica.Job) {
			j.Ranks = []replica.Claimed{{Incarnation: 6, Node: "n1", NodeIncarnation: 11, Nonce: 77}, j.Ranks[1]}
		})
		d.leaderSays(control.ClaimReply{ID: claims[0].ID, Incarnation: 6})
		d.until("the arena", func() bool { return lj.ranks[0] != nil })
		if now := lj.ranks[0].arena; (now == old) == lives {
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
	d := newDesk(t)
	lj := d.put(fixture.Closed(fixture.Job()))
	d.fence(lj)
	ref := d.arena(shm.Spec{Rank: 0, Geometry: testGeometry(t, false)})
	p := d.process()
	ref.SetOwner(4, uint64(p.pid), p.start)
	ref.owner = owner{p.pid, p.start, true}
	if ref.Fence() >= 3 {
		t.Fatal("it is fenced before it is adopted")
	}
	d.orphans = append(d.orphans, ref)
	d.claimOrphans()
	if lr := lj.ranks[0]; lr == nil || lr.arena != ref || !lr.alive {
		t.Fatalf("rank 0 is %+v", lr)
	}
	if account, word := d.fencedAt(lj.ranks[0]); account != 3 || word != 3 {
		t.Errorf("the fence is at %d, the word of the arena that came back at %d, want 3", account, word)
	}
	p.in.Close()
	d.until("the exit", func() bool { return !lj.ranks[0].alive })
}
