package recovery

import (
	"slices"
	"strings"

	"github.com/replicad/replicad/replica"
)

// Odds says of how many ways to lose so many nodes at once memory alone would keep every committed step. The nodes are those that hold
// something of it: the loss of any other node costs no part.
type Odds struct {
	Lost    int    // nodes at once
	Of      int    // nodes that hold a part
	Ways    uint64 // to lose so many of them
	Survive uint64 // ways after which each part has a holder left
}

// maxLost bounds the nodes that Odds counts the losses of: three at most, which closed forms answer for any number of nodes.
const maxLost = 3

// Odds counts the ways to lose one, two and three more nodes beyond this loss, exactly. A way loses a step if it takes all holders of a part.
func (s Survival) Odds() []Odds {
	var held []replica.PartHolders
	if s.InMemory() {
		held = s.Held(s.of.now.Job.Committed)
	}
	return odds(held)
}

// odds counts over the holders of all parts.
func odds(held []replica.PartHolders) (out []Odds) {
	nodes, single, pairs, triples := make(map[replica.NodeName]bool), make(map[replica.NodeName]bool), make(map[[2]replica.NodeName]bool), make(map[[3]replica.NodeName]bool)
	for _, p := range held {
		var on []replica.NodeName
		for _, h := range p.Holders {
			on = append(on, h.Node)
			nodes[h.Node] = true
		}
		slices.Sort(on)
		switch on = slices.Compact(on); len(on) {
		case 1:
			single[on[0]] = true
		case 2:
			pairs[[2]replica.NodeName(on)] = true
		case 3:
			triples[[3]replica.NodeName(on)] = true
		}
	}
	degree := make(map[replica.NodeName]uint64) // pairs and triples count where no smaller set of holders is in them
	for p := range pairs {
		if single[p[0]] || single[p[1]] {
			delete(pairs, p)
			continue
		}
		degree[p[0]]++
		degree[p[1]]++
	}
	pair := func(a, b replica.NodeName) bool {
		if strings.Compare(string(a), string(b)) > 0 {
			a, b = b, a
		}
		return pairs[[2]replica.NodeName{a, b}]
	}
	for t := range triples {
		if single[t[0]] || single[t[1]] || single[t[2]] || pair(t[0], t[1]) || pair(t[1], t[2]) || pair(t[0], t[2]) {
			delete(triples, t)
		}
	}
	var adjacent uint64 // two pairs with a node in common
	for _, d := range degree {
		adjacent += choose(d, 2)
	}
	n, free, e := uint64(len(nodes)), uint64(len(nodes)-len(single)), uint64(len(pairs))
	for lost := uint64(1); lost <= min(maxLost, n); lost++ {
		o := Odds{Lost: int(lost), Of: len(nodes), Ways: choose(n, lost), Survive: choose(free, lost)} // without the nodes that alone hold a part
		switch lost {
		case 2:
			o.Survive -= e
		case 3: // with a pair in it: each of one pair once, those of two and three pairs once as well; and with three holders that are no pairs
			if e > 0 {
				o.Survive -= e*(free-2) - adjacent + triangles(pairs)
			}
			o.Survive -= uint64(len(triples))
		}
		out = append(out, o)
	}
	return out
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
