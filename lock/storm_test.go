package lock

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// TestStorm applies seeded random commands, honest, garbled, repeated and late, and checks after each what must hold of
// every state: see check.
func TestStorm(t *testing.T) {
	var changed, refused int
	phases := map[replica.JobPhase]int{}
	for seed := range uint64(60) {
		s := newStorm(t, seed)
		for range 400 {
			s.one()
			phases[s.w.current().Phase]++
		}
		changed, refused = changed+s.changed, refused+s.refused
		s.frozen()
	}
	// The storm has to reach what it is about.
	if changed < 2000 || refused < 2000 || phases[replica.Open] < 500 || phases[replica.Closed] < 500 || phases[replica.Planned] < 200 {
		t.Errorf("a weak storm: %d changes, %d refusals, phases %v", changed, refused, phases)
	}
}

type storm struct {
	t                *testing.T
	rng              *rand.Rand
	w                *world
	past             []replica.Command
	views            []View
	hashes           []string
	changed, refused int
	seed             uint64
	applied          func(index uint64, c replica.Command) // nil: nobody asks
}

func newStorm(t *testing.T, seed uint64) *storm {
	s := &storm{t: t, rng: rand.New(rand.NewPCG(seed, 3)), w: newWorld(), seed: seed}
	for _, line := range []string{"node a", "node b", "node c", "node d", "job lm groups=0,1,0,1 min=2"} {
		if err := s.w.run(line, &strings.Builder{}); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

func (s *storm) pick(list ...string) string { return list[s.rng.IntN(len(list))] }

// line makes a command line that suits the job's phase most of the time.
func (s *storm) line() string {
	j := s.w.current()
	node, rank := s.pick("a", "b", "c", "d"), s.rng.IntN(4)
	fault := s.pick("fault process-dead rank=%d", "fault exception rank=%d", "fault hang rank=%d", "fault silent node=%s", "fault node-dead node=%s", "fault drain node=%s")
	if strings.Contains(fault, "%s") {
		fault = fmt.Sprintf(fault, node)
	} else {
		fault = fmt.Sprintf(fault, rank)
	}
	claim := fmt.Sprintf("claim %d %s nonce=%d", rank, node, s.rng.IntN(1<<30)+1)
	rare := []string{
		fault, claim, "begin " + fmt.Sprint(j.Epoch+replica.Epoch(s.rng.IntN(3))), "plan", "plan init", "resume", "resume copies=1",
		fmt.Sprintf("node %s session=%d inc=%d boot=%d", node, s.rng.IntN(4)+1, s.rng.IntN(3)+1, s.rng.IntN(2)+1),
		fmt.Sprintf("commit %d/%d", j.Epoch, max(0, int(j.Position.Step)+s.rng.IntN(4)-1)),
		fmt.Sprintf("dispute %d,%d %d:1 %d:2", j.Epoch, int(j.Position.Step)+s.rng.IntN(3), rank, (rank+2)%4),
		fmt.Sprintf("condemn %d,%d", j.Epoch, j.Position.Step+1), fmt.Sprintf("copies %d", s.rng.IntN(4)),
		fmt.Sprintf("mirrors %d %s", rank, node), "quarantine " + node, "quarantine " + node + " clear",
		fmt.Sprintf("cadence %d from=%d", s.rng.IntN(3), int(j.Position.Step)+s.rng.IntN(8)), "durable " + node,
		fmt.Sprintf("durable-end %d,%d %s", j.Durable.Epoch, j.Durable.Step, s.pick("done", "given-up")), "prove-lost " + node,
	}
	if s.rng.IntN(5) == 0 {
		return rare[s.rng.IntN(len(rare))]
	}
	switch j.Phase {
	case replica.Opening:
		if j.ClosedEpoch == j.Epoch {
			return fmt.Sprintf("begin %d", j.Epoch+1)
		}
		return s.pick(claim, claim, "plan init", fmt.Sprintf("node %s session=9", node))
	case replica.Closed:
		return s.pick(claim, claim, claim, "plan", fmt.Sprintf("node %s session=%d", node, s.rng.IntN(50)))
	case replica.Planned:
		return s.pick("resume", "resume copies=1", "resume", fault)
	default:
		return s.pick("commit", "commit", "commit", fault)
	}
}

func (s *storm) one() {
	if len(s.past) > 0 && s.rng.IntN(4) == 0 { // an old command comes again
		s.apply(s.past[s.rng.IntN(len(s.past))])
		return
	}
	line := s.line()
	j := s.w.current()
	if line == "commit" {
		g := replica.Generation{Epoch: j.Epoch, Step: j.Position.Step + 1 + replica.Step(s.rng.IntN(2))}
		for r, c := range j.Ranks { // everybody seals it
			s.w.hold(c.Node, replica.OfRank(replica.Rank(r)), g)
			s.w.hold(c.Node, replica.OfGroup(j.Layout.Groups[r]), g)
			for _, m := range j.Mirrors[r] {
				s.w.hold(m, replica.OfRank(replica.Rank(r)), g)
			}
		}
		line = fmt.Sprintf("commit %d/%d", g.Epoch, g.Step)
	}
	a := parse(line)
	c, err := s.w.command(a.word(0), a)
	if err != nil { // nothing is eligible: the model's planner has no plan
		return
	}
	s.apply(c)
	if s.rng.IntN(3) == 0 { // a repeated command is harmless
		if o := s.apply(c); o.Changed {
			s.t.Fatalf("seed %d: %+v changed something twice", s.seed, c)
		}
	}
	s.past = append(s.past, c)
}

func (s *storm) apply(c replica.Command) Outcome {
	before := s.w.state.View()
	s.w.index++
	o := s.w.state.Apply(s.w.index, c)
	if s.applied != nil {
		s.applied(s.w.index, c)
	}
	after := s.w.state.View()
	if s.rng.IntN(8) == 0 {
		s.views, s.hashes = append(s.views, before), append(s.hashes, deep(s.t, before))
	}
	if o.Err != nil {
		s.refused++
		if o.Changed || after.Jobs[s.w.job] != before.Jobs[s.w.job] || len(after.Nodes) != len(before.Nodes) {
			s.t.Fatalf("seed %d: %+v was refused (%v) and changed something", s.seed, c, o.Err)
		}
	}
	if o.Changed {
		s.changed++
	}
	if err := check(before.Jobs[s.w.job], after.Jobs[s.w.job], after, s.w.index); err != nil {
		s.t.Fatalf("seed %d, entry %d, %+v: %v", s.seed, s.w.index, c, err)
	}
	return o
}

// frozen checks that no view taken on the way was written to since.
func (s *storm) frozen() {
	for i, v := range s.views {
		if deep(s.t, v) != s.hashes[i] {
			s.t.Fatalf("seed %d: the view after entry %d was written to later", s.seed, v.Index)
		}
	}
}

func deep(t *testing.T, v View) string {
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// check holds a job after an entry against the job before it.
func check(was, j *replica.Job, v View, index uint64) error {
	switch {
	case was == nil || was == j:
		return nil
	case j.LastIndex != index:
		return fmt.Errorf("last index %d", j.LastIndex)
	case j.Epoch < was.Epoch || j.ClosedEpoch < was.ClosedEpoch || j.ClosedEpoch > j.Epoch:
		return fmt.Errorf("epoch %d -> %d, closed %d -> %d", was.Epoch, j.Epoch, was.ClosedEpoch, j.ClosedEpoch)
	case j.NextIncarnation < was.NextIncarnation:
		return fmt.Errorf("incarnations fell from %d to %d", was.NextIncarnation, j.NextIncarnation)
	case j.Position.Epoch < was.Position.Epoch || j.Position.Epoch == was.Position.Epoch && j.Position.Step < was.Position.Step:
		return fmt.Errorf("position fell from %v to %v", was.Position, j.Position)
	case len(j.Lineage) < len(was.Lineage) || !slices.Equal(j.Lineage[:len(was.Lineage)], was.Lineage) || !rising(j.Lineage):
		return fmt.Errorf("lineage %v after %v", j.Lineage, was.Lineage)
	case (j.Phase == replica.Open || j.Phase == replica.Planned) != (j.Plan != nil):
		return fmt.Errorf("plan %v in phase %v", j.Plan, j.Phase)
	case (j.Phase == replica.Open || j.Phase == replica.Planned) && j.ClosedEpoch >= j.Epoch:
		return fmt.Errorf("%v, but epoch %d is closed", j.Phase, j.Epoch)
	case j.Phase == replica.Closed && j.ClosedEpoch != j.Epoch:
		return fmt.Errorf("closed, but epoch %d is not: %d", j.Epoch, j.ClosedEpoch)
	case j.Phase == replica.Open && j.Lineage.Last().Epoch != j.Epoch:
		return fmt.Errorf("open, but lineage %v ends before epoch %d", j.Lineage, j.Epoch)
	case j.Phase == replica.Open && j.Position.Epoch != j.Epoch:
		return fmt.Errorf("open at %v in epoch %d", j.Position, j.Epoch)
	case !j.Committed.IsZero() && !j.Lineage.Valid(j.Committed):
		return fmt.Errorf("committed %v is not of history %v", j.Committed, j.Lineage)
	case j.Degraded != (j.Copies < j.Options.MinCopies) || j.Copies < 1:
		return fmt.Errorf("%d copies, degraded %v", j.Copies, j.Degraded)
	}
	seen := map[replica.Incarnation]bool{}
	for r, c := range j.Ranks {
		if c.Incarnation > j.NextIncarnation || c.Incarnation != 0 && seen[c.Incarnation] || c.Incarnation < was.Ranks[r].Incarnation {
			return fmt.Errorf("rank %d: incarnation %d after %d, %d handed out", r, c.Incarnation, was.Ranks[r].Incarnation, j.NextIncarnation)
		}
		seen[c.Incarnation] = true
		if slices.Contains(j.Mirrors[r], c.Node) && c.Incarnation != 0 {
			return fmt.Errorf("rank %d is mirrored on its own node %s", r, c.Node)
		}
		if j.Phase == replica.Open && ClaimFaulted(j, replica.Rank(r), c, false) {
			return fmt.Errorf("open, though rank %d is at fault", r)
		}
	}
	if j.Position == was.Position {
		return nil
	}
	return complete(j, v)
}

// complete checks a new commit: every part once, on enough distinct nodes, each registered, none at fault or quarantined.
func complete(j *replica.Job, v View) error {
	if len(j.Parts) != len(j.GroupGeometry)+len(j.Ranks) {
		return fmt.Errorf("commit of %v with %d parts", j.Position, len(j.Parts))
	}
	for i, part := range allParts(j) {
		p := j.Parts[i]
		nodes := map[replica.NodeName]bool{}
		for _, h := range p.Holders {
			nodes[h.Node] = true
			if v.Nodes[h.Node].Incarnation != h.Incarnation || slices.Contains(j.Quarantined, h.Node) || HolderFaulted(j, h) {
				return fmt.Errorf("commit of %v counts %v on %v", j.Position, p.Part, h)
			}
		}
		if p.Part != part || len(nodes) < j.Copies {
			return fmt.Errorf("commit of %v: %v on %d nodes instead of %v on %d", j.Position, p.Part, len(nodes), part, j.Copies)
		}
	}
	return nil
}
