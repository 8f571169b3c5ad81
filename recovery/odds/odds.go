// Package odds answers what-ifs by the rules of recovery/plan: what a loss of nodes would cost a job, and how likely more losses are to
// end it.
// Plain data in, plain data out; it imports only replica and what lies beside it.
package odds

import (
	"maps"
	"slices"

	"github.com/replicad/replicad/replica"
)

// Odds says of how many ways to lose so many nodes at once memory alone would keep every committed step, with a majority of the voters to go on from
// it. The nodes are those that hold something of it and those that vote: the loss of any other node costs neither.
type Odds struct {
	Lost    int    // nodes at once
	Of      int    // nodes that hold a part or vote
	Ways    uint64 // to lose so many of them
	Survive uint64 // ways after which each part has a holder left, and most voters vote
}

// maxLost bounds the nodes that Odds counts the losses of: three at most, which closed forms answer for any number of nodes.
const maxLost = 3

// Odds counts the ways to lose one, two and three more nodes beyond this loss, exactly. A way loses a step if it takes all holders of a part, and the
// majority if it takes more voters than can be spared.
func (s Survival) Odds() []Odds {
	if !s.InMemory() {
		return nil
	}
	voting := slices.DeleteFunc(s.Loss.voting(), func(n replica.NodeName) bool { return s.is[n] })
	return newHoldings(s.Held(s.of.now.Job.Committed), voting).odds(s.Loss.spare())
}

// holdings are the smallest sets of nodes which hold a part alone, up to three of them.
type holdings struct {
	nodes   map[replica.NodeName]bool
	voting  []replica.NodeName // in order
	single  map[replica.NodeName]bool
	pairs   map[[2]replica.NodeName]bool
	triples map[[3]replica.NodeName]bool
}

func newHoldings(held []replica.PartHolders, voting []replica.NodeName) *holdings {
	h := &holdings{nodes: make(map[replica.NodeName]bool), voting: slices.Sorted(slices.Values(voting)), single: make(map[replica.NodeName]bool), pairs: make(map[[2]replica.NodeName]bool), triples: make(map[[3]replica.NodeName]bool)}
	for _, n := range voting {
		h.nodes[n] = true
	}
	for _, p := range held {
		var on []replica.NodeName
		for _, holder := range p.Holders {
			on = append(on, holder.Node)
			h.nodes[holder.Node] = true
		}
		slices.Sort(on)
		switch on = slices.Compact(on); len(on) {
		case 1:
			h.single[on[0]] = true
		case 2:
			h.pairs[[2]replica.NodeName(on)] = true
		case 3:
			h.triples[[3]replica.NodeName(on)] = true
		}
	}
	maps.DeleteFunc(h.pairs, func(p [2]replica.NodeName, _ bool) bool { return h.loses(p[:1]) || h.loses(p[1:]) }) // they count where no smaller set is in them
	maps.DeleteFunc(h.triples, func(t [3]replica.NodeName, _ bool) bool {
		return h.loses(t[:2]) || h.loses(t[1:]) || h.loses([]replica.NodeName{t[0], t[2]})
	})
	return h
}

// loses tells whether up to three nodes, in order, are all the holders of a part.
func (h *holdings) loses(n []replica.NodeName) bool {
	for i, a := range n {
		if h.single[a] {
			return true
		}
		for _, b := range n[i+1:] {
			if h.pairs[[2]replica.NodeName{a, b}] {
				return true
			}
		}
	}
	return len(n) == 3 && h.triples[[3]replica.NodeName(n)]
}

// odds counts the ways in which no part is lost, and of those that vote no more than spare.
func (h *holdings) odds(spare int) (out []Odds) {
	n, within := uint64(len(h.nodes)), h
	if spare == 0 { // no voter is in any way that survives
		within = h.without(h.voting)
	}
	for lost := 1; lost <= min(maxLost, len(h.nodes)); lost++ {
		o := Odds{Lost: lost, Of: len(h.nodes), Ways: choose(n, uint64(lost)), Survive: within.keep(lost)}
		if spare > 0 {
			o.Survive -= h.outvoted(lost, spare)
		}
		out = append(out, o)
	}
	return out
}

// without is the same with some nodes, which are never lost.
func (h *holdings) without(never []replica.NodeName) *holdings {
	is := func(n replica.NodeName) bool { return slices.Contains(never, n) }
	out := &holdings{nodes: maps.Clone(h.nodes), single: maps.Clone(h.single), pairs: maps.Clone(h.pairs), triples: maps.Clone(h.triples)}
	maps.DeleteFunc(out.nodes, func(n replica.NodeName, _ bool) bool { return is(n) })
	maps.DeleteFunc(out.single, func(n replica.NodeName, _ bool) bool { return is(n) })
	maps.DeleteFunc(out.pairs, func(p [2]replica.NodeName, _ bool) bool { return slices.ContainsFunc(p[:], is) })
	maps.DeleteFunc(out.triples, func(t [3]replica.NodeName, _ bool) bool { return slices.ContainsFunc(t[:], is) })
	return out
}

// keep counts the ways to lose so many nodes, up to three, that lose no part.
func (h *holdings) keep(lost int) uint64 {
	free, e := uint64(len(h.nodes)-len(h.single)), uint64(len(h.pairs))
	out := choose(free, uint64(lost)) // without the nodes that alone hold a part
	switch lost {
	case 2:
		out -= e
	case 3: // with a pair in it: each of one pair once, those of two and three pairs once as well; and with three holders that are no pairs
		if e > 0 {
			var adjacent uint64 // two pairs with a node in common
			degree := make(map[replica.NodeName]uint64)
			for p := range h.pairs {
				degree[p[0]]++
				degree[p[1]]++
			}
			for _, d := range degree {
				adjacent += choose(d, 2)
			}
			out -= e*(free-2) - adjacent + triangles(h.pairs)
		}
		out -= uint64(len(h.triples))
	}
	return out
}

// outvoted counts the ways to lose so many nodes, up to three, that lose no part and more of the voters than can be spared, which is at least one.
func (h *holdings) outvoted(lost, spare int) (ways uint64) {
	if lost <= spare {
		return 0
	}
	count := func(n ...replica.NodeName) {
		if slices.Sort(n); !h.loses(n) {
			ways++
		}
	}
	for i, a := range h.voting {
		for j, b := range h.voting[i+1:] {
			if lost == 2 {
				count(a, b)
				continue
			}
			for _, c := range h.voting[i+1+j+1:] {
				count(a, b, c)
			}
			if spare > 1 {
				continue
			}
			for c := range h.nodes { // two voters and any other node
				if _, votes := slices.BinarySearch(h.voting, c); !votes {
					count(a, b, c)
				}
			}
		}
	}
	return ways
}

// triangles counts three nodes each two of which are a pair.
func triangles(pairs map[[2]replica.NodeName]bool) (n uint64) {
	after := make(map[replica.NodeName][]replica.NodeName) // by the smaller name of each pair
	for p := range pairs {
		after[p[0]] = append(after[p[0]], p[1])
	}
	for _, list := range after {
		slices.Sort(list)
		for i, b := range list {
			for _, c := range list[i+1:] {
				if pairs[[2]replica.NodeName{b, c}] {
					n++
				}
			}
		}
	}
	return n
}

// choose is n over k.
func choose(n, k uint64) uint64 {
	if k > n {
		return 0
	}
	out := uint64(1)
	for i := range k {
		out = out * (n - i) / (i + 1)
	}
	return out
}
