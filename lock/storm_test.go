package lock

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/replicad/replicad/replica"
)

// TestStorm applies seeded random commands, honest, garbled, repeated and late, and checks after each what must hold of
// every state: see Check.
func TestStorm(t *testing.T) {
	var changed, refused, grown, takenBack int
	phases := map[replica.JobPhase]int{}
	for seed := range uint64(60) {
		s := newStorm(t, seed)
		for range 400 {
			s.one()
			phases[s.w.current().Phase]++
		}
		changed, refused = changed+s.changed, refused+s.refused
		grown, takenBack = grown+s.grown, takenBack+s.takenBack
		s.frozen()
	}
	// The storm has to reach what it is about.
	if changed < 2000 || refused < 2000 || phases[replica.Open] < 500 || phases[replica.Closed] < 500 || phases[replica.Planned] < 200 || grown < 10 || takenBack < 20 {
		t.Errorf("a weak storm: %d changes, %d refusals, %d growths and %d taken back, phases %v", changed, refused, grown, takenBack, phases)
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
	grown, takenBack int
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
	grow := fmt.Sprintf("grow %d,%d recipe=r%d step=%d epoch=%d", s.rng.IntN(9)+1, s.rng.IntN(9)+1, s.rng.IntN(9), int(j.Position.Step)+s.rng.IntN(8)/7, int(j.Epoch)-s.rng.IntN(8)/7)
	rare = append(rare, grow)
	if s.rng.IntN(5) == 0 {
		return rare[s.rng.IntN(len(rare))]
	}
	switch j.Phase {
	case replica.Opening:
		if j.ClosedEpoch == j.Epoch {
			return fmt.Sprintf("begin %d", j.Epoch+1)
		}
		if j.Growth != nil {
			return s.pick("plan init", "plan init", fault)
		}
		return s.pick(claim, claim, "plan init", fmt.Sprintf("node %s session=9", node))
	case replica.Closed:
		return s.pick(claim, claim, claim, "plan", fmt.Sprintf("node %s session=%d", node, s.rng.IntN(50)))
	case replica.Planned:
		return s.pick("resume", "resume copies=1", "resume", fault)
	default:
		return s.pick("commit", "commit", "commit", fault, grow)
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
	if was, is := before.Jobs[s.w.job], after.Jobs[s.w.job]; was.Growth != nil && is.Growth == nil {
		if is.Phase == replica.Open {
			s.grown++
		} else {
			s.takenBack++
		}
	}
	if err := Check(before, after); err != nil {
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
