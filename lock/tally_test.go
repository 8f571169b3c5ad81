package lock

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/replicad/replicad/replica"
)

// polls is a committer of a job of few ranks on fewer nodes, to which anything may be said in any order.
type polls struct {
	t     *testing.T
	rng   *rand.Rand
	c     *Committer
	job   *replica.Job
	nodes map[replica.NodeName]replica.Node

	reported                []replica.Generation // disputes, before the event
	commits, disputes, rest int                  // what was justified, event by event
}

func newPolls(t *testing.T, seed uint64) *polls {
	p := &polls{t: t, rng: rand.New(rand.NewPCG(seed, 34)), nodes: map[replica.NodeName]replica.Node{}, c: NewCommitter(1, 0)}
	for _, n := range []replica.NodeName{"a", "b", "c", "d", "e"} {
		p.nodes[n] = replica.Node{Name: n, Incarnation: 1, Session: 1}
	}
	world, groups := 3+p.rng.IntN(6), 1+p.rng.IntN(3)
	j := &replica.Job{ID: replica.JobID{1}, Name: "job", Options: replica.Options{MinCopies: 1 + p.rng.IntN(3)}, Phase: replica.Open, Epoch: 1, Lineage: replica.Lineage{{Epoch: 1}},
		Position: replica.Position{Epoch: 1}, Layout: replica.Layout{World: uint32(world)}, GroupGeometry: make([]replica.Digest, groups), GroupMirrors: make([][]replica.NodeName, groups)}
	for r := range world {
		g := r
		if r >= groups {
			g = p.rng.IntN(groups)
		}
		j.Layout.Groups = append(j.Layout.Groups, replica.GroupID(g%groups))
		j.Ranks = append(j.Ranks, replica.Claimed{Incarnation: replica.Incarnation(r + 1), Node: p.node(), NodeIncarnation: 1})
		j.Mirrors = append(j.Mirrors, []replica.NodeName{p.node()})
	}
	if p.rng.IntN(3) == 0 {
		j.Options.Nondeterministic = make([]bool, groups)
		j.Options.Nondeterministic[p.rng.IntN(groups)] = true
	}
	p.job = j
	p.does(p.c.Job(p.job, p.nodes))
	return p
}

func (p *polls) node() replica.NodeName { return replica.NodeName(rune('a' + p.rng.IntN(5))) }

func (p *polls) holder(n replica.NodeName) replica.Holder { return p.nodes[n].Holder() }

// held are parts that a node may say that it holds: mostly its own ranks', with the root that is right.
func (p *polls) held(n replica.NodeName) (out []replica.Held) {
	j := p.job
	for range 1 + p.rng.IntN(8) {
		r := replica.Rank(p.rng.IntN(len(j.Ranks)))
		h := replica.Held{Part: replica.OfRank(r), Rank: r, Mirror: j.Ranks[r].Node != n}
		if p.rng.IntN(2) == 0 {
			h.Part = replica.OfGroup(j.Layout.Groups[r])
		}
		h.Generation, h.Root = p.c.candidate.Generation, rootOf(h.Part, 1)
		switch p.rng.IntN(30) {
		case 0:
			h.Root = rootOf(h.Part, 2)
		case 1:
			h.Mirror = !h.Mirror
		case 2:
			h.DaemonMade, h.Root = true, rootOf(h.Part, replica.Step(1+p.rng.IntN(2)))
		case 3:
			h.Generation.Step++
		case 4:
			h.Rank = replica.Rank(p.rng.IntN(12))
		case 5:
			h.Part.Index = uint32(p.rng.IntN(12))
		}
		out = append(out, h)
	}
	return out
}

