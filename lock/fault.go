package lock

import (
	"fmt"
	"slices"

	"github.com/replicad/replicad/replica"
)

// maxDetail caps the text of a fault in the log, in bytes.
const maxDetail = 512

// reportFault records evidence (protocol section 6). It must cite the newest epoch and the incarnation that is: the first
// fault closes the epoch, more join until a plan exists, one after the plan closes the planned epoch. On a superseded
// incarnation it changes nothing; of a node that holds no rank it closes nothing, but voids that node's pins (its holders
// are refused while the fault stands) and takes its mirrors away.
func reportFault(j *replica.Job, nodes map[replica.NodeName]replica.Node, f replica.Fault) (bool, error) {
	if err := running(j); err != nil {
		return false, err
	}
	if err := checkFault(j, f); err != nil {
		return false, err
	}
	if err := cites(j, "fault", f.Epoch); err != nil {
		return false, err
	}
	var closes bool
	if f.OfNode() {
		if err := checkLife(j, nodes, f); err != nil {
			return false, err
		}
		closes = holdsRank(j, replica.Holder{Node: f.Node, Incarnation: f.NodeIncarnation})
	} else {
		switch now := j.Ranks[f.Rank].Incarnation; {
		case f.Incarnation < now:
			return false, refuse(Stale, "fault of rank %d: incarnation %d was superseded by %d", f.Rank, f.Incarnation, now)
		case f.Incarnation > now:
			return false, refuse(NotYet, "fault of rank %d: incarnation %d, but it has only %d", f.Rank, f.Incarnation, now)
		}
		closes = true
	}
	// An event belongs to its epoch: the same one may happen again in the next. A condition lasts.
	if slices.ContainsFunc(j.Faults, func(o replica.Fault) bool {
		return sameSubject(o, f) && o.Kind == f.Kind && (f.Kind.IsCondition() || o.Epoch == f.Epoch)
	}) {
		return false, nil
	}
	f.Detail = replica.Cut(f.Detail, maxDetail)
	if closes {
		closeEpoch(j, nodes)
	} else {
		dropMirror(j, f.Node)
	}
	j.Faults = append(slices.Clone(j.Faults), f)
	return true, nil
}

// cites checks that a command names the newest epoch: an older one belongs to what is over, a newer one is not known yet.
func cites(j *replica.Job, what string, e replica.Epoch) error {
	if e < j.Epoch {
		return refuse(Stale, "%s cites epoch %d: the newest of job %s is %d", what, e, j.Name, j.Epoch)
	}
	if e > j.Epoch {
		return refuse(NotYet, "%s cites epoch %d: the newest of job %s is %d", what, e, j.Name, j.Epoch)
	}
	return nil
}

func checkFault(j *replica.Job, f replica.Fault) error {
	switch {
	case f.Kind < replica.ProcessDead || f.Kind > replica.Outvoted:
		return refuse(Invalid, "fault of unknown kind %d", f.Kind)
	case f.OfNode() && (f.Rank != 0 || f.Incarnation != 0):
		return refuse(Invalid, "fault of node %s also names rank %d, incarnation %d: name one subject", f.Node, f.Rank, f.Incarnation)
	case f.OfNode() && f.NodeIncarnation == 0, !f.OfNode() && f.Incarnation == 0:
		return refuse(Invalid, "%v fault without an incarnation", f.Kind)
	case f.Kind == replica.NodeDead && !f.OfNode():
		return refuse(Invalid, "node-dead fault of rank %d: name the node", f.Rank)
	case f.OfNode() && (f.Kind == replica.ProcessDead || f.Kind == replica.Exception || f.Kind == replica.Torn || f.Kind == replica.Outvoted):
		return refuse(Invalid, "%v fault of node %s: name the rank", f.Kind, f.Node)
	case !f.OfNode() && f.Rank >= replica.Rank(j.Layout.World):
		return refuse(Unknown, "fault of rank %d: job %s has ranks 0 to %d", f.Rank, j.Name, j.Layout.World-1)
	}
	return nil
}

