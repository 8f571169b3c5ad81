package recovery_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// TestPlanAgainstTwin compares the planner with a twin that reads the protocol's words one by one, over every generation
// that could exist, on random small cases.
func TestPlanAgainstTwin(t *testing.T) {
	kinds := map[string]int{}
	for seed := range uint64(50_000) {
		in := randomInput(rand.New(rand.NewPCG(seed, 1)))
		planned, v := plan.Make(in)
		got, want := verdictOf(planned, v), twin(in)
		kinds[fmt.Sprint(v.Kind, v.Why, planned.Tier())]++
		if got != want {
			t.Fatalf("seed %d: planner says %s, twin %s\n%+v\n%+v", seed, got, want, *in.Job, in)
		}
		if v.Kind == plan.Ready {
			checkSources(t, seed, in, planned)
		}
	}
	for _, k := range []string{"readyown-ram", "readypeer-ram", "readydurable", "waitacksown-ram", "waitholdersown-ram", "waitscanown-ram", "stuckown-ram"} {
		if kinds[k] < 300 {
			t.Errorf("only %d cases of %s: the cases have grown too tame (%v)", kinds[k], k, kinds)
		}
	}
}

func verdictOf(p replica.Plan, v plan.Verdict) string {
	s := fmt.Sprint(v.Kind, " ", v.Why, " ", v.Scan, " ", v.Final)
	if v.Kind == plan.Ready {
		s += fmt.Sprint(" ", p.Generation, " lost ", p.StepsLost, " unvouched ", p.Unvouched)
		for _, src := range p.Sources {
			s += fmt.Sprintf(" %v:%v", src.Part, src.Tier == replica.Disk)
		}
	}
	if v.Why == plan.ForHolders {
		s += fmt.Sprint(" ", v.WaitFor, " ", v.Until)
	}
	return s
}

// checkSources checks that a plan names every healthy holder of what it fixes, and nobody else.
func checkSources(t *testing.T, seed uint64, in plan.Input, p replica.Plan) {
	for _, src := range p.Sources {
		for n, rep := range in.Reports {
			has := slices.ContainsFunc(rep.Parts, func(h replica.Held) bool {
				return h.Part == src.Part && h.Generation == p.Generation && h.Root == src.Root && !twinLate(in.Job, h) && !twinVoid(in.Job, n, h)
			})
			named := slices.ContainsFunc(src.Holders, func(h replica.Holder) bool { return h.Node == n })
			if healthy := twinHealthy(in, n); named != (has && healthy) {
				t.Fatalf("seed %d: %v of %v: node %s has it: %v, healthy: %v, named: %v", seed, src.Part, p.Generation, n, has, healthy, named)
			}
		}
	}
}

func pick[T any](r *rand.Rand, list ...T) T { return list[r.IntN(len(list))] }

