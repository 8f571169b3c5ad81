package leader

import (
	"context"
	"fmt"
	"maps"
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
		case len(o.Parts) == 0:
			b, err := s.Seal()
			if err != nil {
				n.c.t.Error(err)
			}
			r.Left = append(r.Left, b)
		case n.wrong != "":
			r.Failed = n.wrong
		case s.Generation == o.Generation:
			a := tier.Attempt{Name: s.Job, Job: s.ID, Cluster: s.Cluster, Fleet: o.Fleet, Epoch: o.Epoch, Generation: s.Generation, Number: o.As}
			_, _, objects, err := n.c.objects(a)
			if err != nil {
				r.Failed = err.Error()
			}
			n.as = append(n.as, a)
			for _, p := range o.Parts {
				r.Wrote = append(r.Wrote, objects[slices.Index(bothParts, p.Part)])
			}
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

// The newest position of what may be finished counts, with all that any node has of that generation: by whichever write it was spooled, and whether or
// not the node had heard of the commit.
func TestSpooledWrites(t *testing.T) {
	roots := []tier.Rooted{{Part: bothParts[0], Root: replica.Digest{1}}, {Part: bothParts[1], Root: replica.Digest{2}}}
	of := func(step replica.Step, number uint64, parts ...replica.Part) *tier.Spooled {
		return &tier.Spooled{Generation: fixture.Gen(1, step), Number: number, Parts: parts, Roots: roots, Said: tier.Said{Position: replica.Position(fixture.Gen(1, step)), Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}}}
	}
	loose := func(step replica.Step, of1 tier.Rooted) *tier.Spooled {
		n := of(step, 9, of1.Part)
		n.Loose, n.Roots = true, []tier.Rooted{of1}
		return n
	}
	cand := func(step replica.Step, of1 tier.Rooted) *tier.Spooled {
		n := loose(step, of1)
		n.Candidate = true
		return n
	}
	bad := tier.Rooted{Part: bothParts[0], Root: replica.Digest{7}}
	record := &replica.Job{Committed: fixture.Gen(1, 6), Parts: []replica.PartRoot{{Part: bothParts[0], Root: roots[0].Root}, {Part: bothParts[1], Root: roots[1].Root}}}
	any := func(*tier.Spooled) bool { return true }
	unlike := of(6, 2, bothParts[1])
	unlike.Roots = roots[:1]
	for what, x := range map[string]struct {
		left map[replica.NodeName][]*tier.Spooled
		may  func(*tier.Spooled) bool
		want string
	}{
		"nothing":                           {nil, any, ""},
		"two nodes":                         {map[replica.NodeName][]*tier.Spooled{"a": {of(6, 2, bothParts[0])}, "b": {of(6, 2, bothParts[1]), of(4, 1, bothParts...)}}, any, "6 of a, b: a group 0, b private 0; 4 of b: b group 0 private 0"},
		"tried again":                       {map[replica.NodeName][]*tier.Spooled{"a": {of(6, 2, bothParts...)}, "b": {of(6, 3, bothParts[1])}}, any, "6 of a, b: a group 0, b private 0"},
		"may not":                           {map[replica.NodeName][]*tier.Spooled{"a": {of(6, 2, bothParts...), of(4, 1, bothParts...)}}, func(n *tier.Spooled) bool { return n.Generation.Step < 5 }, "4 of a: a group 0 private 0"},
		"one that differs":                  {map[replica.NodeName][]*tier.Spooled{"a": {of(6, 2, bothParts[0])}, "b": {unlike}}, any, "6 of a, b: no node that is linked has private 0 of it; 6 of b: no node that is linked has group 0 of it"},
		"one had not heard of the commit":   {map[replica.NodeName][]*tier.Spooled{"a": {cand(6, roots[0]), of(4, 1, bothParts[0])}, "b": {of(6, 3, bothParts[1])}}, any, "6 of a, b: a group 0, b private 0; 4 of a: no node that is linked has private 0 of it"},
		"nobody had heard of it":            {map[replica.NodeName][]*tier.Spooled{"a": {cand(6, roots[0])}, "b": {cand(6, roots[1])}}, any, ""},
		"nobody knows all roots":            {map[replica.NodeName][]*tier.Spooled{"a": {cand(6, roots[0])}, "b": {loose(6, roots[1])}}, any, "6 of a, b: a group 0, b private 0"},
		"nor has all parts":                 {map[replica.NodeName][]*tier.Spooled{"b": {loose(6, roots[1])}}, any, "6 of b: no node that is linked has group 0 of it"},
		"and they differ":                   {map[replica.NodeName][]*tier.Spooled{"a": {loose(6, roots[0]), loose(6, roots[1])}, "b": {loose(6, bad)}}, any, "6 of a, b: nodes have different roots of group 0"},
		"the record says":                   {map[replica.NodeName][]*tier.Spooled{"a": {cand(6, roots[0])}, "b": {cand(6, roots[1])}, "c": {loose(6, bad)}}, nil, "6 of a, b: a group 0, b private 0"},
		"a candidate that was not the same": {map[replica.NodeName][]*tier.Spooled{"a": {cand(6, bad)}, "b": {of(6, 3, bothParts[1])}}, any, "6 of b: no node that is linked has group 0 of it"},
	} {
		var got []string
		var job *replica.Job
		if x.may == nil {
			x.may, job = any, record
		}
		for _, w := range spooledWrites(x.left, x.may, job) {
			by, err := w.shares(nil)
			text := fmt.Sprintf("%d of %s: %v", w.Generation.Step, w.who(), err)
			if err == nil {
				var each []string
				for _, n := range slices.Sorted(maps.Keys(by)) {
					e := string(n)
					for _, p := range by[n] {
						e += " " + p.Part.String()
					}
					each = append(each, e)
				}
				text = fmt.Sprintf("%d of %s: %s", w.Generation.Step, w.who(), strings.Join(each, ", "))
			}
			got = append(got, text)
		}
		if strings.Join(got, "; ") != x.want {
			t.Errorf("%s: %q, want %q", what, strings.Join(got, "; "), x.want)
		}
	}
}

