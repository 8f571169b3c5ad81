package recovery

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/replicad/replicad/recovery/plan"
	"github.com/replicad/replicad/replica"
)

// learnFault keeps evidence until it is recorded or concerns nobody any more.
func (kn *known) learnFault(f replica.Fault) {
	if f.OfNode() && f.NodeIncarnation == 0 {
		f.NodeIncarnation = kn.nodes[f.Node].Incarnation
	}
	if kn.job != nil && f.Epoch == 0 {
		f.Epoch = kn.job.Epoch
	}
	if _, known := kn.evidence[plan.KeyOf(f)]; known || len(kn.evidence) < maxEvidence {
		kn.evidence[plan.KeyOf(f)] = f
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
			out = append(out, replica.Fault{Epoch: kn.job.Epoch, Kind: replica.ProcessDead, Rank: replica.Rank(r),
				Incarnation: c.Incarnation, Detail: fmt.Sprintf("process %d is gone", rr.PID)})
		}
	}
	return out
}

// own is by rank what the life of the node that a claim names says of its process, as far as it has reported.
func (kn *known) own() []*replica.RankReport {
	if kn.owned == nil {
		kn.owned = make([]*replica.RankReport, len(kn.job.Ranks))
		for h, rep := range kn.reports {
			plan.Index(kn.owned, rep, func(c replica.Claimed) bool { return c.Node == h.Node && c.NodeIncarnation == h.Incarnation },
				kn.job.Ranks)
		}
	}
	return kn.owned
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
	return !known || n.Incarnation != f.NodeIncarnation && !kn.job.Runs[replica.Holder{Node: f.Node, Incarnation: f.NodeIncarnation}] ||
		!kn.job.Involved(f.Node) && !kn.awaitsNodes()
}

// inOrder are the keys of the evidence in the order of their texts.
func (kn *known) inOrder() []plan.FaultKey {
	keys, texts := make([]plan.FaultKey, 0, len(kn.evidence)), make(map[plan.FaultKey]string, len(kn.evidence))
	for k := range kn.evidence {
		keys, texts[k] = append(keys, k), k.String()
	}
	slices.SortFunc(keys, func(a, b plan.FaultKey) int { return cmp.Compare(texts[a], texts[b]) })
	return keys
}
