package leader

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/internal/bubble"
	"github.com/replicad/replicad/internal/control"
	"github.com/replicad/replicad/internal/durable/tier"
	"github.com/replicad/replicad/internal/fixture"
	"github.com/replicad/replicad/replica"
)

// spooling is a node whose spool holds something of a write.
type spooling struct {
	c     *chair
	name  replica.NodeName
	holds []*tier.Spooled
	wrong string // with what its writing ends
	mute  bool
	as    []tier.Attempt // that it wrote
}

func (n *spooling) Send(m any) {
	o, ok := m.(control.SpoolOrder)
	if !ok || n.mute {
		return
	}
	r := control.SpoolReport{ID: o.ID}
	for _, s := range n.holds {
		switch {
		case o.Number == 0:
			b, err := s.Seal()
			if err != nil {
				n.c.t.Error(err)
			}
			r.Left = append(r.Left, b)
		case n.wrong != "":
			r.Failed = n.wrong
		default:
			a := tier.Attempt{Name: s.Job, Job: s.ID, Cluster: s.Cluster, Fleet: o.Fleet, Epoch: o.Epoch, Generation: o.Generation, Number: o.As}
			_, _, objects, err := n.c.objects(a)
			if err != nil {
				r.Failed = err.Error()
			}
			n.as, r.Wrote = append(n.as, a), objects[:len(s.Parts)]
		}
	}
	go n.c.spools.answer(n.name, r)
}

// holding is a node that holds some parts of a write.
func (c *chair) holding(name replica.NodeName, g replica.Generation, parts ...replica.Part) *spooling {
	c.t.Helper()
	a := tier.Attempt{Name: "elsewhere", Job: fixture.JobID, Cluster: fixture.Cluster, Epoch: 1, Generation: g, Number: 3}
	said, roots, _, err := c.objects(a, replica.Lacking{Text: "buffer of " + string(name)})
	if err != nil {
		c.t.Fatal(err)
	}
	s := &tier.Spooled{Job: "job", ID: fixture.JobID, Cluster: fixture.Cluster, Node: name, Generation: g, Number: 3, Epoch: g.Epoch, Object: "group-0", Parts: parts, Said: said}
	for _, p := range []replica.Part{replica.OfGroup(0), replica.OfRank(0)} {
		s.Roots = append(s.Roots, tier.Rooted{Part: p, Root: roots[p]})
	}
	n := &spooling{c: c, name: name, holds: []*tier.Spooled{s}}
	c.spools.up(name, n)
	return n
}

var bothParts = []replica.Part{replica.OfGroup(0), replica.OfRank(0)}

// What lies whole in a spool is finished before a resume looks into the store, by whoever holds it, for the fleet that resumes; and it is said.
func TestAResumeFinishesWhatIsSpooled(t *testing.T) {
	c := newChair(t)
	c.shelf()
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
	n := c.holding("n1", fixture.Gen(1, 6), bothParts...)
	a := c.adoptable(t.Context(), nil, askToResume)
	if a.refused != "" || a.command.Durable != fixture.Gen(1, 6) || a.command.Epoch != 2 || !strings.Contains(strings.Join(a.news, "; "), "lacks buffer of n1") {
		t.Errorf("adopts %v behind epoch %d, says %q (refused: %q)", a.command.Durable, a.command.Epoch, a.news, a.refused)
	}
	if len(n.as) != 1 || n.as[0].Epoch != 2 || n.as[0].Number != 3+spoolNumbers {
		t.Errorf("it was written as %+v", n.as)
	}
	says := ""
	for _, g := range c.plannable(a) {
		if g.Generation == fixture.Gen(1, 6) {
			says = g.Says
		}
	}
	if !strings.Contains(says, ", finished from the spools of n1)") {
		t.Errorf("recovery is to say %q", says)
	}
	if c.adoptable(t.Context(), nil, askToResume); len(n.as) != 1 {
		t.Errorf("it is finished again: %+v", n.as)
	}
}

// Of a job that is there its own epoch is claimed, and what is not of its lineage stays.
func TestAJobThatIsThereFinishesWhatIsSpooled(t *testing.T) {
	c := newChair(t)
	c.shelf()
	c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
	n := c.holding("n1", fixture.Gen(1, 6), bothParts...)
	job := &replica.Job{ID: fixture.JobID, Name: "job", Lineage: replica.Lineage{{Epoch: 1}, {Epoch: 2, Start: 5}}}
	if passed := c.finishSpooled(t.Context(), "job", job); passed != "" || len(n.as) != 0 {
		t.Errorf("of a lineage that left it aside it says %q, and wrote %+v", passed, n.as)
	}
	job.Lineage = job.Lineage[:1]
	if passed := c.finishSpooled(t.Context(), "job", job); passed != "" || len(n.as) != 1 || n.as[0].Epoch != 1 {
		t.Errorf("it says %q, and wrote %+v", passed, n.as)
	}
}

