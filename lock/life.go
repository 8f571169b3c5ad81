package lock

import (
	"fmt"
	"slices"

	"github.com/replicad/replicad/internal/planted"
	"github.com/replicad/replicad/replica"
)

// nextLife brings a job in line with a node's next life, in the entry that registers it. A claim that the node still runs goes on in
// that life; any other is at fault. A plan that names copies of the former life is void: those copies are gone, or held by the next.
//
// Invariant: a claim names the registered life of its node, or a condition speaks against it. Without that the rendezvous would wait
// for a fault that nobody reports (leader.standing).
func nextLife(j *replica.Job, nodes map[replica.NodeName]replica.Node, was, is replica.Holder, runs func(replica.Rank, replica.Incarnation) bool) (changed bool) {
	if planted.Incarnation {
		return false
	}
	moved := moveClaims(j, was, is, runs)
	var dead []replica.Fault
	for r, c := range j.Ranks {
		r := replica.Rank(r)
		if c.Incarnation != 0 && c.Node == is.Node && c.NodeIncarnation != is.Incarnation && !ClaimFaulted(j, r, c, true) {
			dead = append(dead, replica.Fault{Epoch: j.Epoch, Kind: replica.ProcessDead, Rank: r, Incarnation: c.Incarnation,
				Detail: fmt.Sprintf("node %s came back with another memory and without the process", is.Node)})
		}
	}
	void := j.Phase == replica.Planned && plansFrom(j.Plan, was)
	if void || len(dead) > 0 {
		closeEpoch(j, nodes)
		j.Faults = append(slices.Clone(j.Faults), dead...)
	}
	return moved || void || len(dead) > 0
}

// moveClaims has the claims that a node still runs name its next life. That is a sign of life: conditions against the former one end, and
// what else was said of the node is said of the next.
func moveClaims(j *replica.Job, was, is replica.Holder, runs func(replica.Rank, replica.Incarnation) bool) bool {
	ranks := slices.Clone(j.Ranks)
	for r := range ranks {
		if c := &ranks[r]; c.Incarnation != 0 && c.Node == is.Node && runs(replica.Rank(r), c.Incarnation) {
			c.NodeIncarnation = is.Incarnation
		}
	}
	if slices.Equal(ranks, j.Ranks) {
		return false
	}
	j.Ranks = ranks
	revive(j, was)
	if slices.ContainsFunc(j.Faults, func(f replica.Fault) bool { return ofHolder(f, was) }) {
		j.Faults = slices.Clone(j.Faults)
		for i := range j.Faults {
			if ofHolder(j.Faults[i], was) {
				j.Faults[i].NodeIncarnation = is.Incarnation
			}
		}
	}
	return true
}

// plansFrom tells whether a plan takes a part from a holder.
func plansFrom(p *replica.Plan, h replica.Holder) bool {
	return slices.ContainsFunc(p.Sources, func(s replica.Source) bool { return slices.Contains(s.Holders, h) })
}