// checkLife refuses a fault on a life of a node that is over: neither is it registered nor does any claim rest on it.
func checkLife(j *replica.Job, nodes map[replica.NodeName]replica.Node, f replica.Fault) error {
	n, ok := nodes[f.Node]
	switch {
	case !ok:
		return refuse(Unknown, "fault of node %s: it is not registered", f.Node)
	case n.Incarnation == f.NodeIncarnation, holdsRank(j, replica.Holder{Node: f.Node, Incarnation: f.NodeIncarnation}):
		return nil
	}
	return refuse(Stale, "fault of node %s: incarnation %d was superseded by %d", f.Node, f.NodeIncarnation, n.Incarnation)
}

func sameSubject(a, b replica.Fault) bool {
	return a.Rank == b.Rank && a.Incarnation == b.Incarnation && a.Node == b.Node && a.NodeIncarnation == b.NodeIncarnation
}

// closeEpoch closes the newest epoch, opened, planned or begun. A job that never resumed goes back to its opening: what it
// sealed is not eligible and the next Begin mints another epoch (protocol section 5.4).
func closeEpoch(j *replica.Job, nodes map[replica.NodeName]replica.Node) {
	if j.ClosedEpoch >= j.Epoch {
		return
	}
	j.Faults = standing(j, nodes)
	j.ClosedEpoch = j.Epoch
	j.Plan = nil
	if takeBack(j) {
		j.Phase = replica.Closed // it has a committed step to go back to
	}
	if j.Phase != replica.Opening {
		j.Phase = replica.Closed
	}
	if j.Committed.IsZero() {
		j.Phase = replica.Opening
	}
}

// standing are the faults that outlive their epoch: conditions against who still holds a rank, or against a node's present
// life. Events end when their epoch closes (protocol section 6).
func standing(j *replica.Job, nodes map[replica.NodeName]replica.Node) []replica.Fault {
	var keep []replica.Fault
	for _, f := range j.Faults {
		switch {
		case !f.Kind.IsCondition():
		case f.OfNode():
			h := replica.Holder{Node: f.Node, Incarnation: f.NodeIncarnation}
			if nodes[f.Node].Incarnation == f.NodeIncarnation || holdsRank(j, h) {
				keep = append(keep, f)
			}
		case f.Rank < replica.Rank(len(j.Ranks)) && j.Ranks[f.Rank].Incarnation == f.Incarnation:
			keep = append(keep, f)
		}
	}
	return keep
}

// dropMirror takes a node's mirrors away.
func dropMirror(j *replica.Job, n replica.NodeName) {
	without := func(lists [][]replica.NodeName) [][]replica.NodeName {
		if !slices.ContainsFunc(lists, func(l []replica.NodeName) bool { return slices.Contains(l, n) }) {
			return lists
		}
		lists = slices.Clone(lists)
		for i, l := range lists {
			if slices.Contains(l, n) {
				lists[i] = slices.DeleteFunc(slices.Clone(l), func(o replica.NodeName) bool { return o == n })
			}
		}
		return lists
	}
	j.Mirrors, j.GroupMirrors = without(j.Mirrors), without(j.GroupMirrors)
}

// reportDispute records two different roots actually reported for one generation of one group, and closes the epoch
// (protocol section 5.3). It is refused at or below the committed step. Who is suspect follows from the votes alone; whom a
// majority has outvoted is at fault, so that nothing it produced is built upon before its process has been replaced.
func reportDispute(j *replica.Job, nodes map[replica.NodeName]replica.Node, c replica.ReportDispute) (bool, error) {
	if err := running(j); err != nil {
		return false, err
	}
	d := c.Dispute
	if err := checkVotes(j, d); err != nil {
		return false, err
	}
	if slices.ContainsFunc(j.Disputed, func(o replica.Dispute) bool { return o.Group == d.Group && o.Generation == d.Generation }) {
		return false, nil
	}
	if err := cites(j, "dispute", c.Epoch); err != nil {
		return false, err
	}
	if d.Generation.Epoch > j.Epoch || d.Generation.Epoch < j.Epoch && !j.Lineage.Valid(d.Generation) {
		return false, refuse(Stale, "dispute of %v: not a generation of job %s's history", d.Generation, j.Name)
	}
	if !j.Committed.IsZero() && d.Generation.Step <= j.Position.Step {
		return false, refuse(Stale, "dispute of %v: job %s is committed at %v", d.Generation, j.Name, j.Position)
	}
	d.Votes, d.Suspects = slices.Clone(d.Votes), Suspects(d.Votes)
	for i, v := range d.Votes {
		d.Votes[i].Node, d.Votes[i].Incarnation = j.Ranks[v.Rank].Node, j.Ranks[v.Rank].Incarnation
	}
	closeEpoch(j, nodes)
	j.Disputed = append(slices.Clone(j.Disputed), d)
	if !d.Majority() {
		return true, nil
	}
	j.Faults = slices.Clone(j.Faults)
	for _, r := range d.Suspects {
		if v := d.Vote(r); v.Incarnation != 0 {
			j.Faults = append(j.Faults, replica.Fault{Epoch: c.Epoch, Kind: replica.Outvoted, Rank: r, Incarnation: v.Incarnation,
				Detail: fmt.Sprintf("its root of group %d at step %d is %v, the majority has another", d.Group, d.Generation.Step, v.Root)})
		}
	}
	return true, nil
}

