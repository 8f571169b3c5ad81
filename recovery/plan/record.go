package plan

import (
	"fmt"
	"slices"

	"github.com/replicad/replicad/replica"
)

// Record is what the state machine says of a job, with what follows from it counted once: looked up in the job itself, each
// question about a rank or a node would walk over all faults, ranks or parts.
type Record struct {
	*replica.Job
	// by rank: the highest that the faults, or a quarantine, ask for its present incarnation; 0: none concerns it
	Rungs    []Rung
	gone     map[replica.Holder]bool // lives of nodes that are dead or silent
	faulted  map[replica.Holder]bool // lives of nodes that a fault of whatever kind names
	barred   map[replica.NodeName]bool
	recorded map[FaultKey][]replica.Epoch // of the recorded faults
	subjects map[FaultKey]bool            // of the recorded conditions: the key without its kind
	Members  [][]replica.Rank             // by group
	Runs     map[replica.Holder]bool      // lives of nodes that hold a rank
	names    map[replica.NodeName]bool    // that the records name: see involved; made when it is first asked for
	Attached bool                         // some rank has a process that has attached: it waits for those that have not
	known    map[replica.Part]replica.PartRoot
	before   map[replica.Part]replica.PartRoot // the same of what was committed before
}

// NewRecord counts what follows from a job's record.
func NewRecord(j *replica.Job) *Record {
	k := &Record{Job: j, Rungs: make([]Rung, len(j.Ranks)), gone: make(map[replica.Holder]bool), faulted: make(map[replica.Holder]bool),
		barred: make(map[replica.NodeName]bool), recorded: make(map[FaultKey][]replica.Epoch), subjects: make(map[FaultKey]bool),
		Members: j.Layout.Members(), Runs: make(map[replica.Holder]bool)}
	nodes := make(map[replica.Holder]Rung)
	for _, f := range j.Faults {
		k.recorded[KeyOf(f)] = append(k.recorded[KeyOf(f)], f.Epoch)
		if f.Kind.IsCondition() {
			k.subjects[subjectOf(f)] = true
		}
		if !f.OfNode() {
			if int(f.Rank) < len(j.Ranks) && j.Ranks[f.Rank].Incarnation == f.Incarnation {
				k.Rungs[f.Rank] = max(k.Rungs[f.Rank], FirstRung(f.Kind))
			}
			continue
		}
		h := replica.Holder{Node: f.Node, Incarnation: f.NodeIncarnation}
		nodes[h] = max(nodes[h], FirstRung(f.Kind))
		k.faulted[h] = true
		if f.Kind.IsCondition() {
			k.gone[h] = true
		}
	}
	for _, n := range j.Quarantined {
		k.barred[n] = true
	}
	for r, c := range j.Ranks {
		h := replica.Holder{Node: c.Node, Incarnation: c.NodeIncarnation}
		k.Rungs[r] = max(k.Rungs[r], nodes[h])
		if c.Incarnation != 0 {
			k.Runs[h] = true
			if k.barred[c.Node] {
				k.Rungs[r] = max(k.Rungs[r], Elsewhere)
			}
		}
		k.Attached = k.Attached || !k.Vacant(replica.Rank(r))
	}
	return k
}

// Vacant tells whether a rank needs a new claim: nobody holds it, or who does is lost or has to go.
func (k *Record) Vacant(r replica.Rank) bool {
	return k.Ranks[r].Incarnation == 0 || k.Rungs[r] >= Process
}

// HolderGone tells whether a node's copies don't count: it is dead or silent. The state machine refuses plans that name such a
// holder. A node that is drained, or unfit for ranks for another reason, still serves what it holds.
func (k *Record) HolderGone(h replica.Holder) bool { return k.gone[h] }

// Admits tells whether nothing is held against that life of a node: no fault of whatever kind, and no quarantine.
func (k *Record) Admits(h replica.Holder) bool { return !k.faulted[h] && !k.barred[h.Node] }

