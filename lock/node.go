package lock

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/replicad/replicad/replica"
)

// maxFormer is how many superseded incarnations of a node are remembered: a duplicate older than sixteen keeper starts
// would have to have been under way for as long.
const maxFormer = 16

// registerNode records a daemon's start. Numbers of one keeper rise; a new keeper mints its own at random, so superseded
// ones are remembered and refused for good (protocol section 2).
//
// A registration is a sign of life: NodeDead and Silent faults against this very incarnation end with it. Whatever process
// is gone all the same is reported by the daemon itself. What rests on the former incarnation ends in this same entry, or goes
// on in the new one (nextLife). Another boot id proves that the memory of the former incarnation is lost (section 6).
func (s *State) registerNode(index uint64, c replica.RegisterNode) Outcome {
	n := c.Node
	if err := replica.CheckName(string(n.Name)); err != nil {
		return Outcome{Err: refuse(Invalid, "register: %v", err)}
	}
	if n.Incarnation == 0 || n.Session == 0 {
		return Outcome{Err: refuse(Invalid, "register node %s: incarnation %d, session %d: neither may be 0", n.Name, n.Incarnation, n.Session)}
	}
	old, known := s.v.Nodes[n.Name]
	switch {
	case known && n.Incarnation == old.Incarnation && n.Session < old.Session:
		return Outcome{Err: refuse(Stale, "register node %s: session %d, but its daemon has since started session %d", n.Name, n.Session, old.Session)}
	case known && slices.Contains(old.Former, n.Incarnation):
		return Outcome{Err: refuse(Stale, "register node %s: incarnation %d was superseded by %d", n.Name, n.Incarnation, old.Incarnation)}
	}
	if c.Limit > 0 {
		if err := fitsNode(s.v, n, c.Limit); err != nil {
			return Outcome{Err: err}
		}
	}
	n.Addrs, n.Labels, n.Former = slices.Clone(n.Addrs), maps.Clone(n.Labels), old.Former
	if known && n.Incarnation != old.Incarnation {
		n.Former = append(slices.Clone(old.Former), old.Incarnation)
		n.Former = n.Former[max(0, len(n.Former)-maxFormer):]
	}
	if s.v.Fleet == "" {
		s.v.Fleet = fmt.Sprintf("%s-%x", n.Name, uint64(n.Incarnation))
	}
	changed := !known || !reflect.DeepEqual(old, n)
	if changed {
		s.v.Nodes = maps.Clone(s.v.Nodes)
		s.v.Nodes[n.Name] = n
	}
	for _, id := range s.sortedJobs() {
		out := s.change(index, id, func(j *replica.Job) (bool, error) {
			if j.Phase == replica.Ended {
				return false, nil
			}
			revived := revive(j, n.Holder())
			if !known || n.Incarnation == old.Incarnation {
				return revived, nil
			}
			rebooted := n.Boot != old.Boot
			proved := rebooted && recorded(j, old.Holder()) && addProved(j, old.Holder())
			runs := func(r replica.Rank, i replica.Incarnation) bool { // no process outlives its host
				return !rebooted && slices.Contains(c.Running, replica.Running{Job: j.ID, Rank: r, Incarnation: i})
			}
			return nextLife(j, s.v.Nodes, old.Holder(), n.Holder(), runs) || proved || revived, nil
		})
		changed = changed || out.Changed
	}
	return Outcome{Changed: changed}
}

// sortedJobs gives the jobs in one order on every voter.
func (s *State) sortedJobs() []replica.JobID {
	return slices.SortedFunc(maps.Keys(s.v.Jobs), func(a, b replica.JobID) int { return strings.Compare(string(a[:]), string(b[:])) })
}

// revive drops what was said of a node that now registered: that it is dead or silent.
func revive(j *replica.Job, h replica.Holder) bool {
	gone := func(f replica.Fault) bool { return f.Kind.IsCondition() && ofHolder(f, h) }
	if !slices.ContainsFunc(j.Faults, gone) {
		return false
	}
	j.Faults = slices.DeleteFunc(slices.Clone(j.Faults), gone)
	return true
}