// all are the parts that a node has to hold.
func (p *polls) all(n replica.NodeName) (out []replica.Held) {
	j, g := p.job, p.c.candidate.Generation
	for r, c := range j.Ranks {
		private, group := replica.OfRank(replica.Rank(r)), replica.OfGroup(j.Layout.Groups[r])
		if c.Node == n {
			out = append(out, replica.Held{Part: private, Rank: replica.Rank(r), Generation: g, Root: rootOf(private, 1)}, replica.Held{Part: group, Rank: replica.Rank(r), Generation: g, Root: rootOf(group, 1)})
		}
		if slices.Contains(j.Mirrors[r], n) {
			out = append(out, replica.Held{Part: private, Rank: replica.Rank(r), Mirror: true, Generation: g, Root: rootOf(private, 1)})
		}
	}
	for i, mirrors := range j.GroupMirrors {
		if part := replica.OfGroup(replica.GroupID(i)); slices.Contains(mirrors, n) {
			out = append(out, replica.Held{Part: part, Mirror: true, Generation: g, Root: rootOf(part, 1)})
		}
	}
	if p.rng.IntN(6) == 0 {
		for i, r := range out {
			if r.Part.Kind == replica.ReplicatedPart && !r.Mirror {
				out[i].Root, out[i].DaemonMade = rootOf(r.Part, 2), p.rng.IntN(3) == 0
				break
			}
		}
	}
	return out
}

func (p *polls) pins(n replica.NodeName, parts []replica.Held) {
	c := p.c.candidate
	m := replica.Pinned{Job: p.job.ID, Term: c.Term, N: c.N, Generation: c.Generation, Holder: p.holder(n), Session: p.nodes[n].Session, Parts: parts}
	switch p.rng.IntN(30) {
	case 0:
		m.Session++ // its registration has yet to be followed
	case 1:
		m.Session--
	case 2:
		m.Holder.Incarnation++
	case 3:
		m.N--
	}
	p.does(p.c.Pinned(m))
}

// changed has the committer hear of another job, or of other nodes.
func (p *polls) changed(change func(j *replica.Job)) {
	next := *p.job
	next.LastIndex++
	change(&next)
	p.job = &next
	p.does(p.c.Job(p.job, p.nodes))
}

func (p *polls) fault() replica.Fault {
	r := replica.Rank(p.rng.IntN(len(p.job.Ranks)))
	if p.rng.IntN(2) == 0 {
		return replica.Fault{Epoch: 1, Kind: replica.Exception, Rank: r, Incarnation: p.job.Ranks[r].Incarnation}
	}
	h := p.holder(p.node())
	return replica.Fault{Epoch: 1, Kind: []replica.FaultKind{replica.Silent, replica.Drain}[p.rng.IntN(2)], Node: h.Node, NodeIncarnation: h.Incarnation}
}

// event makes one thing happen.
func (p *polls) event() {
	n, rng := p.node(), p.rng
	switch e := rng.IntN(40); {
	case e < 14:
		p.pins(n, p.held(n))
	case e < 26:
		p.pins(n, p.all(n))
	case e < 28:
		p.does(p.c.Voided(n))
	case e < 29:
		node := p.nodes[n]
		p.nodes = maps.Clone(p.nodes)
		if node.Session++; rng.IntN(2) == 0 {
			node.Session, node.Incarnation = 1, node.Incarnation+1
		}
		p.nodes[n] = node
		p.changed(func(*replica.Job) {})
	case e < 30:
		p.changed(func(j *replica.Job) {
			j.Faults = append(slices.Clone(j.Faults), p.fault())
		})
	case e < 32:
		p.changed(func(j *replica.Job) { j.Faults = nil })
	case e < 33:
		p.changed(func(j *replica.Job) {
			if j.Quarantined = nil; rng.IntN(3) == 0 {
				j.Quarantined = []replica.NodeName{n}
			}
		})
	case e < 34:
		p.changed(func(j *replica.Job) {
			j.Mirrors, j.GroupMirrors = slices.Clone(j.Mirrors), slices.Clone(j.GroupMirrors)
			j.Mirrors[rng.IntN(len(j.Mirrors))] = []replica.NodeName{n, p.node()}
			j.GroupMirrors[rng.IntN(len(j.GroupMirrors))] = []replica.NodeName{n}
		})
	case e < 35:
		p.changed(func(j *replica.Job) {
			r := rng.IntN(len(j.Ranks))
			j.Ranks = slices.Clone(j.Ranks)
			j.Ranks[r] = replica.Claimed{Incarnation: j.Ranks[r].Incarnation + 100, Node: n, NodeIncarnation: p.nodes[n].Incarnation}
			if rng.IntN(4) == 0 {
				j.Ranks[r].Incarnation = 0
			}
		})
	case e < 37:
		r := replica.Rank(rng.IntN(len(p.job.Ranks)))
		c := p.c.candidate
		p.does(p.c.Passed(replica.Passed{Job: p.job.ID, Term: c.Term, N: c.N, Holder: p.holder(p.job.Ranks[r].Node), Session: p.nodes[p.job.Ranks[r].Node].Session, Rank: r, Live: replica.Generation{Epoch: 1, Step: c.Position.Step + 2 - replica.Step(rng.IntN(3))}}))
	default:
		p.does(p.c.Look())
	}
}

