package lock

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// commitSim is a job of one rank on each of three nodes, whose daemons answer the leader's candidates over links that lose
// and reorder, while ranks train, daemons restart and leaders change. Every entry of the log that commits is held against
// what the nodes hold at that moment.
type commitSim struct {
	t       *testing.T
	rng     *rand.Rand
	state   *State
	index   uint64
	job     replica.JobID
	term    uint64
	leader  *Committer
	nodes   map[replica.NodeName]*simNode
	order   []replica.NodeName
	queue   []replica.Command // proposed, not applied
	calm    bool              // nothing is lost any more
	stand   bool              // all ranks stand still on purpose and have the step they are at sealed
	commits int
	lag     int        // steps that candidates and answers are under way, each; 0: none
	clock   int        // steps made
	copying int        // steps until a daemon knows that a capture is sealed
	post    []delivery // under way
}

// delivery is a message that arrives when all ranks have come so far.
type delivery struct {
	at  int
	run func()
}

// deliver has a message arrive after lag steps.
func (s *commitSim) deliver(run func()) {
	if s.lag == 0 {
		run()
		return
	}
	s.post = append(s.post, delivery{s.clock + s.lag, run})
}

// simNode is a daemon with its rank's arena and the mirror of another's private part.
type simNode struct {
	name    replica.NodeName
	rank    replica.Rank
	session replica.Session
	step    replica.Step
	cand    replica.Candidate
	heard   replica.Step // where the rank was when the daemon heard of cand
	slots   []PlaceState
	ring    []PlaceState
	mirror  []PlaceState
	of      replica.Rank // whose private part it mirrors
}

func newCommitSim(t *testing.T, seed uint64, slots int, cadence replica.Step) *commitSim {
	s := &commitSim{t: t, rng: rand.New(rand.NewPCG(seed, 7)), state: New(replica.ClusterID{1}), job: replica.JobID{1}, nodes: map[replica.NodeName]*simNode{}, order: []replica.NodeName{"a", "b", "c"}}
	world := newWorld()
	var out strings.Builder
	setup := fmt.Sprintf("node a\nnode b\nnode c\njob lm groups=0,0,1 min=2 slots=%d cadence=%d\nbegin 1\nclaim 0 a\nclaim 1 b\nclaim 2 c\nloaded all 0\nseal all 0\nprivate all 0\nplan init\nresume copies=1", slots, cadence)
	for _, line := range strings.Split(setup, "\n") {
		if err := world.run(line, &out); err != nil {
			t.Fatal(err)
		}
	}
	s.state, s.index = world.state, world.index
	s.must(replica.SetMirrors{Job: s.job, Mirrors: [][]replica.NodeName{{"b"}, {"c"}, {"a"}}, GroupMirrors: [][]replica.NodeName{nil, {"b"}}})
	for i, n := range s.order {
		node := &simNode{name: n, rank: replica.Rank(i), session: 1, of: replica.Rank((i + 2) % 3)}
		node.slots, node.ring, node.mirror = places(slots, false, false), places(12, true, false), places(12, true, true)
		s.nodes[n] = node
		for _, list := range [][]PlaceState{node.slots, node.ring, node.mirror} {
			list[0].State, list[0].Generation = replica.SlotSealed, s.at().Committed
		}
	}
	s.elect()
	return s
}

func places(n int, ring, mirror bool) []PlaceState {
	out := make([]PlaceState, n)
	for i := range out {
		out[i] = PlaceState{Ring: ring, Mirror: mirror, Index: i}
	}
	return out
}

func (s *commitSim) at() *replica.Job { return s.state.View().Jobs[s.job] }

func (s *commitSim) must(c replica.Command) {
	s.index++
	if o := s.state.Apply(s.index, c); o.Err != nil {
		s.t.Fatalf("%T: %v", c, o.Err)
	}
}

// elect starts a term: what was proposed is applied or lost, then the barrier passes and the new leader begins afresh.
func (s *commitSim) elect() {
	for _, c := range s.queue {
		if s.rng.IntN(2) == 0 {
			_ = s.apply(c)
		}
	}
	s.queue = nil
	s.term++
	s.leader = NewCommitter(s.term, 0)
	s.leader.Listen()
	s.do(s.leader.Job(s.at(), s.state.View().Nodes))
}

// do carries out effects: announcements reach some nodes, proposals wait their turn in the log.
func (s *commitSim) do(effects []Effect) {
	if err := s.leader.Check(); err != nil {
		s.t.Fatalf("counted: %v", err)
	}
	for _, e := range effects {
		switch e := e.(type) {
		case Announce:
			for _, c := range s.queue { // a repetition of what was applied changes nothing and may be under way
				if c, ok := c.(replica.Commit); ok && c.Position.Step > s.at().Position.Step {
					s.t.Fatalf("candidate %v named while the commit of %v is unresolved", e.Candidate.Generation, c.Position)
				}
			}
			for _, n := range s.order {
				if s.calm || s.rng.IntN(4) > 0 {
					s.deliver(func() { s.nodes[n].hear(e.Candidate) })
				}
			}
		case Propose:
			s.queue = append(s.queue, e.Command)
		}
	}
}