func randomInput(r *rand.Rand) plan.Input {
	names := []replica.NodeName{"a", "b", "c"}[:1+r.IntN(3)]
	layouts := [][]replica.GroupID{{0}, {0, 0}, {0, 1}, {0, 1, 0}}
	groups := pick(r, layouts...)
	j := &replica.Job{ID: replica.JobID{1}, Layout: replica.Layout{World: uint32(len(groups)), Groups: groups}, Phase: replica.Closed, LastIndex: 9, Copies: 1,
		Mirrors: make([][]replica.NodeName, len(groups)), Options: replica.Options{DurableEvery: pick[replica.Step](r, 0, 1), RequireVotes: r.IntN(8) == 0, LoneAhead: pick[replica.Step](r, 0, 1, 3)}, OpenedWith: pick[replica.Incarnation](r, 0, 6)}
	j.Lineage = replica.Lineage{{Epoch: 1, Start: 0}}
	j.Epoch = 1
	if r.IntN(2) == 0 {
		j.Lineage, j.Epoch = append(j.Lineage, replica.Opened{Epoch: 2, Start: replica.Step(r.IntN(3))}), 2
	}
	if r.IntN(4) == 0 {
		j.Epoch++ // planned, never opened
	}
	j.ClosedEpoch = j.Epoch
	in := plan.Input{Job: j, Nodes: map[replica.NodeName]replica.Node{}, Reports: map[replica.NodeName]replica.NodeReport{}, Connected: map[replica.NodeName]bool{},
		AwaySince: map[replica.NodeName]time.Duration{}, Now: 100 * time.Second, Grace: 60 * time.Second, Scanned: r.IntN(2) == 0}
	for i, n := range names {
		in.Nodes[n] = replica.Node{Name: n, Incarnation: replica.NodeIncarnation(i + 1), Session: 2}
		in.Connected[n] = r.IntN(5) > 0
		if r.IntN(3) > 0 {
			in.AwaySince[n] = pick(r, 10*time.Second, 70*time.Second)
		}
	}
	for i := range groups {
		n := pick(r, names...)
		j.Ranks = append(j.Ranks, replica.Claimed{Incarnation: replica.Incarnation(i + 1), Node: n, NodeIncarnation: in.Nodes[n].Incarnation})
		if r.IntN(2) == 0 {
			j.Mirrors[i] = []replica.NodeName{pick(r, names...)}
		}
	}
	gens := []replica.Generation{{Epoch: 1}, {Epoch: 1, Step: 1}, {Epoch: 1, Step: 2}, {Epoch: 2, Step: 2}, {Epoch: 2, Step: 3}}
	if j.Lineage.Last().Epoch == 2 {
		j.Committed = pick(r, replica.Generation{Epoch: 1, Step: j.Lineage.Last().Start}, replica.Generation{Epoch: 2, Step: 3})
	} else {
		j.Committed = gens[r.IntN(3)]
	}
	j.Position = replica.Position{Epoch: j.Lineage.Last().Epoch, Step: j.Committed.Step}
	if j.Committed.Epoch == 2 && r.IntN(3) == 0 {
		j.Grown = 2 // nobody can load what was sealed before
	}
	randomRecords(r, &in, gens, names)
	for _, n := range names {
		if r.IntN(8) > 0 {
			in.Reports[n] = randomReport(r, &in, gens, n)
		}
	}
	return in
}

func randomRecords(r *rand.Rand, in *plan.Input, gens []replica.Generation, names []replica.NodeName) {
	j := in.Job
	holder := func() replica.Holder {
		n := pick(r, names...)
		return replica.Holder{Node: n, Incarnation: in.Nodes[n].Incarnation + replica.NodeIncarnation(10*(r.IntN(6)/5))}
	}
	for _, p := range allParts(j) {
		j.Parts = append(j.Parts, replica.PartRoot{Part: p, Root: root(p, j.Committed), Holders: []replica.Holder{holder()}})
	}
	if r.IntN(8) == 0 {
		j.Condemned = []replica.Generation{pick(r, gens...)}
	}
	if r.IntN(8) == 0 {
		j.Disputed = []replica.Dispute{{Generation: pick(r, gens...)}}
	}
	if r.IntN(4) == 0 {
		j.Proved = []replica.Holder{holder()}
	}
	if r.IntN(6) == 0 {
		j.Quarantined = []replica.NodeName{pick(r, names...)}
		if r.IntN(2) == 0 { // because of a dispute long ago, else drained
			j.Disputed = append(j.Disputed, replica.Dispute{Generation: replica.Generation{Step: 9}, Suspects: []replica.Rank{0},
				Votes: []replica.Vote{{Rank: 0, Root: replica.Digest{8}, Node: j.Quarantined[0]}, {Rank: 1, Root: replica.Digest{7}}, {Rank: 2, Root: replica.Digest{7}}}})
		}
	}
	if r.IntN(6) == 0 { // an event, as a drain: what is there serves
		h := holder()
		j.Faults = append(j.Faults, replica.Fault{Epoch: j.Epoch, Kind: replica.Drain, Node: h.Node, NodeIncarnation: h.Incarnation})
	}
	if r.IntN(4) == 0 {
		h := holder()
		j.Faults = append(j.Faults, replica.Fault{Epoch: j.Epoch, Kind: replica.Silent, Node: h.Node, NodeIncarnation: h.Incarnation})
		// Its ranks have been claimed by others since, or there would be nothing to plan.
		for i, c := range j.Ranks {
			if c.Node == h.Node {
				j.Ranks[i].NodeIncarnation = h.Incarnation + 100
			}
		}
	}
	for range r.IntN(3) {
		d := plan.DurableGen{Generation: pick(r, gens...), Parts: map[replica.Part]replica.Digest{}}
		for _, p := range allParts(j) {
			if r.IntN(10) > 0 {
				d.Parts[p] = root(p, d.Generation)
			}
		}
		in.Durable = append(in.Durable, d)
	}
}

