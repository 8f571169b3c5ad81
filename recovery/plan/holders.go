package plan

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/replicad/replicad/recovery/place"
	"github.com/replicad/replicad/replica"
)

// BadHolders are the nodes that report the planned copies of a part as bad: those in memory, or the one on disk.
func (in *Input) BadHolders(g replica.Generation, src replica.Source) (out []replica.Holder) {
	if in.counted.bad == nil {
		in.counted.bad = []replica.NodeReport{}
		for _, n := range slices.Sorted(maps.Keys(in.Reports)) {
			if rep, ok := in.Current(n); ok && len(rep.Bad)+len(rep.BadDisk) > 0 {
				in.counted.bad = append(in.counted.bad, rep)
			}
		}
	}
	for _, rep := range in.counted.bad {
		bad := rep.Bad
		if src.Tier == replica.Disk {
			bad = rep.BadDisk
		}
		if slices.ContainsFunc(bad, func(h replica.Held) bool {
			return h.Part == src.Part && h.Generation == g && h.Root == src.Root
		}) {
			out = append(out, rep.Holder)
		}
	}
	return out
}

// Servable tells whether some holder of a planned part may still give it: it holds it, or has not said that it doesn't.
func (in *Input) Servable(g replica.Generation, src replica.Source) bool {
	for _, h := range src.Holders {
		rep, ok := in.Current(h.Node)
		if !ok || rep.Holder != h {
			if !in.Record().HolderGone(h) {
				return true // away, and no evidence against it
			}
			continue
		}
		if slices.ContainsFunc(rep.Parts, func(x replica.Held) bool { return x.Part == src.Part && x.Generation == g && x.Root == src.Root }) {
			return true
		}
	}
	return false
}

// LoaderOf is a rank that has to load a part: the lowest.
func LoaderOf(l replica.Layout, p replica.Part) replica.Rank {
	if p.Kind == replica.PrivatePart {
		return replica.Rank(p.Index)
	}
	return replica.Rank(slices.Index(l.Groups, replica.GroupID(p.Index)))
}

func NodeNames(holders []replica.Holder) string {
	names := make([]string, len(holders))
	for i, h := range holders {
		names[i] = string(h.Node)
	}
	return strings.Join(names, ", ")
}

// doubts tells whether a copy does not count because several nodes were sent wrong bytes of it.
func (in *Input) doubts(h replica.Holder, held replica.Held) bool {
	return in.Doubted != nil && in.Doubted(h, held)
}

// doubtfulCopies says which copies don't count, for the reason of a plan; empty: all do.
func (in *Input) doubtfulCopies(g replica.Generation) string {
	if in.Doubted == nil {
		return ""
	}
	var names []replica.NodeName
	for _, n := range slices.Sorted(maps.Keys(in.Reports)) {
		rep := in.Reports[n]
		if slices.ContainsFunc(rep.Parts, func(h replica.Held) bool { return h.Generation == g && in.Doubted(rep.Holder, h) }) {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return ""
	}
	return fmt.Sprintf(" (the copies on %s were sent wrong to two nodes)", Joined(names))
}

func Names(holders []replica.Holder) []replica.NodeName {
	out := make([]replica.NodeName, len(holders))
	for i, h := range holders {
		out[i] = h.Node
	}
	return out
}

func Joined(names []replica.NodeName) string {
	if len(names) == 0 {
		return "any node"
	}
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = string(n)
	}
	return strings.Join(out, ", ")
}

// Held is who holds every part of a plan's generation under the plan's root now, and the fewest nodes that hold any.
func (in *Input) Held(p *replica.Plan) (roots []replica.PartRoot, fewest int) {
	fewest = len(in.Nodes)
	for _, src := range p.Sources {
		pr := replica.PartRoot{Part: src.Part, Root: src.Root}
		for _, h := range in.Holding(src.Part, p.Generation, src.Root) {
			if !slices.Contains(in.Job.Proved, h) {
				pr.Holders = append(pr.Holders, h)
			}
		}
		roots, fewest = append(roots, pr), min(fewest, len(pr.Holders))
	}
	return roots, fewest
}

// CopiesPossible is copies(p): min_copies, or as many nodes as can hold a copy if they are fewer.
func (in *Input) CopiesPossible() int {
	n := 0
	for _, ok := range in.Usable() {
		if ok {
			n++
		}
	}
	return max(1, min(place.MinCopies(in.Job.Options), n))
}

// copyOf is a copy of a part under one root.
type copyOf struct {
	part replica.Part
	root replica.Digest
}

// Holding names the nodes that may take mirrors and hold a part of a generation, in the order of their names.
func (in *Input) Holding(part replica.Part, g replica.Generation, root replica.Digest) []replica.Holder {
	if in.counted.holders == nil || in.counted.heldOf != g {
		in.counted.holders, in.counted.heldOf = make(map[copyOf][]replica.Holder), g
		usable := in.Usable()
		for _, n := range slices.Sorted(maps.Keys(in.Nodes)) {
			if !usable[n] {
				continue
			}
			rep := in.Reports[n]
			for _, h := range rep.Parts {
				c := copyOf{h.Part, h.Root}
				if have := in.counted.holders[c]; h.Generation == g && (len(have) == 0 || have[len(have)-1] != rep.Holder) {
					in.counted.holders[c] = append(have, rep.Holder)
				}
			}
		}
	}
	return in.counted.holders[copyOf{part, root}]
}

// Shortages names what nodes are short of.
func (in *Input) Shortages() (out string) {
	for _, n := range slices.Sorted(maps.Keys(in.Reports)) {
		if _, ok := in.Current(n); ok && in.Reports[n].Short != "" {
			out += fmt.Sprintf("; node %s is short of %s", n, in.Reports[n].Short)
		}
	}
	return out
}
