package leader

import (
	"context"
	"testing"

	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/lock"
	"github.com/replicad/replicad/replica"
)

// pinner gives a chair two linked nodes and a job with a candidate that both have to pin.
func pinner(t *testing.T) (c *chair, led *ledJob, n1, n2 *nodeLink) {
	t.Helper()
	c = newChair(t)
	n1, n2 = c.node("n1", 11), c.node("n2", 22)
	led = c.knows(fixture.Job())
	c.commitEffects(t.Context(), fixture.JobID, led, led.committer.Job(led.job, c.view.Nodes))
	c.listens(t.Context(), led)
	if led.candidate.N == 0 {
		t.Fatal("no candidate is named")
	}
	return c, led, n1, n2
}

// listens has the leader hear a first report of each node that ranks are on, which knows of no candidate: it names one of its own then.
func (l *Leader) listens(ctx context.Context, led *ledJob) {
	for _, claim := range led.job.Ranks {
		n := l.view.Nodes[claim.Node]
		l.commitEffects(ctx, led.job.ID, led, led.committer.Reported(replica.NodeReport{Job: led.job.ID, Epoch: led.job.Epoch, Holder: n.Holder(), Session: n.Session}))
	}
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

// Candidates of a job are its own, and the newest makes the others void: a node that reads slowly is told of one, and its link stays.
func TestTheNewestCandidateIsTold(t *testing.T) {
	c, led, n1, _ := pinner(t)
	told(t, n1)
	var last replica.Candidate
	for n := range uint64(2 * control.LinkQueue) {
		last = fixture.Candidate(n+10, replica.Step(n+10))
		c.commitEffects(t.Context(), fixture.JobID, led, []lock.Effect{lock.Announce{Candidate: last}})
	}
	select {
	case <-n1.Down:
		t.Error("the link is closed")
	default:
	}
	if got := fixture.Only[replica.Candidate](told(t, n1)); len(got) != 1 || got[0] != last {
		t.Errorf("told of %d candidates: %+v, want %+v", len(got), got[:min(len(got), 3)], last)
	}
}
