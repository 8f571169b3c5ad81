package lock

import (
	"fmt"
	"slices"

	"github.com/replicad/replicad/replica"
)

// begin mints the epoch in which ranks attach and seal their initial state (protocol section 5.4). The one before must be
// closed: the first Begin follows CreateJob, each later one a fault of the opening.
func begin(j *replica.Job, nodes map[replica.NodeName]replica.Node, c replica.Begin) (bool, error) {
	if err := running(j); err != nil {
		return false, err
	}
	switch {
	case c.Epoch == j.Epoch && j.Phase == replica.Opening && j.ClosedEpoch < j.Epoch:
		return false, nil
	case c.Epoch <= j.Epoch:
		return false, refuse(Stale, "begin epoch %d: job %s has minted %d", c.Epoch, j.Name, j.Epoch)
	case c.Epoch > j.Epoch+1 || c.Epoch > replica.MaxEpoch:
		return false, refuse(Invalid, "begin epoch %d: the next unused of job %s is %d, the last %d", c.Epoch, j.Name, j.Epoch+1, replica.MaxEpoch)
	case j.Phase != replica.Opening:
		return false, refuse(Conflict, "begin epoch %d: job %s is %v: only an opening begins an epoch, a plan creates the others", c.Epoch, j.Name, j.Phase)
	case j.ClosedEpoch < j.Epoch:
		return false, refuse(Conflict, "begin epoch %d: epoch %d of job %s is not closed", c.Epoch, j.Epoch, j.Name)
	}
	j.Epoch = c.Epoch
	j.Faults = standing(j, nodes)
	return true, nil
}

// claim takes a rank by compare-and-set on its incarnation (protocol section 6, Assignment). Free to take is a rank that
// nobody holds, or one whose incarnation is in a present fault or on a quarantined node, while the job is Opening or Closed.
func claim(j *replica.Job, nodes map[replica.NodeName]replica.Node, c replica.Claim) (replica.Incarnation, bool, error) {
	if err := running(j); err != nil {
		return 0, false, err
	}
	if c.Rank >= replica.Rank(j.Layout.World) {
		return 0, false, refuse(Unknown, "claim rank %d: job %s has ranks 0 to %d", c.Rank, j.Name, j.Layout.World-1)
	}
	now := j.Ranks[c.Rank]
	// A repeated claim is recognised before anything else: whatever came of the job since, this claimant holds the rank.
	if c.Nonce != 0 && c.Nonce == now.Nonce && c.Expect < now.Incarnation && c.Holder == (replica.Holder{Node: now.Node, Incarnation: now.NodeIncarnation}) {
		return now.Incarnation, false, nil
	}
	if err := notStopped(j, fmt.Sprintf("claim rank %d", c.Rank)); err != nil {
		return 0, false, err
	}
	if err := claimable(j, c, now); err != nil {
		return 0, false, err
	}
	if err := checkHolder(j, nodes, c.Holder); err != nil {
		return 0, false, err
	}
	if err := fits(j, c); err != nil {
		return 0, false, err
	}
	group := j.Layout.Groups[c.Rank] // its own, while the ranks name theirs
	j.NextIncarnation++
	j.Ranks = slices.Clone(j.Ranks)
	j.Ranks[c.Rank] = replica.Claimed{Incarnation: j.NextIncarnation, Node: c.Holder.Node, NodeIncarnation: c.Holder.Incarnation, Nonce: c.Nonce}
	j.GroupGeometry = slices.Clone(j.GroupGeometry)
	j.GroupGeometry[group] = c.Geometry
	if err := name(j, c); err != nil {
		return 0, false, err
	}
	// A rank's private part is never mirrored on its own node.
	if own := j.Mirrors[c.Rank]; slices.Contains(own, c.Holder.Node) {
		j.Mirrors = slices.Clone(j.Mirrors)
		j.Mirrors[c.Rank] = slices.DeleteFunc(slices.Clone(own), func(n replica.NodeName) bool { return n == c.Holder.Node })
	}
	return j.NextIncarnation, true, nil
}

// claimable refuses a claim of a rank that isn't free to take.
func claimable(j *replica.Job, c replica.Claim, now replica.Claimed) error {
	held := now.Incarnation != 0 && !ClaimFaulted(j, c.Rank, now, false) && !slices.Contains(j.Quarantined, now.Node)
	switch {
	case c.Expect < now.Incarnation:
		return refuse(Stale, "claim rank %d: expected incarnation %d, but %d on node %s holds it", c.Rank, c.Expect, now.Incarnation, now.Node)
	case c.Expect > now.Incarnation:
		return refuse(NotYet, "claim rank %d: expected incarnation %d, but it has only %d", c.Rank, c.Expect, now.Incarnation)
	case j.Growth != nil:
		return refuse(NotYet, "claim rank %d: job %s grows, with the processes that it has: ranks are claimed again once it has, or a fault has taken the growth back", c.Rank, j.Name)
	case held && j.Phase != replica.Opening && j.Phase != replica.Closed:
		return refuse(NotYet, "claim rank %d: job %s is %v and incarnation %d on node %s holds it: it is free once a fault of it is applied", c.Rank, j.Name, j.Phase, now.Incarnation, now.Node)
	case j.Phase != replica.Opening && j.Phase != replica.Closed:
		return refuse(NotYet, "claim rank %d: job %s is %v: ranks are claimed while it is opening or closed", c.Rank, j.Name, j.Phase)
	case held:
		return refuse(Conflict, "claim rank %d: incarnation %d on node %s holds it and is in no fault: another live process has this rank", c.Rank, now.Incarnation, now.Node)
	}
	return nil
}

// fits refuses a claimant that doesn't understand the job as the others do. The first claim of a group fixes its geometry,
// and so does a later one as long as there is nothing to load and no other rank of the group is held.
func fits(j *replica.Job, c replica.Claim) error {
	group := j.Layout.Groups[c.Rank]
	if j.Naming == nil && c.Group != group {
		return refuse(Invalid, "claim rank %d: the process says group %d, the job's layout says %d: start it with the job's groups", c.Rank, c.Group, group)
	}
	if c.Geometry.IsZero() {
		return refuse(Invalid, "claim rank %d: no geometry digest", c.Rank)
	}
	want := j.GroupGeometry[group]
	if j.Naming != nil || want.IsZero() || want == c.Geometry {
		return nil
	}
	held := !j.Committed.IsZero() || !j.Durable.IsZero()
	for r, g := range j.Layout.Groups {
		r := replica.Rank(r)
		held = held || g == group && r != c.Rank && j.Ranks[r].Incarnation != 0 && !ClaimFaulted(j, r, j.Ranks[r], false)
	}
	if held {
		return refuse(Conflict, "claim rank %d: its regions have geometry %v, group %d has %v: register the same regions in the same order on all ranks of a group", c.Rank, c.Geometry, group, want)
	}
	return nil
}