// What is damaged in one node's spool another one writes, and where the newest can't be had at all the one before is finished, with a word of both.
func TestSpoolsHelpEachOther(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		for what, x := range map[string]struct {
			spoil func(n1, n2 *spooling)
			goes  replica.Step
			says  string
		}{
			"one is damaged": {func(n1, _ *spooling) { n1.wrong = "chunk 3: digest differs" }, 6, ""},
			"the newest lacks a part": {func(n1, n2 *spooling) {
				older := n1.c.holding("n2", fixture.Gen(1, 5), bothParts...)
				n1.c.spools.up("n2", n2)
				n1.holds[0].Parts, n2.holds[0].Parts = bothParts[:1], bothParts[:1]
				n2.holds = append(n2.holds, older.holds...)
			}, 5, "step 6 lies in the spools of n1, n2 and can't be used: no node that is linked has private 0 of it"},
		} {
			c := newChair(t)
			c.shelf()
			c.writes("job", fixture.Cluster, fixture.JobID, fixture.Gen(1, 4))
			n1 := c.holding("n1", fixture.Gen(1, 6), bothParts...)
			same := *n1.holds[0]
			same.Node = "n2"
			n2 := &spooling{c: c, name: "n2", holds: []*tier.Spooled{&same}}
			c.spools.up("n2", n2)
			x.spoil(n1, n2)
			a := c.adoptable(t.Context(), nil, askToResume)
			if a.refused != "" || a.command.Durable != fixture.Gen(1, x.goes) || !strings.Contains(strings.Join(a.news, "; "), x.says) {
				t.Errorf("%s: adopts %v, says %q (refused: %q)", what, a.command.Durable, a.news, a.refused)
			}
		}
	})
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