func randomReport(r *rand.Rand, in *plan.Input, gens []replica.Generation, n replica.NodeName) replica.NodeReport {
	j := in.Job
	rep := replica.NodeReport{Job: j.ID, Holder: replica.Holder{Node: n, Incarnation: in.Nodes[n].Incarnation}, Session: pick[replica.Session](r, 2, 2, 2, 2, 2, 1),
		Fenced: j.ClosedEpoch - replica.Epoch(r.IntN(8)/7), Settled: r.IntN(8) > 0}
	for i, c := range j.Ranks {
		if c.Node == n {
			rep.Ranks = append(rep.Ranks, replica.RankReport{Rank: replica.Rank(i), Incarnation: c.Incarnation, Alive: true, Attached: true, Stopped: true})
		}
	}
	dense := r.IntN(3) + 1
	for _, p := range allParts(j) {
		for _, g := range gens {
			if r.IntN(4) >= dense {
				continue
			}
			h := replica.Held{Part: p, Generation: g, Root: root(p, g), Mirror: r.IntN(3) == 0, DaemonMade: r.IntN(6) == 0, Rank: replica.Rank(p.Index), Producer: replica.Incarnation(r.IntN(9)), Fetched: r.IntN(6) == 0}
			if p.Kind == replica.ReplicatedPart {
				h.Rank = replica.Rank(r.IntN(len(j.Ranks)))
			}
			if r.IntN(12) == 0 {
				h.Root[0] ^= 1
			}
			rep.Parts = append(rep.Parts, h)
		}
	}
	return rep
}

func allParts(j *replica.Job) (out []replica.Part) {
	for g := range j.Layout.NumGroups() {
		out = append(out, replica.OfGroup(replica.GroupID(g)))
	}
	for r := range j.Layout.World {
		out = append(out, replica.OfRank(replica.Rank(r)))
	}
	return out
}

// What follows is the twin. It shares no code with the planner.

func twinAcked(in plan.Input, n replica.NodeName) bool {
	rep, ok := in.Reports[n]
	return ok && in.Connected[n] && rep.Session == in.Nodes[n].Session && rep.Fenced >= in.Job.ClosedEpoch && rep.Settled
}

func twinFaulted(in plan.Input, n replica.NodeName) bool {
	for _, f := range in.Job.Faults {
		if f.Node == n && f.NodeIncarnation == in.Nodes[n].Incarnation && (f.Kind == replica.NodeDead || f.Kind == replica.Silent) {
			return true
		}
	}
	return false
}

// twinVoid tells whether a copy on a quarantined node is of a group whose majority outvoted a rank there, and Raft names no such root.
func twinVoid(j *replica.Job, n replica.NodeName, h replica.Held) bool {
	if !slices.Contains(j.Quarantined, n) || h.Part.Kind != replica.ReplicatedPart || h.Root == twinKnown(j, h.Part, h.Generation) {
		return false
	}
	for _, d := range j.Disputed {
		count := map[replica.Digest]int{}
		for _, v := range d.Votes {
			count[v.Root]++
		}
		for _, v := range d.Votes {
			won := slices.ContainsFunc(d.Votes, func(o replica.Vote) bool { return 2*count[o.Root] > len(d.Votes) })
			if uint32(d.Group) == h.Part.Index && v.Node == n && won && 2*count[v.Root] <= len(d.Votes) {
				return true
			}
		}
	}
	return false
}

func twinHealthy(in plan.Input, n replica.NodeName) bool {
	for _, h := range in.Job.Proved {
		if h.Node == n && h.Incarnation == in.Nodes[n].Incarnation {
			return false
		}
	}
	return twinAcked(in, n) && !twinFaulted(in, n)
}

