package lock

import (
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// reports is an honest account of a rank's node: how far the rank is, which candidate the node knows of, and what it holds sealed.
func (b *bench) reports(r replica.Rank, live, candidate replica.Step, sealed ...replica.Step) []Effect {
	j := b.w.current()
	n := b.w.state.View().Nodes[j.Ranks[r].Node]
	rep := replica.NodeReport{Job: j.ID, Holder: n.Holder(), Session: n.Session, Epoch: j.Epoch, Phase: j.Phase,
		Ranks: []replica.RankReport{{Rank: r, Incarnation: j.Ranks[r].Incarnation, Live: replica.PackWord(j.Epoch, live, replica.Idle)}}}
	if candidate > 0 {
		rep.Candidate = replica.Generation{Epoch: j.Epoch, Step: candidate}
	}
	for _, s := range sealed {
		g := replica.Generation{Epoch: j.Epoch, Step: s}
		rep.Parts = append(rep.Parts, replica.Held{Part: replica.OfGroup(j.Layout.Groups[r]), Generation: g, Rank: r}, replica.Held{Part: replica.OfRank(r), Generation: g, Rank: r})
	}
	return b.c.Reported(rep)
}

// TestANewLeaderGoesOnWithTheCandidate: what it names first, by what the nodes report. A candidate is given up where some rank can't have it any more, and
// not because a term began.
func TestANewLeaderGoesOnWithTheCandidate(t *testing.T) {
	type node struct {
		live, candidate replica.Step
		sealed          []replica.Step
	}
	at := func(live, candidate replica.Step, sealed ...replica.Step) node { return node{live, candidate, sealed} }
	for name, c := range map[string]struct {
		nodes [3]node
		want  replica.Step
	}{
		"sealed by all":                                {[3]node{at(9, 4, 4), at(9, 4, 4), at(10, 4, 4)}, 4},
		"sealed by one, ahead of the others":           {[3]node{at(4, 4, 4), at(3, 4), at(4, 4)}, 4},
		"ahead of all":                                 {[3]node{at(3, 6), at(3, 6), at(4, 6)}, 6},
		"one node alone has heard of it":               {[3]node{at(9, 0, 4), at(9, 4, 4), at(9, 0, 4)}, 4},
		"of two the newer one":                         {[3]node{at(9, 4, 4, 8), at(9, 8, 4, 8), at(9, 8, 4, 8)}, 8},
		"the newer one was passed":                     {[3]node{at(9, 4, 4), at(9, 8, 4, 8), at(9, 8, 4, 8)}, 4},
		"passed by one rank: a holder lost it":         {[3]node{at(9, 4), at(9, 4, 4), at(9, 4, 4)}, 10},
		"committed meanwhile: there is none":           {[3]node{at(3, 1, 1), at(3, 1, 1), at(2, 1, 1)}, 4},
		"there is none, and it is known how far all":   {[3]node{at(7, 0), at(6, 0), at(7, 0)}, 8},
		"given up, and all have captured a later step": {[3]node{at(40, 4, 32), at(40, 4, 32), at(41, 4, 32)}, 32},
		"given up, and not all have captured it":       {[3]node{at(40, 4, 32), at(40, 4, 48), at(41, 4, 32)}, 42},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, "0,0,0", "min=2 slots=2")
			b.commit(1)
			b.c = NewCommitter(6, 0)
			b.c.Listen()
			if e := b.job(); len(e) != 0 {
				t.Fatalf("before any node has reported: %v", e)
			}
			for r, n := range c.nodes {
				e := b.reports(replica.Rank(r), n.live, n.candidate, n.sealed...)
				got, named := announced(e)
				if named != (r == 2) {
					t.Fatalf("after %d reports: %v; waits for %v", r+1, e, b.c.Waiting())
				}
				if named && (got.Position.Step != c.want || got.Term != 6 || got.N != 1) {
					t.Errorf("named %+v, want step %d", got, c.want)
				}
				if w := strings.Join(b.c.Waiting(), "; "); !named && !strings.Contains(w, "node c: no report") {
					t.Errorf("waits for %q", w)
				}
			}
		})
	}
}