// does takes effects, after a look at what they follow from.
func (p *polls) does(effects []Effect) {
	p.agrees()
	for _, e := range effects {
		e, ok := e.(Propose)
		if !ok {
			continue
		}
		if p.rng.IntN(8) == 0 {
			p.does(p.c.Outcome(e.Command, &Refused{Code: Conflict}))
			continue
		}
		if p.rng.IntN(8) > 0 { // else its caller gave up, and nobody knows
			p.does(p.c.Outcome(e.Command, nil))
		} else {
			p.does(p.c.Outcome(e.Command, fmt.Errorf("lost")))
		}
		p.changed(func(j *replica.Job) {
			switch c := e.Command.(type) {
			case replica.SetCopies:
				j.Copies = c.Copies
			case replica.Commit:
				j.Position, j.Committed, j.Parts = c.Position, c.Generation, c.Parts
			}
		})
	}
}

// agrees holds the count against one that looks at everything, for what is justified and for what is waited for.
func (p *polls) agrees() {
	p.t.Helper()
	if err := p.c.Check(); err != nil {
		p.t.Fatalf("counted: %v", err)
	}
	if p.c.job == nil || !p.c.live {
		return
	}
	s, reported := scratchOf(p.c), p.c.disputed
	p.c.disputed = p.reported
	want, got := s.tally(), p.c.justified()
	p.c.disputed, p.reported = reported, reported
	if !reflect.DeepEqual(got, want) {
		p.t.Fatalf("the pins justify %+v, want %+v", got, want)
	}
	switch want.(type) {
	case replica.Commit:
		p.commits++
	case replica.ReportDispute:
		p.disputes++
		return // it stopped there
	default:
		p.rest++
	}
	if len(p.c.pending) > 0 || p.c.refused {
		return
	}
	w := p.c.waits()
	if !slices.Equal(w.lines, s.w.lines) || w.unsaid != s.w.unsaid || !slices.Equal(w.nodes, s.w.nodes) || !reflect.DeepEqual(w.missing, s.w.missing) {
		p.t.Fatalf("it waits for %+v, want %+v", w, s.w)
	}
}

// TestTallyIsTheOneFromScratch: whatever was said and changed, in whatever order, what was counted as it came justifies what a look at everything does.
func TestTallyIsTheOneFromScratch(t *testing.T) {
	var commits, disputes, rest int
	for seed := range uint64(40) {
		p := newPolls(t, seed)
		for range 250 {
			p.event()
		}
		commits, disputes, rest = commits+p.commits, disputes+p.disputes, rest+p.rest
	}
	t.Logf("%d commits, %d disputes, %d times neither", commits, disputes, rest)
	if commits < 150 || disputes < 20 || rest < 5_000 {
		t.Error("the histories have grown too tame")
	}
}