// twinLate tells whether a part is of the last epoch and of a process that has come since.
func twinLate(j *replica.Job, h replica.Held) bool {
	return j.OpenedWith > 0 && h.Producer > j.OpenedWith && h.Generation.Epoch == j.Lineage[len(j.Lineage)-1].Epoch
}

// twinPart tells whether memory has a part of g, under which root, and whether a group speaks through one producer alone.
func twinPart(in plan.Input, p replica.Part, g replica.Generation, known replica.Digest) (have bool, sole bool) {
	roots, producers, others := map[replica.Digest]bool{}, map[replica.Rank]bool{}, map[replica.Digest]bool{}
	for n, rep := range in.Reports {
		for _, h := range rep.Parts {
			if !twinHealthy(in, n) || h.Part != p || h.Generation != g || twinLate(in.Job, h) || twinVoid(in.Job, n, h) {
				continue
			}
			if h.Root == known {
				have = true
			}
			if h.Mirror || h.DaemonMade || h.Fetched {
				others[h.Root] = true
			} else {
				roots[h.Root], producers[h.Rank] = true, true
			}
		}
	}
	if known != (replica.Digest{}) {
		return have, false
	}
	members := 0
	for _, x := range in.Job.Layout.Groups {
		if p.Kind == replica.ReplicatedPart && uint32(x) == p.Index {
			members++
		}
	}
	sole = members > 1 && len(producers) < 2
	if len(roots) > 0 {
		return len(roots) == 1, sole
	}
	return len(others) == 1, sole
}

func twinEligible(j *replica.Job, g replica.Generation) bool {
	opened := false
	for _, o := range j.Lineage {
		opened = opened || o.Epoch == g.Epoch
		if o.Epoch > g.Epoch && g.Step > o.Start {
			return false
		}
	}
	for _, d := range j.Disputed {
		rests := d.Generation.Step <= g.Step && (d.Generation.Epoch == j.Epoch || j.Lineage.Valid(d.Generation))
		if rests {
			return false
		}
	}
	return opened && !slices.Contains(j.Condemned, g) && g.Epoch >= j.Grown
}

func twinKnown(j *replica.Job, p replica.Part, g replica.Generation) replica.Digest {
	if g != j.Committed {
		return replica.Digest{}
	}
	return root(p, g)
}