// says tells whether the state machine has the fault, or for a condition any that says as much.
func (k *Record) Records(f replica.Fault) bool {
	same := k.recorded[KeyOf(f)]
	if f.Kind.IsCondition() {
		// A node's fault covers the deaths of the ranks on it.
		return len(same) > 0 || k.subjects[subjectOf(f)] || k.covered(f)
	}
	// An event belongs to its epoch: the same one in the next is another (lock.reportFault).
	return slices.Contains(same, f.Epoch) || k.covered(f)
}

func (k *Record) covered(f replica.Fault) bool {
	return !f.OfNode() && int(f.Rank) < len(k.Ranks) && k.gone[replica.Holder{Node: k.Ranks[f.Rank].Node, Incarnation: k.Ranks[f.Rank].NodeIncarnation}]
}

// Involved tells whether the job's records name the node, in whatever life: for a rank, a mirror, or a part.
func (k *Record) Involved(n replica.NodeName) bool {
	if k.names == nil {
		k.names = make(map[replica.NodeName]bool)
		for h := range k.Runs {
			k.names[h.Node] = true
		}
		for _, lists := range [][][]replica.NodeName{k.Mirrors, k.GroupMirrors} {
			for _, list := range lists {
				for _, n := range list {
					k.names[n] = true
				}
			}
		}
		parts := k.Parts
		if k.Previous != nil {
			parts = slices.Concat(parts, k.Previous.Parts)
		}
		for _, p := range parts {
			for _, h := range p.Holders {
				k.names[h.Node] = true
			}
		}
	}
	return k.names[n]
}

// MembersOf are the ranks of a group, in rising order.
func (k *Record) MembersOf(g replica.GroupID) []replica.Rank {
	if int(g) < len(k.Members) {
		return k.Members[g]
	}
	return nil
}

// committed is what is recorded of a part of the committed generation.
func (k *Record) PartRoot(part replica.Part) replica.PartRoot {
	if k.known == nil {
		k.known = byPart(k.Parts)
	}
	return k.known[part]
}

// Root is the root of a part of the committed generation, or of the one before that was kept; zero if g is another.
func (k *Record) Root(g replica.Generation, part replica.Part) replica.Digest {
	switch {
	case g == k.Committed:
		return k.PartRoot(part).Root
	case k.Previous != nil && g == k.Previous.Generation:
		if k.before == nil {
			k.before = byPart(k.Previous.Parts)
		}
		return k.before[part].Root
	}
	return replica.Digest{}
}

func byPart(parts []replica.PartRoot) map[replica.Part]replica.PartRoot {
	out := make(map[replica.Part]replica.PartRoot, len(parts))
	for _, p := range parts {
		if _, twice := out[p.Part]; !twice {
			out[p.Part] = p
		}
	}
	return out
}

// subjectOf is a fault's key without its kind.
func subjectOf(f replica.Fault) FaultKey {
	k := KeyOf(f)
	k.kind = 0
	return k
}

// FaultKey tells faults apart: one per subject, life of it and kind.
type FaultKey struct {
	kind            replica.FaultKind
	rank            replica.Rank
	incarnation     replica.Incarnation
	node            replica.NodeName
	nodeIncarnation replica.NodeIncarnation
}

func (k FaultKey) String() string {
	if k.node != "" {
		return fmt.Sprintf("%v of %s %d", k.kind, k.node, k.nodeIncarnation)
	}
	return fmt.Sprintf("%v of rank %d incarnation %d", k.kind, k.rank, k.incarnation)
}

func KeyOf(f replica.Fault) FaultKey {
	return FaultKey{f.Kind, f.Rank, f.Incarnation, f.Node, f.NodeIncarnation}
}

// Index enters what a report says of the processes that hold the ranks of a node.
func Index(by []*replica.RankReport, rep replica.NodeReport, here func(replica.Claimed) bool, ranks []replica.Claimed) {
	for i := range rep.Ranks {
		rr := &rep.Ranks[i]
		if int(rr.Rank) < len(ranks) && by[rr.Rank] == nil && ranks[rr.Rank].Incarnation == rr.Incarnation && here(ranks[rr.Rank]) {
			by[rr.Rank] = rr
		}
	}
}