// recorded tells whether the job's records name the holder: only then does a proof about it matter.
func recorded(j *replica.Job, h replica.Holder) bool {
	for _, c := range j.Ranks {
		if c.Node == h.Node && c.NodeIncarnation == h.Incarnation {
			return true
		}
	}
	names := func(p replica.PartRoot) bool { return slices.Contains(p.Holders, h) }
	return slices.ContainsFunc(j.Parts, names) || j.Previous != nil && slices.ContainsFunc(j.Previous.Parts, names)
}

func addProved(j *replica.Job, h replica.Holder) bool {
	if slices.Contains(j.Proved, h) {
		return false
	}
	j.Proved = append(slices.Clone(j.Proved), h)
	return true
}

func ofHolder(f replica.Fault, h replica.Holder) bool {
	return f.OfNode() && f.Node == h.Node && f.NodeIncarnation == h.Incarnation
}

func holdsRank(j *replica.Job, h replica.Holder) bool {
	return slices.ContainsFunc(j.Ranks, func(c replica.Claimed) bool {
		return c.Incarnation != 0 && c.Node == h.Node && c.NodeIncarnation == h.Incarnation
	})
}

// ClaimFaulted tells whether a present fault speaks against the claim of rank r; with conditions, only faults that make
// its incarnation unfit to be planned again (its process or node dead or silent) count. Events need no new claim: after an
// exception the same incarnation may go on (protocol section 6).
func ClaimFaulted(j *replica.Job, r replica.Rank, c replica.Claimed, conditions bool) bool {
	for _, f := range j.Faults {
		if conditions && !f.Kind.IsCondition() {
			continue
		}
		if f.OfNode() && ofHolder(f, replica.Holder{Node: c.Node, Incarnation: c.NodeIncarnation}) || !f.OfNode() && f.Rank == r && f.Incarnation == c.Incarnation {
			return c.Incarnation != 0
		}
	}
	return false
}

// HolderFaulted tells whether a node's pins don't count: it is dead or silent, or, holding no rank, it has any fault
// (protocol section 6: a fault on such a node voids its pins). The node of a rank whose program failed still holds.
func HolderFaulted(j *replica.Job, h replica.Holder) bool {
	for _, f := range j.Faults {
		if ofHolder(f, h) && (f.Kind.IsCondition() || !holdsRank(j, h)) {
			return true
		}
	}
	return false
}

// HolderGone tells whether a fault takes a node's copies away: it is dead or silent. What any other fault says of a node, a drain
// among them, bars it from new ranks and new pins, not from serving parts that a plan names the roots of.
func HolderGone(j *replica.Job, h replica.Holder) bool {
	return slices.ContainsFunc(j.Faults, func(f replica.Fault) bool { return f.Kind.IsCondition() && ofHolder(f, h) })
}

// checkHolder refuses a holder whose word doesn't count now: another life of the node is registered, or it is at fault or
// quarantined (protocol section 5).
func checkHolder(j *replica.Job, nodes map[replica.NodeName]replica.Node, h replica.Holder) error {
	n, ok := nodes[h.Node]
	switch {
	case !ok:
		return refuse(Unknown, "node %s is not registered", h.Node)
	case n.Incarnation != h.Incarnation:
		return refuse(Stale, "node %s has incarnation %d, not %d", h.Node, n.Incarnation, h.Incarnation)
	case HolderFaulted(j, h):
		return refuse(Conflict, "node %s (incarnation %d) is in a fault of job %s", h.Node, h.Incarnation, j.Name)
	case slices.Contains(j.Quarantined, h.Node):
		return refuse(Conflict, "node %s is quarantined for job %s until it is cleared", h.Node, j.Name)
	}
	return nil
}