// apply puts a command into the log and checks a commit against the nodes' memory.
func (s *commitSim) apply(c replica.Command) error {
	s.index++
	o := s.state.Apply(s.index, c)
	if commit, ok := c.(replica.Commit); ok && o.Changed {
		s.commits++
		for _, p := range commit.Parts {
			for _, h := range p.Holders {
				if !s.nodes[h.Node].holds(s, p.Part, commit.Generation) {
					s.t.Fatalf("commit of %v counts %v on node %s, which does not hold it", commit.Generation, p.Part, h.Node)
				}
			}
		}
	}
	return o.Err
}

func sealed(list []PlaceState, g replica.Generation) *PlaceState {
	for i := range list {
		if list[i].State == replica.SlotSealed && list[i].Generation == g {
			return &list[i]
		}
	}
	return nil
}

func (n *simNode) holds(s *commitSim, p replica.Part, g replica.Generation) bool {
	if p.Kind == replica.ReplicatedPart {
		own := s.at().Layout.Groups[n.rank] == replica.GroupID(p.Index)
		twin := n.name == "b" && p.Index == 1 // b mirrors group 1 by reading c's slots over the wire
		return own && sealed(n.slots, g) != nil || twin && sealed(s.nodes["c"].slots, g) != nil
	}
	return replica.Rank(p.Index) == n.rank && sealed(n.ring, g) != nil || replica.Rank(p.Index) == n.of && sealed(n.mirror, g) != nil
}

func (n *simNode) hear(c replica.Candidate) {
	if c.Compare(n.cand) <= 0 {
		return
	}
	n.cand, n.heard = c, n.step
	for _, list := range [][]PlaceState{n.slots, n.ring, n.mirror} {
		for i := range list {
			list[i].Pinned = list[i].State == replica.SlotSealed && list[i].Generation == c.Generation
		}
	}
}

// train lets the rank make one step, as the C rules do: private part first, then perhaps the replicated one.
func (s *commitSim) train(n *simNode) {
	j := s.at()
	s.free(n) // what the daemon knows by then: the step that is being captured proves nothing yet
	n.step++
	g := replica.Generation{Epoch: j.Epoch, Step: n.step}
	n.seal(n.ring, g)
	for _, m := range s.nodes {
		if m.of == n.rank {
			s.free(m)
			m.seal(m.mirror, g)
		}
	}
	var candidate replica.Step
	if n.cand.Position.Epoch == j.Epoch {
		candidate = n.cand.Position.Step
	}
	skip := !s.calm && s.rng.IntN(8) == 0 // under pressure
	if !skip && ShouldCapture(n.step, j.Position.Step, candidate, j.Options.Cadence, len(n.slots)) {
		n.seal(n.slots, g)
	}
}

// seal fills a free place of a list, if there is one.
func (n *simNode) seal(list []PlaceState, g replica.Generation) {
	for i := range list {
		if list[i].State == replica.SlotFree {
			list[i].State, list[i].Generation, list[i].Pinned = replica.SlotSealed, g, g == n.cand.Generation
			return
		}
	}
}

// keep seals the step that the rank stands at, as rp_seal_step does.
func (s *commitSim) keep(n *simNode) {
	s.free(n)
	if g := (replica.Generation{Epoch: s.at().Epoch, Step: n.step}); sealed(n.slots, g) == nil {
		n.seal(n.slots, g)
	}
}

func (s *commitSim) free(n *simNode) {
	j := s.at()
	own := slices.Concat(n.slots, n.ring)
	for i := range own {
		p := &own[i]
		if p.State == replica.SlotSealed && p.Generation.Epoch == j.Epoch && p.Generation.Step+replica.Step(s.copying) > n.step {
			p.State = replica.SlotCopying
		}
	}
	in := RetainInput{Job: j, Candidate: n.cand.Generation, Good: replica.PackWord(j.Epoch, n.step, 0), Slots: len(n.slots), Places: own}
	for _, i := range Retain(in) {
		if i < len(n.slots) {
			n.slots[i] = PlaceState{Index: i}
		} else {
			n.ring[i-len(n.slots)] = PlaceState{Ring: true, Index: i - len(n.slots)}
		}
	}
	in.Good, in.Slots, in.Places = 0, 0, n.mirror
	for _, i := range Retain(in) {
		n.mirror[i] = PlaceState{Ring: true, Mirror: true, Index: i}
	}
}