func twin(in plan.Input) string {
	j := in.Job
	// Every daemon outside the fault set; of one whose memory is proved lost, only its rank matters.
	for n, node := range in.Nodes {
		concerned := !slices.Contains(j.Proved, replica.Holder{Node: n, Incarnation: node.Incarnation})
		for _, c := range j.Ranks {
			concerned = concerned || c.Node == n && !slices.Contains(j.Quarantined, n) && !slices.ContainsFunc(j.Faults, func(f replica.Fault) bool { return f.Node == n && f.NodeIncarnation == c.NodeIncarnation })
		}
		if concerned && !twinFaulted(in, n) && !twinAcked(in, n) {
			return "wait acks false false"
		}
	}
	memory := func(g replica.Generation) (whole, sole bool) {
		whole = twinEligible(j, g)
		for _, p := range allParts(j) {
			have, one := twinPart(in, p, g, twinKnown(j, p, g))
			whole, sole = whole && have, sole || one
		}
		return whole && !(sole && j.Options.RequireVotes), sole
	}
	// Newest step first, then newest epoch, over all that could exist.
	var best, lone replica.Generation
	found, sole, alone := false, false, false
	ahead := replica.Step(2)
	if j.Options.LoneAhead != 0 {
		ahead = j.Options.LoneAhead
	}
	for step := replica.Step(5); step+1 > 0 && !found; step-- {
		for epoch := replica.Epoch(4); epoch > 0 && !found; epoch-- {
			g := replica.Generation{Epoch: epoch, Step: step}
			switch whole, one := memory(g); {
			case whole && one && !alone:
				lone, alone = g, true
			case whole && !one && alone && (lone.Step-g.Step >= ahead || g.Step < j.Position.Step):
				best, found, sole = lone, true, true
			case whole && !one:
				best, found = g, true
			}
		}
	}
	if alone && !found {
		best, found, sole = lone, true, true
	}
	ready := func(g replica.Generation, sole bool, disk func(replica.Part) bool) string {
		for _, c := range j.Ranks {
			rep, ok := in.Reports[c.Node]
			current := ok && in.Connected[c.Node] && rep.Session == in.Nodes[c.Node].Session
			dead := slices.ContainsFunc(j.Faults, func(f replica.Fault) bool { return f.Node == c.Node && f.NodeIncarnation == c.NodeIncarnation }) || slices.Contains(j.Quarantined, c.Node)
			if !current || dead {
				return "wait ranks false false"
			}
		}
		lost := replica.Step(0)
		if j.Position.Step > g.Step {
			lost = j.Position.Step - g.Step
		}
		s := fmt.Sprint("ready  false false ", g, " lost ", lost, " unvouched ", sole)
		for _, p := range allParts(j) {
			s += fmt.Sprintf(" %v:%v", p, disk(p))
		}
		return s
	}
	if found && best.Step >= j.Position.Step {
		return ready(best, sole, func(replica.Part) bool { return false })
	}
	wait, proved := twinHolders(in)
	mayRead := j.Options.DurableEvery > 0
	if len(wait) > 0 {
		until := time.Duration(0)
		for _, n := range wait {
			since, ok := in.AwaySince[n]
			if !ok {
				since = in.Now
			}
			until = max(until, since+in.Grace)
		}
		return fmt.Sprint("wait holders ", mayRead && !in.Scanned, " false ", wait, " ", until)
	}
	if mayRead && !in.Scanned {
		return "wait scan true false"
	}
	for step := replica.Step(5); step+1 > 0; step-- {
		for epoch := replica.Epoch(4); epoch > 0; epoch-- {
			g := replica.Generation{Epoch: epoch, Step: step}
			if found && g == best {
				return ready(best, sole, func(replica.Part) bool { return false })
			}
			for _, d := range in.Durable {
				if d.Generation == g && len(d.Parts) == len(allParts(j)) && twinEligible(j, g) {
					return ready(g, false, func(p replica.Part) bool {
						have, _ := twinPart(in, p, g, d.Parts[p])
						return !have
					})
				}
			}
		}
	}
	for n, node := range in.Nodes { // whoever is away might hold something
		if !(twinAcked(in, n) && !twinFaulted(in, n)) && !slices.Contains(j.Proved, replica.Holder{Node: n, Incarnation: node.Incarnation}) {
			proved = false
		}
	}
	return fmt.Sprint("stuck  false ", proved)
}

// twinHolders lists recorded holders of missing parts of the committed generation that are within their grace and not
// proved lost, and whether all are proved lost, whatever their grace.
func twinHolders(in plan.Input) (wait []replica.NodeName, proved bool) {
	j := in.Job
	proved = true
	if !twinEligible(j, j.Committed) {
		return nil, true
	}
	for i, p := range allParts(j) {
		if have, _ := twinPart(in, p, j.Committed, root(p, j.Committed)); have {
			continue
		}
		recorded := slices.Clone(j.Parts[i].Holders)
		for r, c := range j.Ranks {
			if p.Kind == replica.PrivatePart && p.Index == uint32(r) || p.Kind == replica.ReplicatedPart && p.Index == uint32(j.Layout.Groups[r]) {
				recorded = append(recorded, replica.Holder{Node: c.Node, Incarnation: c.NodeIncarnation})
			}
		}
		if p.Kind == replica.PrivatePart {
			for _, n := range j.Mirrors[p.Index] {
				recorded = append(recorded, replica.Holder{Node: n, Incarnation: in.Nodes[n].Incarnation})
			}
		}
		for _, h := range recorded {
			if twinAcked(in, h.Node) && !twinFaulted(in, h.Node) || slices.Contains(j.Proved, h) {
				continue
			}
			proved = false
			since, ok := in.AwaySince[h.Node]
			if (!ok || in.Now-since < in.Grace) && !slices.Contains(wait, h.Node) {
				wait = append(wait, h.Node)
			}
		}
	}
	slices.Sort(wait)
	return wait, proved
}
