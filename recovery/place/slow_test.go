package place

import (
	"encoding/binary"
	"hash/fnv"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/replicad/replicad/replica"
)

// slowPlace is place as it reads: every usable node is held against the best so far. load counts the mirrors of the kind.
func slowPlace(in Placement, load map[replica.NodeName]int, part replica.Part, own, present []replica.NodeName, n int) (picked []replica.NodeName) {
	for _, name := range present {
		load[name]--
	}
	defer func() {
		for _, name := range picked {
			load[name]++
		}
	}()
	taken := slices.Clone(own)
	for len(picked) < n {
		best := spot{}
		for name, usable := range in.Usable {
			node, known := in.Nodes[name]
			if !usable || !known || slices.Contains(taken, name) {
				continue
			}
			s := spot{name: name, load: load[name], shared: slowShared(in.Nodes, node, taken), weight: slowWeigh(in.Job, part, name)}
			if slices.Contains(present, name) {
				s.present = 1
			}
			if in.Misfit != nil && in.Misfit(own[0], name) {
				s.misfit = 1
			}
			if best.name == "" || s.better(&best) {
				best = s
			}
		}
		if best.name == "" {
			break
		}
		picked, taken = append(picked, best.name), append(taken, best.name)
	}
	return picked
}

// slowFurther picks mirrors of a group's part: one for each copy that its own nodes lack, or have in a domain that another of them is in. Those beyond
// what they lack must be better than the best of its own nodes that share one.
func slowFurther(in Placement, load map[replica.NodeName]int, part replica.Part, own []replica.NodeName, copies int) []replica.NodeName {
	apart, harm := own[:1:1], 0
	for _, n := range own[1:] {
		shared := slowShared(in.Nodes, in.Nodes[n], apart)
		switch {
		case len(apart) >= copies:
		case shared == 0:
			apart = append(apart, n)
		case harm == 0 || shared < harm:
			harm = shared
		}
	}
	picked := slowPlace(in, load, part, own, nil, copies-len(apart))
	for i, n := range picked {
		if i < copies-len(own) {
			continue
		}
		if in.Misfit != nil && in.Misfit(own[0], n) || slowShared(in.Nodes, in.Nodes[n], append(slices.Clone(own), picked[:i]...)) >= harm {
			for _, n := range picked[i:] {
				load[n]--
			}
			return picked[:i]
		}
	}
	return picked
}

func slowShared(nodes map[replica.NodeName]replica.Node, n replica.Node, others []replica.NodeName) int {
	worst := 0
	for _, name := range others {
		o, harm := nodes[name], 0
		for _, d := range Harms {
			if l := n.Labels[d.Label]; l != "" && l == o.Labels[d.Label] {
				harm += d.Harm
			}
		}
		worst = max(worst, harm)
	}
	return worst
}

func slowWeigh(job replica.JobID, part replica.Part, node replica.NodeName) uint64 {
	h := fnv.New64a()
	h.Write(job[:])
	h.Write(binary.LittleEndian.AppendUint32([]byte{byte(part.Kind)}, part.Index))
	h.Write([]byte(node))
	x := h.Sum64()
	x = (x ^ x>>30) * 0xbf58476d1ce4e5b9
	x = (x ^ x>>27) * 0x94d049bb133111eb
	return x ^ x>>31
}

// chance is ranks on nodes with labels, some of which have no process yet.
func chance(rnd *rand.Rand) Placement {
	names := []replica.NodeName{"a", "b", "c", "d", "e"}[:1+rnd.IntN(5)]
	in := Placement{Job: replica.JobID{1}, Nodes: map[replica.NodeName]replica.Node{}, Usable: map[replica.NodeName]bool{}, Copies: rnd.IntN(5)}
	for _, n := range names {
		in.Nodes[n] = replica.Node{Name: n, Labels: map[string]string{"zone": pick(rnd, "", "1", "2"), "rack": pick(rnd, "", "1", "2"),
			"host": pick(rnd, "", "1", "2")}}
	}
	for r := range 1 + rnd.IntN(6) {
		in.Layout.Groups = append(in.Layout.Groups, replica.GroupID(min(rnd.IntN(3), r)))
		c := replica.Claimed{}
		if rnd.IntN(3) > 0 {
			c = replica.Claimed{Incarnation: 1, Node: pick(rnd, append(names, "gone")...)}
		}
		in.Ranks = append(in.Ranks, c)
	}
	in.Layout.World = uint32(len(in.Ranks))
	return in
}

func pick[T any](rnd *rand.Rand, of ...T) T { return of[rnd.IntN(len(of))] }

// TestMirrorsAgainstSlow holds the placement of mirrors against one that looks at everything for each part.
func TestMirrorsAgainstSlow(t *testing.T) {
	for seed := range uint64(5_000) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		in := chance(rnd)
		names := slices.Sorted(maps.Keys(in.Nodes))
		for _, n := range append(names, "gone") {
			in.Usable[n] = rnd.IntN(4) > 0
		}
		if rnd.IntN(2) == 0 {
			bad := pick(rnd, names...)
			in.Misfit = func(from, mirror replica.NodeName) bool { return mirror == bad || from == "a" && mirror == "b" }
		}
		for range in.Ranks {
			in.Mirrors = append(in.Mirrors, []replica.NodeName{pick(rnd, names...)})
		}
		byRank, byGroup := Mirrors(in)
		copies := in.Copies
		if copies < 1 {
			copies = replica.DefaultMinCopies
		}
		load := map[replica.NodeName]int{}
		for _, list := range in.Mirrors {
			load[list[0]]++
		}
		for r, c := range in.Ranks {
			var want []replica.NodeName
			if c.Incarnation != 0 {
				want = slowPlace(in, load, replica.OfRank(replica.Rank(r)), []replica.NodeName{c.Node}, in.Mirrors[r], copies-1)
			}
			if !slices.Equal(byRank[r], want) {
				t.Fatalf("seed %d: rank %d is mirrored by %v, looking at everything by %v", seed, r, byRank[r], want)
			}
		}
		clear(load)
		for g, members := range in.Layout.Members() {
			var own []replica.NodeName
			for _, r := range members {
				if c := in.Ranks[r]; c.Incarnation != 0 && !slices.Contains(own, c.Node) {
					own = append(own, c.Node)
				}
			}
			var want []replica.NodeName
			if len(own) > 0 {
				want = slowFurther(in, load, replica.OfGroup(replica.GroupID(g)), own, copies)
			}
			if !slices.Equal(byGroup[g], want) {
				t.Fatalf("seed %d: group %d is mirrored by %v, looking at everything by %v", seed, g, byGroup[g], want)
			}
		}
	}
}