// reports is a daemon's account of the job, which it repeats to each leader until that has named a candidate.
func (s *commitSim) reports(n *simNode) {
	j := s.at()
	r := replica.NodeReport{Job: s.job, Holder: replica.Holder{Node: n.name, Incarnation: 1}, Session: n.session, Epoch: j.Epoch,
		Ranks: []replica.RankReport{{Rank: n.rank, Incarnation: j.Ranks[n.rank].Incarnation, Live: replica.PackWord(j.Epoch, n.step, replica.Idle)}}}
	if n.cand.Position.Step > j.Position.Step {
		r.Candidate = n.cand.Generation
	}
	for p, list := range map[replica.Part][]PlaceState{replica.OfGroup(j.Layout.Groups[n.rank]): n.slots, replica.OfRank(n.rank): n.ring} {
		for _, pl := range list {
			if pl.State == replica.SlotSealed {
				r.Parts = append(r.Parts, replica.Held{Part: p, Generation: pl.Generation, Rank: n.rank})
			}
		}
	}
	leader := s.leader
	s.deliver(func() { s.do(leader.Reported(r)) })
}

// answer is what a daemon says about the candidate it obeys.
func (s *commitSim) answer(n *simNode) {
	if s.leader.heard != nil {
		s.reports(n)
	}
	j, c := s.at(), n.cand
	if c.N == 0 {
		return
	}
	h := replica.Holder{Node: n.name, Incarnation: 1}
	group := replica.OfGroup(j.Layout.Groups[n.rank])
	pinned := replica.Pinned{Job: s.job, Term: c.Term, N: c.N, Generation: c.Generation, Holder: h, Session: n.session, Heard: n.heard, Live: n.step}
	say := func(p replica.Part, list []PlaceState, mirror bool, r replica.Rank) {
		if pl := sealed(list, c.Generation); pl != nil {
			pl.Pinned = true
			pinned.Parts = append(pinned.Parts, replica.Held{Part: p, Generation: c.Generation, Root: rootOf(p, c.Generation.Step), Mirror: mirror, Rank: r})
		}
	}
	// A producer pushes what it has pinned again to a mirror that has freed it.
	producer := s.nodes[s.order[n.of]]
	if sealed(producer.ring, c.Generation) != nil && producer.cand == c && sealed(n.mirror, c.Generation) == nil {
		s.free(n)
		if i := slices.IndexFunc(n.mirror, func(p PlaceState) bool { return p.State == replica.SlotFree }); i >= 0 {
			n.mirror[i].State, n.mirror[i].Generation = replica.SlotSealed, c.Generation
		}
	}
	say(group, n.slots, false, n.rank)
	say(replica.OfRank(n.rank), n.ring, false, n.rank)
	say(replica.OfRank(n.of), n.mirror, true, n.of)
	if n.name == "b" && s.nodes["c"].cand == c {
		say(replica.OfGroup(1), s.nodes["c"].slots, true, 2)
	}
	leader := s.leader
	s.deliver(func() { s.do(leader.Pinned(pinned)) })
	live := replica.Generation{Epoch: j.Epoch, Step: n.step}
	passed := n.step > c.Position.Step && (sealed(n.slots, c.Generation) == nil || sealed(n.ring, c.Generation) == nil)
	stands := s.stand && n.step < c.Position.Step
	if c.Position.Epoch == j.Epoch && (passed || stands) {
		p := replica.Passed{Job: s.job, Term: c.Term, N: c.N, Holder: h, Session: n.session, Rank: n.rank, Live: live, Heard: n.heard}
		for _, pl := range n.slots {
			if pl.State == replica.SlotSealed && sealed(n.ring, pl.Generation) != nil {
				p.Holds = append(p.Holds, pl.Generation)
			}
		}
		s.deliver(func() { s.do(leader.Passed(p)) })
	}
}

// step makes one random event happen.
func (s *commitSim) step() {
	n := s.nodes[s.order[s.rng.IntN(3)]]
	switch e := s.rng.IntN(20); {
	case e < 6 && s.stand:
		s.keep(n)
	case e < 6: // ranks meet in collectives: nobody is two steps ahead
		for _, o := range s.nodes {
			if o.step < n.step {
				n = o
			}
		}
		s.train(n)
	case e < 12:
		s.answer(n)
	case e < 17:
		if len(s.queue) > 0 {
			c := s.queue[0]
			s.queue = s.queue[1:]
			err := s.apply(c)
			if !s.calm && s.rng.IntN(6) == 0 {
				err = errors.New("reply lost")
			}
			before := s.leader
			if s.rng.IntN(2) == 0 { // the outcome and the change come in either order
				s.do(before.Outcome(c, err))
				s.do(before.Job(s.at(), s.state.View().Nodes))
			} else {
				s.do(before.Job(s.at(), s.state.View().Nodes))
				s.do(before.Outcome(c, err))
			}
		}
	case e < 18:
		if c, ok := s.leader.Candidate(); ok {
			n.hear(c)
		}
	case !s.calm && s.rng.IntN(6) == 0:
		s.elect()
	case !s.calm && s.rng.IntN(6) == 0: // the daemon restarts; its arenas and the pins in them stay
		n.session++
		s.must(replica.RegisterNode{Node: replica.Node{Name: n.name, Incarnation: 1, Session: n.session, Boot: replica.BootID{1}}})
		s.do(s.leader.Voided(n.name))
		s.do(s.leader.Job(s.at(), s.state.View().Nodes))
	}
}