func checkVotes(j *replica.Job, d replica.Dispute) error {
	if int(d.Group) >= len(j.GroupGeometry) {
		return refuse(Unknown, "dispute of group %d: job %s has groups 0 to %d", d.Group, j.Name, len(j.GroupGeometry)-1)
	}
	if nondeterministic(j, d.Group) {
		return refuse(Conflict, "dispute of group %d: it is declared non-deterministic, its lowest rank's root counts", d.Group)
	}
	seen := map[replica.Rank]bool{}
	roots := map[replica.Digest]bool{}
	for _, v := range d.Votes {
		if v.Rank >= replica.Rank(j.Layout.World) || j.Layout.Groups[v.Rank] != d.Group || seen[v.Rank] || v.Root.IsZero() {
			return refuse(Invalid, "dispute of group %d: vote of rank %d: want one root from each of the group's ranks", d.Group, v.Rank)
		}
		seen[v.Rank], roots[v.Root] = true, true
	}
	if len(roots) < 2 {
		return refuse(Invalid, "dispute of group %d at %v: %d different roots: want two that were actually reported", d.Group, d.Generation, len(roots))
	}
	return nil
}

// Suspects are the ranks that voted against a majority, or all that voted where there is none (protocol section 5.3).
func Suspects(votes []replica.Vote) []replica.Rank {
	count := map[replica.Digest]int{}
	for _, v := range votes {
		count[v.Root]++
	}
	var suspects []replica.Rank
	for _, v := range votes {
		if 2*count[v.Root] <= len(votes) {
			suspects = append(suspects, v.Rank)
		}
	}
	slices.Sort(suspects)
	return suspects
}

// disputedAt finds a dispute that a generation of this history at step s would rest on: one at or below it, in a generation
// that is still of this history (protocol section 5.3).
func disputedAt(j *replica.Job, s replica.Step) (replica.Dispute, bool) {
	for _, d := range j.Disputed {
		if d.Generation.Step <= s && (d.Generation.Epoch == j.Epoch || j.Lineage.Valid(d.Generation)) {
			return d, true
		}
	}
	return replica.Dispute{}, false
}

// condemn excludes a generation whose bytes are bad. A plan that rests on it can't be resumed: its epoch is closed.
func condemn(j *replica.Job, nodes map[replica.NodeName]replica.Node, c replica.Condemn) (bool, error) {
	if err := running(j); err != nil {
		return false, err
	}
	if c.Generation.IsZero() || c.Generation.Epoch > j.Epoch {
		return false, refuse(Invalid, "condemn %v: the newest epoch of job %s is %d", c.Generation, j.Name, j.Epoch)
	}
	if slices.Contains(j.Condemned, c.Generation) {
		return false, nil
	}
	if j.Phase == replica.Planned && j.Plan.Generation == c.Generation {
		closeEpoch(j, nodes)
	}
	j.Condemned = append(slices.Clone(j.Condemned), c.Generation)
	return true, nil
}

func nondeterministic(j *replica.Job, g replica.GroupID) bool {
	return int(g) < len(j.Options.Nondeterministic) && j.Options.Nondeterministic[g]
}