// What cannot be finished is named, and the resume goes on from what the store has.
func TestWhatIsSpooledAndCannotBeUsed(t *testing.T) {
	older, other := fixture.Gen(1, 2), replica.JobID{99}
	for what, x := range map[string]struct {
		spoil func(c *chair, n *spooling)
		says  string
	}{
		"part missing":   {func(_ *chair, n *spooling) { n.holds[0].Parts = bothParts[:1] }, "no node that is linked has private 0 of it"},
		"digest differs": {func(_ *chair, n *spooling) { n.wrong = "chunk 3: digest differs" }, "node n1: chunk 3: digest differs"},
		"frozen part missing": {func(_ *chair, n *spooling) {
			n.holds[0].Frozen = []tier.Rooted{{Part: replica.Part{Kind: replica.FrozenPart}, Root: replica.Digest{5}}}
		}, "the frozen part of group 0 is not in the store"},
		"older":              {func(_ *chair, n *spooling) { n.holds[0].Said.Position = replica.Position(older) }, ""},
		"of another run":     {func(_ *chair, n *spooling) { n.holds[0].ID = other }, ""},
		"of another node":    {func(_ *chair, n *spooling) { n.holds[0].Node = "n2" }, ""},
		"of another cluster": {func(_ *chair, n *spooling) { n.holds[0].Cluster = replica.ClusterID{99} }, ""},
		"mute":               {func(_ *chair, n *spooling) { n.mute = true }, ""},
	} {
		t.Run(what, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				c := newChair(t)
				c.shelf()
				c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
				n := c.holding("n1", fixture.Gen(1, 6), bothParts...)
				x.spoil(c, n)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if n.mute {
					time.AfterFunc(10*time.Millisecond, func() { c.spools.down("n1") })
				}
				a := c.adoptable(ctx, nil, askToResume)
				if a.refused != "" || a.command.Durable != fixture.Gen(1, 4) || len(n.as) != 0 || !strings.Contains(strings.Join(a.news, "; "), x.says) || (x.says == "") != (strings.Join(a.news, "") == "") {
					t.Errorf("adopts %v, says %q, want %q (refused: %q)", a.command.Durable, a.news, x.says, a.refused)
				}
			})
		})
	}
}

// The newest position of what may be finished counts, with all nodes that hold parts of that very write.
func TestNewestSpooled(t *testing.T) {
	roots := []tier.Rooted{{Part: bothParts[0], Root: replica.Digest{1}}, {Part: bothParts[1], Root: replica.Digest{2}}}
	of := func(step replica.Step, number uint64, parts ...replica.Part) *tier.Spooled {
		return &tier.Spooled{Generation: fixture.Gen(1, step), Number: number, Parts: parts, Roots: roots, Said: tier.Said{Position: replica.Position(fixture.Gen(1, step))}}
	}
	any := func(*tier.Spooled) bool { return true }
	unlike := of(6, 2, bothParts[1])
	unlike.Roots = roots[:1]
	for what, x := range map[string]struct {
		left map[replica.NodeName][]*tier.Spooled
		may  func(*tier.Spooled) bool
		want string
	}{
		"nothing":          {nil, any, "none"},
		"two nodes":        {map[replica.NodeName][]*tier.Spooled{"a": {of(6, 2, bothParts[0])}, "b": {of(6, 2, bothParts[1]), of(4, 1, bothParts...)}}, any, "6 of a, b"},
		"tried again":      {map[replica.NodeName][]*tier.Spooled{"a": {of(6, 2, bothParts...)}, "b": {of(6, 3, bothParts[1])}}, any, "6 of b, lacks group 0"},
		"may not":          {map[replica.NodeName][]*tier.Spooled{"a": {of(6, 2, bothParts...), of(4, 1, bothParts...)}}, func(n *tier.Spooled) bool { return n.Generation.Step < 5 }, "4 of a"},
		"one that differs": {map[replica.NodeName][]*tier.Spooled{"a": {of(6, 2, bothParts[0])}, "b": {unlike}}, any, "6 of a, lacks private 0"},
	} {
		got := "none"
		if w := newestSpooled(x.left, x.may); w != nil {
			got = fmt.Sprintf("%d of %s", w.Generation.Step, w.who())
			if p, is := w.lacking(); is {
				got += fmt.Sprintf(", lacks %v", p)
			}
		}
		if got != x.want {
			t.Errorf("%s: %s, want %s", what, got, x.want)
		}
	}
}

// Nobody waits for a node that has gone or is silent, and an answer of another node counts for nothing.
func TestAskingSpools(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		var s spools
		asks := make(chan control.SpoolOrder, 3)
		for _, n := range []replica.NodeName{"answers", "gone", "silent"} {
			s.up(n, sends{asks})
		}
		began := time.Now()
		go func() {
			ids := map[uint64]bool{}
			for range 3 {
				ids[(<-asks).ID] = true
			}
			for id := range ids {
				s.answer("nobody", control.SpoolReport{ID: id, Failed: "a lie"})
				s.answer("answers", control.SpoolReport{ID: id})
			}
			s.down("gone")
		}()
		got := s.ask(t.Context(), []replica.NodeName{"answers", "gone", "silent", "never"}, control.SpoolOrder{Name: "job"}, spoolAsk)
		if got["answers"].Failed != "" || !strings.Contains(got["gone"].Failed, "any more") || !strings.Contains(got["silent"].Failed, "has not answered for 5s") || !strings.Contains(got["never"].Failed, "has no link") || time.Since(began) != spoolAsk {
			t.Errorf("after %v they answer %+v", time.Since(began), got)
		}
		if len(s.asked) != 0 || !slices.Equal(s.nodes(), []replica.NodeName{"answers", "silent"}) {
			t.Errorf("asked are %v, linked %v", s.asked, s.nodes())
		}
	})
}

type sends struct{ to chan control.SpoolOrder }

func (s sends) Send(m any) { s.to <- m.(control.SpoolOrder) }