// together lets the ranks come to the same step, and returns it.
func (s *commitSim) together() (at replica.Step) {
	for _, n := range s.nodes {
		at = max(at, n.step)
	}
	for _, n := range s.nodes {
		for n.step < at {
			s.train(n)
		}
	}
	return at
}

func TestCommitterSimulation(t *testing.T) {
	for _, slots := range []int{2, 3, 4} {
		for cadence := replica.Step(1); cadence <= 3; cadence++ {
			t.Run(fmt.Sprintf("slots=%d cadence=%d", slots, cadence), func(t *testing.T) {
				for seed := range uint64(15) {
					s := newCommitSim(t, seed, slots, cadence)
					for range 1500 {
						s.step()
					}
					s.calm = true
					before := s.commits
					for range 2500 {
						s.step()
					}
					if s.commits-before < 5 {
						t.Fatalf("seed %d: %d commits in calm, %d before: position %v, candidate %v, waiting for %v", seed, s.commits-before, before, s.at().Position, s.leader.candidate, s.leader.Waiting())
					}
					at := s.together()
					s.stand = true
					for range 1500 {
						s.step()
					}
					if s.at().Position.Step != at {
						t.Fatalf("seed %d: every rank stands at %d: position %v, candidate %v, waiting for %v", seed, at, s.at().Position, s.leader.candidate, s.leader.Waiting())
					}
				}
			})
		}
	}
}

// advance has all ranks make a step and all daemons answer, while whatever is said is lag steps under way.
func (s *commitSim) advance() {
	s.clock++
	for _, n := range s.order {
		s.train(s.nodes[n])
	}
	for _, n := range s.order {
		s.answer(s.nodes[n])
	}
	due := s.post
	s.post = nil
	for _, d := range due {
		if d.at <= s.clock {
			d.run()
		} else {
			s.post = append(s.post, d)
		}
	}
	for len(s.queue) > 0 {
		c := s.queue[0]
		s.queue = s.queue[1:]
		err := s.apply(c)
		s.do(s.leader.Outcome(c, err))
		s.do(s.leader.Job(s.at(), s.state.View().Nodes))
	}
}

// TestCommitterKeepsUp: candidates and answers that are d steps under way delay commits and never stop them: there is one at least each
// 4 d steps or so once the delay has been seen, and one each step where there is none.
//
// So it is where a durable write holds one of more than two slots for good, and where a capture is known to be sealed a step later.
func TestCommitterKeepsUp(t *testing.T) {
	for _, c := range []struct {
		slots   int
		written bool
		copying int
	}{
		{2, false, 0}, {3, false, 0}, {4, false, 0}, {3, true, 0}, {4, true, 0},
		{2, false, 1}, {3, false, 1}, {4, false, 1}, {3, true, 1}, {4, true, 1},
	} {
		for _, cadence := range []replica.Step{1, 2, 3} {
			t.Run(fmt.Sprintf("%+v cadence=%d", c, cadence), func(t *testing.T) {
				for _, lag := range []int{0, 1, 2, 3, 4, 6, 9, 14, 21, 33, 50} {
					s := newCommitSim(t, 1, c.slots, cadence)
					s.calm, s.lag, s.copying = true, lag, c.copying
					if c.written {
						s.must(replica.BeginDurable{Job: s.job, Write: PlanShards(s.at(), func(replica.NodeName) bool { return true })})
					}
					for _, n := range s.nodes {
						n.slots[0].Held = c.written
					}
					every, settled := 4*lag+4*int(cadence), 12*lag+20*int(cadence)
					if lag == 0 {
						every = int(cadence)
					} else {
						every += 4 * c.copying
					}
					before, last := 0, 0
					for range 20*every + settled {
						s.advance()
						if s.commits > before {
							before, last = s.commits, s.clock
						}
						if s.clock > settled && s.clock-last > every {
							t.Fatalf("lag %d: %d steps without a commit: %d commits in %d steps, position %v, candidate %v", lag, s.clock-last, s.commits, s.clock, s.at().Position, s.leader.candidate)
						}
					}
				}
			})
		}
	}
}
