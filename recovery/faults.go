package recovery

import (
	"cmp"
	"fmt"
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
func (kn *known) learnFault(f replica.Fault) {
	if f.OfNode() && f.NodeIncarnation == 0 {
		f.NodeIncarnation = kn.nodes[f.Node].Incarnation
	}
	if kn.job != nil && f.Epoch == 0 {
		f.Epoch = kn.job.Epoch
	}
	if _, known := kn.evidence[keyOf(f)]; known || len(kn.evidence) < maxEvidence {
		kn.evidence[keyOf(f)] = f
	}
}

// assertFaults proposes every fault that is known and not recorded: evidence, and the conditions that reports show.
func (l *Leader) assertFaults() {
	for _, f := range l.known.conditions() {
		if !l.known.stale(f) && !l.known.job.says(f) {
			l.outbox.propose(replica.ReportFault{Job: l.known.id, Fault: f})
		}
	}
	for _, k := range l.known.inOrder() {
		f := l.known.evidence[k]
		if f.Epoch == 0 || f.Kind.IsCondition() {
			f.Epoch = l.known.job.Epoch // a condition lasts, so it cites the newest epoch
		}
		if l.known.stale(f) || l.known.job.says(f) {
			delete(l.known.evidence, k)
			continue
		}
		l.outbox.propose(replica.ReportFault{Job: l.known.id, Fault: f})
	}
}

// conditions are the process deaths that reports show: a daemon says that the process it runs for a claim is dead. What a node lost with its
// memory is at fault since it registered (lock.nextLife).
func (kn *known) conditions() []replica.Fault {
	var out []replica.Fault
	own := kn.own()
	for r, c := range kn.job.Ranks {
		if c.Incarnation == 0 {
			continue
		}
		if rr := own[r]; rr != nil && !rr.Alive && !(rr.Left && kn.job.Phase == replica.Open) {
			out = append(out, replica.Fault{Epoch: kn.job.Epoch, Kind: replica.ProcessDead, Rank: replica.Rank(r), Incarnation: c.Incarnation, Detail: fmt.Sprintf("process %d is gone", rr.PID)})
		}
	}
	return out
}

// own is by rank what the life of the node that a claim names says of its process, as far as it has reported.
func (kn *known) own() []*replica.RankReport {
	if kn.owned == nil {
		kn.owned = make([]*replica.RankReport, len(kn.job.Ranks))
		for h, rep := range kn.reports {
			index(kn.owned, rep, func(c replica.Claimed) bool { return c.Node == h.Node && c.NodeIncarnation == h.Incarnation }, kn.job.Ranks)
		}
	}
	return kn.owned
}

// index enters what a report says of the processes that hold the ranks of a node.
func index(by []*replica.RankReport, rep replica.NodeReport, here func(replica.Claimed) bool, ranks []replica.Claimed) {
	for i := range rep.Ranks {
		rr := &rep.Ranks[i]
		if int(rr.Rank) < len(ranks) && by[rr.Rank] == nil && ranks[rr.Rank].Incarnation == rr.Incarnation && here(ranks[rr.Rank]) {
			by[rr.Rank] = rr
		}
	}
}

// stale tells whether a fault changes nothing: its subject was superseded, has no part in the job, or it is an event of an
// epoch that has been followed by another.
func (kn *known) stale(f replica.Fault) bool {
	if !f.Kind.IsCondition() && f.Epoch < kn.job.Epoch {
		return true
	}
	if !f.OfNode() {
		return int(f.Rank) >= len(kn.job.Ranks) || kn.job.Ranks[f.Rank].Incarnation != f.Incarnation || f.Incarnation == 0
	}
	n, known := kn.nodes[f.Node]
	return !known || n.Incarnation != f.NodeIncarnation && !kn.job.runs[replica.Holder{Node: f.Node, Incarnation: f.NodeIncarnation}] || !kn.job.involved(f.Node) && !kn.awaitsNodes()
}

// inOrder are the keys of the evidence in the order of their texts.
func (kn *known) inOrder() []faultKey {
	keys, texts := make([]faultKey, 0, len(kn.evidence)), make(map[faultKey]string, len(kn.evidence))
	for k := range kn.evidence {
		keys, texts[k] = append(keys, k), k.String()
	}
	slices.SortFunc(keys, func(a, b faultKey) int { return cmp.Compare(texts[a], texts[b]) })
	return keys
}
