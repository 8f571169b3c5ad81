package recovery

import (
	"fmt"
	"maps"
	"slices"

	"github.com/replicad/replicad/replica"
)

// faultKey tells faults apart: one per subject, life of it and kind.
type faultKey struct {
	kind            replica.FaultKind
	rank            replica.Rank
	incarnation     replica.Incarnation
	node            replica.NodeName
	nodeIncarnation replica.NodeIncarnation
}

func (k faultKey) String() string {
	if k.node != "" {
		return fmt.Sprintf("%v of %s %d", k.kind, k.node, k.nodeIncarnation)
	}
	return fmt.Sprintf("%v of rank %d incarnation %d", k.kind, k.rank, k.incarnation)
}

func keyOf(f replica.Fault) faultKey {
	return faultKey{f.Kind, f.Rank, f.Incarnation, f.Node, f.NodeIncarnation}
}

// learnFault keeps evidence until it is recorded or concerns nobody any more.
func (l *Leader) learnFault(f replica.Fault) {
	if f.OfNode() && f.NodeIncarnation == 0 {
		f.NodeIncarnation = l.nodes[f.Node].Incarnation
	}
	if l.job != nil && f.Epoch == 0 {
		f.Epoch = l.job.Epoch
	}
	if _, known := l.evidence[keyOf(f)]; known || len(l.evidence) < maxEvidence {
		l.evidence[keyOf(f)] = f
	}
}

// assertFaults proposes every fault that is known and not recorded: evidence, and the conditions that reports show.
func (l *Leader) assertFaults() {
	for _, f := range l.conditions() {
		if !l.stale(f) && !l.recorded(f) {
			l.propose(replica.ReportFault{Job: l.id, Fault: f})
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(l.evidence), compareKeys) {
		f := l.evidence[k]
		if f.Epoch == 0 || f.Kind.IsCondition() {
			f.Epoch = l.job.Epoch // a condition lasts, so it cites the newest epoch
		}
		if l.stale(f) || l.recorded(f) {
			delete(l.evidence, k)
			continue
		}
		l.propose(replica.ReportFault{Job: l.id, Fault: f})
	}
}

// conditions are the process deaths that reports show: a daemon says that the process it runs for a claim is dead, or a
// node came back with another memory and without that process.
func (l *Leader) conditions() []replica.Fault {
	var out []replica.Fault
	in := l.input()
	for r, c := range l.job.Ranks {
		if c.Incarnation == 0 {
			continue
		}
		rank, dead, detail := replica.Rank(r), false, ""
		if rep, ok := l.reports[replica.Holder{Node: c.Node, Incarnation: c.NodeIncarnation}]; ok {
			if rr, listed := find(rep, rank, c.Incarnation); listed && !rr.Alive && !(rr.Left && l.job.Phase == replica.Open) {
				dead, detail = true, fmt.Sprintf("process %d is gone", rr.PID)
			}
		}
		if n, known := l.nodes[c.Node]; known && n.Incarnation != c.NodeIncarnation {
			rep, ok := in.current(c.Node)
			rr, listed := find(rep, rank, c.Incarnation)
			if ok && !(listed && rr.Alive) {
				dead, detail = true, fmt.Sprintf("node %s came back with another memory and without the process", c.Node)
			}
		}
		if dead {
			out = append(out, replica.Fault{Epoch: l.job.Epoch, Kind: replica.ProcessDead, Rank: rank, Incarnation: c.Incarnation, Detail: detail})
		}
	}
	return out
}

func find(rep replica.NodeReport, r replica.Rank, i replica.Incarnation) (replica.RankReport, bool) {
	for _, rr := range rep.Ranks {
		if rr.Rank == r && rr.Incarnation == i {
			return rr, true
		}
	}
	return replica.RankReport{}, false
}

// stale tells whether a fault changes nothing: its subject was superseded, has no part in the job, or it is an event of an
// epoch that has been followed by another.
func (l *Leader) stale(f replica.Fault) bool {
	if !f.Kind.IsCondition() && f.Epoch < l.job.Epoch {
		return true
	}
	if !f.OfNode() {
		return int(f.Rank) >= len(l.job.Ranks) || l.job.Ranks[f.Rank].Incarnation != f.Incarnation || f.Incarnation == 0
	}
	n, known := l.nodes[f.Node]
	return !known || n.Incarnation != f.NodeIncarnation && !HoldsRank(l.job, replica.Holder{Node: f.Node, Incarnation: f.NodeIncarnation}) || !l.involved(f.Node) && !l.awaitsNodes()
}

// involved tells whether the job's records name the node, in whatever life: for a rank, a mirror, or a part.
func (l *Leader) involved(n replica.NodeName) bool {
	has := func(names []replica.NodeName) bool { return slices.Contains(names, n) }
	holds := func(p replica.PartRoot) bool {
		return slices.ContainsFunc(p.Holders, func(h replica.Holder) bool { return h.Node == n })
	}
	return slices.ContainsFunc(l.job.Ranks, func(c replica.Claimed) bool { return c.Incarnation != 0 && c.Node == n }) ||
		slices.ContainsFunc(l.job.Mirrors, has) || slices.ContainsFunc(l.job.GroupMirrors, has) ||
		slices.ContainsFunc(l.job.Parts, holds) || l.job.Previous != nil && slices.ContainsFunc(l.job.Previous.Parts, holds)
}

// awaitsNodes tells whether a plan is being made, which waits for every node: then the fault of any matters.
func (l *Leader) awaitsNodes() bool {
	return l.job.Phase == replica.Closed || l.job.Phase == replica.Opening
}

// recorded tells whether the state machine has the fault, or for a condition any that says as much.
func (l *Leader) recorded(f replica.Fault) bool {
	return slices.ContainsFunc(l.job.Faults, func(g replica.Fault) bool {
		same := g.Rank == f.Rank && g.Incarnation == f.Incarnation && g.Node == f.Node && g.NodeIncarnation == f.NodeIncarnation
		// A node's fault covers the deaths of the ranks on it.
		covered := g.OfNode() && !f.OfNode() && g.Kind.IsCondition() && int(f.Rank) < len(l.job.Ranks) &&
			l.job.Ranks[f.Rank].Node == g.Node && l.job.Ranks[f.Rank].NodeIncarnation == g.NodeIncarnation
		// An event belongs to its epoch: the same one in the next is another (lock.reportFault).
		again := g.Kind == f.Kind && (f.Kind.IsCondition() || g.Epoch == f.Epoch)
		return same && (again || g.Kind.IsCondition() && f.Kind.IsCondition()) || covered
	})
}

func compareKeys(a, b faultKey) int {
	sa, sb := a.String(), b.String()
	switch {
	case sa < sb:
		return -1
	case sa > sb:
		return 1
	}
	return 0
}