// crowd is a committer of a job of so many ranks, eight to a node and in groups of so many, that wants its first candidate, and what its nodes answer to
// each: a neighbour holds a copy of every private part, and of each group that lies on one node.
func crowd(world, group int) (c *Committer, candidate replica.Candidate, answers func(replica.Candidate) []replica.Pinned) {
	j := &replica.Job{ID: replica.JobID{1}, Phase: replica.Open, Epoch: 1, Lineage: replica.Lineage{{Epoch: 1}}, Copies: 2, Options: replica.Options{MinCopies: 2}, Position: replica.Position{Epoch: 1},
		Layout: replica.Layout{World: uint32(world)}, GroupGeometry: make([]replica.Digest, (world+group-1)/group)}
	nodes, names := map[replica.NodeName]replica.Node{}, []replica.NodeName{}
	for i := range (world + 7) / 8 {
		n := replica.NodeName(fmt.Sprintf("node-%05d", i))
		nodes[n], names = replica.Node{Name: n, Incarnation: 1, Session: 1}, append(names, n)
	}
	holds := map[replica.NodeName][]replica.Held{}
	for r := range world {
		at, next, g := names[r/8], names[(r/8+1)%len(names)], replica.GroupID(r/group)
		j.Layout.Groups = append(j.Layout.Groups, g)
		j.Ranks, j.Mirrors = append(j.Ranks, replica.Claimed{Incarnation: 1, Node: at, NodeIncarnation: 1}), append(j.Mirrors, []replica.NodeName{next})
		private := replica.Held{Part: replica.OfRank(replica.Rank(r)), Rank: replica.Rank(r)}
		holds[at] = append(holds[at], private, replica.Held{Part: replica.OfGroup(g), Rank: replica.Rank(r)})
		private.Mirror = true
		if holds[next] = append(holds[next], private); r%group == 0 {
			j.GroupMirrors = append(j.GroupMirrors, []replica.NodeName{next})
			holds[next] = append(holds[next], replica.Held{Part: replica.OfGroup(g), Rank: replica.Rank(r), Mirror: true})
		}
	}
	c = NewCommitter(1, 0)
	c.Job(j, nodes)
	candidate, _ = c.Candidate()
	return c, candidate, func(to replica.Candidate) (out []replica.Pinned) {
		for _, n := range names {
			p := replica.Pinned{Job: j.ID, Term: to.Term, N: to.N, Generation: to.Generation, Holder: nodes[n].Holder(), Session: 1}
			for _, h := range holds[n] {
				h.Generation, h.Root = to.Generation, rootOf(h.Part, to.Generation.Step)
				p.Parts = append(p.Parts, h)
			}
			out = append(out, p)
		}
		return out
	}
}

// commits has a crowd answer, and returns the commit and the job after it.
func commits(t testing.TB, c *Committer, answers []replica.Pinned) *replica.Job {
	t.Helper()
	for _, a := range answers {
		for _, e := range c.Pinned(a) {
			commit := e.(Propose).Command.(replica.Commit)
			next := *c.job
			next.Position, next.Committed, next.Parts = commit.Position, commit.Generation, commit.Parts
			return &next
		}
	}
	t.Fatalf("no commit: %v", c.Waiting())
	return nil
}

// TestACommitCostsItsAnswers: ten times the ranks are ten times the work, whether they are one group or many.
func TestACommitCostsItsAnswers(t *testing.T) {
	for _, group := range []func(world int) int{func(int) int { return 8 }, func(world int) int { return world }} {
		var looked [2]int
		for i, world := range []int{1_024, 10_240} {
			c, candidate, answers := crowd(world, group(world))
			commits(t, c, answers(candidate))
			looked[i] = c.tally.looked
		}
		t.Logf("groups of %d: %d answers looked at for 1,024 ranks, %d for 10,240", group(1_024), looked[0], looked[1])
		if looked[0] < 2*1_024 || looked[1] > 12*looked[0] {
			t.Errorf("groups of %d: %d answers looked at for 1,024 ranks, %d for 10,240: want at most 12 times as many", group(1_024), looked[0], looked[1])
		}
	}
}

// BenchmarkTally is what a commit takes of the committer alone, in processor time: from a candidate to the next one.
func BenchmarkTally(b *testing.B) {
	for _, world := range []int{256, 1_024, 4_096, 10_000, 30_000, 100_000} {
		for name, group := range map[string]int{"groups=8": 8, "group=all": world} {
			b.Run(fmt.Sprintf("ranks=%d/%s", world, name), func(b *testing.B) {
				c, candidate, answers := crowd(world, group)
				var spent time.Duration
				for b.Loop() {
					said, began := answers(candidate), processTime()
					job := commits(b, c, said)
					c.Outcome(replica.Commit{Position: job.Position}, nil)
					c.Job(job, c.node)
					candidate, _ = c.Candidate()
					spent += processTime() - began
				}
				b.ReportMetric(float64(spent.Microseconds())/1e3/float64(b.N), "ms/commit")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

func processTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
