package recovery_test

import (
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/replicad/replicad/recovery"
	"github.com/replicad/replicad/recovery/odds"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

var (
	lossSeed = flag.Uint64("loss.seed", 0, "run only this seed of TestSurvivesAsItSaid, and print what happened")
	lossRuns = flag.Int("loss.runs", 40, "seeds to run")
)

// TestSurvivesAsItSaid asks, after a random history, what the loss of each set of nodes would come to, and then loses them: what was said is what
// becomes of the job.
func TestSurvivesAsItSaid(t *testing.T) {
	said := map[string]int{}
	for run := range uint64(*lossRuns) {
		seed := run + 1
		if *lossSeed != 0 {
			seed = *lossSeed
		}
		for set := range 1 << len(lossNodes) {
			w, outcome, err := lose(seed, set)
			if said[outcome]++; err != nil {
				t.Fatalf("seed %d, set %d: %v\n%s", seed, set, err, strings.Join(w.said, "\n"))
			}
		}
		if *lossSeed != 0 {
			return
		}
	}
	t.Logf("%v", said)
	if said["yes"] < *lossRuns || said["no"] < *lossRuns {
		t.Errorf("of %d losses %v: too few of a kind to tell", *lossRuns<<len(lossNodes), said)
	}
}

// lossNodes are those of newSim.
var lossNodes = []replica.NodeName{"a", "b", "c", "s"}

// lose makes the history of a seed and loses a set of nodes.
func lose(seed uint64, set int) (w *world, outcome string, err error) {
	s := newSim(seed, recovery.DefaultTiming())
	w = s.w
	if err := s.wait(20 * time.Second); err != nil {
		return w, "", err
	}
	for range 5 + s.r.IntN(10) {
		if s.ended() {
			return w, "ended", nil
		}
		s.act()
		if err := s.wait(time.Duration(s.r.IntN(3000)) * time.Millisecond); err != nil {
			return w, "", err
		}
	}
	if s.ended() || w.state().Committed.IsZero() {
		return w, "nothing is committed", nil
	}
	loss := odds.Loss{}
	for i, n := range lossNodes { // what is away stays away
		if set&(1<<i) != 0 || !w.nodes[n].up {
			loss.Nodes = append(loss.Nodes, n)
		}
	}
	was, answer := w.state(), w.survival(loss)
	yes := answer.InMemory() && answer.Offered >= len(answer.Moves)
	if open := was.Phase == replica.Open; open && yes != (len(answer.Why()) == 0) {
		return w, "", fmt.Errorf("it says %v: %q", yes, answer.Why())
	}
	w.said = nil
	w.say("loss of %v, said %v: %q; on from %v; %d of %d processes", loss.Nodes, yes, answer.Why(), answer.Resume, answer.Offered, len(answer.Moves))
	w.status()
	lost, first := false, (*replica.Plan)(nil)
	w.onPlan = func(j *replica.Job) {
		if lost = lost || j.Plan.CommittedLost > 0 || j.Plan.Tier() == replica.Disk; first == nil {
			first = j.Plan
		}
	}
	for _, n := range loss.Nodes {
		w.dieNode(n)
		w.queue = append(w.queue, recovery.Evidence{Fault: replica.Fault{Kind: replica.NodeDead, Node: n, NodeIncarnation: w.nodes[n].holder.Incarnation}})
	}
	if err := w.wait(5 * time.Minute); err != nil {
		return w, "", err
	}
	is := w.state()
	w.status()
	survived := is.Phase == replica.Open && !lost
	newer := first != nil && first.Generation.Step > answer.Resume.Step && first.Generation.Step > was.Position.Step // live state, or parts that nobody had told of
	switch {
	case yes && !survived:
		return w, "", fmt.Errorf("it was to survive, and is %v %s", is.Phase, is.EndReason)
	case !yes && survived && !newer:
		return w, "", fmt.Errorf("it was not to survive, and goes on")
	case yes && first != nil && first.Generation == answer.Resume:
		return w, "yes", holdersAmong(answer, first)
	case yes:
		return w, "yes", nil
	case survived:
		return w, "newer", nil
	}
	return w, "no", nil
}

// holdersAmong checks that the plan names every holder that was promised.
func holdersAmong(answer odds.Survival, p *replica.Plan) error {
	for _, held := range answer.Held(answer.Resume) {
		src, ok := p.Source(held.Part)
		for _, h := range held.Holders {
			if !ok || !slices.Contains(src.Holders, h) {
				return fmt.Errorf("%v was to come back from node %s too, and comes from %v", held.Part, h.Node, src.Holders)
			}
		}
	}
	return nil
}

// TestSurvivesAgainstPlan compares, for each set of nodes of random small cases, what their loss would come to with the plan that is made once
// they are lost: the same generation, and the same holders of each part.
func TestSurvivesAgainstPlan(t *testing.T) {
	kinds := map[string]int{}
	for seed := range uint64(10_000) {
		in := randomInput(rand.New(rand.NewPCG(seed, 3)))
		names := slices.Sorted(maps.Keys(in.Nodes))
		for set := range 1 << len(names) {
			loss := odds.Loss{}
			for i, n := range names { // who has not answered the fence says no more
				if rep := in.Reports[n]; set&(1<<i) != 0 || !in.Connected[n] || rep.Session != in.Nodes[n].Session || rep.Fenced < in.Job.ClosedEpoch || !rep.Settled {
					loss.Nodes = append(loss.Nodes, n)
				}
			}
			s := odds.Survives(in, loss)[0]
			planned, v := plan.Make(lost(in, loss.Nodes))
			switch kinds[v.Kind.String()]++; {
			case v.Kind == plan.Wait && len(loss.Nodes) < len(names):
				t.Fatalf("seed %d, loss of %v: the planner waits: %s", seed, loss.Nodes, v.Reason)
			case v.Kind != plan.Ready && !s.Resume.IsZero(), v.Kind == plan.Ready && s.Resume != planned.Generation:
				t.Fatalf("seed %d, loss of %v: said on from %v; planned %v: %s", seed, loss.Nodes, s.Resume, planned.Generation, v.Reason)
			case v.Kind != plan.Ready:
				continue
			}
			for i, held := range s.Held(s.Resume) {
				if src := planned.Sources[i]; src.Part != held.Part || !slices.Equal(src.Holders, held.Holders) {
					t.Fatalf("seed %d, loss of %v: said %v from %v; planned %v from %v", seed, loss.Nodes, held.Part, held.Holders, src.Part, src.Holders)
				}
			}
		}
	}
	for _, k := range []string{"ready", "stuck"} {
		if kinds[k] < 1000 {
			t.Errorf("only %d cases of %s: %v", kinds[k], k, kinds)
		}
	}
}

// lost is what the planner knows once those nodes are dead, a node that holds nothing has taken over all ranks, the grace is over and the disk
// is empty.
func lost(in plan.Input, nodes []replica.NodeName) plan.Input {
	out, job := in, *in.Job
	out.Job, out.Scanned, out.Durable, out.Now, out.AwaySince = &job, true, nil, time.Hour, map[replica.NodeName]time.Duration{}
	out.Nodes, out.Reports, out.Connected = maps.Clone(in.Nodes), maps.Clone(in.Reports), maps.Clone(in.Connected)
	job.Faults, job.Ranks = slices.Clone(job.Faults), slices.Clone(job.Ranks)
	for n := range in.Nodes {
		out.AwaySince[n] = 0
	}
	for _, n := range nodes {
		job.Faults = append(job.Faults, replica.Fault{Epoch: job.Epoch, Kind: replica.NodeDead, Node: n, NodeIncarnation: in.Nodes[n].Incarnation})
	}
	heir := replica.Node{Name: "z", Incarnation: 99, Session: 1}
	rep := replica.NodeReport{Job: job.ID, Holder: heir.Holder(), Session: 1, Fenced: job.ClosedEpoch, Settled: true}
	for r := range job.Ranks {
		job.Ranks[r] = replica.Claimed{Incarnation: replica.Incarnation(50 + r), Node: heir.Name, NodeIncarnation: heir.Incarnation}
		rep.Ranks = append(rep.Ranks, replica.RankReport{Rank: replica.Rank(r), Incarnation: replica.Incarnation(50 + r), Alive: true, Attached: true, Stopped: true})
	}
	out.Nodes[heir.Name], out.Reports[heir.Name], out.Connected[heir.Name] = heir, rep, true
	return out
}

// What a node that is to be drained, or whose certificate is revoked, costs a job in safety.
func TestCost(t *testing.T) {
	for name, c := range map[string]struct {
		options replica.Options
		able    string // others are kept out of the job
		holders string
		want    []string // empty: it costs nothing
	}{
		"two others are left":                {replica.Options{}, "abc", "ab", nil},
		"one other is left":                  {replica.Options{}, "ab", "ab", []string{"on at most 1 nodes instead of 2", "all its ranks would run on node a, whose loss would end the job"}},
		"with a durable tier":                {replica.Options{DurableEvery: 5}, "ab", "ab", []string{"back to its durable tier"}},
		"one copy is all that is asked for":  {replica.Options{MinCopies: 1}, "abc", "a", nil},
		"three copies":                       {replica.Options{MinCopies: 3}, "abc", "abc", []string{"2 nodes instead of 3"}},
		"it alone holds a part":              {replica.Options{}, "abc", "b", []string{"until its ranks run elsewhere, node b alone holds private 0 of the committed step 7"}},
		"with others that can take no ranks": {replica.Options{}, "abc", "bd", []string{"node b alone holds private 0"}},
		"it holds nothing":                   {replica.Options{}, "abc", "d", nil},
	} {
		at := replica.Generation{Epoch: 1, Step: 7}
		in := plan.Input{Nodes: map[replica.NodeName]replica.Node{}, Reports: map[replica.NodeName]replica.NodeReport{}, Connected: map[replica.NodeName]bool{}}
		in.Job = &replica.Job{Options: c.options, Phase: replica.Open, Lineage: replica.Lineage{{Epoch: 1}}, Layout: replica.Layout{World: 1, Groups: []replica.GroupID{0}}, Epoch: 1, Committed: at, Position: replica.Position(at), Ranks: make([]replica.Claimed, 1)}
		part := replica.PartRoot{Part: replica.OfRank(0), Root: replica.Digest{1}}
		for i, n := range []replica.NodeName{"a", "b", "c", "d"} {
			h := replica.Holder{Node: n, Incarnation: replica.NodeIncarnation(i + 1)}
			in.Nodes[n], in.Connected[n] = replica.Node{Name: n, Incarnation: h.Incarnation, Session: 1}, true
			in.Reports[n] = replica.NodeReport{Holder: h, Session: 1}
			if !strings.Contains(c.able, string(n)) {
				in.Job.Quarantined = append(in.Job.Quarantined, n)
			}
			if strings.Contains(c.holders, string(n)) {
				part.Holders = append(part.Holders, h)
			}
		}
		in.Job.Parts = []replica.PartRoot{part}
		got := odds.Survives(in, odds.Loss{Nodes: []replica.NodeName{"b"}})[0].Cost()
		if (got == "") != (len(c.want) == 0) {
			t.Errorf("%s: %q", name, got)
		}
		for _, w := range c.want {
			if !strings.Contains(got, w) {
				t.Errorf("%s: %q lacks %q", name, got, w)
			}
		}
	}
}