// commit commits a step under the bench's committer.
func (b *bench) commit(s replica.Step) {
	b.t.Helper()
	for c := b.start(); ; {
		var effects []Effect
		for r := range b.w.current().Ranks {
			effects = append(effects, b.pin(c, replica.Rank(r))...)
		}
		cmd, ok := proposed[replica.Commit](effects)
		if !ok {
			b.t.Fatalf("step %d is not committed: %v", c.Position.Step, b.c.Waiting())
		}
		e := b.applied(cmd)
		if b.w.current().Position.Step >= s {
			return
		}
		c, _ = announced(e)
	}
}

// TestAListeningLeader: whose report counts, and what ends the wait.
func TestAListeningLeader(t *testing.T) {
	listens := func(t *testing.T) *bench {
		b := newBench(t, "0,0,0", "min=2")
		b.commit(1)
		b.c = NewCommitter(6, 0)
		b.c.Listen()
		b.job()
		return b
	}
	t.Run("a node that is away is waited for, up to a limit", func(t *testing.T) {
		b := listens(t)
		b.reports(0, 9, 4, 4)
		b.reports(1, 9, 4, 4)
		if e := b.c.Look(); len(e) != 0 || !slices.Equal(b.c.Awaited(), []replica.NodeName{"c"}) {
			t.Fatalf("%v, waits for %v", e, b.c.Awaited())
		}
		if c, ok := announced(b.c.Limit()); !ok || c.Position.Step != 4 {
			t.Errorf("at the limit: %+v, %v", c, ok)
		}
		if e := b.c.Limit(); len(e) != 0 {
			t.Errorf("at the limit again: %v", e)
		}
	})
	t.Run("a report over a link that is lost does not count", func(t *testing.T) {
		b := listens(t)
		b.reports(0, 9, 4, 4)
		b.c.Voided("a")
		b.reports(1, 9, 4, 4)
		if e := b.reports(2, 9, 4, 4); len(e) != 0 {
			t.Fatalf("without node a: %v", e)
		}
		if c, ok := announced(b.reports(0, 9, 4, 4)); !ok || c.Position.Step != 4 {
			t.Errorf("node a again: %+v, %v", c, ok)
		}
	})
	t.Run("a report of another epoch or session does not count", func(t *testing.T) {
		b := listens(t)
		j := b.w.current()
		for _, r := range []replica.NodeReport{
			{Job: j.ID, Holder: b.w.holder("a"), Session: 1, Epoch: j.Epoch - 1},
			{Job: j.ID, Holder: b.w.holder("a"), Session: 9, Epoch: j.Epoch},
			{Job: replica.JobID{9}, Holder: b.w.holder("a"), Session: 1, Epoch: j.Epoch},
		} {
			b.c.Reported(r)
		}
		if w := b.c.Awaited(); !slices.Contains(w, "a") {
			t.Errorf("waits for %v, want a too", w)
		}
	})
	t.Run("a fault ends it: the next epoch has no candidate yet", func(t *testing.T) {
		b := listens(t)
		b.reports(0, 9, 4, 4)
		b.run("fault process-dead rank=1")
		if b.c.heard != nil {
			t.Error("it listens on in a closed epoch")
		}
	})
}

// TestACandidateIsNamedByWhatNodesReport: while a candidate is on its way to the mirrors the ranks go on, and only reports say so. The next candidate is the
// step that they come to next. By their last answers it was one that they had passed, and the one after it as far ahead again.
func TestACandidateIsNamedByWhatNodesReport(t *testing.T) {
	b := newBench(t, "0,0,0", "min=2 slots=2")
	first := b.start()
	for r := range replica.Rank(3) {
		b.reports(r, 40, 0)
	}
	var effects []Effect
	for r := range replica.Rank(3) {
		effects = append(effects, b.pin(first, r)...)
	}
	cmd, ok := proposed[replica.Commit](effects)
	if !ok {
		t.Fatalf("step %d is not committed: %v", first.Position.Step, b.c.Waiting())
	}
	b.applied(cmd)
	if c, live := b.c.Candidate(); !live || c.Position.Step != 41 {
		t.Errorf("the ranks are at 40: candidate %v (%v), want 41", c.Position, live)
	}
}
