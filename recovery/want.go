package recovery

import (
	"fmt"
	"maps"
	"slices"

	"github.com/replicad/replicad/replica"
)

// excuse takes the newest recovery out of the budget where a rank at fault lies on a node that is short of something: a want passes, and is
// nobody's failure. The node reports the want while it lasts and shortly after, so a later word of it still counts.
func (l *Leader) excuse() {
	if l.excused == l.known.job.ClosedEpoch || !l.known.awaitsNodes() {
		return
	}
	in := l.input()
	for _, f := range l.known.job.Faults {
		if f.OfNode() || l.known.stale(f) {
			continue
		}
		if n := l.known.job.Ranks[f.Rank].Node; in.Reports[n].Short != "" {
			l.excused = l.known.job.ClosedEpoch
			l.known.clocks.EndAll(func(k replica.Clock) bool { return k.Kind == clockRecovered && k.Epoch == l.known.job.ClosedEpoch })
			l.known.clocks.endTold(func(k replica.Clock) bool { return k.Kind == clockRecovered && k.Epoch == l.known.job.ClosedEpoch })
			return
		}
	}
}

// roomElsewhere tells whether the node that a rank is offered to is short of something, and another one has a process for the rank. The process
// that waits there stays, and gets the rank if it finds what it lacks first.
func (l *Leader) roomElsewhere(in *PlanInput, s *seats, r replica.Rank, o *offering) bool {
	if in.Reports[o.node].Short == "" || s.looks >= maxLooks {
		return false
	}
	but := *o
	but.tried = map[replica.NodeName]bool{o.node: true}
	for n := range o.tried {
		but.tried[n] = true
	}
	_, ok := l.pickNode(in, s, r, &but)
	return ok
}

// shortages names what nodes are short of.
func (in *PlanInput) shortages() (out string) {
	for _, n := range slices.Sorted(maps.Keys(in.Reports)) {
		if _, ok := in.current(n); ok && in.Reports[n].Short != "" {
			out += fmt.Sprintf("; node %s is short of %s", n, in.Reports[n].Short)
		}
	}
	return out
}
