package odds_test

import (
	"fmt"
	"maps"
	"math/bits"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/replicad/replicad/recovery/odds"
	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// The odds are what losing every set of nodes comes to, one set after the other.
func TestOddsAgainstEveryLoss(t *testing.T) {
	kinds := map[bool]int{}
	for seed := range uint64(1_000) {
		in := openInput(rand.New(rand.NewPCG(seed, 7)))
		votes := votersOf(rand.New(rand.NewPCG(seed, 8)), in)
		base := odds.Survives(in, votes)[0]
		counted := base.Odds()
		holders := map[replica.NodeName]bool{}
		for _, v := range votes.Voters {
			holders[v] = !slices.Contains(votes.Mute, v)
		}
		maps.DeleteFunc(holders, func(_ replica.NodeName, votes bool) bool { return !votes })
		for _, p := range base.Held(in.Job.Committed) {
			for _, h := range p.Holders {
				holders[h.Node] = true
			}
		}
		names := slices.Sorted(maps.Keys(holders))
		if want := min(3, len(names)); base.InMemory() && len(counted) != want || !base.InMemory() && len(counted) != 0 {
			t.Fatalf("seed %d: on in memory %v, %d holders: %+v", seed, base.InMemory(), len(names), counted)
		}
		for _, o := range counted {
			is := odds.Odds{Lost: o.Lost, Of: len(names)}
			var losses []odds.Loss
			for set := range uint(1) << len(names) {
				if bits.OnesCount(set) != o.Lost {
					continue
				}
				loss := votes
				for i, n := range names {
					if set&(1<<i) != 0 {
						loss.Nodes = append(loss.Nodes, n)
					}
				}
				losses = append(losses, loss)
			}
			for _, s := range odds.Survives(in, losses...) {
				if is.Ways++; s.InMemory() && s.Quorate() {
					is.Survive++
				}
			}
			kinds[is.Survive > 0 && is.Survive < is.Ways]++
			if o != is {
				t.Fatalf("seed %d: said %+v, counted %+v: %v", seed, o, is, base.Held(in.Job.Committed))
			}
		}
	}
	if kinds[true] < 500 || kinds[false] < 500 {
		t.Errorf("some and all of the ways survived: %v: too few of a kind to tell", kinds)
	}
}

// votersOf are none to five of the nodes, some of which do not vote; a majority does.
func votersOf(r *rand.Rand, in plan.Input) (l odds.Loss) {
	l.Voters = slices.Sorted(maps.Keys(in.Nodes))
	r.Shuffle(len(l.Voters), func(i, j int) { l.Voters[i], l.Voters[j] = l.Voters[j], l.Voters[i] })
	l.Voters = l.Voters[:min(len(l.Voters), []int{0, 1, 3, 5}[r.IntN(4)])]
	l.Mute = l.Voters[:r.IntN(max(0, len(l.Voters)-1)/2+1)]
	return l
}

// openInput is a job that trains, with parts on one to four of up to nine nodes, in memory that some have lost since.
func openInput(r *rand.Rand) plan.Input {
	at := replica.Generation{Epoch: 1, Step: 7}
	in := plan.Input{Nodes: map[replica.NodeName]replica.Node{}, Reports: map[replica.NodeName]replica.NodeReport{}, Connected: map[replica.NodeName]bool{}}
	in.Job = &replica.Job{ID: replica.JobID{1}, Phase: replica.Open, Lineage: replica.Lineage{{Epoch: 1}}, Epoch: 1, Committed: at, Position: replica.Position(at), Copies: 1}
	nodes := 1 + r.IntN(9)
	for i := range nodes {
		n := replica.NodeName(rune('a' + i))
		in.Nodes[n], in.Connected[n] = replica.Node{Name: n, Incarnation: 1, Session: 1}, true
		in.Reports[n] = replica.NodeReport{Job: in.Job.ID, Holder: replica.Holder{Node: n, Incarnation: 1}, Session: 1}
	}
	few := r.IntN(2) == 0
	for rank := range 1 + r.IntN(8) {
		in.Job.Layout.Groups = append(in.Job.Layout.Groups, replica.GroupID(rank))
		in.Job.Ranks = append(in.Job.Ranks, replica.Claimed{Incarnation: 1, Node: "a", NodeIncarnation: 1})
		in.Job.Layout.World++
		for _, part := range []replica.Part{replica.OfRank(replica.Rank(rank)), replica.OfGroup(replica.GroupID(rank))} {
			p := replica.PartRoot{Part: part, Root: replica.Digest{1}}
			for range 1 + r.IntN(4) + map[bool]int{true: 0, false: 1}[few] {
				p.Holders = append(p.Holders, replica.Holder{Node: replica.NodeName(rune('a' + r.IntN(nodes))), Incarnation: replica.NodeIncarnation(1 + r.IntN(30)/29)})
			}
			in.Job.Parts = append(in.Job.Parts, p)
		}
	}
	return in
}

// Thousands of nodes are counted as exactly: each part lies on two neighbours in a ring.
func TestOddsOfManyNodes(t *testing.T) {
	in := openInput(rand.New(rand.NewPCG(1, 1)))
	const nodes = 5000
	name := func(i int) replica.NodeName { return replica.NodeName(fmt.Sprintf("n%04d", i%nodes)) }
	in.Job.Parts, in.Job.Ranks, in.Job.Layout = nil, make([]replica.Claimed, nodes), replica.Apart(nodes)
	for i := range nodes {
		in.Nodes[name(i)] = replica.Node{Name: name(i), Incarnation: 1, Session: 1}
		for _, part := range []replica.Part{replica.OfRank(replica.Rank(i)), replica.OfGroup(replica.GroupID(i))} {
			in.Job.Parts = append(in.Job.Parts, replica.PartRoot{Part: part, Root: replica.Digest{1}, Holders: []replica.Holder{{Node: name(i), Incarnation: 1}, {Node: name(i + 1), Incarnation: 1}}})
		}
	}
	const pairs, triples = nodes * (nodes - 1) / 2, nodes * (nodes - 1) * (nodes - 2) / 6
	want := []odds.Odds{{1, nodes, nodes, nodes}, {2, nodes, pairs, pairs - nodes}, {3, nodes, triples, triples - nodes*(nodes-3)}} // the third beside a pair is any but its ends' neighbours, which make three in a row: counted once
	if got := odds.Survives(in, odds.Loss{})[0].Odds(); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
